"""Where the queries and keys of a call lie in the whole sequence, if a cache holds the keys of earlier calls."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard.layers import KeyValueCache
from regard.maps._call_stack import CallStack
from regard.maps._module_names import CALL, CallSite

# Names of local variables that hold a cache, and of arguments that hold the other sequence of cross-attention.
CACHES = ("past_key_values", "past_key_value", "layer_past", "kv_cache", "cache")
_LAYERS = ("layer_idx",)
_OTHER_SEQUENCE = ("key_value_states", "encoder_hidden_states", "cross_attention_states")
_CALLED = nn.Module._call_impl.__code__  # on the stack inside every call of a module; its ``self`` is that module
_MOST = 4096  # sequences of functions that are cached

Places = tuple[tuple[int, str], ...]  # local variables: the number of the function, and the name


class InnerFunctions(NamedTuple):
    """The functions inside the call of a module, from the innermost outwards, and which of their variables tell positions.

    Attributes:
        codes: their code objects. Keeping them alive keeps their ids from being reused.
        first: the first argument of each function that has one and may be called with another module.
        caches, others, crosses, contexts, layers: variables that may hold a cache, another sequence, whether it is
            cross-attention, the other sequence of our own layers, and the number of the layer.
    """

    codes: tuple[CodeType, ...]
    first: Places
    caches: Places
    others: Places
    crosses: Places
    contexts: Places
    layers: Places

    @classmethod
    def of(cls, frames: Sequence[FrameType], numbers: tuple[int, ...] | None = None) -> "InnerFunctions":
        """Those of these frames. ``numbers``: the ids of their code objects, if they are known."""
        numbers = tuple([id(frame.f_code) for frame in frames]) if numbers is None else numbers
        found = _functions.get(numbers)
        if found is None:
            if len(_functions) >= _MOST:  # functions that are created anew at each call
                _functions.clear()
            codes = tuple(frame.f_code for frame in frames)
            owned = ((i, code) for i, code in enumerate(codes) if code.co_argcount and code is not _CALLED)
            first = tuple((i, code.co_varnames[0]) for i, code in owned)
            named = (CACHES, _OTHER_SEQUENCE, ("is_cross_attention",), ("context",), _LAYERS)
            found = _functions[numbers] = cls(codes, first, *(_places(codes, names) for names in named))
        return found


_functions: dict[tuple[int, ...], InnerFunctions] = {}  # by the ids of their code objects: hashing those takes longer


def _places(codes: tuple[CodeType, ...], names: tuple[str, ...]) -> Places:
    return tuple((i, name) for i, code in enumerate(codes) for name in names if name in code.co_varnames)


def value_of(frames: Sequence[FrameType], places: Places) -> Any:
    """The value of the first of these local variables that is not None; None if all are."""
    for number, name in places:
        value = frames[number].f_locals.get(name)
        if value is not None:
            return value
    return None


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
    functions = InnerFunctions.of(inside)
    cache = value_of(inside, functions.caches)
    stack = CallStack.of(frame.f_code for frame in site.frames)
    if cache is None:
        cross = attends_elsewhere(inside, functions)
        whole = cross or queries == keys
        return Positions(0, queries, 0, keys, queries, cross=cross, beams=stack.beams) if whole else None
    state = state_of(cache, site.module, inside, functions, stack)
    return None if state is None else positions_in(state, shape)


class CacheState(NamedTuple):
    """What is known from a cache: the length of its sequence, and three flags as in :class:`Positions`.

    The length is None if the call appends to a cache that holds nothing else: then its keys are the whole sequence.
    """

    length: int | None
    cross: bool
    beams: bool
    guessed: bool


def state_of(
    cache: Any, module: nn.Module, inside: Sequence[FrameType], functions: InnerFunctions, stack: CallStack
) -> CacheState | None:
    """The state of a cache now; None for an object that is not a cache, and for cross-attention whose queries have none.

    Args:
        inside: the frames of the module's own call.
        functions: those of these frames.
        stack: the call stack around it.
    """
    own: Any = cache
    kind: Any = type(cache)
    # Few caches contain another cache. Asking their class, once, is faster than asking each object for a missing attribute.
    plain = _is_plain(kind)
    if not plain and not hasattr(cache, "get_seq_length"):
        if not _grows(cache) or attends_elsewhere(inside, functions):
            return None
        if value_of(inside, functions.contexts) is not None:
            return None
        return CacheState(None, False, stack.beams, stack.guessed)
    if not plain or "self_attention_cache" in cache.__dict__:
        own = getattr(cache, "self_attention_cache", cache)
    cross = attends_elsewhere(inside, functions) or _is_named_cross(type(module).__name__)
    if cross and own is cache:  # it holds the other sequence, at least in this layer: Whisper, Mllama
        length = _length_of_queries(cache, module, inside, functions)
        if length is None:
            return None
        return CacheState(length, True, stack.beams, stack.guessed)
    return CacheState(_length(own, module, inside, functions), cross, stack.beams, stack.guessed)


def _length_of_queries(
    cache: Any, module: nn.Module, inside: Sequence[FrameType], functions: InnerFunctions
) -> int | None:
    """The length of the queries' own sequence, for cross-attention whose cache holds the other sequence in this layer.

    It is known to a cache for both sequences in the frames around the module's call, of which the module was given a part, or
    to the first layer of a cache that all layers share.
    """
    frame, shared = inside[-1].f_back if inside else None, False
    while frame is not None:
        around = value_of([frame], InnerFunctions.of([frame]).caches)
        if hasattr(around, "self_attention_cache"):
            return _length(around.self_attention_cache, module, inside, functions)
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


def attends_elsewhere(frames: Sequence[FrameType], functions: InnerFunctions) -> bool:
    """Whether this call is cross-attention."""
    return value_of(frames, functions.others) is not None or bool(value_of(frames, functions.crosses))


def _length(cache: Any, module: nn.Module, inside: Sequence[FrameType], functions: InnerFunctions) -> int:
    """The number of tokens that the cache has seen, in the layer of this call if it has layers."""
    layer = value_of(inside, functions.layers)  # of a module that several layers share (Zamba)
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
