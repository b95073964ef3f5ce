"""Recognizes calls of ``scaled_dot_product_attention`` that repeat an earlier one.

Most of the time of a capture is spent on finding out which module attends and what the axes are. The answers depend
only on the functions that run inside the module's call, and on the form (shapes, strides, dtypes) of the tensors and of
the module's input. If all of these are the same, the earlier answers hold, and most of the work can be skipped. What is
left are the map, its check, and the positions in a cache.

:meth:`RepeatedCalls.learn` keeps what a call has shown that was recorded in full, as a :class:`KnownSite`.
:meth:`RepeatedCalls.run` runs later calls like it, and returns a :class:`RepeatedCall` for each; it leaves all other calls
to the usual way.

This runs at each attention, so ids of code objects are compared, not the objects: hashing one takes longer.
"""

from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

from regard.maps._call_stack import OWN_PACKAGES, first_argument, model_frames
from regard.maps._module_names import CALL, ModuleNames
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.repeats._module_watch import FIRST_CALL
from regard.maps.sources import arranged, run_as_called, run_usual
from regard.maps.tokens._axes import MapAxes
from regard.maps.tokens._layout import Layout
from regard.maps.tokens._positions import (
    CacheState,
    InnerFunctions,
    Positions,
    attends_elsewhere,
    positions_in,
    state_of,
    value_of,
)
from regard.maps.tokens._token_layouts import TokenLayouts
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band
from regard.observation import current_grid

CAUSAL = Band(right=0)
# A local variable that is added to the frame of a module's call, with the name of its map, to note that the call attended. It
# lives as long as the frame. A list of frames would keep them alive, and all tensors to which they refer.
_ATTENDED = "attention noted by regard"


class KnownSite(NamedTuple):
    """What an earlier call has shown about a place in the model.

    Attributes:
        name: the name of the map.
        axes: the axes of the map, with the positions of a call without a cache.
        layout: how the tokens lie on an image, and the grid of patches with which this was found.
        functions: the functions inside the module's call.
        around: the id of the module that called this one, if that module may state the number of heads; else None.
        device: the type of the device.
        plans: how maps of such calls are written, by the options of a capture (see :mod:`regard.maps.repeats._quick_calls`).
    """

    name: str
    axes: MapAxes
    layout: tuple[Layout | None, Any]
    functions: InnerFunctions
    around: int | None
    device: str
    plans: dict[Any, Any]

    def axes_of(self, shape: tuple[int, int, int, int], cache: "CacheState | str | None") -> MapAxes:
        """The axes of a call of this shape, with its positions. ``cache``: as in :class:`RepeatedCall`."""
        axes = self.axes
        if cache is not None:
            positions = None if isinstance(cache, str) else positions_in(cache, shape)
            return MapAxes(axes.certainty, "tokens", axes.query_layout, positions)
        queries, keys = shape[2:]
        whole = axes.positions
        if whole is None or whole.cached or whole.beams or whole.keys != keys:
            cross = whole is not None and whole.cross and not whole.cached
            whole = Positions(0, queries, 0, keys, queries, cross=cross) if cross or queries == keys else None
        return axes if whole is axes.positions else MapAxes(axes.certainty, positions=whole)


class Call(NamedTuple):
    """One call of ``scaled_dot_product_attention``, with everything that decides whether it repeats another one.

    Attributes:
        frame: the frame of the module's call.
        variables: the local variables of that frame.
        inside: the frames inside of it, from the call of attention outwards.
        numbers: the ids of their code objects.
        functions: what is known of them.
        given: the first argument of the module's call; None if it does not matter.
        module: the module that attends.
        tensors: query, key and value.
        causal, scale, shared: the arguments ``is_causal``, ``scale`` and ``enable_gqa``.
        like: the form of the call, a key of a dictionary: calls of one module with equal forms repeat each other.
    """

    frame: FrameType
    variables: Any
    inside: list[FrameType]
    numbers: tuple[int, ...]
    functions: InnerFunctions
    given: Any
    module: nn.Module
    tensors: tuple[Tensor, Tensor, Tensor]
    causal: bool
    scale: float | None
    shared: bool
    like: tuple[Any, ...]


class RepeatedCall(NamedTuple):
    """A call that repeats an earlier one, after its kernel ran.

    Attributes:
        known: what the earlier call has shown.
        total: the logsumexp in the layout of the kernel; None if it was not asked for.
        cache: the state of the cache with which the module was called: "nothing" if the cache has none, None without a cache.
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
    total: Tensor | None
    cache: "CacheState | str | None"

    @property
    def logsumexp(self) -> Tensor | None:
        """The logsumexp, ``(batch, heads, queries)``."""
        return arranged(self.total, self.output)

    def record(self) -> AttentionRecord:
        """The record of the call, from which the map can be built."""
        batch, heads, queries, _ = self.query.shape
        shape = (batch, heads, queries, self.key.shape[2])
        scores = AttentionScores(self.query, self.key, self.scale, None, None, CAUSAL if self.causal else None)
        running = Computation(
            scores, self.module, self.output, self.value, logsumexp=self.logsumexp, restore=_unchanged
        )
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


@runtime_checkable
class RepeatedListener(Protocol):
    """Takes calls that repeat earlier ones. Both methods are called once for each of them."""

    def kernels_without_logsumexp(
        self, known: KnownSite, query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float
    ) -> dict[Any, str] | None:
        """Whether :meth:`take` can do without the logsumexp of the call that is about to run, which then runs faster. If so, the
        names of the kernels that torch is known to choose for such calls (see ``run_as_called``); else None."""
        ...

    def take(self, call: RepeatedCall, moment: tuple[int, int]) -> bool:
        """The call ran. Return True if the listener needs no record of it; else its record follows.

        Args:
            moment: the number of the model's run, and of the attention, as in :class:`AttentionRecord`.
        """
        ...


def read_call(args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> Call | None:
    """Everything that decides whether this call repeats another one; None for a call that is never treated as repeated, as
    one with a mask or dropout.

    Args:
        caller: the frame that calls attention, or one of this package inside of it.
    """
    count = len(args)
    # Neither a mask nor dropout.
    if count < 3 or (count > 3 and (args[3] is not None or (count > 4 and args[4] != 0.0))):
        return None
    query, key, value = args[:3]
    if not (type(query) is type(key) is type(value) is Tensor) or query.is_nested:
        return None
    # The frames inside the module's call, without those of this package.
    frame: FrameType | None = caller
    while frame is not None and frame.f_globals.get("__package__") in OWN_PACKAGES:
        frame = frame.f_back
    inside, codes = [], []
    while frame is not None and (code := frame.f_code) is not CALL:
        if code is not FIRST_CALL:  # the first call of a watched module has one more frame than the others
            inside.append(frame)
            codes.append(id(code))
        frame = frame.f_back
    numbers = tuple(codes)
    if frame is None:
        return None
    variables = frame.f_locals
    module, given = variables["self"], None
    of_query, of_key, steps, more = query.shape, key.shape, key.stride(), value.stride()
    form: tuple[Any, ...]
    if len(of_query) != 4 or 0 in of_key:
        return None
    if of_query[2] == 1:  # with a single query the axes do not depend on the number of keys
        order = (steps[0] > steps[2], steps[1] > steps[2], more[0] > more[2], more[1] > more[2])
        form = (of_key[0], of_key[1], of_key[3], value.shape == of_key, of_key[2] > 1, order)
    else:
        given = variables["args"]
        given = given[0] if given else variables["kwargs"].get("hidden_states")
        if not isinstance(given, Tensor):
            return None
        form = (of_key, steps, value.shape, more, given.shape, given.dtype, given.is_contiguous())
    causal, scale, shared = count > 5 and args[5], kwargs.get("scale"), kwargs.get("enable_gqa", False)
    functions = InnerFunctions.of(inside, numbers)
    elsewhere = attends_elsewhere(inside, functions)
    kinds = (query.dtype, key.dtype, value.dtype, query.device, causal, scale, shared, elsewhere)
    like = ("call", numbers, of_query, query.stride(), form, kinds)
    tensors = query, key, value
    return Call(frame, variables, inside, numbers, functions, given, module, tensors, causal, scale, shared, like)


def _around(call: FrameType) -> int | None:
    """The id of the module that called this one, which may state the number of heads."""
    frame = call.f_back
    while frame is not None and frame.f_code is not CALL:
        frame = frame.f_back
    return None if frame is None else id(frame.f_locals["self"])


class RepeatedCalls:
    """Learns what a recorded call shows, and runs the calls that repeat it."""

    def __init__(
        self,
        names: ModuleNames,
        layouts: TokenLayouts,
        wants: Callable[[str], bool],
        listener: RepeatedListener | None,
    ) -> None:
        """
        Args:
            wants: whether the listener wants attention of a name.
        """
        self._names, self._layouts, self._wants = names, layouts, wants
        self._kernels = None if listener is None else listener.kernels_without_logsumexp
        self._noted = False  # whether calls were noted since the running ones were last counted
        # The form of the latest call, and the known sites of this form by the id of their module. Most calls have the form of the
        # one before: comparing forms takes less time than looking them up.
        self._latest: tuple[tuple[Any, ...], dict[int, KnownSite]] = (), {}

    def learn(self, call: Call, record: AttentionRecord, running: Computation) -> None:
        """Remember what a call has shown that was recorded in full, unless later calls like it may differ."""
        scores, plain = running.weights, record.kind == "sdpa" and record.windows is None
        if not isinstance(scores, AttentionScores) or running.folded or running.layout_declared:
            return
        given = call.given
        if given is not None and (given.ndim < 2 or not given.is_floating_point()):
            return
        # All functions inside the call must belong to this module, and the source must have used the tensors as they are.
        owners = [first_argument(frame) for frame in call.inside]
        own = all(x is call.module for x in owners if isinstance(x, nn.Module))
        query, key, value = call.tensors
        as_given = scores.query is query and scores.key is key and running.value is value and key.shape == value.shape
        if not (plain and own and as_given and running.module is call.module) or "#" in record.name:
            return
        remembered, around = self._names.remembered, _around(call.frame)
        heads = remembered.get((id(call.module), "heads"))
        if heads is None and remembered.get((around, "heads")) is not None:
            return  # its axes follow from the input of the module around it, which is not compared
        if record.axes.over != "tokens" or remembered.get((record.name, "windows")) != []:
            return
        # If no module states a layout and no image was cut into patches, the layout does not depend on the call.
        stating = remembered.get((record.name, "stating"))
        layout = None if stating == [] and self._layouts.patches is None else (record.layout, self._layouts.patches)
        known = KnownSite(
            record.name,
            record.axes,
            layout or (None, None),
            call.functions,
            around if heads is None else None,
            query.device.type,
            {},
        )
        # For a single query ``like`` leaves out the number of keys, but a layout depends on it.
        told = layout is None or query.shape[2] > 1
        remembered.setdefault(call.like if told else (*call.like, key.shape[2]), {})[id(call.module)] = known
        self._latest = (), {}

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], caller: FrameType) -> RepeatedCall | None:
        """Run the kernel of a call that repeats an earlier one; None for all other calls, which must be recorded in full."""
        call = read_call(args, kwargs, caller)
        if call is None:
            return None
        names, module, (query, key, value) = self._names, call.module, call.tensors
        # A second attention of this call needs a name of its own.
        if _ATTENDED in call.variables or (names.running and names.counts(call.frame)):
            return None
        known = self._known(call.like, module, key)
        if known is None or known.layout[1] != self._layouts.patches or current_grid() is not None:
            return None
        if known.around is not None and known.around != _around(call.frame):
            return None
        if not self._wants(known.name):
            return None
        # The functions are those of the earlier call, but their arguments may be another module, or a cache.
        inside, functions = call.inside, call.functions
        for number, first in functions.first:
            owner = inside[number].f_locals.get(first)
            if owner is not module and isinstance(owner, nn.Module):
                return None
        cache = value_of(inside, functions.caches)
        stack = names.begin(call.frame, inside, call.numbers)
        if cache is None and stack.beams:  # beams without a cache: the positions must say so
            return None
        scale = query.shape[3] ** -0.5 if call.scale is None else call.scale
        kernels = self._kernels
        chosen = None if kernels is None else kernels(known, query, key, value, call.causal, scale)
        given = query, key, value, call.scale, call.causal, call.shared, known.device
        ran = run_usual(*given) if chosen is None else run_as_called(*given, chosen)
        if ran is None:
            return None
        call.variables[_ATTENDED] = known.name
        self._noted = True
        out, kernel, total = ran
        if cache is not None:
            cache = state_of(cache, module, inside, functions, stack) or "nothing"
        return RepeatedCall(known, module, query, key, value, call.causal, scale, kernel, out, total, cache)

    def _known(self, like: tuple[Any, ...], module: nn.Module, key: Tensor) -> KnownSite | None:
        """What is known about calls of this form in this module."""
        form, sites = self._latest
        if form != like:
            sites = self._names.remembered.get(like) or {}
            self._latest = like, sites
        # What is known of a single query may depend on the number of keys, see ``learn``; of others it is a part of the form.
        known = sites.get(id(module))
        return known or self._names.remembered.get((*like, key.shape[2]), {}).get(id(module))

    def leave(self) -> None:
        """The next call is recorded in full, where :class:`ModuleNames` counts calls. Count the running ones noted here."""
        if not self._noted:
            return
        self._noted = False
        for frame in model_frames():
            name = frame.f_locals.get(_ATTENDED) if frame.f_code is CALL else None
            if name is not None and not self._names.counts(frame):
                self._names.attended(frame, name)


def _unchanged(x: Tensor) -> Tensor:
    return x
