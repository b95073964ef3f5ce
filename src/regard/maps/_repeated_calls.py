"""A call of attention like one that was recorded before: what was found out then holds, and is not found out again.

Most of what a capture does at an attention is to tell where it happened and what its axes are. All of that follows from the
functions that run inside the module's call, from the form of the tensors, and from that of the module's input. If these are the
same, only what depends on numbers is left: the map, its check, and the positions of a cache.
"""

import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import Tensor, nn

from regard.maps._attention_scores import AttentionScores
from regard.maps._axes import MapAxes
from regard.maps._band import Band
from regard.maps._layout import Layout
from regard.maps._module_names import CALL, OWN_PACKAGES, ModuleNames, first_argument
from regard.maps._module_watch import FIRST_CALL
from regard.maps._positions import CACHES, CacheState, Positions, local_variables, positions_in, state_of
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps._token_layouts import TokenLayouts
from regard.maps.sources import arranged, run_usual
from regard.observation import current_grid

CAUSAL = Band(right=0)
_CALLED = nn.Module._call_impl.__code__  # inside every call of a module, which it belongs to


class KnownSite(NamedTuple):
    """What an earlier call has shown.

    Attributes:
        axes: of the map, with the positions of a call without a cache.
        layout: how its tokens lie on an image, and the patches with which this was found.
        codes: of the functions inside the module's call. They are kept, so that their numbers stay theirs.
        caches: which of these functions have variables that may be caches, and their names.
    """

    name: str
    axes: MapAxes
    layout: tuple[Layout | None, Any]
    codes: tuple[CodeType, ...]
    caches: tuple[tuple[int, list[str]], ...]

    def axes_of(self, shape: tuple[int, int, int, int], cache: "CacheState | str | None") -> MapAxes:
        """The axes of a call of this shape: see :attr:`RepeatedCall.cache`."""
        axes = self.axes
        if cache is not None:
            positions = None if isinstance(cache, str) else positions_in(cache, shape)
            return MapAxes(axes.certainty, "tokens", axes.query_layout, positions)
        queries, keys = shape[2:]
        whole = axes.positions
        if whole is None or whole.cached or whole.keys != keys:
            whole = Positions(0, queries, 0, keys, keys) if queries == keys else None
        return axes if whole is axes.positions else MapAxes(axes.certainty, positions=whole)


class Call(NamedTuple):
    """One call of ``scaled_dot_product_attention``, as far as it tells whether it is like another.

    Attributes:
        frame: that of the module's call.
        inside: the functions that run inside of it, from the call of attention outwards.
        like: calls with the same are alike.
    """

    frame: FrameType
    inside: list[FrameType]
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    causal: bool
    scale: float | None
    shared: bool
    like: tuple[Any, ...]


class RepeatedCall(NamedTuple):
    """A call that is like an earlier one, and what its kernel returned.

    Attributes:
        cache: what the cache states with which the module was called; "nothing" if it states nothing, None without one.
    """

    known: KnownSite
    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    causal: bool
    scale: float
    kernel: str | None
    output: Tensor
    logsumexp: Tensor | None
    cache: "CacheState | str | None"

    def record(self) -> AttentionRecord:
        """Its record, of which nothing was built yet."""
        batch, heads, queries, _ = self.query.shape
        shape = (batch, heads, queries, self.key.shape[2])
        scores = AttentionScores(self.query, self.key, self.scale, None, None, CAUSAL if self.causal else None)
        running = Computation(scores, self.module, self.output, self.value, logsumexp=self.logsumexp, restore=_as_it_is)
        return AttentionRecord(
            self.known.name,
            "sdpa",
            shape,
            Check("kernel"),
            self.kernel,
            layout=self.known.layout[0],
            axes=self.known.axes_of(shape, self.cache),
            computation=running,
        )


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """What the arguments, and the functions that run, tell of a call; None if it is unusual."""
    count = len(args)
    if count < 3 or (count > 3 and (args[3] is not None or (count > 4 and args[4] != 0.0))):
        return None
    query, key, value = args[:3]
    if not (type(query) is type(key) is type(value) is Tensor) or query.is_nested or query.ndim != 4:
        return None
    causal, scale, shared = count > 5 and args[5], kwargs.get("scale"), kwargs.get("enable_gqa", False)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") in OWN_PACKAGES:
        frame = frame.f_back
    inside, codes = [], []
    while frame is not None and (code := frame.f_code) is not CALL:
        if code is not FIRST_CALL:
            inside.append(frame)
            codes.append(id(code))
        frame = frame.f_back
    if frame is None:
        return None
    variables = frame.f_locals
    module = variables["self"]
    of_query, of_key, steps, more = query.shape, key.shape, key.stride(), value.stride()
    form: tuple[Any, ...]
    if of_query[2] == 1:  # the axes of a single query are the same however many keys there are
        order = (steps[0] > steps[2], steps[1] > steps[2], more[0] > more[2], more[1] > more[2])
        form = (of_key[0], of_key[1], of_key[3], value.shape[3], of_key[2] > 1, order)
    else:
        given = variables["args"] or (variables["kwargs"].get("hidden_states"),)
        first = given[0]
        if not isinstance(first, Tensor) or first.ndim < 2 or not first.is_floating_point():
            return None
        form = (of_key, steps, value.shape, more, first.shape, first.is_contiguous(), _around(frame))
    kinds = (query.dtype, key.dtype, value.dtype, query.device, causal, scale, shared)
    like = ("call", id(module), *codes, of_query, query.stride(), *form, *kinds)
    return Call(frame, inside, module, (query, key, value), causal, scale, shared, like)


def _around(call: FrameType) -> int | None:
    """The module that called this one: it may state the number of heads."""
    frame = call.f_back
    while frame is not None and frame.f_code is not CALL:
        frame = frame.f_back
    return None if frame is None else id(frame.f_locals["self"])


class RepeatedCalls:
    """Runs calls that are like earlier ones."""

    def __init__(self, names: ModuleNames, layouts: TokenLayouts) -> None:
        self._names, self._layouts = names, layouts

    def learn(self, call: Call, record: AttentionRecord, running: Computation) -> None:
        """A call was recorded in full: others like it may follow."""
        scores, plain = running.weights, record.kind == "sdpa" and record.windows is None
        if not isinstance(scores, AttentionScores) or running.folded or running.layout_declared:
            return
        owners = [first_argument(frame) for frame in call.inside]
        own = all(x is call.module for x in owners if isinstance(x, nn.Module))
        query, key, value = call.tensors
        as_given = scores.query is query and scores.key is key and running.value is value
        if not (plain and own and as_given and running.module is call.module) or "#" in record.name:
            return
        heads = self._names.remembered.get((id(call.module), "heads"))
        if heads is None and self._names.remembered.get((_around(call.frame), "heads")) is not None:
            return  # the module around it told its axes, by its own input
        if record.axes.over != "tokens" or self._names.remembered.get((record.name, "windows")) != []:
            return
        stating = self._names.remembered.get((record.name, "stating"))
        layout = None if stating == [] and self._layouts.patches is None else (record.layout, self._layouts.patches)
        codes = tuple(frame.f_code for frame in call.inside)
        variables = ((depth, local_variables(code, CACHES)) for depth, code in enumerate(codes))
        caches = tuple((depth, found) for depth, found in variables if found)
        known = KnownSite(record.name, record.axes, layout or (None, None), codes, caches)
        told = layout is None or query.shape[2] > 1  # the number of keys is told
        self._names.remembered[call.like if told else (*call.like, key.shape[2])] = known

    def run(self, call: Call, wants: Callable[[str], bool]) -> RepeatedCall | None:
        """The kernel of a call that is like an earlier one ran; None if everything must be found out."""
        query, key, value = call.tensors
        remembered = self._names.remembered
        known: KnownSite | None = remembered.get(call.like)
        if known is None and query.shape[2] == 1:
            known = remembered.get((*call.like, key.shape[2]))
        if known is None or known.layout[1] != self._layouts.patches or current_grid() is not None:
            return None
        module = call.module
        for frame in call.inside:
            if frame.f_code is not _CALLED:
                owner = first_argument(frame)
                if owner is not module and isinstance(owner, nn.Module):
                    return None
        if not wants(known.name):
            return None
        running = self._names.begin(call.frame, call.inside)
        if running is None:
            return None
        ran = run_usual(query, key, value, call.scale, call.causal, call.shared)
        if ran is None:
            return None
        self._names.attended(call.frame, known.name)
        out, (kernel, logsumexp) = ran
        if logsumexp is not None:
            logsumexp = arranged(logsumexp, out)
        scale = query.shape[3] ** -0.5 if call.scale is None else call.scale
        cache = _cache_of(known, call, running) if known.caches else None
        return RepeatedCall(known, module, query, key, value, call.causal, scale, kernel, out, logsumexp, cache)


def _cache_of(known: KnownSite, call: Call, running: list[str]) -> "CacheState | str | None":
    for depth, names in known.caches:
        variables = call.inside[depth].f_locals
        for name in names:
            cache = variables.get(name)
            if cache is not None:
                return state_of(cache, call.module, call.inside, running) or "nothing"
    return None


def _as_it_is(x: Tensor) -> Tensor:
    return x
