"""Pictures with captions: one or two embedded images side by side, "a sandal", "two bags", "a coat and a dress".

A small task for cross-attention between two inputs of different length and width: does the caption say what the picture
shows?
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from regard.data._augment import normalize
from regard.data._images import ImageSet
from regard.data._random import random_below, random_coin, random_uniform
from regard.data._vocabulary import Vocabulary
from regard.support.checks import check_probability

# (one of it, two of it), in the order of the classes
NOUNS = (
    ("a t-shirt", "two t-shirts"),
    ("a pair of trousers", "two pairs of trousers"),
    ("a pullover", "two pullovers"),
    ("a dress", "two dresses"),
    ("a coat", "two coats"),
    ("a sandal", "two sandals"),
    ("a shirt", "two shirts"),
    ("a sneaker", "two sneakers"),
    ("a bag", "two bags"),
    ("an ankle boot", "two ankle boots"),
)
NONE = -1


class CaptionBatch(NamedTuple):
    """``matches`` is True where the caption says what the picture shows. ``content`` holds the classes that are there,
    from left to right (−1: nothing)."""

    images: Float[Tensor, "n 1 height width"]
    tokens: Int64[Tensor, "n tokens"]
    keep: Bool[Tensor, "n tokens"]
    matches: Bool[Tensor, "n"]
    content: Int64[Tensor, "n 2"]
    indices: Int[Tensor, "n"]


class Captions:
    """Pictures of ``height`` × 2·``width`` composed of a set's images, with captions.

    A picture shows one thing (in its left or right half), two of the same kind, or two of different kinds, all equally
    likely; the caption names them from left to right.

    Args:
        images: a set of Fashion-MNIST's ten classes.
        matching: how often the caption is the picture's own; otherwise it is that of another picture, with other
            content.
        size: samples that are called an epoch; the next epoch's are new ones.
        device: where batches are made.

    >>> from regard.data import Captions, load
    >>> captions = Captions(load("fashion-mini").train)
    >>> batch = captions.batch(torch.arange(3), seed=0, epoch=0)
    >>> tuple(batch.images.shape), tuple(batch.tokens.shape)
    ((3, 1, 28, 56), (3, 8))
    >>> captions.caption((8, 8)), captions.caption((4, 9)), captions.caption((-1, 5))
    ('two bags', 'a coat and an ankle boot', 'a sandal')
    """

    def __init__(
        self,
        images: ImageSet,
        *,
        matching: float = 0.5,
        size: int = 10_000,
        device: torch.device | str = "cpu",
    ) -> None:
        if len(images.classes) != len(NOUNS):
            raise ValueError(f"images must be of Fashion-MNIST's {len(NOUNS)} classes, got {len(images.classes)}")
        if matching != 1:
            check_probability("matching", matching)
        counts = images.labels.bincount(minlength=len(NOUNS))
        if int(counts.min()) < 1:
            raise ValueError(f"images must hold some of each class, got {counts.tolist()}")
        self.set, self.matching, self.size = images, matching, size
        self._bytes = images.images.to(device)
        # Sorted by class, so that "another of the same class" is a draw in a range.
        self._by_class = images.labels.argsort(stable=True).to(device)
        self._counts = counts.to(device)
        self._first = (counts.cumsum(0) - counts).to(device)
        # Every content there can be: one thing, two of a kind, two of different kinds.
        kinds = range(len(NOUNS))
        contents = [(kind, NONE) for kind in kinds] + [(kind, kind) for kind in kinds]
        contents += [(left, right) for left in kinds for right in kinds if left != right]
        texts = [self.caption(content) for content in contents]
        self.vocabulary = Vocabulary.of(" ".join(texts), level="word")
        tokens, keep = self.vocabulary.pad_together(texts)
        self._contents = torch.tensor(contents, device=device)
        self._tokens, self._keep = tokens.to(device), keep.to(device)

    @property
    def index_device(self) -> torch.device:
        return self._bytes.device

    def __len__(self) -> int:
        return self.size

    @staticmethod
    def caption(content: tuple[int, int]) -> str:
        """The words for two classes, from left to right; −1 is nothing."""
        left, right = content
        if left == right and left != NONE:
            return NOUNS[left][1]
        words = [NOUNS[label][0] for label in content if label != NONE]
        if not words:
            raise ValueError(f"content must name one class at least, got {content}")
        return " and ".join(words)

    def batch(self, index: Int[Tensor, "n"], *, seed: int, epoch: int) -> CaptionBatch:
        """Samples ``epoch · size + index``."""
        samples = index + epoch * self.size
        number = self._draw(samples, seed, "content")
        matches = random_uniform(samples, seed, "captions", "matches") < self.matching
        told = torch.where(matches, number, self._another(number, samples, seed))

        content = self._contents[number]
        to_the_right = random_coin(samples, seed, "captions", "side") & (content[:, 1] == NONE)
        content = torch.where(to_the_right[:, None], content.flip(1), content)
        halves = [self._half(content[:, side], samples, seed, side) for side in (0, 1)]
        images = normalize(torch.cat(halves, -1), self.set.mean, self.set.std)
        return CaptionBatch(images, self._tokens[told], self._keep[told], matches, content, index)

    def _draw(self, samples: Tensor, seed: int, purpose: str) -> Tensor:
        """The number of a content: first how many things and whether they are alike, then which."""
        form = random_below(samples, 3, seed, "captions", purpose, "form")
        start = form * len(NOUNS)
        count = torch.where(form == 2, len(self._contents) - 2 * len(NOUNS), len(NOUNS))
        return start + random_below(samples, count, seed, "captions", purpose)

    def _another(self, number: Tensor, samples: Tensor, seed: int) -> Tensor:
        """The content of another picture; where that is the same one, its neighbor."""
        other = self._draw(samples, seed, "other content")
        neighbor = torch.where(other + 1 < len(self._contents), other + 1, 0)
        return torch.where(other == number, neighbor, other)

    def _half(self, label: Tensor, samples: Tensor, seed: int, side: int) -> Tensor:
        """An image of each class, black where there is none."""
        kind = label.clamp(min=0)
        place = self._first[kind] + random_below(samples, self._counts[kind], seed, "captions", "image", side)
        images = self._bytes[self._by_class[place]]
        return images * (label != NONE)[:, None, None, None]
