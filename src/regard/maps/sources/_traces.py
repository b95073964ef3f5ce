"""What is known of a tensor on its way from scores to the product with values."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass
class Use:
    """Something that becomes attention if one more thing is done with it: if it never is, that is worth a word."""

    name: str
    shape: tuple[int, ...]
    done: bool = False
    reason: str = "its softmax was not followed by a product with values"


@dataclass
class Trace:
    """Where a tensor comes from.

    Attributes:
        kind: "scores" (a product, not normalized yet), "exponentials" (of scores, or of a softmax's logarithm),
            "logarithms" (of a softmax), "weights" (a softmax was taken), "terms" (weights times values, to be summed)
            or "averages" (weights times values, where the softmax was not taken of a product).
        scored: for weights, whether the softmax was taken of a product.
        form: what made the weights: "softmax", "sigmoid", or "normalized" (another function, divided by its sum).
        learned: for scores, whether one factor was learned or is the same for all samples.
        shape: the shape it had before it was merely reshaped.
        source: what entered dropout, brought along; None without dropout.
        kept: the probability that dropout keeps a weight.
        use: whether the softmax of a product was ever used by a product.
        factors: for terms, the weights and the values; the weights' own trace is this one.
        numerator: for scores, the product that would be attention if its rows were divided by their weights' sum.
        average: for averages, the name under which it was told, and how many queries and keys it had.
    """

    kind: str
    scored: bool
    shape: tuple[int, ...]
    source: Tensor | None = None
    kept: float = 1.0
    use: Use | None = None
    factors: tuple[Tensor, Tensor] | None = None
    form: str = "softmax"
    learned: bool = False
    numerator: "Product | None" = None
    average: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Product:
    """weights @ value as the model computed it, as ``(…, queries, keys) @ (…, keys, width)``."""

    weights: Tensor
    dropped: Tensor | None
    value: Tensor
    shape: tuple[int, ...]
    trace: Trace
    arrange: Callable[[Tensor], Tensor]
    restore: Callable[[Tensor], Tensor]
