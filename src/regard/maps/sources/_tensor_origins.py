"""What is known of a tensor on its way from scores to the product with values."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor


@dataclass
class ExpectedUse:
    """Something that is attention only if another operation follows. If none follows, this is reported.

    Attributes:
        done: whether it followed.
        touched: whether anything followed.
    """

    name: str
    shape: tuple[int, ...]
    done: bool = False
    touched: bool = False
    reason: str = "its softmax was not followed by a product with values"


@dataclass(frozen=True)
class RandomMask:
    """What is known of dropout on the way to some weights.

    Attributes:
        kept: the factor that undoes what dropout multiplies the weights with that it keeps.
        written: whether dropout was written out as a random mask, which is scaled by itself.
        hidden: whether it hides keys before weights are normalized.
        before: the weights before some were set to zero, which is dropout if the others are scaled up next.
        note: what should be said of the map.
    """

    kept: float = 1.0
    written: bool = False
    hidden: bool = False
    before: Tensor | None = None
    note: str | None = None


@dataclass
class TensorOrigin:
    """Where a tensor comes from.

    Attributes:
        kind: "scores" (a product, not normalized yet), "exponentials" (of scores, or of a softmax's logarithm),
            "logarithms" (of a softmax), "weights" (a softmax was taken), "terms" (weights times values, to be summed)
            or "averages" (weights times values, if the softmax was not taken of a product).
        scored: for weights, whether the softmax was taken of a product.
        shape: the shape before reshapes.
        source: what entered dropout, with the operations since then; None without dropout.
        mask: what is known of dropout.
        use: the product that must follow.
        factors: for terms, the weights and the values.
        form: what made the weights: "softmax", "sigmoid", or "normalized" (another function, divided by its sum); for
            scores "outer" if they are a product of columns and rows, which rarely is attention, and "classes" if their
            last axis counts vectors that are learned or the same for all samples.
        learned: for scores, whether one factor is learned or the same for all samples.
        numerator: for scores, the product that is attention if its rows are divided by the sums of their weights.
        average: for averages, the name under which it was recorded, and the number of its queries and keys.
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
    numerator: "WeightedSum | None" = None
    average: tuple[str, int, int] | None = None

    def dropped(self, source: Tensor | None, **about: Any) -> "TensorOrigin":
        """This origin after dropout, of which this became known (see :class:`RandomMask`)."""
        return replace(self, source=source, mask=replace(self.mask, **about))

    def before_dropout(self, x: Tensor) -> Tensor:
        """x, or what entered dropout."""
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
        """The sum of ``value`` with the weights ``x``, which ``as_map`` turns into ``(…, queries, keys)``."""
        weights, dropped = as_map(self.before_dropout(x)), None if self.source is None else as_map(x)
        return WeightedSum(weights, dropped, value, shape or tuple(weights.shape), self, arrange, restore)


@dataclass(frozen=True)
class WeightedSum:
    """weights @ value as the model computed it, in the layout ``(…, queries, keys) @ (…, keys, width)``.

    Attributes:
        weights: what entered dropout, if there is dropout.
        dropped: the weights after dropout; None without dropout.
        value: what they are multiplied with.
        shape: the shape of the weights before reshapes.
        origin: of the weights.
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
