"""Linear combinations of the outputs of attention: which outputs a tensor is made of, and with which factors.

Here O = A V is the output of an attention with map A. A model may merge two parts of one softmax by their logsumexp,
g·O₁ + (1 − g)·O₂ in any algebraic form, or subtract two attentions over the same values, O₁ − λ·O₂ (differential attention,
whose map is A₁ − λA₂). In all of these each output has a factor that is one number for each row of its map. So the maps
combine with the same factors as the outputs, whatever the order of the model's operations.
"""

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Memory:
    """The memory of a tensor, to recognize the same tensor later without keeping it alive."""

    def __init__(self, x: Tensor | None) -> None:
        self._at: tuple[Any, ...] | None = None
        self._tensor = None if x is None else weakref.ref(x)
        if x is not None:
            try:
                self._at = (x.data_ptr(), x.shape, x.stride())
                self._storage = StorageWeakRef(x.untyped_storage())
            except (RuntimeError, NotImplementedError):  # sparse, or inside of vmap
                self._at = None

    def joins(self, others: list["Memory"]) -> "Memory":
        """The one of the others that is the same memory, if that was not freed since; else this one."""
        return next((x for x in others if x._at is not None and x._at == self._at and not x._storage.expired()), self)

    def multiple(self, of: "Memory") -> float | None:
        """The number c with this tensor = c · the other tensor; None if there is none, or if either was freed."""
        mine, other = (None if x._tensor is None else x._tensor() for x in (self, of))
        if mine is None or other is None or self._at is None or mine.shape != other.shape or min(mine.shape[-2:]) < 2:
            return None
        if mine.dtype != other.dtype or mine.device != other.device or not mine.is_floating_point():
            return None
        try:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                at = other.abs().argmax()
                factor = float(mine.flatten()[at]) / (float(other.flatten()[at]) or math.nan)
                near = 4 * torch.finfo(mine.dtype).eps
                return factor if factor and torch.allclose(mine, factor * other, rtol=near, atol=0) else None
        except RuntimeError:  # a dtype without arithmetic
            return None


@dataclass(eq=False)
class Followed:
    """An output of attention in the running call of a module, which is followed: what the model does with it may change
    its map.

    Attributes:
        name: the name of its map.
        lead: ``(batch, heads, queries)`` of its map.
        heads: the output ``(batch, heads, queries, width)``; None for the first output of a call, to save memory.
        values: the memory of its values.
        tokens_first: whether the token axis comes before the head axis.
        with_logsumexp: whether the model also has the logsumexp of its scores.
        taken: whether a factor that the model computed from this logsumexp was applied to the map.
        lost: whether such a factor was used in a way that is not followed.
        beside: whether this is several outputs side by side, whose maps were not kept: they may be equal or not.
        chosen: for a part of an output, the indices of its heads.
    """

    name: str
    lead: tuple[int, ...]
    heads: Tensor | None
    values: Memory
    tokens_first: bool = False
    with_logsumexp: bool = False
    taken: bool = False
    lost: bool = False
    beside: bool = False
    chosen: tuple[int, ...] | None = None

    def may_be(self, part: Any) -> bool:
        """Whether a tensor may be this output in the model's layout."""
        known = self.heads
        return isinstance(part, Tensor) and (
            known is None or (part.numel(), part.dtype) == (known.numel(), known.dtype)
        )


# A linear combination: the factor of each output, a number or one number per row, (batch, heads, queries, 1).
Terms = dict[Followed, Any]


def row_factors(terms: Terms, factor: Any, whole: Tensor, divided: bool = False) -> Terms | None:
    """The factor of the rows of each output, if ``whole`` is multiplied with (or divided by) ``factor``; None if a factor differs
    within a row."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = {output: _rows(factor, whole, output, divided) for output in terms}
        return None if None in rows.values() else rows


def scaled(terms: Terms, factor: Any, whole: Tensor) -> Terms | None:
    """The terms of ``whole`` times a factor; None if the factor differs within a row."""
    rows = row_factors(terms, factor, whole)
    return None if rows is None else times(terms, rows)


def times(terms: Terms, rows: Terms) -> Terms:
    """The terms after each output was multiplied with its own factor."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return {output: old * rows[output] for output, old in terms.items()}


def aligned(factor: Tensor, letters: str, of_whole: str) -> Tensor | None:
    """An operand of einsum with the axes of another operand, of size 1 where it has none; None if it has further axes.

    >>> aligned(torch.ones(5, 2), "nb", "bhnd").shape
    torch.Size([2, 1, 5, 1])
    """
    if len(set(letters)) != len(letters) or not set(letters) <= set(of_whole):
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        found = factor.detach().permute([letters.index(a) for a in of_whole if a in letters])
        return found[tuple(slice(None) if a in letters else None for a in of_whole)]


def total(first: Terms, second: Terms) -> Terms:
    """The terms of the sum of two combinations."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return {output: first.get(output, 0.0) + second.get(output, 0.0) for output in (*first, *second)}


def selections(whole: Tensor, out: Any, function: str, args: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Each part that ``[…]`` or a function that splits a tensor selected of it, with its index."""
    start = 0
    for part in out if isinstance(out, tuple | list) else [out]:
        if function == "__getitem__":
            yield part, args[1]
            continue
        axis = args[2] if len(args) > 2 else kwargs.get("dim", 0)
        index = [slice(None)] * whole.ndim
        index[axis], start = slice(start, start + part.shape[axis]), start + part.shape[axis]
        yield part, tuple(index)


def some_heads(whole: Tensor, terms: Terms, part: Any, index: Any) -> Terms | None:
    """The terms of ``part = whole[index]`` if it holds some heads of one output; None for anything else."""
    output, factor = next(iter(terms.items()))
    if len(terms) > 1 or isinstance(factor, Tensor) or not isinstance(part, Tensor) or part.ndim != whole.ndim:
        return None
    changed = [axis for axis in range(part.ndim) if part.shape[axis] != whole.shape[axis]]
    batch, heads, queries = output.lead or (0, 0, 0)
    if len(changed) != 1 or (*whole.shape[:3], changed[0]) not in (
        (batch, heads, queries, 1),
        (batch, queries, heads, 2),
    ):
        return None
    axis = changed[0]
    with torch.no_grad(), torch._C.DisableTorchFunction():
        numbers = torch.arange(heads, device=whole.device)  # where an index may be, too
        numbers = numbers.view(*(heads if i == axis else 1 for i in range(whole.ndim))).expand(whole.shape)
        chosen = numbers[index].movedim(axis, 0).flatten(1)[:, 0].tolist()
    lead = (batch, len(chosen), queries)
    return {Followed(output.name, lead, None, output.values, chosen=tuple(chosen)): factor}


def shares_of_softmax(weights: Sequence[Tensor], factors: Sequence[Any]) -> list[Tensor] | None:
    """Each map times its factor, if they are parts of one softmax: then the rows sum to one over all keys. Else None.

    >>> halves = [torch.full((1, 1, 2, 2), 0.5)] * 2
    >>> shares_of_softmax(halves, (1.0, 1.0)) is None, shares_of_softmax(halves, (0.25, 0.75))[1][0, 0]
    (True, tensor([[0.3750, 0.3750],
            [0.3750, 0.3750]]))
    """
    rows = [per_row(factor, each) for factor, each in zip(factors, weights, strict=True)]
    if len({each.shape[:3] for each in weights}) != 1 or any(row is None for row in rows):
        return None
    parts = [each * row.unsqueeze(-1) for each, row in zip(weights, rows, strict=True) if row is not None]
    total = torch.stack([part.sum(-1) for part in parts]).sum(0)
    off = torch.minimum((total - 1).abs(), total.abs())
    return None if bool((off > 4e-3).any()) or float(total.max()) < 0.5 else parts


def is_negative(factor: Any) -> bool:
    return bool((factor < 0).all()) if isinstance(factor, Tensor) else factor < 0


def _rows(factor: Any, whole: Tensor, output: Followed, divided: bool) -> Any:
    """A factor as a number, or as one number for each row of the map, ``(batch, heads, queries, 1)``; else None."""
    if isinstance(factor, int | float):
        return (1 / factor if factor else None) if divided else float(factor)
    if not isinstance(factor, Tensor) or not factor.is_floating_point() or factor.ndim > whole.ndim:
        return None
    found = factor.detach().reciprocal() if divided else factor.detach()
    if found.numel() == 1:
        return found.reshape(())
    if found.shape[-1] != 1:
        if found.ndim != whole.ndim or found.stride(-1) != 0:  # it differs along the width
            return None
        found = found[..., :1]
    try:
        found = found.expand(*whole.shape[:-1], 1)[..., 0]
    except RuntimeError:  # the product broadcasts the output to a larger shape
        return None
    if output.tokens_first or (found.shape != output.lead and found.ndim == 3):
        found = found.transpose(1, 2)
    if found.ndim == 2 and found.numel() == math.prod(output.lead):  # samples and heads are folded into one axis
        found = found.reshape(output.lead)
    return found.unsqueeze(-1) if found.shape == output.lead else None


def per_row(factor: Any, like: Tensor) -> Tensor | None:
    """A factor of outputs ``(batch, heads, queries, width)`` as a factor of rows, which broadcasts with
    ``(batch, heads, queries)``; None if it differs along the width."""
    found = factor.detach() if isinstance(factor, Tensor) else torch.tensor(float(factor))
    found = found.to(like)
    if found.ndim == 0:
        return found
    return found.squeeze(-1) if found.shape[-1] == 1 and found.ndim <= 4 else None
