"""Where the queries and keys of one call lie in the whole sequence, of which a cache keeps the keys of earlier calls."""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.maps._call_stack import CallStack
from regard.maps._module_names import CALL, CallSite

CACHES = ("past_key_values", "past_key_value", "layer_past", "kv_cache", "cache")
_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


@dataclass(frozen=True)
class Positions:
    """Queries ``first … first + queries − 1`` and keys ``first_key … first_key + keys − 1`` of a sequence.

    Attributes:
        length: the number of tokens of the sequence after this call. Keys from there on are empty slots of a cache.
        cached: whether a cache states it; otherwise the call has all tokens.
        cross: the keys are those of another sequence, all of it.
        beams: beam search ran: rows of the batch are beams, which change places between calls.
        guessed: some tokens may be guesses of an assistant or of prompt lookup, which are rejected if they are wrong.

    >>> Positions(first=5, queries=1, first_key=3, keys=4, length=6).key_positions
    tensor([ 3,  4,  5, -1])
    """

    first: int
    queries: int
    first_key: int
    keys: int
    length: int
    cached: bool = False
    cross: bool = False
    beams: bool = False
    guessed: bool = False

    @property
    def end(self) -> int:
        return self.first + self.queries

    @property
    def query_positions(self) -> Int[Tensor, "queries"]:
        return torch.arange(self.first, self.end)

    @property
    def key_positions(self) -> Int[Tensor, "keys"]:
        """−1 for empty slots of a cache."""
        keys = torch.arange(self.first_key, self.first_key + self.keys)
        return keys if self.cross else torch.where(keys < self.length, keys, -1)


def positions_of(shape: tuple[int, ...], site: CallSite) -> Positions | None:
    """The positions that the cache states with which the module was called; without a cache, those of a whole sequence
    that attends to itself. None if neither tells."""
    queries, keys = shape[2:]
    inside = _inside(site)
    cache = _local(inside, CACHES)
    if cache is None:
        return Positions(0, queries, 0, keys, keys) if queries == keys else None
    state = state_of(cache, site.module, inside, CallStack.by(frame.f_code for frame in site.frames))
    return None if state is None else positions_in(state, shape)


class CacheState(NamedTuple):
    """What a cache states at a call: its length after it, and what else :class:`Positions` says of the call."""

    length: int
    cross: bool
    beams: bool
    guessed: bool


def state_of(cache: Any, module: nn.Module, inside: Sequence[FrameType], stack: CallStack) -> CacheState | None:
    """What a cache states now, if it states anything.

    Args:
        inside: the frames of the module's own call.
        stack: what runs around it.
    """
    own, kind = cache, type(cache)
    # Most have no other cache inside: to ask a class first is less than to ask for what is not there.
    plain = _plain_kinds.get(kind)
    if plain is None:
        plain = _plain_kinds[kind] = hasattr(kind, "get_seq_length") and _has_no_other(kind)
    if not plain and not hasattr(cache, "get_seq_length"):
        return None
    if not plain or "self_attention_cache" in cache.__dict__:
        own = getattr(cache, "self_attention_cache", cache)
    cross = own is not cache and _attends_elsewhere(inside)
    return CacheState(_length(own, module), cross, stack.beams, stack.guessed)


# Classes of caches: whether they have a length, and another cache inside only if it is among their variables.
_plain_kinds: "weakref.WeakKeyDictionary[type, bool]" = weakref.WeakKeyDictionary()


def _has_no_other(kind: Any) -> bool:
    """Whether objects of this class have another cache inside only if it is among their variables."""
    asked = hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__
    return not asked and not hasattr(kind, "self_attention_cache") and kind.__dictoffset__ != 0


def positions_in(state: CacheState, shape: tuple[int, ...]) -> Positions | None:
    """The positions of a call of this shape at which a cache stated this."""
    length, cross, beams, guessed = state
    queries, keys = shape[2:]
    first = length - queries
    if first < 0:
        return None
    # A sliding window keeps the latest keys; a static cache has room for later ones.
    first_key = 0 if cross else max(0, length - keys)
    return Positions(first, queries, first_key, keys, length, True, cross, beams, guessed)


def _inside(site: CallSite) -> list[FrameType]:
    """The frames of the module's own call."""
    frames: list[FrameType] = []
    for frame in site.frames:
        if frame.f_code is CALL:
            return frames
        frames.append(frame)
    return frames


def _local(frames: Sequence[FrameType], names: tuple[str, ...]) -> Any:
    """The first local variable of one of these names that is not None."""
    for frame in frames:
        found = local_variables(frame.f_code, names)
        if found:
            variables = frame.f_locals
            value = next((x for name in found if (x := variables.get(name)) is not None), None)
            if value is not None:
                return value
    return None


# By the id of the code, which is kept: to hash a code object takes longer than to look at its names.
_known: dict[tuple[int, tuple[str, ...]], tuple[CodeType, list[str]]] = {}


def local_variables(code: CodeType, names: tuple[str, ...]) -> list[str]:
    """Those of the names that a function has as local variables."""
    found = _known.get((id(code), names))
    if found is None:
        if len(_known) > 4096:  # functions that are made anew at each call
            _known.clear()
        found = _known[id(code), names] = code, [name for name in names if name in code.co_varnames]
    return found[1]


def _attends_elsewhere(frames: Sequence[FrameType]) -> bool:
    return _local(frames, _OTHER_SEQUENCE) is not None or bool(_local(frames, ("is_cross_attention",)))


def _length(cache: Any, module: nn.Module) -> int:
    """The number of tokens that the cache has seen, in the layer of this module if it has layers."""
    layer = module.__dict__.get("layer_idx")
    if type(layer) is int:
        try:
            length = cache.get_seq_length(layer)
            if type(length) is int and length > 0:
                return length
        except Exception:  # as below
            pass
    layer = getattr(module, "layer_idx", None) if layer is None else layer
    for arguments in ((layer,), ()) if layer is not None else ((),):  # a layer may use the keys of another one
        try:
            length = int(cache.get_seq_length(*arguments))
        except Exception:  # any object may have a method of this name, and the model must not fail because of us
            continue
        if length > 0:
            return length
    return 0
