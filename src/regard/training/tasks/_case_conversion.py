"""Case conversion: write a sentence in upper or lower case, character by character."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.data import CaseTask, SequenceBatch, Vocabulary
from regard.maps import Maps
from regard.support.checks import check_choice, check_positive
from regard.training.tasks._attention_maps import attention_maps, evaluation_mode, on_device_of
from regard.training.tasks._scores import checked_scores
from regard.training.tasks._task import Outcome, Sample, SampleAttention, Split, Task

IGNORE = -100  # a target that cross-entropy ignores
MARKERS = {"upper": "<U>", "lower": "<L>"}
MOST_EXTRA = 8  # characters that a network may write beyond the length of the correct answer


@dataclass(frozen=True)
class CaseConversion(Task):
    """Write a sentence in upper case (``<U>``) or in lower case (``<L>``), character by character.

    Training and validation use teacher forcing: the decoder sees the correct characters so far. The test also measures
    free running, where it sees its own (:func:`generation_accuracy`).

    Args:
        shortest, longest: characters of a sentence.
        size: sentences in an epoch; the next epoch has new ones.
        held_out: sentences in the validation set and in the test set.

    >>> from regard.training import CaseConversion
    >>> batch = CaseConversion(longest=8).examples("train", torch.device("cpu")).batch(torch.arange(2), seed=0, epoch=0)
    >>> batch.source.shape
    torch.Size([2, 10])
    """

    shortest: int = 8
    longest: int = 24
    size: int = 10_000
    held_out: int = 500

    kind = "case"
    target_name = "characters"
    metric_names = {  # noqa: RUF012  # a constant of the class, as the base declares it
        "accuracy": "test accuracy with teacher forcing",
        "characters": "of characters, free running",
        "sentences": "of whole sentences, free running",
    }

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
        scores = network(batch.source, batch.target_input, source_keep=batch.source_keep)
        return token_outcome(scores, batch.target.masked_fill(~batch.target_keep, IGNORE), len(self.vocabulary))

    def metrics(self, network: nn.Module, examples: Any, accuracy: Callable[[nn.Module], float]) -> dict[str, float]:
        return generation_accuracy(network, examples)._asdict()

    def small(self) -> "CaseConversion":
        return dataclasses.replace(self, shortest=3, longest=6, size=64, held_out=16)

    def sample(self, split: Split, index: int) -> Sample:
        sentence, _ = self.examples(split, torch.device("cpu")).example(index)
        return self._sample(sentence)

    def describe(self, sample: Sample) -> str:
        return self.vocabulary.decode(sample.batch.source[0])

    def read_text(self, text: str, variant: str) -> Sample:
        check_choice("variant", variant, tuple(MARKERS))
        return self._sample(f"{MARKERS[variant]} {text}")

    def _sample(self, sentence: str) -> Sample:
        answer = CaseTask().answer(sentence)
        source, keep = self.vocabulary.pad_together([sentence])
        target_input, _ = self.vocabulary.pad_together([answer], begin=True)
        target, target_keep = self.vocabulary.pad_together([answer], end=True)
        return Sample(SequenceBatch(source, keep, target_input, target, target_keep, torch.zeros(1, dtype=torch.long)))

    def attend(self, network: nn.Module, sample: Sample) -> SampleAttention:
        """The attention during free running, for one sentence, since answers differ in length."""
        batch, end = on_device_of(network, first_row(sample.batch)), self.vocabulary.end
        with evaluation_mode(network):
            written = generate(network, batch, batch.target.shape[1] - 1 + MOST_EXTRA)[0].tolist()
        if end in written:
            written = written[: written.index(end) + 1]
        heard = [self.vocabulary.begin, *written[:-1]]
        maps = attention_maps(network, batch.source, batch.source.new_tensor([heard]), source_keep=batch.source_keep)
        names = self.vocabulary.tokens
        tokens, said, told = ([names[i] for i in each] for each in (batch.source[0].tolist(), written, heard))
        text, answer = (self.vocabulary.decode(each) for each in (written, batch.target[0]))
        return SampleAttention(
            maps,
            tokens=(tokens, said),
            decoder_input=told,
            alignment=_alignment(maps),
            answer={"said": text, "answer": answer, "right": text == answer},
        )

    @property
    def suggestion(self) -> str:
        return "I am a student"

    @property
    def trained_lengths(self) -> tuple[int, int]:
        return self.shortest, self.longest

    def by_length(self, network: nn.Module, lengths: Sequence[int], samples: int = 200) -> dict[int, dict[str, float]]:
        """Free-running accuracy on test sentences of each length."""
        device = next(network.parameters(), torch.empty(0)).device
        for length in lengths:
            check_positive("lengths", length)
        tests = {length: CaseTask(length, size=samples, split="test", device=device) for length in lengths}
        return {length: generation_accuracy(network, test)._asdict() for length, test in tests.items()}


class GenerationAccuracy(NamedTuple):
    """Free-running accuracy: the share of correct characters (the end of the sentence included), and the share of
    sentences without an error."""

    characters: float
    sentences: float


@torch.no_grad()
def generation_accuracy(network: nn.Module, examples: CaseTask) -> GenerationAccuracy:
    """Let the network write the answers to all ``examples`` by greedy decoding, and compare.

    A character is correct where the answer has the same one at the same position; a missing one is wrong.
    """
    correct = asked = sentences = 0
    with evaluation_mode(network):
        for index in torch.arange(len(examples), device=examples.index_device).split(250):
            batch = examples.batch(index, seed=0, epoch=0)
            length, end = batch.target.shape[1], examples.vocabulary.end
            written = generate(network, batch, length)
            written = F.pad(written, (0, length - written.shape[1]), value=end)
            same = (written == batch.target) | ~batch.target_keep
            correct += int((same & batch.target_keep).sum())
            asked += int(batch.target_keep.sum())
            sentences += int(same.all(1).sum())
    return GenerationAccuracy(correct / asked, sentences / len(examples))


@torch.no_grad()
def generate(network: nn.Module, batch: SequenceBatch, tokens: int) -> Tensor:
    """The network's output by greedy decoding, up to ``tokens`` characters each."""
    write: Any = network.generate
    end = CaseTask.vocabulary.end
    written: Tensor = write(
        batch.source, batch.target_input[:, :1], tokens=tokens, end=end, source_keep=batch.source_keep
    )
    return written


def first_row(batch: SequenceBatch) -> SequenceBatch:
    return SequenceBatch(*(column[:1] for column in batch))


def token_outcome(scores: Any, targets: Tensor, vocab_size: int) -> Outcome:
    """Cross-entropy and correct predictions over all targets except ``IGNORE``; scores are (batch, tokens, vocabulary)."""
    scores = checked_scores(scores, tuple(targets.shape), "batch, tokens, vocabulary", vocab_size)
    loss = F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    correct = (scores.argmax(-1) == targets) & (targets != IGNORE)
    return Outcome(loss, correct.sum().float())


def _alignment(maps: Maps) -> Tensor | None:
    """The last layer that attends to the source, averaged over heads. A recurrent network has one such layer, named
    attention; a transformer also attends to its own output."""
    across = [each for each in maps.values() if each.name == "attention" or "cross_attention" in each.name]
    return across[-1].weights[0].mean(0) if across else None
