"""Random letters with repeated pieces: the next letter can be looked up, but not known in any other way."""

import string

import torch
from jaxtyping import Int
from torch import Tensor

from regard.data._case import Split
from regard.data._random import random_below
from regard.data._text import IGNORE, NextTokenBatch
from regard.data._vocabulary import Vocabulary
from regard.support.checks import check_choice, check_positive

KNOWN_FROM = 2  # characters of a repeated piece to read before predicting its next one
SHORTEST_PIECE, LONGEST_PIECE = 3, 9


class RepeatedPieces:
    """Windows made of a few pieces of random letters, repeated in random order.

    A model has to predict the next character wherever the piece occurred before and its first two characters have been
    read again; other targets are −100. Pieces are new in every window, so that a model cannot memorize them: it
    must find the place where the piece occurred, and read what followed. Heads that do so are called induction heads.

    Args:
        length: characters of a window.
        size: the windows of an epoch; the next epoch has new ones.
        pieces: different pieces of a window.
        split: ``"train"``, ``"validation"`` or ``"test"``, which have different windows.
        device: the device of the batches.

    >>> from regard.data import RepeatedPieces
    >>> batch = RepeatedPieces(length=40).batch(torch.arange(2), seed=0, epoch=0)
    >>> batch.tokens.shape, bool((batch.tokens[:, 1:] == batch.targets[:, :-1])[batch.targets[:, :-1] != -100].all())
    (torch.Size([2, 40]), True)
    """

    vocabulary = Vocabulary(" " + string.ascii_lowercase)

    def __init__(
        self,
        length: int = 64,
        *,
        size: int = 10_000,
        pieces: int = 4,
        split: Split = "train",
        device: torch.device | str = "cpu",
    ) -> None:
        for name, value in (("length", length), ("size", size), ("pieces", pieces)):
            check_positive(name, value)
        check_choice("split", split, ("train", "validation", "test"))
        self.length, self.size, self.pieces, self.split = length, size, pieces, split
        self.index_device = torch.device(device)

    def __len__(self) -> int:
        return self.size

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> NextTokenBatch:
        """Windows ``epoch · size + index``."""
        index = index.to(self.index_device) + epoch * self.size
        key, span = (seed, "repeats", self.split), self.length + 1
        slots = torch.arange(-(-span // SHORTEST_PIECE), device=index.device)
        letters = len(self.vocabulary) - self.vocabulary.special_count
        place = index[:, None] * self.pieces + torch.arange(self.pieces, device=index.device)
        sizes = SHORTEST_PIECE + random_below(place, LONGEST_PIECE - SHORTEST_PIECE + 1, *key, "size")
        drawn = place[..., None] * LONGEST_PIECE + torch.arange(LONGEST_PIECE, device=index.device)
        spelled = self.vocabulary.special_count + random_below(drawn, letters, *key, "letter")

        # The piece in each slot, the start of the slot, and whether the piece was in an earlier slot.
        piece = random_below(index[:, None] * len(slots) + slots, self.pieces, *key, "piece")
        start = sizes.gather(1, piece).cumsum(1) - sizes.gather(1, piece)
        again = ((piece[:, :, None] == piece[:, None, :]) & (slots[:, None] > slots)).any(-1)

        at = torch.arange(span, device=index.device).expand(len(index), -1).contiguous()
        slot = torch.searchsorted(start.contiguous(), at, right=True) - 1
        offset = at - start.gather(1, slot)
        text = spelled.gather(1, piece.gather(1, slot)[..., None].expand(-1, -1, LONGEST_PIECE))
        text = text.gather(2, offset[..., None])[..., 0]
        known = again.gather(1, slot) & (offset >= KNOWN_FROM)
        return NextTokenBatch(text[:, :-1], text.masked_fill(~known, IGNORE)[:, 1:], index)
