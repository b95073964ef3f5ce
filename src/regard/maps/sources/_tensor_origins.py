"""What is known of a tensor on the way from scores to the product with values (see ``_tensor_history.py``)."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor


@dataclass
class ExpectedUse:
    """A result, such as a softmax, that is attention only if a certain operation follows. If none does, this is reported.

    Attributes:
        name: the module in which it was computed.
        shape: the shape of the weights.
        done: whether the operation followed.
        touched: whether the result was used at all.
        reason: what is reported.
    """

    name: str
    shape: tuple[int, ...]
    done: bool = False
    touched: bool = False
    reason: str = "its softmax was not followed by a product with values"


@dataclass(frozen=True)
class RandomMask:
    """What is known of dropout that was applied to some weights.

    Attributes:
        kept: the factor that turns the weights which dropout kept, and scaled up, back into the weights before.
        written: whether dropout was written out as a random mask, whose scaling may be a separate operation.
        hidden: whether it masked scores, so that the softmax normalized the other weights.
        before: the weights before some were set to zero. This is dropout if the others are scaled up next.
        error: how far the kept weights were from those before dropout, if a function that mixes weights followed. After it,
            they can no longer be compared.
        note: what a reader of the map should know.
    """

    kept: float = 1.0
    written: bool = False
    hidden: bool = False
    before: Tensor | None = None
    error: Tensor | None = None
    note: str | None = None

    def is_like(self, other: "RandomMask") -> bool:
        """Whether the weights that dropout kept relate in the same way to those before, and can still be compared."""
        comparable = self.hidden == other.hidden and self.error is None is other.error
        return comparable and math.isclose(self.kept, other.kept, rel_tol=1e-3)


class RecordedAverage(NamedTuple):
    """The output of an attention that was recorded, but may be a part of another one, or of linear attention.

    Attributes:
        name: under which it was recorded.
        queries, keys: their numbers.
        matrix: what was averaged, if this may be a matrix, as of neighbors. Then the output is a map if a product with values
            follows.
    """

    name: str
    queries: int
    keys: int
    matrix: Tensor | None = None


@dataclass
class TensorOrigin:
    """Where a tensor comes from.

    Attributes:
        kind: "scores" (a product that is not normalized yet), "exponentials" (of scores, or of a log-softmax),
            "logarithms" (a log-softmax), "weights" (normalized scores), "terms" (weights times values, not summed yet) or
            "averages" (the sum of weights times values, if these may be a part of another attention).
        scored: for weights, whether the softmax was taken of a product, as of queries and keys.
        shape: the shape before reshapes.
        source: what entered dropout, with all later operations applied to it; None without dropout.
        mask: what is known of dropout.
        use: the expected product with values.
        factors: for terms, the weights and the values.
        form: what made the weights: "softmax", "sigmoid", "normalized" (another function, divided by its sum), or "composed" (a
            product of two maps whose rows do not sum to one); for scores "outer" if they are an outer product, which rarely is
            attention, and "classes" if their last axis counts vectors that are learned or shared by all samples.
        learned: for scores, whether one factor is learned or shared by all samples.
        numerator: for scores, the product that becomes attention if its rows are divided by the sums of their weights.
        turned: whether the axes were permuted, so that queries may no longer be next to the keys, and then copied.
        average: for averages, what is known of them.
    """

    kind: str
    scored: bool
    shape: tuple[int, ...]
    source: Tensor | None = None
    mask: RandomMask = RandomMask()
    use: ExpectedUse | None = None
    factors: tuple[Tensor, Tensor] | None = None
    form: str = "softmax"
    learned: bool = False
    turned: bool = False
    numerator: "WeightedSum | None" = None
    average: RecordedAverage | None = None

    def changed(self, **about: Any) -> "TensorOrigin":
        """``dataclasses.replace(self, **about)`` in less time: this is asked for each step of an attention."""
        new = object.__new__(TensorOrigin)
        new.__dict__.update(self.__dict__, **about)
        return new

    def dropped(self, source: Tensor | None, **about: Any) -> "TensorOrigin":
        """This origin after dropout. ``about``: changed attributes of :class:`RandomMask`."""
        return self.changed(source=source, mask=replace(self.mask, **about))

    def before_dropout(self, x: Tensor) -> Tensor:
        """What entered dropout; ``x`` without dropout."""
        return x if self.source is None else self.source

    def weighted_sum(
        self,
        x: Tensor,
        value: Tensor,
        as_map: Callable[[Tensor], Tensor],
        *,
        arrange: Callable[[Tensor], Tensor],
        restore: Callable[[Tensor], Tensor],
        shape: tuple[int, ...] | None = None,
    ) -> "WeightedSum":
        """The weighted sum of ``value`` with the weights ``x``. ``as_map`` turns weights into ``(…, queries, keys)``."""
        weights, dropped = as_map(self.before_dropout(x)), None if self.source is None else as_map(x)
        return WeightedSum(weights, dropped, value, shape or tuple(weights.shape), self, arrange, restore)


@dataclass(frozen=True)
class WeightedSum:
    """weights @ value as the model computed it, in the layout ``(…, queries, keys) @ (…, keys, width)``.

    Attributes:
        weights: the weights, before dropout.
        dropped: the weights after dropout; None without dropout.
        value: the values.
        shape: the shape of the weights before reshapes.
        origin: the origin of the weights.
        arrange: turns the model's result into ``(…, queries, width)``.
        restore: the inverse of ``arrange``.
    """

    weights: Tensor
    dropped: Tensor | None
    value: Tensor
    shape: tuple[int, ...]
    origin: TensorOrigin
    arrange: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
