"""Sums of outputs of attention: of which outputs a tensor is made, and with which factors.

A model may merge two parts of one softmax by their logsumexp, g·O₁ + (1 − g)·O₂ in any algebraic form, or subtract two
attentions over the same values, O₁ − λ·O₂ (differential attention, whose map is A₁ − λA₂). All of these are linear
combinations whose factors are numbers for each row.
"""

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


class Memory:
    """Where a tensor lies in memory. The memory may be freed, and used again by another tensor."""

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
        """That of the others which is the same memory, still in use; else this one."""
        return next((x for x in others if x._at is not None and x._at == self._at and not x._storage.expired()), self)

    def multiple(self, of: "Memory") -> float | None:
        """The number by which the other's tensor was multiplied to give this one; None if there is none, or if either is
        gone."""
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
        except RuntimeError:  # of a dtype with which nothing can be computed
            return None


@dataclass(eq=False)
class Followed:
    """An output of the running call of a module.

    Attributes:
        name: of its map.
        lead: ``(batch, heads, queries)`` of its map.
        heads: ``(batch, heads, queries, width)``; None for the first output of a call, of which no memory is kept.
        values: where its values lie in memory.
        tokens_first: whether tokens come before heads.
        with_logsumexp: whether the model has the logsumexp of its scores.
        taken: whether a factor that was computed from it is in the map already.
        lost: whether such a factor was used in a way that is not followed.
        chosen: for a part of an output, which of its heads these are.
    """

    name: str
    lead: tuple[int, ...]
    heads: Tensor | None
    values: Memory
    tokens_first: bool = False
    with_logsumexp: bool = False
    taken: bool = False
    lost: bool = False
    chosen: tuple[int, ...] | None = None


Terms = dict[Followed, Any]


class Combinations:
    """The tensors that are alive and are combinations of outputs."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Tensor], Terms]] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    @property
    def ids(self) -> set[int]:
        """Of the tensors; some may be gone."""
        return set(self._known)

    def get(self, x: Any) -> Terms | None:
        entry = self._known.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def set(self, x: Tensor, terms: Terms) -> None:
        self._known[id(x)] = (weakref.ref(x), terms)

    def clear(self) -> None:
        self._known.clear()

    def without(self, gone: list[Followed]) -> None:
        """Forget all tensors that these outputs are a part of."""
        self._known = {key: entry for key, entry in self._known.items() if not any(x in entry[1] for x in gone)}


def row_factors(terms: Terms, factor: Any, whole: Tensor, divided: bool = False) -> Terms | None:
    """For each output in ``whole``, what a factor or divisor does to its rows; None if it is not one number for each."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = {output: _rows(factor, whole, output, divided) for output in terms}
        return None if None in rows.values() else rows


def scaled(terms: Terms, factor: Any, whole: Tensor) -> Terms | None:
    """The terms of ``whole`` times a factor; None if it is not one number for each row."""
    rows = row_factors(terms, factor, whole)
    return None if rows is None else times(terms, rows)


def times(terms: Terms, rows: Terms) -> Terms:
    """The terms after each output was multiplied with a factor of its own."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        return {output: old * rows[output] for output, old in terms.items()}


def aligned(factor: Tensor, letters: str, of_whole: str) -> Tensor | None:
    """An operand of einsum with the axes of another one, those that it lacks of size 1; None if it has more.

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


def some_heads(whole: Tensor, terms: Terms, part: Any, index: Any) -> Terms | None:
    """The terms of ``part``, which is ``whole[index]`` and holds some heads of one output; None if it does not."""
    output, factor = next(iter(terms.items()))
    if len(terms) > 1 or isinstance(factor, Tensor) or not isinstance(part, Tensor) or part.ndim != whole.ndim != 3:
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
        numbers = torch.arange(heads).view(*(heads if i == axis else 1 for i in range(whole.ndim))).expand(whole.shape)
        chosen = numbers[index].movedim(axis, 0).flatten(1)[:, 0].tolist()
    lead = (batch, len(chosen), queries)
    return {Followed(output.name, lead, None, output.values, chosen=tuple(chosen)): factor}


def is_negative(factor: Any) -> bool:
    return bool((factor < 0).all()) if isinstance(factor, Tensor) else factor < 0


def _rows(factor: Any, whole: Tensor, output: Followed, divided: bool) -> Any:
    """A number, or one for each row of the map, ``(batch, heads, queries, 1)``; None for other factors."""
    if isinstance(factor, int | float):
        return (1 / factor if factor else None) if divided else float(factor)
    if not isinstance(factor, Tensor) or not factor.is_floating_point() or factor.ndim > whole.ndim:
        return None
    found = factor.detach().reciprocal() if divided else factor.detach()
    if found.numel() == 1:
        return found.reshape(())
    if found.shape[-1] != 1:
        if found.ndim != whole.ndim or found.stride(-1) != 0:  # not expanded along the width
            return None
        found = found[..., :1]
    try:
        found = found.expand(*whole.shape[:-1], 1)[..., 0]
    except RuntimeError:  # it makes the output larger
        return None
    if output.tokens_first or (found.shape != output.lead and found.ndim == 3):
        found = found.transpose(1, 2)
    if found.ndim == 2 and found.numel() == math.prod(output.lead):  # samples and heads are one axis
        found = found.reshape(output.lead)
    return found.unsqueeze(-1) if found.shape == output.lead else None


def per_row(factor: Any, like: Tensor) -> Tensor | None:
    """A factor of outputs ``(batch, heads, queries, width)`` as one of rows, ``(batch, heads, queries)`` or smaller; None if
    it differs along the width."""
    found = factor.detach() if isinstance(factor, Tensor) else torch.tensor(float(factor))
    found = found.to(like)
    if found.ndim == 0:
        return found
    return found.squeeze(-1) if found.shape[-1] == 1 and found.ndim <= 4 else None
