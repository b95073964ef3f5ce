"""Recognizes dropout that a model writes out as a random mask of its weights or of its scores.

A map never contains dropout. So where weights were multiplied by a random mask, the weights before it are the map;
where scores were masked at random, the map is the softmax without this mask.
"""

from typing import Any

import torch
from torch import Tensor

from regard.maps._living_tensors import LivingTensors
from regard.maps._shapes import why_unreadable
from regard.maps.sources._before_dropout import divided_by_sums
from regard.maps.sources._tensor_facts import DIVISIONS, MULTIPLICATIONS, number_of, sums_to_one
from regard.maps.sources._tensor_origins import TensorOrigin

RANDOM = frozenset(
    {"rand", "rand_like", "bernoulli", "bernoulli_", "uniform_", "randint", "randint_like", "randn", "randn_like"}
    | {"normal", "normal_", "random_"}
)
RANDOM_MASK = "random numbers that were drawn in the call are in its scores or its mask, and so in its map"
LIKE_DROPOUT = (
    "its weights were multiplied with zeros and one number above 1, as dropout does: the map is without them, whatever "
    "made them"
)
_MASKS = MULTIPLICATIONS | {"masked_fill", "where"}
_FAR = 1e3  # a score that is lower by this much has no weight


class RandomTensors:
    """The living tensors that depend on random numbers.

    Attributes:
        known: these tensors, and whether each depends on random numbers and constants only.
        some: whether there ever were any.
    """

    def __init__(self) -> None:
        self.known = LivingTensors[bool]()
        self.some = False

    def __bool__(self) -> bool:
        return bool(self.known)

    def __contains__(self, x: Any) -> bool:
        return self.known.of(x) is not None

    def add(self, x: Any, others: tuple[Any, ...] = ()) -> None:
        """``x`` depends on random numbers. ``others``: the tensors from which it was computed."""
        if isinstance(x, Tensor) and x.ndim >= 2:
            self.some = True
            tensors = [y for y in others if isinstance(y, Tensor) and not self.is_alone(y)]
            self.known.note(x, not self.among(tuple(tensors)) and all(map(is_constant, tensors)))

    def is_alone(self, x: Any) -> bool:
        """Whether x depends on random numbers and constants only."""
        return bool(self.known.of(x))

    def among(self, args: tuple[Any, ...]) -> bool:
        """Whether one of the arguments depends on random numbers."""
        return bool(self.known) and any(x in self for x in args)

    def clear(self) -> None:
        self.known.clear()


def is_constant(x: Tensor) -> bool:
    """Whether all elements are equal.

    >>> is_constant(torch.zeros(2, 3)), is_constant(torch.eye(2))
    (True, False)
    """
    if x.numel() < 2:
        return True
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return why_unreadable(x) is None and bool((x == x.flatten()[0]).all())


def hides(entered: Tensor, out: Tensor) -> bool:
    """Whether ``out`` is ``entered`` with some scores masked, which means so much lower that they have no weight.

    >>> hides(torch.zeros(1, 2), torch.tensor([[0.0, -torch.inf]])), hides(torch.zeros(1, 2), torch.ones(1, 2))
    (True, False)
    """
    if why_unreadable(out) is not None:
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():
        kept = out == entered
        return bool((kept | (out <= entered - _FAR)).all()) and not bool(kept.all())


def is_like_dropout(x: Any) -> bool:
    """Whether a factor looks like the mask of dropout: zeros, and one number above 1 everywhere else.

    >>> is_like_dropout(torch.tensor([[0.0, 1.25], [1.25, 1.25]])), is_like_dropout(torch.eye(2))
    (True, False)
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2 or why_unreadable(x) is not None:
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():
        least, most = x.aminmax() if x.numel() else (x.new_ones(()), x.new_ones(()))
        return bool(least == 0) and bool(most > 1.001) and bool(((x == 0) | (x == most)).all())


def undone(entered: Tensor, out: Tensor, normalized: bool) -> tuple[Tensor, float] | None:
    """The weights before dropout, and the factor by which the kept weights in ``out`` must be multiplied to give them.

    None if ``out`` is not ``entered`` with some zeros, times one factor.

    Args:
        normalized: whether weights sum to at most one. If rows of ``entered`` sum to more, they were scaled up before the mask.

    >>> entered, factor = undone(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 0.625]]), True)
    >>> entered, factor
    (tensor([[0.5000, 0.5000]]), 0.800000011920929)
    """
    with torch.no_grad(), torch._C.DisableTorchFunction():
        left = out != 0
        ratios = (entered[left] / out[left].to(entered.dtype)) if bool(left.any()) else entered.new_ones(1)
        smallest, largest = (float(x) for x in ratios.aminmax())
        if largest - smallest > 1e-3 * abs(largest):
            return None
        total = entered.sum(-1)
        scale = float(total.amax())
        if normalized and scale > 1.001 and bool((total >= scale * 0.999).all()):
            return entered / scale, largest / scale
    return entered, largest


def after_mask(name: str, kind: str, origin: TensorOrigin, before: Tensor, out: Tensor) -> TensorOrigin:
    """The origin of ``out``, with what this function shows about dropout. ``kind``: the kind of ``before``."""
    if origin.kind != "weights":
        return origin
    return _zeros_set(name, origin, before, out) if kind == "weights" else _renormalized(origin, out)


def _zeros_set(name: str, origin: TensorOrigin, before: Tensor, out: Tensor) -> TensorOrigin:
    """The origin of weights if some of them were set to zero by a mask that is not known to be random.

    It is dropout if the other weights are scaled up: already, or by a later function (see :func:`scaled_up`).
    """
    if origin.mask.before is not None:
        origin = origin.dropped(origin.source, before=None)
    if name not in _MASKS or origin.source is not None or out.shape != before.shape or why_unreadable(out) is not None:
        return origin
    entered = before.detach()
    with torch.no_grad(), torch._C.DisableTorchFunction():
        kept = out == entered
        if not bool((kept | (out == 0)).all()) or bool(kept.all()):
            return origin
    found = undone(entered, out, origin.form == "softmax")
    if found is None or found[0] is entered:
        return origin.dropped(None, before=entered)
    return origin.dropped(found[0], kept=found[1], written=True, note=LIKE_DROPOUT)


def scaled_up(name: str, origin: TensorOrigin, factor: Any) -> TensorOrigin:
    """The origin of weights that are scaled up after some were set to zero. This is dropout, whatever made the mask."""
    before = origin.mask.before
    number = None if before is None or name not in MULTIPLICATIONS | DIVISIONS else number_of(factor)
    if number is None:
        return origin
    number = 1 / number if name in DIVISIONS else number
    if number < 1.001:
        return origin
    return origin.dropped(before, before=None, kept=1 / number, written=True, note=LIKE_DROPOUT)


def _renormalized(origin: TensorOrigin, out: Tensor) -> TensorOrigin:
    """The origin of exponentials that were dropped and then divided by the sum of the others: keys were masked at random."""
    if origin.source is None or not sums_to_one(out, -1) or sums_to_one(origin.source, -1):
        return origin
    return origin.dropped(divided_by_sums(origin.source), hidden=True, written=False, kept=1.0)
