"""The embedded text, and samples of it for masked-token and next-token prediction."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple, get_args

import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor

from regard.data._chronicle import chronicle
from regard.data._random import random_below, random_number, random_uniform
from regard.data._vocabulary import Level, Vocabulary
from regard.support.checks import (
    check_choice,
    check_device,
    check_flag,
    check_positive,
    check_probability,
    check_tensor,
    describe,
)

IGNORE = -100
_DAYS = 168  # six years
_HELD_OUT = 0.1
_SHOWN = 40  # characters of a text in its repr


@lru_cache(maxsize=1)
def embedded_text() -> str:
    """The text inside the package: a story of a village, then its diary.

    >>> text = regard.data.embedded_text()
    >>> text[:57], len(text) > 50_000
    ('The village of Sallow lies where the river meets the sea.', True)
    """
    story = (Path(__file__).parent / "files" / "village.txt").read_text(encoding="utf-8")
    paragraphs = [" ".join(paragraph.split()) for paragraph in story.split("\n\n")]
    return "\n\n".join([*paragraphs, chronicle(_DAYS)]) + "\n"


@dataclass(frozen=True, eq=False, repr=False)
class TextData:
    """A text as token numbers, split at paragraphs: the last tenth is the test set, the tenth before it validation.

    >>> regard.data.TextData("It is cold. It is Monday.", "word")
    TextData('It is cold. It is Monday.', level='word', characters=25)
    """

    text: str
    level: Level

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"text must be a string, got {describe(self.text)}")
        check_choice("level", self.level, get_args(Level))

    def __repr__(self) -> str:
        begin = self.text if len(self.text) <= _SHOWN else self.text[: _SHOWN - 1] + "…"
        return f"TextData({begin!r}, level={self.level!r}, characters={len(self.text)})"

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Every character, or every word of the training part."""
        words_of = self._part(0.0, 1 - 2 * _HELD_OUT)
        return Vocabulary.of(self.text if self.level == "character" else words_of, level=self.level)

    @cached_property
    def train(self) -> Int64[Tensor, "n"]:
        return self._tokens(0.0, 1 - 2 * _HELD_OUT)

    @cached_property
    def validation(self) -> Int64[Tensor, "n"]:
        return self._tokens(1 - 2 * _HELD_OUT, 1 - _HELD_OUT)

    def test(self) -> Int64[Tensor, "n"]:
        """The test set, for the final evaluation of a finished model."""
        return self._tokens(1 - _HELD_OUT, 1.0)

    def _part(self, begin: float, end: float) -> str:
        first, last = (self._cut(share) for share in (begin, end))
        return self.text[first:last]

    def _cut(self, share: float) -> int:
        at = round(share * len(self.text))
        if at in (0, len(self.text)):
            return at
        paragraph = self.text.find("\n\n", at)
        return len(self.text) if paragraph < 0 else paragraph + 2

    def _tokens(self, begin: float, end: float) -> Tensor:
        return torch.tensor(self.vocabulary.encode(self._part(begin, end)), dtype=torch.int64)


def load_text(level: Level = "word") -> TextData:
    """The embedded text, split, with a token for each ``"word"`` or each ``"character"``.

    >>> data = regard.data.load_text("word")
    >>> data.vocabulary.decode(data.train[:6])
    'the village of sallow lies where'
    """
    return TextData(embedded_text(), level)


class MaskedBatch(NamedTuple):
    """``tokens``, some of them masked. ``targets`` holds the original token at each masked place and −100, which
    cross-entropy ignores, elsewhere. ``keep`` is True on tokens, here everywhere."""

    tokens: Int64[Tensor, "n tokens"]
    targets: Int64[Tensor, "n tokens"]
    keep: Bool[Tensor, "n tokens"]
    indices: Int[Tensor, "n"]


class NextTokenBatch(NamedTuple):
    """``targets[:, t]`` is the token after ``tokens[:, t]``."""

    tokens: Int64[Tensor, "n tokens"]
    targets: Int64[Tensor, "n tokens"]
    indices: Int[Tensor, "n"]


class _Windows:
    """Consecutive windows of a text. There is one fewer than would fit, so that the first window can begin at a
    different place in each epoch."""

    def __init__(self, tokens: Int64[Tensor, "n"], length: int, span: int, device: torch.device | str) -> None:
        check_positive("length", length)
        check_tensor("tokens", tokens)
        if tokens.ndim != 1 or tokens.dtype != torch.int64:
            raise ValueError(f"tokens must be an int64 tensor (n,), got {describe(tokens)}")
        self.length, self.span = length, span
        self.count = (len(tokens) - span + 1) // length
        if self.count < 1:
            raise ValueError(
                f"tokens holds {len(tokens)} tokens, too few for windows of {length}: it must have length + 1 at least"
            )
        self.tokens = tokens.to(check_device("device", device))
        # How far all windows can be shifted and still be inside the text.
        self.slack = len(tokens) - span - (self.count - 1) * length

    @property
    def index_device(self) -> torch.device:
        return self.tokens.device

    def __len__(self) -> int:
        return self.count

    def windows(self, index: Tensor, seed: int, epoch: int) -> Tensor:
        shift = random_number(self.slack + 1, seed, epoch, "window")
        at = index[:, None] * self.length + shift + torch.arange(self.span, device=index.device)
        return self.tokens[at]


class MaskedText(_Windows):
    """Samples for masked-token prediction: windows of ``length`` tokens, masked by :func:`mask_tokens`. With
    ``class_token`` each begins with a ``<class>`` token.

    >>> from regard.data import MaskedText, load_text
    >>> data = load_text("word")
    >>> batch = MaskedText(data.train, data.vocabulary, length=32).batch(torch.arange(4), seed=0, epoch=0)
    >>> tuple(batch.tokens.shape), bool((batch.targets == -100).any())
    ((4, 32), True)
    """

    def __init__(
        self,
        tokens: Int64[Tensor, "n"],
        vocabulary: Vocabulary,
        length: int,
        *,
        rate: float = 0.15,
        class_token: bool = False,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(tokens, length, length, device)
        if not isinstance(vocabulary, Vocabulary):
            raise TypeError(f"vocabulary must be a regard.data.Vocabulary, got {describe(vocabulary)}")
        check_probability("rate", rate)
        check_flag("class_token", class_token)
        self.vocabulary, self.rate, self.class_token = vocabulary, rate, class_token

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> MaskedBatch:
        windows = self.windows(index, seed, epoch)
        if self.class_token:
            windows = torch.cat((torch.full_like(windows[:, :1], self.vocabulary.class_), windows), 1)
        tokens, targets = mask_tokens(windows, self.vocabulary, index, rate=self.rate, seed=seed, epoch=epoch)
        return MaskedBatch(tokens, targets, torch.ones_like(tokens, dtype=torch.bool), index)


class NextTokens(_Windows):
    """Samples for next-token prediction: windows of ``length`` tokens, and the same windows one token later.

    >>> from regard.data import NextTokens, load_text
    >>> data = load_text("character")
    >>> batch = NextTokens(data.train, length=32).batch(torch.arange(4), seed=0, epoch=0)
    >>> bool((batch.tokens[:, 1:] == batch.targets[:, :-1]).all())
    True
    """

    def __init__(self, tokens: Int64[Tensor, "n"], length: int, *, device: torch.device | str = "cpu") -> None:
        check_positive("length", length)
        super().__init__(tokens, length, length + 1, device)

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> NextTokenBatch:
        windows = self.windows(index, seed, epoch)
        return NextTokenBatch(windows[:, :-1], windows[:, 1:], index)


def mask_tokens(
    tokens: Int64[Tensor, "n tokens"],
    vocabulary: Vocabulary,
    index: Int[Tensor, "n"],
    *,
    rate: float = 0.15,
    seed: int = 0,
    epoch: int = 0,
) -> tuple[Int64[Tensor, "n tokens"], Int64[Tensor, "n tokens"]]:
    """BERT's masking: the share ``rate`` of the tokens are targets; 80 % of these become ``<mask>``, 10 % a random token,
    and 10 % stay. Special tokens are never targets; each row with text has at least one target.

    Returns the masked tokens, and the targets: the original token where it must be predicted, −100 elsewhere. The draws
    depend on (seed, epoch, index of the row).

    >>> from regard.data import Vocabulary, mask_tokens
    >>> vocabulary = Vocabulary("ab")
    >>> masked, targets = mask_tokens(torch.tensor([[6, 7, 6, 0]]), vocabulary, torch.tensor([0]), rate=0.5)
    >>> targets[0, 3].item(), bool((targets == -100).all())
    (-100, False)
    """
    check_probability("rate", rate)
    if tokens.ndim != 2:
        raise ValueError(f"tokens must be (n, tokens), got {describe(tokens)}")
    if index.shape != tokens.shape[:1]:
        raise ValueError(f"index must have one entry for each of the {len(tokens)} rows, got {describe(index)}")
    width = tokens.shape[1]
    place = index[:, None] * width + torch.arange(width, device=tokens.device)
    key = (seed, epoch, "mask")
    is_text = tokens >= vocabulary.special_count
    draw = random_uniform(place, *key, "asked").masked_fill(~is_text, 2.0)
    asked = (draw < rate) | (draw == draw.amin(1, keepdim=True))
    asked = asked & is_text
    fate = random_uniform(place, *key, "fate")
    words = len(vocabulary) - vocabulary.special_count
    another = vocabulary.special_count + random_below(place, words, *key, "other")
    masked = torch.where(asked & (fate < 0.8), vocabulary.mask, tokens)
    masked = torch.where(asked & (fate >= 0.8) & (fate < 0.9), another, masked)
    return masked, torch.where(asked, tokens, IGNORE)
