"""Facts about single tensors: whether rows sum to one, whether two share memory, whether one is a parameter."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._shapes import why_unreadable

MULTIPLICATIONS = frozenset({"mul", "mul_", "multiply", "multiply_", "__mul__", "__rmul__", "__imul__"})
DIVISIONS = frozenset(
    {"div", "div_", "divide", "divide_", "true_divide", "true_divide_", "__truediv__", "__itruediv__", "__div__"}
)

PRODUCTS = frozenset(
    {"matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm", "addmm", "mm", "linalg_matmul", "tensordot"}
)

SOFTMAXES = frozenset(
    {
        "softmax",
        "_softmax",
        "_safe_softmax",
        "special_softmax",
        "log_softmax",
        "special_log_softmax",
        "softmin",
        "gumbel_softmax",
    }
)
RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous", "clone"})
JOINS = frozenset({"cat", "concat", "concatenate", "stack"})
SPLITS = frozenset({"split", "chunk", "unbind", "tensor_split", "split_with_sizes"})
WRITES = frozenset({"copy_", "__setitem__"})  # they write one tensor into another, or into a part of it
EXPONENTIALS = frozenset({"exp", "exp_", "exp2", "exp2_"})
SIGMOIDS = frozenset({"sigmoid", "sigmoid_", "special_expit"})
CHOICES = frozenset({"topk", "sort"})  # they give the chosen scores or weights, and where these were
SCATTERS = frozenset({"scatter", "scatter_"})  # they put them back
CASTS = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16"})
_TURNS = frozenset({"cos", "sin"})  # rotary positions compute angles by a product, which looks like scores
_IN_PLACE = frozenset(
    {
        "__setitem__",
        "__iadd__",
        "__isub__",
        "__imul__",
        "__itruediv__",
        "__ipow__",
        "__imatmul__",
        "__iand__",
        "__ior__",
    }
)


def tensors_of(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors among the arguments of a product, or in the list of operands of einsum."""
    given = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args
    return [x for x in given if isinstance(x, Tensor)]


def without_out(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, less ``out``: a function that is run once more for a map must not write into a tensor of the model."""
    return {name: x for name, x in kwargs.items() if name != "out"}


def is_learned(x: Tensor) -> bool:
    """Whether x is a parameter, a view of one, or has no batch axis, so that all samples share it."""
    return x.ndim < 3 or isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)


def is_outer(args: tuple[Any, ...]) -> bool:
    """Whether a product of these tensors is an outer product: it sums over an axis of size 1.

    >>> is_outer((torch.zeros(2, 3, 1), torch.zeros(2, 1, 4))), is_outer((torch.zeros(2, 3, 2), torch.zeros(2, 2, 4)))
    (True, False)
    """
    if len(args) != 2 or not all(isinstance(x, Tensor) and x.ndim >= 2 for x in args):
        return False
    return bool(args[0].shape[-1] == 1 == args[1].shape[-2])


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors share memory. False for tensors without a storage (sparse ones, and inside of vmap)."""
    try:
        return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def is_whole_view(x: Any, whole: Tensor) -> bool:
    """Whether x is a view of all elements of ``whole``."""
    return isinstance(x, Tensor) and x.numel() == whole.numel() and shares_memory(x, whole)


def sums_to_one(x: Tensor, axis: int, within: float = 1e-2) -> bool:
    """Whether x sums to one along an axis. Some sums may be zero, if there is no key to attend to.

    >>> sums_to_one(torch.tensor([[0.3, 0.7], [0.0, 0.0]]), -1)
    True
    """
    if x.numel() == 0 or why_unreadable(x):
        return False
    with torch.no_grad(), torch._C.DisableTorchFunction():  # an interceptor around this one must not see it
        total = x.detach().sum(axis, dtype=torch.float32)
        error = torch.minimum((total - 1).abs(), total.abs())
        return bool((error < within).all() & (total > 0.5).any())


def is_turned(x: Tensor) -> bool:
    """Whether the rows of ``(…, rows, columns)`` are further apart in memory than the slices along another axis.

    >>> import torch
    >>> is_turned(torch.ones(2, 3, 4)), is_turned(torch.ones(3, 2, 4).transpose(0, 1))
    (False, True)
    """
    if x.layout is not torch.strided or x.ndim < 3 or x.shape[-2] < 2:
        return False
    return any(x.shape[axis] > 1 and 0 < x.stride(axis) < x.stride(-2) for axis in range(x.ndim - 2))


def is_turned_copy(x: Tensor, out: Tensor) -> bool:
    """Whether ``out`` has the rows of ``x`` next to each other in memory, and ``x`` does not."""
    return is_turned(x) and not is_turned(out) and not shares_memory(x, out)


def is_normalized(x: Tensor, within: float = 1e-2) -> bool:
    """Whether rows or columns sum to one."""
    return any(sums_to_one(x, axis, within) for axis in (-1, -2))


def by_rows(name: str, other: Any, out: Tensor) -> bool:
    """Whether each row (or each column) was divided by, or multiplied with, its own number."""
    if name == "normalize":
        return True
    if name not in DIVISIONS | MULTIPLICATIONS or not isinstance(other, Tensor) or other.ndim != out.ndim:
        return False
    return (other.shape[-1], other.shape[-2]) in ((1, out.shape[-2]), (out.shape[-1], 1))


def number_of(x: Any) -> float | None:
    """A factor as a number, if it is a single one and not zero; else None."""
    if isinstance(x, Tensor) and x.numel() == 1 and not why_unreadable(x.reshape(1, 1)):
        return float(x) or None
    return float(x) or None if isinstance(x, int | float) and not isinstance(x, bool) else None


def represents(name: str, kind: str, x: Tensor, out: Tensor, attends: bool) -> bool:
    """Whether the result of an operation on x still represents the same scores, weights or averages.

    Args:
        attends: whether they were made of queries and keys, neither of which is learned.
    """
    if name in _TURNS:
        return False
    if kind == "averages" and name not in MULTIPLICATIONS | DIVISIONS | CASTS and not shares_memory(x, out):
        return False
    if name in JOINS:
        return kind == "scores" and out.ndim == x.ndim
    if name in CHOICES | SCATTERS:
        return attends and kind in ("scores", "weights") and out.ndim == x.ndim
    if name in PRODUCTS or out.shape == x.shape or (name in RESHAPES and out.numel() == x.numel()):
        return True
    if out.shape[-2:] == x.shape[-2:] and out.numel() >= x.numel():  # expanded to more heads or samples
        return True
    return shares_memory(out, x)  # another view


def is_in_place(name: str) -> bool:
    """Whether a function of this name changes its first argument.

    >>> is_in_place("add_"), is_in_place("__iadd__"), is_in_place("__add__")
    (True, True, False)
    """
    return name in _IN_PLACE or (name.endswith("_") and not name.endswith("__"))
