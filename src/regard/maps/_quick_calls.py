"""Calls that are like earlier ones, in as little time on the host as there can be: the map is written, and all that can wait
waits. The record of a call is made when somebody looks at it.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.functional import kernels
from regard.maps._attention_scores import ALL
from regard.maps._band import alignment
from regard.maps._building import AT_ONCE
from regard.maps._by_kernel import Proof, proof_of_weights
from regard.maps._by_logsumexp import weights_and_error
from regard.maps._check import Check, Rounding, allowed_by_rounding
from regard.maps._layout import Layout, given_layout
from regard.maps._numbers_of_checks import NumbersOfCall, NumbersOfChecks
from regard.maps._operator_watch import unwatched
from regard.maps._plainly import Plainly, leave_inference_mode
from regard.maps._record import AttentionRecord, rounding_factor
from regard.maps._repeated_calls import CAUSAL, KnownSite, RepeatedCall
from regard.maps._selection import Rows, select
from regard.maps._storage import Storage


class QuickOptions(NamedTuple):
    """The options of a capture that concern calls like earlier ones."""

    rows: Rows = None
    dtype: torch.dtype | None = None
    grid: Any = None
    prefix: int | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """What of them decides how a map is written."""
        rows: Any = self.rows
        if isinstance(rows, slice):
            rows = ("slice", rows.start, rows.stop, rows.step)
        return tuple(rows) if isinstance(rows, list) else rows, self.dtype

    def layout(self, known: Layout | None, keys: int, name: str, declared: bool = False) -> Layout | None:
        """How the keys lie: the grid that the caller gave is for attention that fits it."""
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
        rows: from which to which query.
        size: bytes of a map.
        working: bytes that must be free besides.
        times: how large an error may be by rounding, as a multiple of the largest value.
        output, total: the strides of what the kernel of the model returns.
        weights: how a kernel writes the weights, and whether it was proven; None on a CPU, where torch computes them.
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


class KeptCall(NamedTuple):
    """What is kept of a call until somebody asks for its record.

    Attributes:
        numbers: of the check, where a kernel wrote them; or the largest error, the sums of the rows and the largest value.
    """

    known: KnownSite
    plan: WritePlan
    options: QuickOptions
    stored: Tensor
    numbers: NumbersOfCall | tuple[Tensor, Tensor, Tensor]
    kernel: str | None
    cache: Any
    moment: tuple[int, int]

    @property
    def check(self) -> Check:
        error, more, largest = self.numbers.tensors if isinstance(self.numbers, NumbersOfCall) else self.numbers
        found = Check("kernel", error, Rounding(largest, self.plan.times))
        if isinstance(self.numbers, NumbersOfCall):
            found.add(None, more)
        else:
            found.add_sums(more)
        return found

    @property
    def agrees(self) -> bool:
        """As that of the check, without making it."""
        if not isinstance(self.numbers, NumbersOfCall):
            return float(self.numbers[0]) <= float(Rounding(self.numbers[2], self.plan.times))
        error, _, largest = self.numbers.values
        return error <= allowed_by_rounding(largest, self.plan.times)

    def record(self) -> AttentionRecord:
        """The record, as if it had been made at the call."""
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


# Plans by the form of a call and the options: layers of a model are alike, and so are its passes.
_plans: dict[tuple[Any, ...], WritePlan] = {}
_MOST, _FEW = 4096, 16  # plans of all calls, and of those of one module
_TOGETHER = 2**22  # bytes of maps that share memory, so that it is asked for once: so many are not freed one by one
_new: Any = tuple.__new__  # a named tuple's own takes longer


class QuickCalls:
    """Writes the maps of a capture's calls that are like earlier ones.

    Args:
        storage: where they are counted.
        chunk_bytes: what a map may need without asking for working memory.
        keep: takes what is kept of a call, by the name of its map.
    """

    def __init__(
        self, options: QuickOptions, storage: Storage, chunk_bytes: int, keep: Callable[[str, KeptCall], None]
    ) -> None:
        self._options, self._key, self._storage, self._chunk_bytes = options, options.key, storage, chunk_bytes
        self._keep = keep
        self._kernels: bool | None = None  # whether kernels may be used
        self._numbers = NumbersOfChecks()
        self.modules = 1  # that are expected to attend, one after the other, in calls of one form
        # Room for the next maps, by whose plan and stream: to make it at once takes less time.
        self._rooms: tuple[WritePlan, int, list[Tensor]] | None = None

    def take(self, call: RepeatedCall, moment: tuple[int, int]) -> bool:
        """Write the map of a call; False if its record must be made to do so."""
        known, _, _, _, _, _, _, kernel, output, total, cache = call
        if total is None:
            return False
        plan: WritePlan | None = known.plans.get(self._key) or self._find_plan(call)
        if plan is None or output.stride() != plan.output or total.stride() != plan.total:
            return False
        storage, size = self._storage, plan.size
        if storage.budget is not None and storage.used + size + plan.working > storage.budget:
            return False
        try:
            written = self._on_cpu(plan, call) if plan.weights is None else self._by_kernel(plan, plan.weights, call)
        except Exception:  # most likely too little memory: the whole way says so
            return False
        if written is None:
            return False
        storage.used += size
        kept = _new(KeptCall, (known, plan, self._options, *written, kernel, cache, moment))
        self._keep(known.name, kept)
        return True

    def _find_plan(self, call: RepeatedCall) -> WritePlan | None:
        """That of calls of this form, whatever the module: layers of a model are alike."""
        query, key = call.query, call.key
        if self._kernels is None:
            self._kernels = kernels.usable_for_maps(query)
        like = (
            query.shape, query.stride(), key.shape, key.stride(), call.value.stride(), query.dtype, query.device,
            call.causal, call.scale, self._key,
        )  # fmt: skip
        plan = _plans.get(like)
        if plan is None:
            plan = self._plan(call)
            if plan is None:
                return None
            if len(_plans) >= _MOST:
                _plans.clear()
            _plans[like] = plan
        if query.shape[2] > 1:  # a site with a single query is known for any number of keys
            if len(call.known.plans) >= _FEW:
                call.known.plans.clear()
            call.known.plans[self._key] = plan
        return plan

    @staticmethod
    def _on_cpu(plan: WritePlan, call: RepeatedCall) -> tuple[Tensor, Any] | None:
        """The weights, and the numbers of their check, by torch."""
        query, key, value, output, logsumexp = call.query, call.key, call.value, call.output, call.logsumexp
        if logsumexp is None:
            return None
        with unwatched(), Plainly(query.device):
            band = CAUSAL if call.causal else None
            weights, error, sums = weights_and_error(query, key, value, output, logsumexp, call.scale, band, plan.rows)
            # The model may overwrite its values: what depends on them is computed now.
            largest = torch.linalg.vector_norm(value, math.inf)
            return weights if weights.dtype is plan.dtype else weights.to(plan.dtype), (error, sums, largest)

    def _by_kernel(
        self, plan: WritePlan, weights_plan: tuple[kernels.WeightsPlan, Proof], call: RepeatedCall
    ) -> tuple[Tensor, Any] | None:
        """The same by a kernel; None if it is not used, or cannot be started at once."""
        _, _, query, key, value, _, _, _, output, total, _ = call
        writer, proof = weights_plan
        if not proof.agrees or total is None:
            return None
        stream, rooms = writer.stream, self._rooms
        if rooms is None or not rooms[2] or rooms[0] is not plan or rooms[1] != stream:
            rooms = self._rooms = plan, stream, self._make_rooms(plan, writer)
        weights = rooms[2].pop()
        numbers = self._numbers.room(writer.count, writer.device, stream)
        if not writer.start_at_once(query, key, value, total, output, weights, numbers.address, stream):
            return None
        return weights, numbers

    def _make_rooms(self, plan: WritePlan, writer: kernels.WeightsPlan) -> list[Tensor]:
        """For one map, or for those of all modules as far as they are small."""
        count = min(self.modules, self._chunk_bytes // plan.size)
        if self._storage.budget is not None:
            count = min(count, (self._storage.budget - self._storage.used - plan.working) // plan.size)
        count = max(1, count)
        left = leave_inference_mode()
        try:
            if count * plan.size <= _TOGETHER and plan.size % 16 == 0:  # a kernel writes from there on
                return list(torch.empty((count, *writer.shape), dtype=plan.dtype, device=writer.device).unbind(0))
            return [torch.empty(writer.shape, dtype=plan.dtype, device=writer.device) for _ in range(count)]
        finally:
            if left is not None:
                left.__exit__(None, None, None)

    def _plan(self, call: RepeatedCall) -> WritePlan | None:
        """How maps of calls of this form are written; None if not in short."""
        query, value, logsumexp, output = call.query, call.value, call.logsumexp, call.output
        batch, heads, queries, _ = query.shape
        keys = call.key.shape[2]
        rows = ALL if self._options.rows is None else select(self._options.rows, queries)
        if not isinstance(rows, slice) or rows.step not in (None, 1) or logsumexp is None or call.total is None:
            return None
        if logsumexp.data_ptr() != call.total.data_ptr():  # a copy, of which each call would need another one
            return None
        span = rows.indices(queries)[:2]
        shape, dtype = (batch, heads, span[1] - span[0], keys), self._options.dtype
        dtype = dtype or (torch.float64 if value.dtype is torch.float64 else torch.float32)
        size = math.prod(shape) * dtype.itemsize
        if size <= 0 or output.dtype != value.dtype or query.dtype != value.dtype:
            return None
        weights = None
        if self._kernels:
            weights = _by_kernel(call, slice(*span), dtype)
            if weights is None:
                return None
        elif not _at_once(call, math.prod(shape)):
            return None
        working = 0 if size <= self._chunk_bytes else 3 * self._chunk_bytes
        times = rounding_factor(output.dtype, value.is_cuda, keys)
        whole = (batch, heads, queries, keys)
        return WritePlan(whole, span, dtype, size, working, times, output.stride(), call.total.stride(), weights)

    def fetch(self) -> None:
        """Bring the numbers of all checks to the host, which waits for the device."""
        self._rooms = None
        self._numbers.fetch()


def _at_once(call: RepeatedCall, count: int) -> bool:
    """Whether torch computes so many weights on a CPU, from the kernel's logsumexp, with as few operations as there can be."""
    total, value = call.logsumexp, call.value
    if total is None or value.device.type != "cpu" or count > AT_ONCE or value.shape[0] != call.query.shape[0]:
        return False
    return total.dtype == (torch.float64 if call.query.dtype is torch.float64 else torch.float32)


def _by_kernel(call: RepeatedCall, rows: slice, dtype: torch.dtype) -> tuple[kernels.WeightsPlan, Proof] | None:
    """How a kernel writes these rows, if it was proven before; None if it cannot, or not in short."""
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
    return kernels.WeightsPlan(given, value, output, dtype, rows, shift), proof
