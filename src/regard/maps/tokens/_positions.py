"""Where the queries and keys of a call lie in the whole sequence, if a cache holds the keys of earlier calls."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from types import FrameType
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.layers import KeyValueCache
from regard.maps._call_stack import CallStack, local_variables
from regard.maps._module_names import CALL, CallSite

# Names of local variables that hold a cache, and of arguments that hold the other sequence of cross-attention.
CACHES = ("past_key_values", "past_key_value", "layer_past", "kv_cache", "cache")
_LAYERS = ("layer_idx",)
_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")


@dataclass(frozen=True)
class Positions:
    """Queries ``first … first + queries − 1`` and keys ``first_key … first_key + keys − 1`` of a sequence.

    Attributes:
        length: the number of tokens of the sequence after this call. Keys from there on are empty slots of a static cache.
        cached: whether a cache states the positions; otherwise the call has the whole sequence.
        cross: whether the keys are another sequence, all of it (cross-attention).
        beams: whether beam search ran: rows of the batch are beams, which change places between calls.
        guessed: whether tokens may be guesses, of an assistant model or of prompt lookup, which may be rejected later.

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
    """The positions of a call, from the cache with which the module was called.

    Without a cache: those of a whole sequence, if there are as many queries as keys, or if this is cross-attention. None if the
    positions are not known.
    """
    queries, keys = shape[2:]
    inside = list(takewhile(lambda frame: frame.f_code is not CALL, site.frames))  # of the module's own call
    cache = _local(inside, CACHES)
    stack = CallStack.of(frame.f_code for frame in site.frames)
    if cache is None:
        whole, cross = Positions(0, queries, 0, keys, queries, beams=stack.beams), attends_elsewhere(inside)
        return replace(whole, cross=cross) if cross or queries == keys else None
    state = state_of(cache, site.module, inside, stack)
    return None if state is None else positions_in(state, shape)


class CacheState(NamedTuple):
    """What is known from a cache: the length of its sequence, and three flags as in :class:`Positions`.

    The length is None if the call appends to a cache that holds nothing else: then its keys are the whole sequence.
    """

    length: int | None
    cross: bool
    beams: bool
    guessed: bool


def state_of(cache: Any, module: nn.Module, inside: Sequence[FrameType], stack: CallStack) -> CacheState | None:
    """The state of a cache now; None for an object that is not a cache, and for cross-attention whose queries have none.

    Args:
        inside: the frames of the module's own call.
        stack: the call stack around it.
    """
    own: Any = cache
    kind: Any = type(cache)
    # Few caches contain another cache. Asking their class, once, is faster than asking each object for a missing attribute.
    plain = _is_plain(kind)
    if not plain and not hasattr(cache, "get_seq_length"):
        if not _grows(cache) or attends_elsewhere(inside) or _local(inside, ("context",)) is not None:
            return None
        return CacheState(None, False, stack.beams, stack.guessed)
    if not plain or "self_attention_cache" in cache.__dict__:
        own = getattr(cache, "self_attention_cache", cache)
    cross = attends_elsewhere(inside) or _is_named_cross(type(module).__name__)
    if cross and own is cache:  # it holds the other sequence, at least in this layer: Whisper, Mllama
        length = _length_of_queries(cache, module, inside)
        if length is None:
            return None
        return CacheState(length, True, stack.beams, stack.guessed)
    return CacheState(_length(own, module, inside), cross, stack.beams, stack.guessed)


def _length_of_queries(cache: Any, module: nn.Module, inside: Sequence[FrameType]) -> int | None:
    """The length of the queries' own sequence, for cross-attention whose cache holds the other sequence in this layer.

    It is known to a cache for both sequences in the frames around the module's call, of which the module was given a part, or
    to the first layer of a cache that all layers share.
    """
    frame, shared = inside[-1].f_back if inside else None, False
    while frame is not None:
        around = _local([frame], CACHES)
        if hasattr(around, "self_attention_cache"):
            return _length(around.self_attention_cache, module, inside)
        shared = shared or around is cache
        frame = frame.f_back
    layer = getattr(module, "layer_idx", None)
    try:
        return int(cache.get_seq_length(0)) if shared and isinstance(layer, int) and layer > 0 else None
    except Exception:  # any object may have such a method, and the model must not fail because of us
        return None


@lru_cache(64)
def _is_named_cross(kind: str) -> bool:
    return "crossattention" in kind.lower()


def _grows(cache: Any) -> bool:
    """Whether each call appends to this cache: keys and values as a pair of tensors, or a cache of our layers."""
    if isinstance(cache, KeyValueCache):
        return True
    if not isinstance(cache, tuple | list) or len(cache) < 2:
        return False
    return all(isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 2 for x in cache[:2])


@lru_cache(64)  # the least recently used class is forgotten: one that is made anew for each call is not kept for good
def _is_plain(kind: Any) -> bool:
    """Whether objects of this class have a length, and an inner cache only if it is in their ``__dict__``."""
    if not hasattr(kind, "get_seq_length"):
        return False
    asked = hasattr(kind, "__getattr__") or kind.__getattribute__ is not object.__getattribute__
    return not asked and not hasattr(kind, "self_attention_cache") and kind.__dictoffset__ != 0


def positions_in(state: CacheState, shape: tuple[int, ...]) -> Positions | None:
    """The positions of a call of this shape, from the state of its cache."""
    length, cross, beams, guessed = state
    queries, keys = shape[2:]
    length = keys if length is None else length
    first = length - queries
    if first < 0:
        return None
    # A sliding window keeps the latest keys; a static cache has room for later ones.
    first_key = 0 if cross else max(0, length - keys)
    return Positions(first, queries, first_key, keys, length, True, cross, beams, guessed)


def _local(frames: Sequence[FrameType], names: tuple[str, ...]) -> Any:
    """The value of the first local variable with one of these names that is not None."""
    for frame in frames:
        found = local_variables(frame.f_code, names)
        if found:
            variables = frame.f_locals
            value = next((x for name in found if (x := variables.get(name)) is not None), None)
            if value is not None:
                return value
    return None


def attends_elsewhere(frames: Sequence[FrameType]) -> bool:
    """Whether this call is cross-attention."""
    return _local(frames, _OTHER_SEQUENCE) is not None or bool(_local(frames, ("is_cross_attention",)))


def _length(cache: Any, module: nn.Module, inside: Sequence[FrameType]) -> int:
    """The number of tokens that the cache has seen, in the layer of this call if it has layers."""
    layer = _local(inside, _LAYERS)  # of a module that several layers share (Zamba)
    layer = module.__dict__.get("layer_idx") if layer is None else layer
    if type(layer) is int:
        try:
            length = cache.get_seq_length(layer)
            if type(length) is int and length > 0:
                return length
        except Exception:  # see below
            pass
    layer = getattr(module, "layer_idx", None) if layer is None else layer
    for arguments in ((layer,), ()) if layer is not None else ((),):  # a layer may share the keys of another layer
        try:
            length = int(cache.get_seq_length(*arguments))
        except Exception:  # any object may have such a method, and the model must not fail because of us
            continue
        if length > 0:
            return length
    return 0
