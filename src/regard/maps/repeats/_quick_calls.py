"""Writes the maps of repeated calls of ``scaled_dot_product_attention``, with as little Python for each call as possible.

On a GPU the model waits for Python, so the time of Python is the cost of a capture. :mod:`regard.maps.repeats._repeated_calls`
recognizes a call that repeats an earlier one. Then only its map and the numbers of its check are written. Everything else,
such as the record of the call, is made when the map is first read. The steps of a call:

1. Before the model's kernel runs, :meth:`QuickCalls.kernels_without_logsumexp` finds the *plan*, which says how the map is
   written, and whether the kernel must return its logsumexp. A plan depends only on the form of the call (shapes, strides,
   dtypes and options), so it is made once and then found in a dictionary.
2. After it, :meth:`QuickCalls.take` writes the map and keeps a :class:`KeptCall`.
3. When somebody looks at the map, :meth:`KeptCall.record` makes its record.

Memory for several maps is allocated together, because each allocation takes time.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import kernels
from regard.maps._check import Check, Rounding, allowed_by_rounding
from regard.maps._operator_watch import unwatched
from regard.maps._record import AttentionRecord, rounding_factor
from regard.maps._selection import Rows, select
from regard.maps._storage import Storage
from regard.maps._torch_modes import ModesOff, leave_inference_mode
from regard.maps.repeats._check_buffers import CheckBuffers, CheckNumbers
from regard.maps.repeats._map_rooms import MapRooms
from regard.maps.repeats._repeated_calls import CAUSAL, KnownSite, RepeatedCall
from regard.maps.tokens._layout import Layout, given_layout
from regard.maps.weights._attention_scores import ALL
from regard.maps.weights._band import alignment
from regard.maps.weights._building import AT_ONCE
from regard.maps.weights._logsumexp_weights import is_precise, weights_and_error
from regard.maps.weights._triton_maps import Proof, proof_of_own_logsumexp, proof_of_weights


class QuickOptions(NamedTuple):
    """The options of a capture that concern repeated calls."""

    rows: Rows = None
    dtype: torch.dtype | None = None
    grid: Any = None
    prefix: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The options on which a plan depends, as a key of a dictionary."""
        rows: Any = self.rows
        if isinstance(rows, slice):
            rows = ("slice", rows.start, rows.stop, rows.step)
        return tuple(rows) if isinstance(rows, list) else rows, self.dtype

    def layout(self, known: Layout | None, keys: int, name: str, declared: bool = False) -> Layout | None:
        """How the keys lie on an image: as the caller says with ``grid=`` if that fits, else as the model states it.

        Args:
            known: the layout that the model states.
            declared: whether the layer itself declared it.
        """
        if self.grid is not None:
            try:
                return given_layout(keys, self.grid, self.prefix, name, known)
            except ValueError:  # another attention of the same model, over other tokens
                return known if declared else None
        fits = declared or self.prefix is None or known is None or known.prefix == self.prefix
        return known if fits else None


class WritePlan(NamedTuple):
    """How the maps of calls of one form are written.

    Attributes:
        shape: ``(batch, heads, queries, keys)`` of the whole map.
        rows: the range of queries that are kept.
        dtype: the dtype in which the map is kept.
        size: bytes of the kept map.
        working: bytes that must be free in addition, while it is computed.
        times: the error that rounding may cause, as a multiple of the largest value.
        output, total: the strides of the output and of the logsumexp that the model's kernel returns.
        weights: how a Triton kernel writes the map, and whether it was compared with torch; None on a CPU.
        alone: whether that kernel computes the logsumexp itself. Then the model's kernel need not return it.
        kernels: the kernels that torch chose for such calls, see ``run_as_called``.
    """

    shape: tuple[int, int, int, int]
    rows: tuple[int, int]
    dtype: torch.dtype
    size: int
    working: int
    times: float
    output: tuple[int, ...]
    total: tuple[int, ...]
    weights: tuple[kernels.WeightsPlan, Proof] | None
    alone: bool
    kernels: dict[Any, str]


class KeptCall(NamedTuple):
    """What is kept of a call, from which its record is made later.

    Attributes:
        known: what an earlier call has shown about this place in the model.
        memory: the map, or the maps of several calls.
        which: which of them, if there are several. Views take time on the host, so they are made when maps are read.
        numbers: the check: where the Triton kernel wrote it; or (on a CPU) the largest error, the sums of the rows and the
            largest value.
        kernel: the name of the model's kernel.
        cache: the state of the cache, see :attr:`RepeatedCall.cache`.
        moment: the number of the model's run, and of the attention in it.
    """

    known: KnownSite
    plan: WritePlan
    options: QuickOptions
    memory: Tensor
    which: int | None
    numbers: CheckNumbers | tuple[Tensor, Tensor, Tensor]
    kernel: str | None
    cache: Any
    moment: tuple[int, int]

    @property
    def stored(self) -> Tensor:
        """The map."""
        left = leave_inference_mode()
        try:
            return self.memory if self.which is None else self.memory[self.which]
        finally:
            if left is not None:
                left.__exit__(None, None, None)

    @property
    def check(self) -> Check:
        error, more, largest = self.numbers.tensors if isinstance(self.numbers, CheckNumbers) else self.numbers
        found = Check("kernel", error, Rounding(largest, self.plan.times))
        if not isinstance(self.numbers, CheckNumbers):
            found.add_sums(more)
        elif not self.plan.alone:  # else there is no other logsumexp to compare with
            found.add(None, more)
        return found

    @property
    def agrees(self) -> bool:
        """``self.check.agrees``, without making the check."""
        numbers, times = self.numbers, self.plan.times
        if not isinstance(numbers, CheckNumbers):
            return float(numbers[0]) <= float(Rounding(numbers[2], times))
        host = numbers.buffer.host
        error, _, largest = numbers.values if host is None else host[numbers.number]
        return error <= allowed_by_rounding(largest, times)

    def record(self) -> AttentionRecord:
        """The record of the call."""
        known, shape = self.known, self.plan.shape
        found = AttentionRecord(
            known.name,
            "sdpa",
            shape,
            self.check,
            self.kernel,
            stored=self.stored,
            rows=None if self.options.rows is None else tuple(range(*self.plan.rows)),
            layout=self.options.layout(known.layout[0], shape[3], known.name),
            axes=known.axes_of(shape, self.cache),
        )
        found.moment = self.moment
        return found


# Plans by the form of a call and the options: the layers of a model, and its passes, share them.
_plans: dict[tuple[Any, ...], WritePlan] = {}
_MOST, _FEW = 4096, 16  # plans that are kept in all, and for one module
# Maps of so few keys are written by a kernel that computes the logsumexp itself, also those of a few queries over more keys.
# It reads the keys twice, but the model's kernel is called as the model does, which takes less time on the host. Longer maps
# are limited by the device.
_FEW_KEYS, _FEW_QUERIES, _MORE_KEYS = 1024, 64, 4096


class QuickCalls:
    """Writes the maps of repeated calls of a capture.

    Args:
        storage: counts the memory of the maps.
        chunk_bytes: the size up to which a map needs no additional working memory.
        keep: stores what is kept of a call, given the name of its map.

    Attributes:
        modules: how many modules are expected to attend, one after the other, with maps of the same size.
    """

    def __init__(
        self, options: QuickOptions, storage: Storage, chunk_bytes: int, keep: Callable[[str, KeptCall], None]
    ) -> None:
        self._options, self._key, self._storage, self._chunk_bytes = options, options.key, storage, chunk_bytes
        self._keep = keep
        self._kernels: bool | None = None  # whether Triton kernels can be used; not known before the first call
        self._numbers = CheckBuffers()
        self.modules = 1
        # Memory for the next maps of each plan.
        self._rooms: dict[kernels.WeightsPlan, MapRooms] = {}
        self._next: WritePlan | None = None  # the plan of the call that is about to run
        self._fit = False  # whether its map fits into the budget
        # Plans, by id, that did not fit a call because of its strides or addresses: such calls are asked for their logsumexp.
        self._refused: dict[int, WritePlan] = {}

    def kernels_without_logsumexp(
        self, known: KnownSite, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
    ) -> dict[Any, str] | None:
        """See :class:`RepeatedListener`. This is asked before each call that :meth:`take` takes."""
        plan: WritePlan | None = known.plans.get(self._key)
        if plan is None and query.shape[2] == 1:
            plan = _plans.get(self._like(query, key, value, causal, scale))
        self._next = plan
        self._fit = plan is not None and self._fits(plan)
        if plan is None or not plan.alone or not self._fit or id(plan) in self._refused:
            return None
        return plan.kernels

    def _fits(self, plan: WritePlan) -> bool:
        return self._storage.has_room(plan.size + plan.working)

    def _like(self, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Any, ...]:
        """The form of a call, and the options: a key of ``_plans``."""
        return (
            query.shape, query.stride(), key.shape, key.stride(), value.stride(), query.dtype, query.device,
            causal, scale, self._key,
        )  # fmt: skip

    def take(self, call: RepeatedCall, moment: tuple[int, int]) -> bool:
        """Write the map of a call. False if this is not possible: then its record is made, and the map built from it."""
        plan, total = self._next or self._find_plan(call), call.total
        if plan is None or not (self._fit or self._fits(plan)):
            return False
        written = None
        if call.output.stride() == plan.output and (plan.alone or (total is not None and total.stride() == plan.total)):
            try:
                by_kernel = plan.weights
                written = self._on_cpu(plan, call) if by_kernel is None else self._by_kernel(plan, *by_kernel, call)
            except Exception:  # most likely too little memory, which the usual way will report
                return False
        if written is None:
            self._refused[id(plan)] = plan
            return False
        self._storage.used += plan.size
        memory, which, numbers = written
        kept = KeptCall(call.known, plan, self._options, memory, which, numbers, call.kernel, call.cache, moment)
        self._keep(call.known.name, kept)
        return True

    def _find_plan(self, call: RepeatedCall) -> WritePlan | None:
        """The plan of calls of this form in any module, made if there is none. It is also kept with the place of the call."""
        query = call.query
        if self._kernels is None:
            self._kernels = kernels.usable_for_maps(query)
        like = self._like(query, call.key, call.value, call.causal, call.scale)
        plan = _plans.get(like)
        if plan is None:
            plan = self._plan(call)
            if plan is None:
                return None
            if len(_plans) >= _MOST:
                _plans.clear()
            _plans[like] = plan
        if query.shape[2] > 1:  # what is known of a single query is shared by all numbers of keys, but plans are not
            if len(call.known.plans) >= _FEW:
                call.known.plans.clear()
            call.known.plans[self._key] = plan
        return plan

    @staticmethod
    def _on_cpu(plan: WritePlan, call: RepeatedCall) -> tuple[Tensor, None, Any] | None:
        """The weights and their check on a CPU, by torch; None if this cannot be used. They are those of :class:`KeptCall`."""
        query, key, value, output, logsumexp = call.query, call.key, call.value, call.output, call.logsumexp
        if logsumexp is None:
            return None
        with unwatched(), ModesOff(query.device):
            band = CAUSAL if call.causal else None
            weights, error, sums = weights_and_error(query, key, value, output, logsumexp, call.scale, band, plan.rows)
            # Computed now, because the model may overwrite its values.
            largest = torch.linalg.vector_norm(value, math.inf)
            weights = weights if weights.dtype is plan.dtype else weights.to(plan.dtype)
            return weights, None, (error, sums, largest)

    def _by_kernel(
        self, plan: WritePlan, writer: kernels.WeightsPlan, proof: Proof, call: RepeatedCall
    ) -> tuple[Tensor, int | None, CheckNumbers] | None:
        """The same by a Triton kernel; None if it cannot be used, or cannot be started at once."""
        if not proof.agrees:
            return None
        stream, rooms = writer.stream, self._rooms.get(writer)
        if rooms is None or not rooms.left or rooms.stream != stream:
            rooms = self._rooms[writer] = self._make_rooms(plan, writer, stream)
        memory, which, numbers, to, place = rooms.take()
        total = None if plan.alone else call.total
        if not writer.start_at_once(call.query, call.key, call.value, total, call.output, to, place, stream):
            return None
        return memory, which, numbers

    def _make_rooms(self, plan: WritePlan, writer: kernels.WeightsPlan, stream: int) -> MapRooms:
        """Memory for the maps of all modules that will follow, if these fit into ``chunk_bytes`` and the budget; else for one."""
        count = min(self.modules, self._chunk_bytes // plan.size)
        if self._storage.budget is not None:
            count = min(count, (self._storage.budget - self._storage.used - plan.working) // plan.size)
        return MapRooms(writer, plan.dtype, plan.size, max(1, count), self._numbers, stream)

    def _plan(self, call: RepeatedCall) -> WritePlan | None:
        """A plan for calls of this form; None if their maps must be built from a record."""
        query, value, logsumexp, output = call.query, call.value, call.logsumexp, call.output
        batch, heads, queries, _ = query.shape
        keys = call.key.shape[2]
        rows = ALL if self._options.rows is None else select(self._options.rows, queries)
        if not isinstance(rows, slice) or rows.step not in (None, 1) or logsumexp is None or call.total is None:
            return None
        if logsumexp.data_ptr() != call.total.data_ptr():  # a copy, which each call would need
            return None
        span = rows.indices(queries)[:2]
        shape, dtype = (batch, heads, span[1] - span[0], keys), self._options.dtype
        dtype = dtype or (torch.float64 if value.dtype is torch.float64 else torch.float32)
        size = math.prod(shape) * dtype.itemsize
        if size <= 0 or output.dtype != value.dtype or query.dtype != value.dtype:
            return None
        weights, alone = None, False
        if self._kernels:
            alone = keys <= (_MORE_KEYS if shape[2] <= _FEW_QUERIES else _FEW_KEYS)
            weights = _by_kernel(call, slice(*span), dtype, alone)
            if weights is None and alone:
                alone, weights = False, _by_kernel(call, slice(*span), dtype, False)
            if weights is None:
                return None
        elif not is_precise(logsumexp, query) or math.prod(shape) > AT_ONCE or value.shape[0] != batch:
            return None
        working = 0 if size <= self._chunk_bytes else 3 * self._chunk_bytes
        times = rounding_factor(output.dtype, value.is_cuda, keys)
        whole = (batch, heads, queries, keys)
        strides = output.stride(), call.total.stride()
        return WritePlan(whole, span, dtype, size, working, times, *strides, weights, alone, {})

    def finish(self) -> CheckBuffers:
        """Release memory that no map used. Returns the numbers of all checks."""
        self._rooms.clear()
        return self._numbers


def _by_kernel(
    call: RepeatedCall, rows: slice, dtype: torch.dtype, alone: bool
) -> tuple[kernels.WeightsPlan, Proof] | None:
    """How a Triton kernel writes these rows; None if it cannot, or was not yet found to agree with torch.

    Args:
        alone: whether it computes the logsumexp itself.
    """
    query, key, value, total, output = call.query, call.key, call.value, call.logsumexp, call.output
    batch, heads, queries, _ = query.shape
    if total is None or batch * heads > kernels.MOST_HEADS or query.shape[3] > kernels.WIDEST:
        return None
    if total.dtype != torch.float32 or any(x.stride(3) != 1 for x in (query, key, value, output)):
        return None
    band = CAUSAL if call.causal else None
    shift = alignment(band, queries, key.shape[2])
    given = kernels.ScoreTensors(query, key, total, call.scale, total, None, 0 if call.causal else None)
    proof = proof_of_weights(given, dtype)
    if not proof.agrees or not isinstance(shift, int) or not kernels.usable_for_maps(value):
        return None
    if alone:
        proof = proof_of_own_logsumexp(given, value, output, dtype, rows, shift)
        if not proof.agrees:
            return None
    return kernels.WeightsPlan(given, value, output, dtype, rows, shift, alone), proof
