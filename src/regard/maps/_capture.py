"""``capture``: the attention maps of a model, computed beside it while it runs unchanged."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.maps._container import Maps
from regard.maps._contributions import ProjectionWatch
from regard.maps._interception import Interceptor
from regard.maps._interception_block import intercept
from regard.maps._keeping import OverviewOptions
from regard.maps._maps_json import MapsContent
from regard.maps._module_names import ModuleNames, runs_unseen
from regard.maps._record import AttentionRecord, Missed
from regard.maps._revisions import Revisions
from regard.maps._selection import (
    Numbers,
    Rows,
    check_patterns,
    checked_selection,
    chosen_count,
    may_match,
    numbers_of,
    select,
)
from regard.maps._storage import Storage
from regard.maps._torch_modes import ModesOff
from regard.maps._unread_checks import ChecksOnDevice, disagreeing, warn_of
from regard.maps.repeats._learning import LearningInterceptor
from regard.maps.repeats._quick_calls import QuickCalls, QuickOptions
from regard.maps.tokens._layout import Layout, check_grid
from regard.maps.tokens._segments import image_tokens_of
from regard.maps.weights._attention_scores import ALL, Selection
from regard.support.checks import check_flag, check_positive, describe
from regard.support.text import parse_size


@dataclass(eq=False)
class Capture(Revisions):
    """What :func:`capture` returns: a context manager that gives the :class:`Maps`.

    It is the listener of an interceptor: :meth:`attended` receives the record of each attention, builds what is kept, and
    adds it to the maps. Calls like earlier ones go to :attr:`repeats`, which is faster.
    """

    model: nn.Module
    only: str | Sequence[str] | None = None
    rows: Rows = None
    heads: Rows = None
    dtype: torch.dtype | None = None
    reduce: Callable[..., Any] | None = None
    budget: str | int | None = "2GiB"
    grid: Any = None
    prefix: int | None = None
    stream: str | Path | None = None
    values: bool = False
    long: OverviewOptions = field(default_factory=OverviewOptions)

    chunk_bytes: ClassVar[int] = 64 * 2**20  # scores are computed for as many rows at a time as fit into this

    def __post_init__(self) -> None:
        _check_options(self)
        limit = None if self.budget is None else parse_size(self.budget, "budget")
        self.storage = Storage(limit, None if self.stream is None else Path(self.stream))
        self.maps = Maps()
        self.projections = ProjectionWatch() if self.values else None
        self._options = QuickOptions(self.rows, self.dtype, self.grid, self.prefix)
        folded = self.reduce is not None or self.long.overview is not None
        usual = not folded and self.stream is None and self.heads is None and self.projections is None
        keep = self.maps.keep
        self._quick = QuickCalls(self._options, self.storage, self.chunk_bytes, keep) if usual else None
        self.repeats = self._quick
        self._interception: AbstractContextManager[Interceptor] | None = None
        self._names: ModuleNames | None = None
        self._skipped: set[str] = set()
        self._waiting: dict[str, Tensor] = {}  # weights that reduce= will fold, when they can no longer change
        self.by_rows = self.reduce is not None and _positional(self.reduce) >= 3
        self._noted: dict[str, dict[str, None]] = {}  # for each note, the modules that it is about
        self._missed: dict[tuple[str, str, tuple[int, ...] | None], int] = {}

    def __enter__(self) -> Maps:
        if self._names is not None:
            raise RuntimeError("this capture was already used: write `with regard.capture(model) as maps:` again")
        self._interception = intercept(self.model, self, by=LearningInterceptor)
        interceptor = self._interception.__enter__()
        self._names = interceptor.names
        expected = interceptor.expected if isinstance(interceptor, LearningInterceptor) else 0
        if self._quick is not None:
            self._quick.modules = max(1, expected)
        if not expected:
            self._report_unseen_modules(self._names.modules)
        return self.maps

    def _report_unseen_modules(self, modules: Mapping[str, nn.Module]) -> None:
        """Report modules whose attention cannot be intercepted: they run outside of Python, or in other threads."""
        unseen = any(map(runs_unseen, set(map(type, modules.values()))))
        scripted: tuple[str, ...] = ()
        for name, module in modules.items() if unseen else ():
            if isinstance(module, torch.jit.ScriptModule) and not f"{name}.".startswith(scripted):
                scripted += (f"{name}." if name else "",)  # not each module inside of it
                self.missed(name or type(module).__name__, "TorchScript runs outside of Python, where nothing is seen")
            if isinstance(module, nn.DataParallel) and len(module.device_ids) > 1:
                self.missed(name or "DataParallel", "its replicas run in other threads: capture and call its .module")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._interception is not None:
            self._interception.__exit__(None, None, None)
        if self.projections is not None:
            self.projections.close()
        for name in list(self._waiting):
            self.fold(name)
        for note, names in self._noted.items():
            first = ", ".join(list(names)[:3])
            self.maps.notes.append(f"{first if len(names) <= 3 else f'{first} and {len(names) - 3} more'}: {note}")
        if self._names is not None and self._names.compiled:
            self.maps.notes.append(
                "compiled code ran as the Python from which it was compiled: with the same attention kernels, and with "
                "outputs that are equal up to rounding"
            )
        if self._names is not None:
            self.maps.image_tokens = image_tokens_of(self.model, self._names.image_grids)
        if self.long.overview is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()  # overviews are copied to the host asynchronously
        if self.stream is not None:
            maps = self.maps
            self.storage.finish(MapsContent(maps.records, maps.missed, maps.notes, maps.image_tokens))
        if kind is None:
            self._warn()

    # -- listening, see RecordListener -------------------------------------------------------------------------

    def wants(self, name: str) -> bool:
        if self.only is None or may_match(name, self.only):
            return True
        self._skipped.add(name)
        return False

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        self._missed[name, reason, shape] = self._missed.get((name, reason, shape), 0) + 1
        self.maps.missed[:] = [Missed(*what, count=count) for what, count in self._missed.items()]

    def noted(self, name: str, note: str) -> None:
        self._noted.setdefault(note, {})[name] = None

    def attended(self, record: AttentionRecord) -> None:
        """Build what is kept of this attention, drop the tensors of the model, and add the record to the maps."""
        _, heads_count, queries, _ = record.shape
        chosen = self._chosen(heads_count, queries)
        if isinstance(chosen, str):
            self.missed(record.name, chosen, record.shape)
            return
        rows, heads = chosen
        running = record.running
        before = self.storage.used
        with ModesOff(running.device):
            try:
                if self.long.overview is None:  # an overview sets it together with its check
                    record.check.allowed = running.rounding(record.shape[3])
                reason = self.keep(record, rows, heads)
            except (RuntimeError, ValueError, IndexError) as error:  # most likely too little memory
                said = str(error).strip().partition("\n")[0]  # torch adds a stack trace in C++
                reason = f"its map could not be computed ({type(error).__name__}: {said})"
        if reason is not None:
            self.storage.used = before
            self.missed(record.name, reason, record.shape)
            return
        record.rows = None if self.rows is None else numbers_of(rows, queries)
        record.heads = None if self.heads is None else numbers_of(heads, heads_count)
        record.layout = self._layout(record)
        if self.projections is not None:
            self._keep_values(record, self.projections)
        record.computation = None
        if record.remarks:
            self.maps.notes += [remark for remark in record.remarks if remark not in self.maps.notes]
        if self.reduce is None:
            self.maps.add(record)
            return
        self.fold(record.name)  # the map of the call before this one can no longer change
        self.maps.add(record)
        if record.stored is not None:
            self._waiting[record.name] = record.weights
            record.stored = None
            if not running.tentative and not running.folded:
                self.fold(record.name)

    def _chosen(self, heads_count: int, queries: int) -> tuple[Selection, Selection] | str:
        """The rows and heads to keep, or the reason why there are none."""
        rows = ALL if self.rows is None else select(self.rows, queries)
        heads = ALL if self.heads is None else select(self.heads, heads_count)
        if isinstance(rows, str):
            return f"rows={self.rows}: {rows}"
        if isinstance(heads, str):
            return f"heads={self.heads}: {heads}"
        if heads_count and not chosen_count(heads, heads_count):
            return f"heads={self.heads}: it chooses none of {heads_count}"
        return rows, heads

    @staticmethod
    def _keep_values(record: AttentionRecord, projections: ProjectionWatch) -> None:
        """Compute the norms of ``values=True`` now if the output projection is known, else when the model applies it."""
        running = record.running
        if running.projection is not None and running.value is not None:
            with torch.inference_mode(False), torch.no_grad():
                projections.projected(record, running.value, *running.projection())
        else:
            with torch.inference_mode(False), torch.no_grad(), ModesOff(running.device):
                clean = running.clean_output
            projections.expect(record, running.value, running.output, clean)

    def fold(self, name: str) -> None:
        if self.reduce is not None and name in self._waiting:
            found, weights = self.maps[name], self._waiting.pop(name)
            more = (slice(0, weights.shape[2]),) if self.by_rows else ()
            found.reduced = self.reduced(found.reduced, weights, *more)

    def _layout(self, record: AttentionRecord) -> Layout | None:
        """How the keys lie on an image: as the caller says with ``grid=`` if that fits, else as the model states it."""
        known, declared = record.layout, record.running.layout_declared
        options = self._options if record.windows is None else self._options._replace(grid=None)
        if record.windows is not None and record.rows is not None:
            self.noted(record.name, "rows= are those of each window, and the windows of all images are the batch")
        return options.layout(known, record.shape[3], record.name, declared)

    # -- warnings ----------------------------------------------------------------------------------------------

    def _warn(self) -> None:
        """Warn about maps that do not agree with the model, that were dropped, or that are missing altogether."""
        numbers = None if self._quick is None else self._quick.finish()
        if numbers is not None and self.grid is None and numbers.are_on_device:
            ChecksOnDevice(self.maps, numbers)  # they are read with the first map
        else:
            warn_of(disagreeing(self.maps.values(), numbers), len(self.maps), 3)
        dropped = sum(missed.count for missed in self.maps.missed if "budget" in missed.reason)
        if dropped:
            warnings.warn(
                f"{dropped} {'map was' if dropped == 1 else 'maps were'} dropped: too large for the budget. Keep fewer with "
                "only=, rows=, heads=, smaller ones with dtype=, long ones as overview=128, fold them with reduce=, write "
                "them to disk with stream=, or raise budget=",
                stacklevel=3,
            )
        records = self.maps.records if self.grid is not None else []
        if self.grid is not None and records and all(record.layout is None for record in records):
            tokens = sorted({record.shape[3] for record in records})
            warnings.warn(
                f"grid={self.grid} with prefix={self.prefix} fits no map: they attend over {tokens} tokens"
                + ("; pass prefix=, the number of tokens before the grid" if self.prefix is None else ""),
                stacklevel=3,
            )
        if not self.maps and not dropped:
            warnings.warn(self._why_empty(), stacklevel=3)

    def _why_empty(self) -> str:
        if self.maps.missed:
            return f"no map was captured: {'; '.join(map(str, self.maps.missed[:3]))}"
        if self._skipped:
            return f"only={self.only!r} matches none of {', '.join(sorted(self._skipped))}"
        name = type(self.model).__name__
        return f"no attention was seen: {name} did not run inside the block, or has no attention that regard recognizes"


def capture(
    model: nn.Module,
    only: str | Sequence[str] | None = None,
    rows: Numbers = None,
    heads: Numbers = None,
    dtype: torch.dtype | None = None,
    reduce: Callable[..., Any] | None = None,
    budget: str | int | None = "2GiB",
    *,
    grid: Any = None,
    prefix: int | None = None,
    stream: str | Path | None = None,
    values: bool = False,
    overview: int | None = None,
    keep_keys: bool = False,
) -> Capture:
    r"""The attention maps of all that ``model`` computes inside the block, each compared with the real output.

    .. math:: A = \mathrm{softmax}(\beta Q K^\top + \ldots), \qquad \mathrm{residual} = \max |A V - \mathrm{output}|

    The model is not changed and keeps its kernel: A is computed beside it. Recognized are fused kernels, the fast path
    of ``nn.TransformerEncoder``, FlexAttention, ``flash_attn``, ``xformers``, a softmax and a product written by hand,
    and layers that declare their attention with :func:`regard.maps.observe`, regard's own among them. The residual is a
    check, not a proof: it shows that this map with these values gives the kernel's output.

    Attention written by hand may also use exponentials or other scores divided by their sum, before or after the product
    (the map is the result of the division), a softmax plus one, or sigmoids of scores. The map is what the values are
    multiplied with: its rows do not sum to one in the last two cases. Linear attention, softmax(Q)·(softmax(K)ᵀ V), has
    no map and is listed as missed. Scores that are multiplied with values unchanged, or after another function, are not
    taken for attention.

    Args:
        model: any module. Captures may be nested, and run in several threads at once; each sees its own thread.
        only: keep maps whose names match one of these patterns, such as ``"encoder.layers.3.*"``.
        rows: keep only these queries: a number, a slice, or several numbers, also as a tensor or an array (0 is the class
            token, if it is first).
        heads: keep only these heads.
        dtype: keep maps in this dtype, such as ``torch.float16``; the check comes before the conversion.
        reduce: ``reduce(total, weights) -> total`` folds maps as they are computed. The total starts as None and ends
            up in ``maps[name].reduced``; the weights are not kept. A function of three arguments,
            ``reduce(total, weights, rows)``, gets some rows at a time, and the slice of their numbers among those that
            ``rows=`` chose: so maps of any length are folded.
        budget: memory for maps, such as ``"500MB"`` or ``"2GiB"``, at its peak. Maps that do not fit are dropped with a
            warning and listed in ``maps.missed``, before they are computed. None for no limit.
        grid, prefix: how tokens lie on an image, for models that do not state it. Without ``prefix`` a few tokens more than
            the grid has, fewer than a row or a column of it, are taken for a prefix.
        stream: a folder. Maps are written there as they are computed, outside of the budget, and read when used.
        values: keep how much each key and each head contributes behind the layer's output projection, as norms: see
            :meth:`Map.contributions`. They are saved with the maps.
        overview: keep long maps as at most this many cells a side, such as 128: ``map.overview`` is the exact mass of
            each cell, ``map.overview_largest`` its largest weight, ``map.per_query`` and ``map.per_key`` are statistics of
            every token. The map itself is never formed, so memory is linear in the tokens. ``rows=`` are kept in full.
        keep_keys: with an overview, keep queries and keys on the host (or in ``stream``), so that ``map.row(i)`` and
            ``map.block(rows, columns)`` compute any weights later, exactly.

    ``maps.missed`` lists attention that could not be captured. Maps never contain dropout. A map that does not agree with the
    model is warned about when the block ends; on a GPU, when one of the maps is first read, so that nothing waits for it.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    >>> with torch.no_grad(), regard.capture(encoder) as maps:
    ...     out = encoder(torch.randn(1, 5, 32))
    >>> list(maps), maps[-1].weights.shape, maps[-1].against
    (['layers.0.self_attn', 'layers.1.self_attn'], torch.Size([1, 4, 5, 5]), 'layer')
    >>> bool(maps.residual < 1e-5)
    True
    >>> with torch.no_grad(), regard.capture(encoder, overview=2, keep_keys=True) as maps:
    ...     out = encoder(torch.randn(1, 5, 32))
    >>> maps[0].overview.shape, maps[0].cell, maps[0].per_key.received.shape, maps[0].row(4).shape
    (torch.Size([1, 4, 2, 2]), (3, 3), torch.Size([1, 4, 5]), torch.Size([1, 4, 5]))
    """
    chosen = checked_selection("rows", rows), checked_selection("heads", heads)
    long = OverviewOptions(overview, keep_keys)
    return Capture(model, only, *chosen, dtype, reduce, budget, grid, prefix, stream, values, long)


def _check_options(options: Capture) -> None:
    """Raise an error if an option is wrong, before the model runs."""
    if not isinstance(options.model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(options.model)}")
    dtype, reduce, stream = options.dtype, options.reduce, options.stream
    if dtype is not None and (not isinstance(dtype, torch.dtype) or not dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {describe(dtype)}")
    if reduce is not None and not callable(reduce):
        raise TypeError(f"reduce must be a function of (total, weights), got {describe(reduce)}")
    if stream is not None and not isinstance(stream, str | os.PathLike):
        raise TypeError(f"stream must be the path of a folder, got {describe(stream)}")
    check_flag("values", options.values)
    check_flag("keep_keys", options.long.keep_keys)
    check_patterns("only", options.only)
    check_grid(options.grid, options.prefix)
    if options.long.overview is not None:
        check_positive("overview", options.long.overview)
        if reduce is not None:
            raise ValueError("overview and reduce exclude each other: an overview is already folded")
    elif options.long.keep_keys:
        raise ValueError("keep_keys=True goes with overview=: without it the whole maps are kept")


def _positional(function: Callable[..., Any]) -> int:
    """How many positional arguments a function requires; 2 if it has no signature."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
