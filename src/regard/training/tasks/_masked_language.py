"""Masked language modeling on the embedded text."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from regard.data import MaskedBatch, MaskedText, TextData, Vocabulary, load_text
from regard.support.checks import check_positive, check_probability
from regard.training.tasks._attention_maps import best_guesses, captured, on_device_of
from regard.training.tasks._case_conversion import IGNORE, token_outcome
from regard.training.tasks._task import Outcome, Sample, SampleAttention, Split, Task


@dataclass(frozen=True)
class MaskedLanguage(Task):
    """Predict the masked tokens of the embedded text.

    Args:
        level: ``"word"`` or ``"character"``.
        length: tokens of a window.
        rate: share of the tokens that are to be predicted.
        limit: use at most this many tokens of the text.
    """

    level: Literal["word", "character"] = "word"
    length: int = 32
    rate: float = 0.15
    limit: int | None = None

    kind = "text"
    target_name = "masked tokens"

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
        return token_outcome(network(batch.tokens, keep=batch.keep), batch.targets, len(self.vocabulary))

    def small(self) -> "MaskedLanguage":
        return dataclasses.replace(self, length=8, limit=500)

    def describe(self, sample: Sample) -> str:
        return self.vocabulary.decode(sample.batch.tokens[0], keep_special=True)

    @property
    def suggestion(self) -> str:
        """The first words of the validation text, one of them masked."""
        words = self.data.validation[: min(self.length, 10 if self.level == "word" else 40)].tolist()
        words[len(words) // 2] = self.vocabulary.mask
        return self.vocabulary.decode(words, keep_special=True)

    def read_text(self, text: str, variant: str) -> Sample:
        """A sample of a sentence with ``<mask>`` for each word to predict."""
        numbers = self.vocabulary.encode(text)
        if not numbers:
            raise ValueError("the sentence has no words")
        if len(numbers) > self.length:
            raise ValueError(
                f"the sentence has {len(numbers)} tokens; the network was trained on {self.length} at a time"
            )
        tokens = torch.tensor([numbers])
        keep = torch.ones_like(tokens, dtype=torch.bool)
        return Sample(MaskedBatch(tokens, torch.full_like(tokens, IGNORE), keep, torch.zeros(1, dtype=torch.long)))

    def attend(self, network: nn.Module, sample: Sample) -> SampleAttention:
        """The network's attention, and its best guesses for each masked token."""
        batch = on_device_of(network, sample.batch)
        scores: list[Tensor] = []
        maps = captured(network, lambda: scores.append(network(batch.tokens, keep=batch.keep)))
        chances = scores[0][0].float().softmax(-1).cpu()
        numbers, names = batch.tokens[0].tolist(), self.vocabulary.tokens
        guesses = [
            best_guesses(chances[at], names) for at, number in enumerate(numbers) if number == self.vocabulary.mask
        ]
        return SampleAttention(maps, tokens=[names[number] for number in numbers], answer={"masked": guesses})
