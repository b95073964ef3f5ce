"""Where a layer says what it attended to, for whoever listens. Nobody listening costs one look at a flag.

Attention that runs through ``scaled_dot_product_attention`` or a softmax followed by a product is seen without any
help. A layer whose map exists in neither form (a Gaussian head never builds it, an alignment may be a sigmoid) calls
:func:`observe` with its heads' output and a function that builds the map, and uses what comes back::

    heads = observe(self, heads, lambda: dense_map(...), value=value, grid=grid)   # (batch, heads, queries, width)

The function is called only if a listener wants the map. A listener may return another output (a gated or replaced
head), which is why the layer must go on with the returned tensor. Imports point here, never from here: this module
knows nothing of the layers nor of :mod:`regard.maps`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would load the compiler, which takes seconds


@dataclass(frozen=True)
class Observation:
    """What a layer reports: one attention, by one module, once.

    Attributes:
        module: the layer that attends; its path in the model becomes the map's name.
        output: ``(batch, heads, queries, width)``, the heads' outputs before they are merged; ``(batch, queries,
            width)`` stands for a single head.
        weights: builds the map, ``(batch or 1, heads, queries, keys)``, or ``(batch or 1, queries, keys)`` for a
            single head; before dropout.
        value: ``(batch, heads or a divisor of it, keys, width)``, so that weights @ value can be checked against
            output; None where the output is not that product.
        kind: what made the map, in a word or two: "gaussian", "alignment".
        grid: the shape the tokens lie on, where the layer knows it.
        prefix: tokens before the grid's (class, registers), where the layer knows it.
        query_grid: the shape the queries lie on where that is not the keys' grid.
    """

    module: nn.Module | None
    output: Tensor
    weights: Callable[[], Tensor]
    value: Tensor | None
    kind: str
    grid: tuple[int, ...] | None
    prefix: int | None
    query_grid: tuple[int, ...] | None


@runtime_checkable
class Observer(Protocol):
    def observed(self, seen: Observation) -> Tensor:
        """Take note of it, and return the output the layer shall go on with."""
        ...


# A listener hears its own thread (or task) alone. The flag beside it is a plain boolean for every thread, because
# that is what a compiled graph can guard on: with nobody listening the whole call is compiled away.
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("regard_observers", default=())
_lock = threading.Lock()
_listeners = 0
_listening = False


def observe(
    module: nn.Module | None,
    output: Tensor,
    weights: Callable[[], Tensor],
    *,
    value: Tensor | None = None,
    kind: str = "attention",
    grid: tuple[int, ...] | None = None,
    prefix: int | None = None,
    query_grid: tuple[int, ...] | None = None,
) -> Tensor:
    """Tell listeners what ``module`` attended to; returns the output to go on with (see :class:`Observation`).

    >>> value = torch.ones(1, 1, 2, 3)
    >>> heads = observe(None, value, lambda: torch.eye(2).expand(1, 1, 2, 2), value=value)
    >>> heads is value
    True
    """
    if not _listening:
        return output
    seen = Observation(module, output, weights, value, kind, grid, prefix, query_grid)
    return _tell_uncompiled(seen) if torch.compiler.is_compiling() else _tell(seen)


def is_observed() -> bool:
    """Whether anyone listens: a layer that has a cheaper way without its heads' outputs asks before it takes it."""
    return _listening


@_disable_dynamo  # which loads the compiler when it is first called: seconds that an eager model shall not wait
def _tell_uncompiled(seen: Observation) -> Tensor:
    return _tell(seen)


def _tell(seen: Observation) -> Tensor:
    output = seen.output
    for observer in _observers.get():
        output = observer.observed(Observation(**{**vars(seen), "output": output}))
    return output


@contextmanager
def listen(observer: Observer) -> Iterator[None]:
    """Hear every :func:`observe` of this thread inside the block; blocks may be nested, the outer one hears first."""
    global _listeners, _listening
    with _lock:
        _listeners += 1
        _listening = True
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)
        with _lock:
            _listeners -= 1
            _listening = _listeners > 0
