"""``AttentionRecord``: one attention of one call of a module, from its recognition to the file in which it is saved.

1. A source (:mod:`regard.maps.sources`) recognizes a call and returns a record, or a reason why it cannot. The record
   has a :class:`Computation`: the tensors of the running model, and how to build the map from them.
2. :meth:`AttentionRecord.build` computes the weights of some rows and heads and compares them with what the model
   computed. A capture stores them in the record and drops the computation, and with it the model's tensors.
3. A :class:`regard.maps.Map` holds the records of one module. Views, analyses and files read them.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.maps._check import NOT_COMPARED as NOT_COMPARED
from regard.maps._check import Check as Check
from regard.maps._check import Rounding
from regard.maps._overview import Overview
from regard.maps.tokens._axes import MapAxes
from regard.maps.tokens._layout import Layout
from regard.maps.tokens._positions import Positions
from regard.maps.tokens._windows import Windows
from regard.maps.weights._attention_scores import (
    ALL,
    AttentionScores,
    Selection,
    exact,
    product_error,
    selected,
    shared_heads,
)
from regard.maps.weights._band import alignment

# Computes the weights of a selection of rows and heads.
WeightsOf = Callable[[Selection, Selection], Tensor]


@dataclass(frozen=True)
class Missed:
    """Attention that was computed but not captured, and why."""

    name: str
    reason: str
    shape: tuple[int, ...] | None = None
    count: int = 1

    def __str__(self) -> str:
        shape = f" {self.shape}" if self.shape else ""
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.name}{shape}: {self.reason}{times}"


@dataclass
class Computation:
    """The tensors of one attention while the model runs.

    Attributes:
        weights: computes the weights, and the logsumexp of their scores (None without scores), of a selection of rows
            and heads; in float32, or in float64 if the model computes in it.
        module: the module that attends.
        output: ``(batch, heads, queries, width)``, the heads' outputs, in the model's autograd graph; None if only a
            later output of the layer is known.
        value: ``(batch, heads or a divisor, keys, width)``.
        expected: what weights @ value is compared with, if that is not ``output``, which may contain dropout.
        compare: computes the largest error of the weights of a selection of rows and heads, if they are not to be compared
            by weights @ value.
        compared: the tensor with which ``compare`` compares, if its scale is not that of ``value``.
        logsumexp: ``(batch, heads, queries)``, as the kernel returned it.
        restore: turns ``(batch, heads, queries, width)`` into the layout that the model expects.
        largest_sum: the largest sum of a row's weights, if it may exceed one.
        tentative: whether it may be retracted, because it turns out to be a part of another attention.
        layout_declared: whether the layer itself, not a module around it, states how its tokens lie.
        edited: the edited weights, if a listener replaced the output by editing the weights.
        unedited: computes the model's own weights, if ``weights`` are edited ones.
        projection: computes the heads' outputs and the output projection ``(heads · width, out)``, if the source knows it.
        folded: whether heads and samples are folded into one axis of the model's tensors; read as samples first.
        dropout: whether the output contains dropout and ``expected`` does not say what it would be without.
    """

    weights: Callable[[Selection, Selection], tuple[Tensor, Tensor | None]]
    module: nn.Module | None = None
    output: Tensor | None = None
    value: Tensor | None = None
    expected: Tensor | None = None
    compare: Callable[[Tensor, Selection, Selection], Tensor] | None = None
    compared: Tensor | None = None
    logsumexp: Tensor | None = None
    restore: Callable[[Tensor], Tensor] | None = None
    largest_sum: Tensor | None = None
    tentative: bool = False
    layout_declared: bool = False
    edited: WeightsOf | None = field(default=None, init=False)
    unedited: Callable[[Selection, Selection], tuple[Tensor, Tensor | None]] | None = field(default=None, init=False)
    projection: Callable[[], tuple[Tensor, Tensor]] | None = field(default=None, init=False)
    folded: bool = field(default=False, init=False)
    dropout: bool = field(default=False, init=False)

    def with_weights(self, edited: WeightsOf) -> "Computation":
        """This computation with edited weights."""
        weights = lambda rows, heads: (edited(rows, heads), None)  # noqa: E731
        found = replace(self, weights=weights, compare=None, expected=None, logsumexp=None)
        found.unedited = self.unedited or self.weights
        return found

    @property
    def expected_output(self) -> Tensor | None:
        """What weights @ value must give: ``expected``, or else ``output``."""
        return self.output if self.expected is None else self.expected

    @property
    def device(self) -> torch.device:
        known = self.output if self.value is None else self.value
        if known is None:
            raise ValueError("neither values nor an output are known, and with them no device")
        return known.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which weights are computed."""
        return torch.float64 if self.value is not None and self.value.dtype is torch.float64 else torch.float32

    @property
    def clean_output(self) -> Tensor | None:
        """The heads' outputs without dropout."""
        if self.expected is not None or not self.dropout or self.value is None:
            return self.expected_output
        weights = self.weights(ALL, ALL)[0]
        return weights @ shared_heads(exact(self.value), ALL, weights.shape[1]).to(weights.dtype)

    def error(self, weights: Tensor, rows: Selection, heads: Selection) -> Tensor | None:
        """The largest difference from what the model computed; None if there is nothing to compare with."""
        if self.compare is not None:
            return self.compare(weights, rows, heads)
        if self.value is None or self.expected_output is None:
            return None
        return product_error(weights, self.value, self.expected_output, rows, heads)

    def rounding_factor(self, keys: int, single: bool = False) -> float:
        """The error that rounding may cause, as a multiple of the largest magnitude compared, see :meth:`rounding`."""
        like = self.output if self.output is not None else self.value if self.compared is None else self.compared
        # A product in half precision that is divided in float32, as under autocast, is no more exact than its factors.
        known = [x for x in (like, self.value) if x is not None]
        return max((rounding_factor(x.dtype, x.is_cuda, keys, single) for x in known), default=0.0)

    def rounding(self, keys: int, single: bool = False) -> Rounding | None:
        """The error that rounding may cause: some units in the last place of the largest magnitude compared.

        Args:
            single: whether the map is computed in float32 even if the model computes in float64.
        """
        value = self.value if self.compared is None else self.compared
        if value is None or value.numel() == 0:
            return None
        times = self.rounding_factor(keys, single)
        # No average of values is larger than the values. Computed now, because the model may overwrite them.
        largest = torch.linalg.vector_norm(value.detach() if value.requires_grad else value, math.inf)
        return Rounding(largest, times, self.largest_sum)


def rounding_factor(dtype: torch.dtype, cuda: bool, keys: int, single: bool = False) -> float:
    """The error that rounding may cause, as a multiple of the largest magnitude compared, see :meth:`Computation.rounding`."""
    precision = _precision(dtype, cuda)
    precision = max(precision, 2.0**-23) if single else precision
    return (4 if precision > 1e-5 else 64 * max(1.0, math.log2(max(2, keys)))) * precision


@functools.cache
def _precision(dtype: torch.dtype, cuda: bool) -> float:
    """The machine epsilon with which a model computes. On a GPU float32 may be multiplied in TF32."""
    precision = torch.finfo(dtype).eps
    return max(precision, 2.0**-11) if dtype is torch.float32 and cuda else precision


@dataclass(eq=False)
class AttentionRecord:
    """One attention of one call of a module.

    Attributes:
        name: the module's path; a second attention in the same call of the module ends in ``#2``.
        kind: how it was recognized: "sdpa", "flex", "softmax", "sigmoid", "fast path", "gaussian", "flash_attn", …
        shape: ``(batch, heads, queries, keys)`` of the whole map.
        check: how the map compares with what the model computed.
        kernel: the operator that ran, if known.
        stored: the kept weights: ``(batch or 1, heads, rows, keys)``, or window by window.
        rows, heads: the indices of the kept rows and heads; None for all.
        overview: the map in cells, if it was kept instead of the weights.
        scores: queries and keys on the host, if they were kept, from which any part of the map can be computed.
        joined_scores: the same for the calls of a generation that were put together.
        windows: how an image was cut into windows.
        layout: how the keys lie on an image, if known.
        axes: what its axes are, and how certain that is.
        computation: how to build the map, while the model runs.
        remarks: what a reader should know about how it was computed.
        moment: the number of the model's run in the capture, and a number that orders its attentions; None if not known.
        norms: the :class:`regard.maps.ValueNorms` that ``capture(values=True)`` keeps.
    """

    name: str
    kind: str
    shape: tuple[int, int, int, int]
    check: Check
    kernel: str | None = None
    stored: Tensor | None = None
    rows: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    windows: Windows | None = None
    layout: Layout | None = None
    axes: MapAxes = field(default_factory=MapAxes)
    computation: Computation | None = None
    moment: tuple[int, int] | None = field(default=None, init=False)
    norms: Any = field(default=None, init=False)
    overview: Overview | None = field(default=None, init=False)
    scores: AttentionScores | None = field(default=None, init=False)
    joined_scores: Callable[[Tensor, Selection], Tensor] | None = field(default=None, init=False)
    remarks: list[str] = field(default_factory=list, init=False)

    @classmethod
    def given(cls, weights: Tensor, name: str = "weights", *, kind: str = "given", **fields: Any) -> "AttentionRecord":
        """A record of weights ``(batch, heads, queries, keys)`` that were computed elsewhere; ``shape`` is that of the whole
        map if they are some of its rows or heads.

        >>> AttentionRecord.given(torch.full((1, 1, 2, 4), 0.25), layout=Layout((2, 2), 0)).weights.shape
        torch.Size([1, 1, 2, 4])
        """
        batch, heads, queries, keys = fields.pop("shape", weights.shape)
        return cls(name, kind, (batch, heads, queries, keys), fields.pop("check", Check()), stored=weights, **fields)

    @property
    def running(self) -> Computation:
        """The computation, which exists only while the model runs; an error afterwards."""
        if self.computation is None:
            raise ValueError(f"the tensors of {self.name!r} are gone: weights can be built only while the model runs")
        return self.computation

    def build(self, rows: Selection, heads: Selection) -> Tensor:
        """The weights of these rows and heads. They are compared with what the model computed, and added to :attr:`check`."""
        running = self.running
        weights, logsumexp = running.weights(rows, heads)
        log_error = None
        if running.logsumexp is not None and logsumexp is not None:
            theirs = selected(selected(running.logsumexp, 1, heads), 2, rows)
            log_error = difference(logsumexp, theirs, getattr(running.weights, "may_be_empty", True))
        self.check.add(running.error(weights, rows, heads), log_error)
        return weights

    @property
    def weights(self) -> Float[Tensor, "batch heads queries keys"]:
        """The map. Windows are put back onto the image, with zeros between different windows."""
        if self.stored is None and self.overview is not None:
            raise ValueError(
                f"only an overview of {self.name!r} was kept, not its weights: see .overview, or .row(i) with keep_keys=True"
            )
        if self.stored is None:
            raise ValueError(f"the weights of {self.name!r} were folded by reduce= and not kept: see .reduced")
        if self.windows is not None and self.rows is None:
            return self.windows.on_image(self.stored)
        if self.stored.shape[0] == 1 and self.shape[0] > 1:
            return self.stored.expand(self.shape[0], -1, -1, -1)
        return self.stored

    @property
    def contributions(self) -> Float[Tensor, "batch heads queries keys"]:
        """‖A_ij v_j W_h‖ for each query, key and head: weight times the norm of the value behind the output projection."""
        if self.norms is None or self.stored is None:
            reason = "its output projection was not found, or it was captured without values=True"
            if self.norms is not None and self.overview is not None:
                reason = "only an overview of its weights was kept: capture it without overview=, or choose rows="
            elif self.norms is not None:
                reason = "its weights were folded by reduce="
            raise ValueError(f"what the values of {self.name!r} contribute is not known: {reason}")
        sizes = self.stored.abs() * self.norms.keys.to(self.stored)[:, :, None, :]
        return self.windows.on_image(sizes) if self.windows is not None and self.rows is None else sizes

    @property
    def kept_shape(self) -> tuple[int, ...]:
        """The shape of :attr:`weights`, without building them; empty if they were not kept."""
        if self.stored is None:
            return ()
        if self.windows is not None and self.rows is None:
            tokens = math.prod(self.windows.grid)
            return (self.stored.shape[0] // self.windows.count, self.stored.shape[1], tokens, tokens)
        return (max(self.shape[0], self.stored.shape[0]), *self.stored.shape[1:])

    @property
    def kept_size(self) -> str:
        """What was kept, for readers: ``1×4×40×40``, or ``1×4×16384×16384 in 128×128 cells`` for an overview."""
        if self.overview is None or self.kept_shape:
            return "×".join(map(str, self.kept_shape)) or "folded"
        rows, columns = self.overview.mass.shape[2:]
        return "×".join(map(str, self.shape)) + f" in {rows}×{columns} cells"

    @property
    def sides(self) -> tuple[int, int]:
        """The numbers of queries and keys of the whole map: of windows that were put back, those of the image."""
        on_image = self.windows is not None and self.rows is None and self.stored is not None
        queries, keys = self.kept_shape[2:] if on_image else self.shape[2:]
        return queries, keys

    def block(self, rows: Selection, columns: Selection = ALL) -> Float[Tensor, "batch heads rows columns"]:
        """The weights of these rows and keys: kept, or computed from the kept queries and keys."""
        chosen = torch.arange(self.sides[0])[rows]
        heads = ALL if self.heads is None else torch.tensor(self.heads, dtype=torch.long)
        if self.scores is not None:
            return self.scores(chosen, heads)[0][..., columns]
        if self.joined_scores is not None:
            return self.joined_scores(chosen, heads)[..., columns]
        if self.stored is None:
            raise ValueError(
                f"no rows of {self.name!r} were kept: choose them before with rows=, or keep queries and keys with "
                "keep_keys=True (maps.notes says where they are not known; stream= writes them to disk, save does not)"
            )
        if self.rows is not None:
            missing = [row for row in chosen.tolist() if row not in self.rows]
            if missing:
                raise ValueError(f"row {missing[0]} of {self.name!r} was not kept: rows= chose {len(self.rows)} others")
            chosen = torch.tensor([self.rows.index(row) for row in chosen.tolist()], dtype=torch.long)
        return self.weights[:, :, chosen][..., columns]

    @property
    def asked(self) -> int | None:
        """How many queries the map has, of which ``rows=`` may have kept some; None if rows of it were given."""
        return None if self.rows is not None and self.kind == "given" else self.shape[2]

    @property
    def positions(self) -> Positions | None:
        """Where queries and keys lie in the whole sequence, if known."""
        return self.axes.positions

    @property
    def shift(self) -> int | Tensor:
        """The position of query 0 among the keys, while the model runs: as the causal mask or the cache states it, else such
        that queries and keys end together."""
        band, place = getattr(self.running.weights, "band", None), self.positions
        if band is not None or place is None or place.cross:
            return alignment(band, *self.shape[2:])
        return place.first - place.first_key

    @property
    def query_layout(self) -> Layout | None:
        """How the queries lie on an image, if it differs from the layout of the keys."""
        return self.axes.query_layout

    @property
    def against(self) -> str:
        return self.check.against

    @property
    def residual(self) -> float:
        """max |weights @ V − what the kernel (or layer) returned|; NaN if nothing could be compared."""
        return math.nan if self.check.error is None else float(self.check.error)

    @property
    def logsumexp_residual(self) -> float | None:
        """max |logsumexp of the scores − the kernel's own|; None if the kernel returned none, or was not asked for it: that takes
        time on the host, and short maps on a GPU are limited by it."""
        return None if self.check.logsumexp_error is None else float(self.check.logsumexp_error)

    @property
    def agrees(self) -> bool:
        """Whether rounding explains the residual. This is a check, not a proof."""
        return self.check.agrees


def difference(ours: Tensor, theirs: Tensor, may_be_empty: bool = True) -> Tensor:
    """max |ours − theirs| over rows with a key to attend to. Kernels differ in what they return for other rows."""
    if not ours.numel():
        return ours.new_zeros(())
    difference = (ours - theirs.to(ours.dtype)).abs_()
    return (difference.masked_fill_(ours == -math.inf, 0.0) if may_be_empty else difference).amax()
