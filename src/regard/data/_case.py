"""The case task: "<U> I am a student" → "I AM A STUDENT", "<L> I am a student" → "i am a student".

A model must read the task from the first token and copy every character. A recurrent encoder–decoder cannot do this for
long sentences, because all of the sentence must pass through one vector; attention can.
"""

import string
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from regard.data._random import random_below, random_coin
from regard.data._vocabulary import Vocabulary
from regard.support.checks import check_choice, check_positive, describe

UPPER, LOWER = "<U>", "<L>"
Split = Literal["train", "validation", "test"]


class SequenceBatch(NamedTuple):
    """Sources ``(n, s)`` and targets ``(n, t)`` as token numbers, padded, with masks that are True on tokens.

    ``target_input`` is ``<begin>`` and the answer, the decoder's input; ``target`` is the answer and ``<end>``.
    """

    source: Int64[Tensor, "n s"]
    source_keep: Bool[Tensor, "n s"]
    target_input: Int64[Tensor, "n t"]
    target: Int64[Tensor, "n t"]
    target_keep: Bool[Tensor, "n t"]
    indices: Int[Tensor, "n"]


class CaseTask:
    """An endless supply of sentences in mixed case. Sample i of a seed is always the same and is made on demand.

    A sentence has exactly the requested number of characters. Each word is in lower case, capitalized, in upper case or
    mixed letter by letter, with equal probability.

    Args:
        length: characters of a sentence, without the task's token: one number, or (shortest, longest).
        size: the samples of one epoch; the next epoch has new ones.
        split: ``"train"``, ``"validation"`` or ``"test"``, which have different sentences.
        device: the device of the batches.

    >>> task = regard.data.CaseTask(length=12)
    >>> task.answer("<U> I am a student")
    'I AM A STUDENT'
    >>> source, answer = task.example(0)
    >>> len(source) - len("<U> "), answer == task.answer(source)
    (12, True)
    >>> task.batch(torch.arange(2), seed=0, epoch=0).source.shape
    torch.Size([2, 14])
    """

    vocabulary = Vocabulary(" " + string.ascii_lowercase + string.ascii_uppercase, markers=(UPPER, LOWER))

    def __init__(
        self,
        length: int | tuple[int, int] = (8, 24),
        *,
        size: int = 10_000,
        split: Split = "train",
        device: torch.device | str = "cpu",
    ) -> None:
        if not isinstance(length, int | tuple | list):
            raise TypeError(f"length must be a whole number, or (shortest, longest), got {describe(length)}")
        ends = (length, length) if isinstance(length, int) else tuple(length)
        for end in ends:
            check_positive("length", end)
        if len(ends) != 2 or ends[0] > ends[1]:
            raise ValueError(f"length must be a whole number, or (shortest, longest), got {describe(length)}")
        shortest, longest = ends
        check_positive("size", size)
        check_choice("split", split, ("train", "validation", "test"))
        self.shortest, self.longest = shortest, longest
        self.size, self.split = size, split
        self.index_device = torch.device(device)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """(source, answer) of the samples 0, 1, 2, … of seed 0, without end."""
        index = 0
        while True:
            yield self.example(index)
            index += 1

    def answer(self, source: str) -> str:
        """The correct answer to a sentence that begins with ``<U>`` or ``<L>``."""
        for marker, change in ((UPPER, str.upper), (LOWER, str.lower)):
            if source.startswith(marker + " "):
                return change(source.removeprefix(marker + " "))
        raise ValueError(f"source must begin with {UPPER + ' '!r} or {LOWER + ' '!r}, got {source!r}")

    def example(self, index: int, *, seed: int = 0) -> tuple[str, str]:
        """Sample ``index`` as text: the sentence with its task, and the answer."""
        if isinstance(index, bool) or not isinstance(index, int) or index < 0:
            raise ValueError(f"index must be a whole number of 0 or more, got {describe(index)}")
        batch = self._make(torch.tensor([index], device=self.index_device), seed)
        return self.vocabulary.decode(batch.source[0]), self.vocabulary.decode(batch.target[0])

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> SequenceBatch:
        """Samples ``epoch · size + index``, all padded to the largest possible length."""
        return self._make(index.to(self.index_device) + epoch * self.size, seed)

    def _make(self, index: Tensor, seed: int) -> SequenceBatch:
        vocabulary, key = self.vocabulary, (seed, "case", self.split)
        length = self.shortest + random_below(index, self.longest - self.shortest + 1, *key, "length")
        letters, is_upper = _sentences(index, length, self.longest, key)
        to_upper = random_coin(index, *key, "task")

        inside = torch.arange(self.longest, device=index.device) < length[:, None]
        space, first = vocabulary.numbers[" "], vocabulary.numbers["a"]
        shown = {
            upper: torch.where(letters < 0, space, first + letters + len(string.ascii_lowercase) * upper)
            for upper in (False, True)
        }
        mixed = torch.where(is_upper, shown[True], shown[False])
        answer = torch.where(to_upper[:, None], shown[True], shown[False])
        mixed, answer = (x.masked_fill(~inside, vocabulary.pad) for x in (mixed, answer))

        marker = torch.where(to_upper, vocabulary.numbers[UPPER], vocabulary.numbers[LOWER])[:, None]
        source = torch.cat((marker, torch.full_like(marker, space), mixed), 1)
        target = torch.cat((answer, torch.full_like(marker, vocabulary.pad)), 1)
        target = target.scatter(1, length[:, None], vocabulary.end)
        target_input = torch.cat((torch.full_like(marker, vocabulary.begin), answer), 1)
        return SequenceBatch(source, source != vocabulary.pad, target_input, target, target != vocabulary.pad, index)


def _sentences(index: Tensor, length: Tensor, longest: int, key: tuple[int | str, ...]) -> tuple[Tensor, Tensor]:
    """Letters 0 … 25 (−1: a space) of sentences of exactly ``length`` characters, and which of them are upper case."""
    table = _word_table(index.device)
    letters = torch.full((len(index), longest), -1, device=index.device)
    is_upper = torch.zeros_like(letters, dtype=torch.bool)
    at = torch.arange(longest, device=index.device)
    start = torch.zeros_like(index)
    place = index[:, None] * longest + at  # a different number for each character
    mixed = random_coin(place, *key, longest, "letter")
    for slot in range((longest + 1) // 2):
        left = length - start
        # A word fits if it ends the sentence or leaves room for a space and another word.
        shorter = table.up_to[(left - 2).clamp(0, table.longest)]
        ending = left.clamp(0, table.longest)
        exact = torch.where(left <= table.longest, table.up_to[ending] - table.up_to[(ending - 1).clamp(min=0)], 0)
        choices = (shorter + exact).clamp(min=1)
        pick = random_below(index, choices, *key, "word", slot)
        word = torch.where(pick < shorter, pick, table.up_to[(ending - 1).clamp(min=0)] + pick - shorter)
        style = random_below(index, 4, *key, "style", slot)[:, None]

        offset = at - start[:, None]
        here = (offset >= 0) & (offset < table.lengths[word][:, None]) & (left > 0)[:, None]
        spelled = table.letters[word].gather(1, offset.clamp(0, table.longest - 1))
        letters = torch.where(here, spelled, letters)
        capital = ((style == 1) & (offset == 0)) | (style == 2) | ((style == 3) & mixed)
        is_upper = is_upper | (here & capital)
        start = start + table.lengths[word] + 1
        if index.device.type == "cpu" and bool((start >= length).all()):
            break  # on other devices the synchronization would cost more than the empty rounds
    return letters, is_upper


class _WordTable(NamedTuple):
    letters: Tensor  # (words, longest), numbers of letters, −1 after the word
    lengths: Tensor  # (words,), growing
    up_to: Tensor  # (longest + 1,): how many words have at most this length
    longest: int


@lru_cache(maxsize=8)
def _word_table(device: torch.device) -> _WordTable:
    listed = (Path(__file__).parent / "files" / "words.txt").read_text(encoding="utf-8").lower().split()
    words = sorted(set(listed), key=lambda word: (len(word), word))
    longest = len(words[-1])
    letters = torch.full((len(words), longest), -1)
    for row, word in enumerate(words):
        letters[row, : len(word)] = torch.tensor([ord(letter) - ord("a") for letter in word])
    lengths = torch.tensor([len(word) for word in words])
    up_to = torch.searchsorted(lengths, torch.arange(longest + 1), right=True)
    return _WordTable(letters.to(device), lengths.to(device), up_to.to(device), longest)
