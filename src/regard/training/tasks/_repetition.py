"""Repetition: predict the next letter of a text with repeated pieces."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from regard.data import NextTokenBatch, RepeatedPieces, Vocabulary
from regard.support.checks import check_positive
from regard.training.tasks._attention_maps import best_guesses, captured, on_device_of
from regard.training.tasks._case_conversion import IGNORE, token_outcome
from regard.training.tasks._task import Outcome, Sample, SampleAttention, Split, Task


@dataclass(frozen=True)
class Repetition(Task):
    """Predict the next character where it can be looked up (see :class:`regard.data.RepeatedPieces`).

    Args:
        length: characters of a window.
        size: windows in an epoch; the next epoch has new ones.
        pieces: different pieces of a window.
        held_out: windows in the validation set and in the test set.
    """

    length: int = 64
    size: int = 10_000
    pieces: int = 4
    held_out: int = 500

    kind = "text"
    target_name = "characters"

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(name, value)

    @property
    def vocabulary(self) -> Vocabulary:
        return RepeatedPieces.vocabulary

    def examples(self, split: Split, device: torch.device) -> RepeatedPieces:
        size = self.size if split == "train" else self.held_out
        return RepeatedPieces(self.length, size=size, pieces=self.pieces, split=split, device=device)

    def targets(self, batch: NextTokenBatch) -> Tensor:
        return (batch.targets != IGNORE).sum()

    def outcome(self, network: nn.Module, batch: NextTokenBatch) -> Outcome:
        return token_outcome(network(None, batch.tokens), batch.targets, len(self.vocabulary))

    def small(self) -> "Repetition":
        return dataclasses.replace(self, length=24, size=64, held_out=16)

    def describe(self, sample: Sample) -> str:
        return self.vocabulary.decode(sample.batch.tokens[0])

    @property
    def suggestion(self) -> str:
        return "the cat saw the c"

    def read_text(self, text: str, variant: str) -> Sample:
        """A sample of a text whose next character is predicted."""
        numbers = self.vocabulary.encode(text.lower())
        if not numbers:
            raise ValueError("the text has no characters")
        if len(numbers) > self.length:
            raise ValueError(f"the text has {len(numbers)} characters; the network was trained on {self.length}")
        tokens = torch.tensor([numbers])
        return Sample(NextTokenBatch(tokens, torch.full_like(tokens, IGNORE), torch.zeros(1, dtype=torch.long)))

    def attend(self, network: nn.Module, sample: Sample) -> SampleAttention:
        """The network's attention, and its best guesses for the next character."""
        batch = on_device_of(network, sample.batch)
        scores: list[Tensor] = []
        maps = captured(network, lambda: scores.append(network(None, batch.tokens)))
        names = self.vocabulary.tokens
        guesses = best_guesses(scores[0][0, -1].float().softmax(-1).cpu(), names)
        tokens = [names[number] for number in batch.tokens[0].tolist()]
        return SampleAttention(maps, tokens=tokens, answer={"masked": [guesses]})
