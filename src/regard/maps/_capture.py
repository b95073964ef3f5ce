"""``capture``: the attention maps of a model, taken while it runs as it always does."""

import fnmatch
import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._layout import Layout, check_grid, given_layout, layout_of
from regard.maps._maps import Call, Map, Maps, Missed
from regard.maps._seen import Seen, Selection, exact, largest_magnitude
from regard.maps._storage import Allotted, Storage
from regard.maps._watch import Watcher, watch
from regard.support.checks import describe
from regard.support.text import parse_size

Rows = int | slice | Sequence[int] | None
_CHUNK = 64 * 2**20  # scores are computed for as many rows at a time as fit into this many bytes


class Capture:
    """What :func:`capture` returns: a context manager that gives the :class:`Maps`."""

    def __init__(
        self,
        model: nn.Module,
        *,
        only: str | Sequence[str] | None,
        rows: Rows,
        heads: Rows,
        dtype: torch.dtype | None,
        reduce: Callable[[Any, Tensor], Any] | None,
        budget: str | int | None,
        grid: Any,
        prefix: int | None,
        stream: str | Path | None,
    ) -> None:
        self.model = model
        self.only = only
        self.rows, self.heads = rows, heads
        self.dtype = dtype
        self.reduce = reduce
        self.grid, self.prefix = grid, prefix
        self.storage = Storage(
            None if budget is None else parse_size(budget, "budget"), None if stream is None else Path(stream)
        )
        self.maps = Maps()
        self._stack = ExitStack()
        self._used = False
        self._watcher: Watcher | None = None
        self._skipped: set[str] = set()
        self._waiting: dict[str, Tensor] = {}
        self._missed: Counter[tuple[str, str, tuple[int, ...] | None]] = Counter()

    def __enter__(self) -> Maps:
        if self._used:
            raise RuntimeError("this capture was used already: write `with regard.capture(model) as maps:` once more")
        self._used = True
        for name, module in self.model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                self.missed(name or type(module).__name__, "TorchScript runs outside of Python and is not seen")
            if isinstance(module, nn.DataParallel):
                self.missed(name or "DataParallel", "its replicas run in other threads; capture its .module instead")
        self._watcher = self._stack.enter_context(watch(self.model, self))
        return self.maps

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()
        for name in list(self._waiting):
            self._fold(name)
        self._write_missed()
        if self._watcher is not None and self._watcher.names.compiled:
            self.maps.notes.append(
                "compiled code ran as the Python it was compiled from: the same kernels for attention, "
                "outputs equal up to rounding"
            )
        self._watcher = None  # it refers back here
        self.storage.finish(self.maps)
        if kind is None:
            self._warn()

    # -- being told (see Sink) ---------------------------------------------------------------------------------

    def wants(self, name: str) -> bool:
        wanted = matches(name, self.only)
        if not wanted:
            self._skipped.add(name)
        return wanted

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        self._missed[name, reason, shape] += 1
        self._write_missed()

    def retract(self, name: str) -> None:
        self._waiting.pop(name, None)
        found = self.maps._maps.get(name)
        if found is None:
            return
        gone = found.calls.pop()
        if gone.stored is not None:
            self.storage.release(gone.stored)
        if not found.calls and found.reduced is None:
            del self.maps._maps[name]

    def attended(self, seen: Seen) -> None:
        rows, heads = _select(self.rows, seen.shape[2]), _select(self.heads, seen.shape[1])
        if isinstance(rows, str) or isinstance(heads, str):
            reason = f"rows={self.rows}: {rows}" if isinstance(rows, str) else f"heads={self.heads}: {heads}"
            self.missed(seen.name, reason, seen.shape)
            return
        device = (seen.value if seen.value is not None else seen.output).device  # type: ignore[union-attr]
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            torch.autocast(device.type, enabled=False),
        ):
            try:
                call = self._record(seen, rows, heads, device)
            except (RuntimeError, ValueError, IndexError) as error:  # too little memory, most likely
                self.missed(seen.name, f"its map could not be computed ({type(error).__name__}: {error})", seen.shape)
                return
        if call is None:
            return
        found = self.maps._maps.setdefault(seen.name, Map(seen.name))
        found.calls.append(call)
        if self.reduce is not None:
            self._fold(seen.name)
            self._waiting[seen.name] = call.weights
            call.stored = None
            # One of our own layers may go on to tell of a larger map that this one is a part of.
            if not seen.tentative and not type(seen.module).__module__.startswith("regard."):
                self._fold(seen.name)

    def _fold(self, name: str) -> None:
        if self.reduce is not None and name in self._waiting:
            found = self.maps._maps[name]
            found.reduced = self.reduce(found.reduced, self._waiting.pop(name))

    def _record(self, seen: Seen, rows: Selection, heads: Selection, device: torch.device) -> Call | None:
        batch, all_heads, queries, keys = seen.shape
        row_numbers, head_numbers = torch.arange(queries)[rows], torch.arange(all_heads)[heads]
        heads = heads.to(device) if isinstance(heads, Tensor) else heads
        shape = (batch, len(head_numbers), len(row_numbers), keys)
        dtype = self.dtype or torch.float32
        if seen.value is not None and seen.value.dtype is torch.float64 and self.dtype is None:
            dtype = torch.float64
        room: Allotted | str | None = self.storage.allot(shape, dtype) if self.reduce is None else None
        if isinstance(room, str):
            self.missed(seen.name, room, shape)
            return None
        whole = None if room is None else room.tensor
        error, log_error = None, None
        parts = []
        try:
            for start, stop in _chunks(shape):
                part = _narrow(rows, row_numbers, start, stop, device)
                weights, logsumexp = seen.build(part, heads)
                error = _larger(error, seen.check(weights, part, heads))
                if seen.logsumexp is not None and logsumexp is not None:
                    log_error = _larger(log_error, _difference(logsumexp, seen.logsumexp[:, heads][:, :, part]))
                if whole is not None:
                    whole[:, :, start:stop] = weights
                else:
                    parts.append(weights.to(dtype))
        except BaseException:
            if room is not None:
                room.give_back()
            raise
        if whole is None:
            whole = torch.cat(parts, 2) if len(parts) > 1 else parts[0] if parts else torch.empty(shape, dtype=dtype)
            whole = whole if room is None else room.keep(whole)

        return Call(
            stored=whole,
            batch=batch,
            error=error,
            logsumexp_error=log_error,
            allowed=_allowed(seen),
            against=seen.against,
            kind=seen.kind,
            kernel=seen.kernel,
            rows=None if self.rows is None else tuple(row_numbers.tolist()),
            heads=None if self.heads is None else tuple(head_numbers.tolist()),
            windows=seen.windows,
            layout=self._layout(seen),
            query_layout=None if seen.query_grid is None else Layout(seen.query_grid, seen.prefix or 0),
        )

    def _layout(self, seen: Seen) -> Layout | None:
        if seen.windows is None and self.grid is not None:
            try:
                return given_layout(seen.shape[3], self.grid, self.prefix, seen.name)
            except ValueError:  # another attention of the same model, over other tokens
                return None if seen.grid is None else layout_of(seen, [], None)
        watcher = self._watcher
        if watcher is None:
            return None
        found = layout_of(seen, watcher.names.parents(seen.name), watcher.patches)
        if seen.windows is not None or seen.grid is not None or self.prefix is None:
            return found
        return found if found is None or found.prefix == self.prefix else None

    # -- saying what happened ----------------------------------------------------------------------------------

    def _write_missed(self) -> None:
        self.maps.missed[:] = [Missed(*what, count=count) for what, count in self._missed.items()]

    def _warn(self) -> None:
        wrong = [name for name, found in self.maps.items() if not found.agrees]
        if wrong:
            warnings.warn(
                f"{len(wrong)} of {len(self.maps)} maps do not reproduce what the model computed: "
                f"{', '.join(wrong[:5])}; see their .residual",
                stacklevel=3,
            )
        dropped = [missed for missed in self.maps.missed if "budget" in missed.reason]
        if dropped:
            count = sum(missed.count for missed in dropped)
            warnings.warn(
                f"{count} maps were dropped: they do not fit into the budget. Keep fewer with only=, rows=, heads=, "
                "smaller ones with dtype=, fold them with reduce=, write them to disk with stream=, or raise budget=",
                stacklevel=3,
            )
        laid_out = [call.layout is not None for found in self.maps.values() for call in found.calls]
        if self.grid is not None and laid_out and not any(laid_out):
            tokens = sorted({found.shape[-1] for found in self.maps.values() if found.shape})
            warnings.warn(
                f"grid={self.grid} with prefix={self.prefix} fits no map: they attend over {tokens} tokens",
                stacklevel=3,
            )
        if not self.maps and not dropped:
            if self.maps.missed:
                text = f"no map was captured: {'; '.join(map(str, self.maps.missed[:3]))}"
            elif self._skipped:
                text = f"only={self.only!r} matches none of {', '.join(sorted(self._skipped))}"
            else:
                text = f"no attention was seen: did {type(self.model).__name__} run inside the block?"
            warnings.warn(text, stacklevel=3)


def capture(
    model: nn.Module,
    only: str | Sequence[str] | None = None,
    rows: Rows = None,
    heads: Rows = None,
    dtype: torch.dtype | None = None,
    reduce: Callable[[Any, Tensor], Any] | None = None,
    budget: str | int | None = "2GiB",
    *,
    grid: Any = None,
    prefix: int | None = None,
    stream: str | Path | None = None,
) -> Capture:
    r"""The attention maps of everything ``model`` computes inside the block, each compared with the real output.

    .. math:: A = \mathrm{softmax}(\beta Q K^\top + \ldots), \qquad \mathrm{residual} = \max |A V - \mathrm{output}|

    The model is not changed and its kernel is not switched: A is computed beside it. Fused kernels, the fast path of
    ``nn.TransformerEncoder``, FlexAttention, ``flash_attn``, ``xformers``, a softmax and a product written by hand and
    regard's own layers are all seen. The residual is a check, not a proof: it says that this map with these values
    gives what the kernel gave.

    By hand, weights may also be exponentials or other scores divided by their sum, before the product or after it (the
    map is then what the division makes of them), a softmax plus one, or sigmoids of scores. The map is what the values
    are multiplied with: rows of the last two do not sum to one. Linear attention, softmax(Q)·(softmax(K)ᵀ V), forms no
    map and is missed. Scores that are multiplied with values as they are, or through another function, are not taken
    for attention.

    Args:
        model: any module. Captures may be nested, and run in several threads at once; each sees its own thread.
        only: keep maps whose names match one of these patterns, as in ``"encoder.layers.3.*"``.
        rows: keep these queries alone: a number, a slice, or several numbers (0 is a class token's row, where first).
        heads: keep these heads alone.
        dtype: keep maps in this type, such as ``torch.float16``; the check is done before.
        reduce: ``reduce(total, weights) -> total`` folds maps as they come; total starts as None and is found in
            ``maps[name].reduced``. Nothing else is kept.
        budget: memory for maps, as in ``"500MB"`` or ``"2GiB"``; what does not fit is dropped with a warning and listed
            in ``maps.missed``. None for no bound.
        grid, prefix: how tokens lie on an image, for models that do not say it themselves.
        stream: a folder; maps are written there as they come and read from there when used, outside of the budget.

    ``maps.missed`` lists what attended and could not be captured. Dropout never enters a map.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2).eval()
    >>> with torch.no_grad(), regard.capture(encoder) as maps:
    ...     out = encoder(torch.randn(1, 5, 32))
    >>> list(maps), maps[-1].weights.shape, maps[-1].against
    (['layers.0.self_attn', 'layers.1.self_attn'], torch.Size([1, 4, 5, 5]), 'layer')
    >>> bool(maps.residual < 1e-5)
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    if dtype is not None and (not isinstance(dtype, torch.dtype) or not dtype.is_floating_point):
        raise TypeError(f"dtype must be a floating-point torch.dtype, got {describe(dtype)}")
    if reduce is not None and not callable(reduce):
        raise TypeError(f"reduce must be a function of (total, weights), got {describe(reduce)}")
    if stream is not None and not isinstance(stream, str | os.PathLike):
        raise TypeError(f"stream must be a folder's path, got {describe(stream)}")
    check_patterns("only", only)
    check_grid(grid, prefix)
    for name, chosen in (("rows", rows), ("heads", heads)):
        _check_selection(name, chosen)
    return Capture(
        model,
        only=only,
        rows=rows,
        heads=heads,
        dtype=dtype,
        reduce=reduce,
        budget=budget,
        grid=grid,
        prefix=prefix,
        stream=stream,
    )


def matches(name: str, only: str | Sequence[str] | None) -> bool:
    """Whether a name matches one of the patterns; without patterns every name does.

    >>> matches("blocks.3.attn", "blocks.*"), matches("head", ["blocks.*", "neck"])
    (True, False)
    """
    patterns = [only] if isinstance(only, str) else only
    return patterns is None or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def check_patterns(name: str, only: Any) -> None:
    patterns = () if only is None else (only,) if isinstance(only, str) else only
    if not isinstance(patterns, Collection) or not all(isinstance(pattern, str) for pattern in patterns):
        raise TypeError(f'{name} must be a pattern such as "blocks.*", or several, got {describe(only)}')


def _check_selection(name: str, chosen: Any) -> None:
    if chosen is None or isinstance(chosen, slice):
        return
    numbers = [chosen] if isinstance(chosen, int) else chosen
    if not isinstance(numbers, Collection) or not all(isinstance(n, int) and not isinstance(n, bool) for n in numbers):
        raise TypeError(f"{name} must be a whole number, a slice or several whole numbers, got {describe(chosen)}")


def _select(chosen: Rows, count: int) -> Selection | str:
    """A selection along an axis of ``count``, or why there is none."""
    if chosen is None:
        return slice(None)
    if isinstance(chosen, slice):
        return chosen
    numbers = [chosen] if isinstance(chosen, int) else list(chosen)
    if any(not -count <= n < count for n in numbers):
        return f"there are only {count}"
    return torch.tensor([n % count for n in numbers], dtype=torch.long)


def _chunks(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    batch, heads, rows, keys = shape
    step = max(1, _CHUNK // max(1, 4 * batch * heads * keys))
    return [(start, min(start + step, rows)) for start in range(0, rows, step)]


def _narrow(rows: Selection, numbers: Tensor, start: int, stop: int, device: torch.device) -> Selection:
    """The part from ``start`` to ``stop`` of the selected rows."""
    if isinstance(rows, slice) and rows == slice(None):
        return slice(start, stop)
    return numbers[start:stop].to(device)


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return torch.maximum(a, b)


def _difference(ours: Tensor, theirs: Tensor) -> Tensor:
    """Over rows that attend to something: kernels differ in what they return for the others."""
    difference = (ours - theirs.to(ours.dtype)).abs()
    return torch.where(ours.isfinite(), difference, 0.0).amax() if ours.numel() else ours.new_zeros(())


def _allowed(seen: Seen) -> Tensor | None:
    """What rounding explains: some units in the last place of the largest number that is compared."""
    value = seen.value if seen.compared is None else seen.compared
    if value is None or value.numel() == 0:
        return None
    dtype = (seen.output if seen.output is not None else value).dtype
    precision = torch.finfo(dtype).eps
    if dtype is torch.float32 and value.is_cuda:
        precision = max(precision, 2.0**-11)  # kernels may multiply float32 in TF32
    largest = largest_magnitude(exact(value))  # an average of values is no larger
    if seen.total is not None:
        largest = largest * seen.total.to(largest.dtype).clamp_min(1)
    times = 4 if precision > 1e-5 else 64 * max(1.0, math.log2(max(2, seen.shape[3])))
    return (times * precision * largest.clamp_min(1e-30)).to(largest.dtype)
