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
from regard.maps._module_names import CALL, ModuleNames, first_argument
from regard.maps._positions import CACHES, Positions, local_variables, positions_by
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps._token_layouts import TokenLayouts
from regard.maps.sources import arranged, run_usual
from regard.observation import current_grid

_CAUSAL = Band(right=0)


class _Known(NamedTuple):
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


class Call(NamedTuple):
    """One call of ``scaled_dot_product_attention``, as far as it tells whether it is like another.

    Attributes:
        frames: from the call outwards.
        depth: the number of functions that run inside the module's call.
        like: calls with the same are alike.
    """

    frames: list[FrameType]
    depth: int
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    causal: bool
    scale: float | None
    shared: bool
    like: tuple[Any, ...]


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
    """What the arguments, and the functions that run, tell of a call; None if it is unusual."""
    if len(args) < 3 or (len(args) > 3 and (args[3] is not None or (len(args) > 4 and args[4] != 0.0))):
        return None
    query, key, value = args[:3]
    if not (type(query) is type(key) is type(value) is Tensor) or query.is_nested or query.ndim != 4:
        return None
    causal, scale, shared = len(args) > 5 and args[5], kwargs.get("scale"), kwargs.get("enable_gqa", False)
    frame: FrameType | None = sys._getframe(
        3
    )  # of the model: the operator's kernel, the listener and this function are ours
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    codes, depth = [], 0
    for frame in frames:
        code = frame.f_code
        if code is CALL:
            break
        codes.append(id(code))
        depth += 1
    else:
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
        form = (of_key, steps, value.shape, more, first.shape, first.is_contiguous(), _around(frames, depth))
    kinds = (query.dtype, key.dtype, value.dtype, query.device, causal, scale, shared)
    like = ("call", id(module), *codes, of_query, query.stride(), *form, *kinds)
    return Call(frames, depth, module, (query, key, value), causal, scale, shared, like)


def _around(frames: list[FrameType], depth: int) -> int | None:
    """The module that called this one: it may state the number of heads."""
    for frame in frames[depth + 1 :]:
        if frame.f_code is CALL:
            return id(frame.f_locals["self"])
    return None


class RepeatedCalls:
    """Records calls that are like earlier ones."""

    def __init__(self, names: ModuleNames, layouts: TokenLayouts) -> None:
        self._names, self._layouts = names, layouts

    def learn(self, call: Call, record: AttentionRecord, running: Computation) -> None:
        """A call was recorded in full: others like it may follow."""
        scores, plain = running.weights, record.kind == "sdpa" and record.windows is None
        if not isinstance(scores, AttentionScores) or running.folded or running.layout_declared:
            return
        inside = call.frames[: call.depth]
        owners = [first_argument(frame) for frame in inside]
        own = all(x is call.module for x in owners if isinstance(x, nn.Module))
        as_given = (
            scores.query is call.tensors[0] and scores.key is call.tensors[1] and running.value is call.tensors[2]
        )
        if not (plain and own and as_given and running.module is call.module) or "#" in record.name:
            return
        if record.axes.over != "tokens" or self._names.remembered.get((record.name, "windows")) != []:
            return
        stating = self._names.remembered.get((record.name, "stating"))
        layout = None if stating == [] and self._layouts.patches is None else (record.layout, self._layouts.patches)
        codes = tuple(frame.f_code for frame in inside)
        variables = ((depth, local_variables(code, CACHES)) for depth, code in enumerate(codes))
        caches = tuple((depth, found) for depth, found in variables if found)
        known = _Known(record.name, record.axes, layout or (None, None), codes, caches)
        self._names.remembered[call.like if layout is None else (*call.like, record.shape[3])] = known

    def record(self, call: Call, wants: Callable[[str], bool]) -> tuple[AttentionRecord, Tensor] | None:
        """The record of a call that is like an earlier one, and its output; None if everything must be found out."""
        query, key, value = call.tensors
        remembered, keys = self._names.remembered, key.shape[2]
        known: _Known | None = remembered.get(call.like) or remembered.get((*call.like, keys))
        if known is None or known.layout[1] != self._layouts.patches or current_grid() is not None:
            return None
        for frame in call.frames[: call.depth]:
            owner = first_argument(frame)
            if owner is not call.module and isinstance(owner, nn.Module):
                return None
        if not wants(known.name):
            return None
        frame = call.frames[call.depth]
        if not self._names.is_first(call.frames, frame):
            return None
        ran = run_usual(query, key, value, call.scale, call.causal, call.shared)
        if ran is None:
            return None
        self._names.count_first(call.frames, frame, known.name)
        out, (kernel, logsumexp) = ran
        batch, heads, queries, width = query.shape
        if logsumexp is not None:
            logsumexp = arranged(logsumexp, out)
        scale = width**-0.5 if call.scale is None else call.scale
        scores = AttentionScores(query, key, scale, None, None, _CAUSAL if call.causal else None)
        shape = (batch, heads, queries, keys)
        record = AttentionRecord(
            known.name,
            "sdpa",
            shape,
            Check("kernel"),
            kernel,
            layout=known.layout[0],
            axes=self._axes(known, call, shape),
            computation=Computation(scores, call.module, out, value, logsumexp=logsumexp, restore=_as_it_is),
        )
        return record, out

    @staticmethod
    def _axes(known: _Known, call: Call, shape: tuple[int, int, int, int]) -> MapAxes:
        frames = call.frames
        for depth, names in known.caches:
            variables = frames[depth].f_locals
            for name in names:
                cache = variables.get(name)
                if cache is not None:
                    inside = frames[: call.depth]
                    positions = positions_by(cache, shape, call.module, inside, frames)
                    return MapAxes(known.axes.certainty, "tokens", known.axes.query_layout, positions)
        queries, keys = shape[2:]
        whole = known.axes.positions
        if whole is None or whole.cached or whole.keys != keys:
            whole = Positions(0, queries, 0, keys, keys) if queries == keys else None
        return known.axes if whole is known.axes.positions else MapAxes(known.axes.certainty, positions=whole)


def _as_it_is(x: Tensor) -> Tensor:
    return x
