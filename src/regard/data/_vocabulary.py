"""Text to token numbers and back, with one token for each character or word."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from regard.support.checks import check_choice, check_flag, check_tensor, describe, is_functional, is_iterable

Level = Literal["character", "word"]

SPECIAL = ("<pad>", "<begin>", "<end>", "<class>", "<mask>", "<unknown>")
_WORD = r"\w+(?:['’-]\w+)*|[^\w\s]"
_CLOSING = frozenset(".,;:!?)")


class Vocabulary:
    """A list of tokens; the number of a token is its index in the list.

    The special tokens ``<pad> <begin> <end> <class> <mask> <unknown>`` come first, then the ``markers`` (such as ``<U>``);
    in a text each of them is one token. At level ``"word"`` text is converted to lower case, and an unknown word becomes
    ``<unknown>``. At level ``"character"`` an unknown character is an error.

    >>> vocabulary = regard.data.Vocabulary("abc ", markers=("<U>",))
    >>> vocabulary.encode("<U> cab")
    [6, 10, 9, 7, 8]
    >>> vocabulary.decode([1, 6, 10, 9, 7, 8, 2, 0])
    '<U> cab'
    """

    def __init__(self, tokens: Iterable[str], *, markers: Sequence[str] = (), level: Level = "character") -> None:
        check_choice("level", level, ("character", "word"))
        self.level: Level = level
        if isinstance(markers, str):
            raise TypeError(f"markers must be several strings, such as ('<U>',), got {describe(markers)}")
        self.markers = _strings("markers", markers)
        self.tokens = (*SPECIAL, *self.markers, *_strings("tokens", tokens))
        self.numbers = {token: number for number, token in enumerate(self.tokens)}
        if len(self.numbers) < len(self.tokens):
            twice = sorted({token for token in self.tokens if self.tokens.count(token) > 1})
            raise ValueError(
                f"tokens and markers must be distinct, but {', '.join(map(repr, twice))} occurs more than once"
            )
        ordinary = _WORD if level == "word" else "(?s:.)"
        self._pieces = re.compile("|".join([*map(re.escape, (*SPECIAL, *self.markers)), ordinary]))

    @classmethod
    def of(cls, text: str, *, markers: Sequence[str] = (), level: Level = "character") -> "Vocabulary":
        """Every character of a text, or every word, in alphabetical order.

        >>> regard.data.Vocabulary.of("To be, or not to be", level="word").tokens[6:]
        (',', 'be', 'not', 'or', 'to')
        """
        check_choice("level", level, ("character", "word"))
        pieces = set(text) if level == "character" else set(re.findall(_WORD, text.lower()))
        return cls(sorted(pieces), markers=markers, level=level)

    pad, begin, end, class_, mask, unknown = range(len(SPECIAL))

    @property
    def special_count(self) -> int:
        """The number of special tokens and markers."""
        return len(SPECIAL) + len(self.markers)

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vocabulary):
            return NotImplemented
        return (self.tokens, self.markers, self.level) == (other.tokens, other.markers, other.level)

    def __hash__(self) -> int:
        return hash((self.tokens, self.markers, self.level))

    def __repr__(self) -> str:
        return f"Vocabulary({len(self)} tokens, level={self.level!r})"

    def encode(self, text: str) -> list[int]:
        """The numbers of a text's tokens."""
        if not isinstance(text, str):
            raise TypeError(f"text must be a string, got {describe(text)}")
        if self.level == "word":
            return [self.numbers.get(piece, self.unknown) for piece in self._split(text)]
        try:
            return [self.numbers[piece] for piece in self._split(text)]
        except KeyError as error:
            known = "".join(self.tokens[self.special_count :])
            raise ValueError(
                f"text contains the character {error.args[0]!r}, which is not one of {known!r}, got {text!r:.60}"
            ) from None

    def decode(self, numbers: Sequence[int] | Int64[Tensor, "n"], *, keep_special: bool = False) -> str:
        """The text of a sequence, up to ``<end>`` and without ``<pad>``, ``<begin>`` and ``<class>``, unless
        ``keep_special``. Words are joined by spaces, except before punctuation."""
        check_flag("keep_special", keep_special)
        if isinstance(numbers, Tensor):
            check_tensor("numbers", numbers)  # a sparse one has no list
        if not is_iterable(numbers) or (isinstance(numbers, Tensor) and is_functional(numbers)):
            raise TypeError(f"numbers must be a sequence of token numbers, got {describe(numbers)}")
        sequence = numbers.tolist() if isinstance(numbers, Tensor) else list(numbers)
        for number in sequence:
            if isinstance(number, bool) or not isinstance(number, int):
                raise TypeError(f"numbers must be whole numbers, got {describe(numbers)}")
            if not 0 <= number < len(self):
                raise ValueError(f"numbers must be in 0 … {len(self) - 1}, got {number} in {describe(numbers):.60}")
        if not keep_special:
            if self.end in sequence:
                sequence = sequence[: sequence.index(self.end)]
            sequence = [number for number in sequence if number not in (self.pad, self.begin, self.class_)]
        pieces = [self.tokens[number] for number in sequence]
        if self.level == "character":
            return "".join(pieces)
        return "".join(piece if not at or piece in _CLOSING else f" {piece}" for at, piece in enumerate(pieces))

    def pad_together(
        self, texts: Sequence[str], *, begin: bool = False, end: bool = False, length: int | None = None
    ) -> tuple[Int64[Tensor, "n tokens"], Bool[Tensor, "n tokens"]]:
        """Texts as one tensor, padded to the longest (or to ``length``), and a mask that is True on tokens.

        >>> tokens, keep = regard.data.Vocabulary("abc").pad_together(["ab", "c"], end=True)
        >>> tokens
        tensor([[6, 7, 2],
                [8, 2, 0]])
        >>> keep.long()
        tensor([[1, 1, 1],
                [1, 1, 0]])
        """
        rows = [[self.begin] * begin + self.encode(text) + [self.end] * end for text in texts]
        longest = max(map(len, rows), default=0)
        if length is None:
            length = longest
        elif longest > length:
            raise ValueError(f"length is {length} but the longest text has {longest} tokens")
        tokens = torch.full((len(rows), length), self.pad)
        for row, numbers in enumerate(rows):
            tokens[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
        return tokens, tokens != self.pad

    def to_dict(self) -> dict[str, Any]:
        """A dictionary for JSON, from which :meth:`from_dict` makes the same vocabulary."""
        return {
            "tokens": list(self.tokens[self.special_count :]),
            "markers": list(self.markers),
            "level": self.level,
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Vocabulary":
        return cls(values["tokens"], markers=values["markers"], level=values["level"])

    def _split(self, text: str) -> list[str]:
        if self.level == "word":
            # Markers keep their capitals.
            return [p if p in self.numbers else p.lower() for p in self._pieces.findall(text)]
        return self._pieces.findall(text)


def _strings(name: str, given: Iterable[str]) -> tuple[str, ...]:
    found = tuple(given) if is_iterable(given) else None
    if found is None or any(not isinstance(piece, str) for piece in found):
        raise TypeError(f"{name} must be strings, got {describe(given)}")
    return found
