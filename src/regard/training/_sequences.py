"""Tasks on sequences: writing a sentence in another case, and guessing masked words."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import CaseTask, MaskedBatch, MaskedText, SequenceBatch, TextData, Vocabulary, load_text
from regard.support.checks import check_positive, check_probability
from regard.training._recipe import Outcome, Split, Task

IGNORE = -100  # a target that cross-entropy leaves out


@dataclass(frozen=True)
class CaseConversion(Task):
    """Write a sentence in capitals (``<U>``) or in small letters (``<L>``), character by character.

    In training and validation the decoder is told the right characters so far; :func:`said_right` lets it go by its
    own.

    Args:
        shortest, longest: characters of a sentence.
        size: sentences in an epoch; the next epoch's are new ones.
        held_out: sentences that validation uses.

    >>> from regard.training import CaseConversion
    >>> batch = CaseConversion(longest=8).examples("train", "cpu").batch(torch.arange(2), seed=0, epoch=0)
    >>> batch.source.shape
    torch.Size([2, 10])
    """

    shortest: int = 8
    longest: int = 24
    size: int = 10_000
    held_out: int = 500

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(name, value)

    @property
    def vocabulary(self) -> Vocabulary:
        return CaseTask.vocabulary

    def examples(self, split: Split, device: torch.device) -> CaseTask:
        size = self.size if split == "train" else self.held_out
        return CaseTask((self.shortest, self.longest), size=size, split=split, device=device)

    def targets(self, batch: SequenceBatch) -> Tensor:
        return batch.target_keep.sum()

    def outcome(self, network: nn.Module, batch: SequenceBatch) -> Outcome:
        scores = network(batch.source, batch.target_input, source_keep=batch.source_keep).float()
        return _tokens_right(scores, batch.target.masked_fill(~batch.target_keep, IGNORE))

    def pictures(self, network: nn.Module, examples: Any) -> dict[str, Any]:
        from regard.training._pictures import alignment

        batch = examples.batch(torch.arange(1, device=examples.index_device), seed=0, epoch=0)
        said, weights = alignment_of(network, batch)
        if weights is None:
            return {}
        words = self.vocabulary.tokens
        sources = [words[number] for number in batch.source[0, batch.source_keep[0]].tolist()]
        targets = [words[number] for number in said[0].tolist()]
        title = "How much each character that is said looks at each that was read"
        return {"alignment": alignment(weights[: len(targets), : len(sources)], sources, targets, title)}

    def small(self) -> "CaseConversion":
        return dataclasses.replace(self, shortest=3, longest=6, size=64, held_out=16)


@dataclass(frozen=True)
class MaskedLanguage(Task):
    """Guess the masked tokens of the embedded text.

    Args:
        level: ``"word"`` or ``"character"``.
        length: tokens of a window.
        rate: share of the tokens that are asked for.
        limit: use so many tokens of the text at most.
    """

    level: Literal["word", "character"] = "word"
    length: int = 32
    rate: float = 0.15
    limit: int | None = None

    def __post_init__(self) -> None:
        check_positive("length", self.length)
        check_probability("rate", self.rate)
        if self.limit is not None:
            check_positive("limit", self.limit)

    @cached_property
    def data(self) -> TextData:
        return load_text(self.level)

    @property
    def vocabulary(self) -> Vocabulary:
        return self.data.vocabulary

    def examples(self, split: Split, device: torch.device) -> MaskedText:
        tokens = self.data.test() if split == "test" else getattr(self.data, split)
        return MaskedText(tokens[: self.limit], self.vocabulary, self.length, rate=self.rate, device=device)

    def targets(self, batch: MaskedBatch) -> Tensor:
        return (batch.targets != IGNORE).sum()

    def outcome(self, network: nn.Module, batch: MaskedBatch) -> Outcome:
        return _tokens_right(network(batch.tokens, keep=batch.keep).float(), batch.targets)

    def small(self) -> "MaskedLanguage":
        return dataclasses.replace(self, length=8, limit=500)


class Said(NamedTuple):
    """How well a model writes by itself: the share of characters (of the answer and its end) and of whole sentences
    that are right."""

    characters: float
    sentences: float


@torch.no_grad()
def said_right(network: nn.Module, examples: CaseTask, *, batch_size: int = 250, seed: int = 0) -> Said:
    """Let the model write the answers to all ``examples`` greedily, and compare.

    A character is right where the answer has the same one at the same place; what is not said is wrong.
    """
    right = asked = sentences = 0
    was_training = network.training
    network.eval()
    try:
        for index in torch.arange(len(examples), device=examples.index_device).split(batch_size):
            batch = examples.batch(index, seed=seed, epoch=0)
            said = answers(network, batch)
            same = (said == batch.target) | ~batch.target_keep
            right += int((same & batch.target_keep).sum())
            asked += int(batch.target_keep.sum())
            sentences += int(same.all(1).sum())
    finally:
        network.train(was_training)
    return Said(right / asked, sentences / len(examples))


def answers(network: nn.Module, batch: SequenceBatch) -> Tensor:
    """What the model says to each source by itself, padded to the length of the targets."""
    vocabulary = CaseTask.vocabulary
    prompt, length = batch.target_input[:, :1], batch.target.shape[1]
    generate: Any = network.generate
    said = generate(batch.source, prompt, tokens=length, end=vocabulary.end, source_keep=batch.source_keep)
    return F.pad(said, (0, length - said.shape[1]), value=vocabulary.end)


def length_sweep(
    network: nn.Module, lengths: Sequence[int], *, samples: int = 200, device: torch.device | str = "cpu"
) -> list[Said]:
    """How well the model writes sentences of each of these lengths, none of which it was trained on."""
    for length in lengths:
        check_positive("lengths", length)
    tasks = (CaseTask(length, size=samples, split="test", device=device) for length in lengths)
    return [said_right(network, task) for task in tasks]


@torch.no_grad()
def alignment_of(network: nn.Module, batch: SequenceBatch) -> tuple[Tensor, Tensor | None]:
    """What the model says to the first source, and where it looked for each character, ``(said, read)``; the mean over
    heads of the last layer that looks at the source. None for a model that cannot look back."""
    from regard.training._pictures import attention_of

    first = type(batch)(*(column[:1] for column in batch))
    was_training = network.training
    network.eval()
    try:
        said = answers(network, first)
    finally:
        network.train(was_training)
    said = said[:, : int(first.target_keep.sum())]
    told = torch.cat((first.target_input[:, :1], said[:, :-1]), 1)
    maps = attention_of(network, first.source, told, source_keep=first.source_keep)
    # A recurrent model attends to its source alone; a transformer also to itself.
    across = [each for each in maps.values() if each.name == "attention" or "cross_attention" in each.name]
    return said, across[-1].weights[0].mean(0) if across else None


def _tokens_right(scores: Tensor, targets: Tensor) -> Outcome:
    loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    right = (scores.argmax(-1) == targets) & (targets != IGNORE)
    return Outcome(loss, right.sum().float())
