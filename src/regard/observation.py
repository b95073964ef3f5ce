"""``observe``: how a layer declares the attention that it computes. Without a listener it costs one test of a flag.

:func:`regard.capture` recognizes attention that runs through ``scaled_dot_product_attention``, or through a softmax that
is followed by a product, without any help. A layer that never forms its map (a Gaussian head), or that computes it from
several parts (a gate between two maps), declares it::

    heads = observe(self, lambda: self.mix(value, grid), lambda: self.weights(grid), value=value, grid=grid)

This module is below all layers: it knows neither them nor :mod:`regard.maps`, which re-exports what is public here.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler, which takes seconds

Result = TypeVar("Result")
Grid = tuple[int, ...]


@runtime_checkable
class Observer(Protocol):
    """A listener of :func:`observe`."""

    def observed(self, module: nn.Module | None, output: Tensor, weights: Callable[[], Tensor], **about: Any) -> Tensor:
        """Take the arguments of :func:`observe`, and return the output with which the layer continues."""
        ...


# Listeners belong to one thread (or task). The flag is a plain boolean for all threads, because a compiled graph can
# guard on it: without listeners the whole call is compiled away.
_observers: ContextVar[tuple[Observer, ...]] = ContextVar("regard_observers", default=())
HIDDEN: ContextVar[bool] = ContextVar("regard_hidden", default=False)
GRID: ContextVar[Grid | None] = ContextVar("regard_grid", default=None)
_lock = threading.Lock()
_listeners = 0
_listening = False
_readers = 0  # listeners that read the heads' outputs
_reading = False


def observe(
    module: nn.Module | None,
    output: Tensor | Callable[[], Tensor],
    weights: Callable[[], Tensor],
    *,
    value: Tensor | None = None,
    kind: str = "attention",
    grid: Grid | None = None,
    prefix: int | None = None,
    query_grid: Grid | None = None,
    clean: Callable[[], Tensor] | None = None,
) -> Tensor:
    """Declare one attention, and return the output with which the layer must continue.

    A listener may return another output (:func:`regard.replace_heads` does), so use the returned tensor.

    Args:
        module: the layer that attends. Its path in the model becomes the name of the map. None stands for the module
            that is running.
        output: ``(batch, heads, queries, width)``, the heads' outputs before they are merged, or ``(batch, queries,
            width)`` for a single head. Better, a function without arguments that computes it: attention inside this
            function is a part of what is declared here, and is not captured by itself.
        weights: computes the map, ``(batch or 1, heads, queries, keys)``, or ``(batch or 1, queries, keys)`` for a
            single head, before dropout. It is called only if a listener wants the map.
        value: ``(batch, heads or a divisor of it, keys, width)``, to compare weights @ value with the output; None if
            the output is not this product.
        kind: one or two words for the kind of attention, such as "gaussian".
        grid: the shape on which the keys lie, if the layer knows it.
        prefix: how many tokens (class, registers) stand before those of the grid.
        query_grid: the shape on which the queries lie, if it is not that of the keys.
        clean: computes the output without dropout, if it has some: weights @ value is compared with that.

    >>> value = torch.ones(1, 1, 2, 3)
    >>> heads = observe(None, lambda: 2 * value, lambda: 2 * torch.eye(2).expand(1, 1, 2, 2), value=value)
    >>> torch.equal(heads, 2 * value)
    True
    """
    if not _listening:
        return output() if callable(output) else output
    tell = _tell_uncompiled if torch.compiler.is_compiling() else _tell
    about = {"value": value, "kind": kind, "grid": grid, "prefix": prefix, "query_grid": query_grid, "clean": clean}
    return tell(module, output, weights, about)


def is_observed() -> bool:
    """Whether there is a listener."""
    return _listening


def heads_are_read() -> bool:
    """Whether there is a listener that reads the outputs of heads. A layer asks before it uses a cheaper method that does not
    compute them."""
    return _reading


@_disable_dynamo  # the first call imports the compiler, which takes seconds: eager models use _tell itself
def _tell_uncompiled(*args: Any) -> Tensor:
    return _tell(*args)


def _tell(
    module: nn.Module | None,
    output: Tensor | Callable[[], Tensor],
    weights: Callable[[], Tensor],
    about: dict[str, Any],
) -> Tensor:
    found = unobserved(output) if callable(output) else output
    if HIDDEN.get():
        return found
    for observer in _observers.get():
        found = observer.observed(module, found, weights, **about)
    return found


def unobserved(function: Callable[..., Result], *args: Any) -> Result:
    """``function(*args)``, during which nothing counts as attention: it computes a part of a map, or only a map.

    >>> unobserved(torch.softmax, torch.zeros(2), -1)
    tensor([0.5000, 0.5000])
    """
    if not _listening:
        return function(*args)
    token = HIDDEN.set(True)
    try:
        return function(*args)
    finally:
        HIDDEN.reset(token)


def on_grid(grid: Grid, function: Callable[..., Result], /, *args: Any, **options: Any) -> Result:
    """``function(*args, **options)``, during which the tokens lie on ``grid``, without prefix tokens.

    For models whose grid changes with the input or from block to block: maps then know their grid.

    >>> on_grid((2, 3), torch.zeros, 1)
    tensor([0.])
    """
    if not _listening:
        return function(*args, **options)
    token = GRID.set(grid)
    try:
        return function(*args, **options)
    finally:
        GRID.reset(token)


def is_hidden() -> bool:
    """Whether :func:`unobserved` is running: what is computed now is not attention by itself."""
    return HIDDEN.get()


def current_grid() -> Grid | None:
    """The grid of the innermost :func:`on_grid`, if there is one."""
    return GRID.get()


class _Listening:
    """See :func:`listen`. A class takes less time than a generator with ``contextmanager``."""

    __slots__ = ("_heads", "_observer")

    def __init__(self, observer: Observer, heads: bool) -> None:
        self._observer, self._heads = observer, heads

    def __enter__(self) -> None:
        global _listeners, _listening, _readers, _reading
        with _lock:
            _listeners += 1
            _readers += self._heads
            _listening, _reading = True, _readers > 0
        _observers.set((*_observers.get(), self._observer))

    def __exit__(self, *error: object) -> None:
        global _listeners, _listening, _readers, _reading
        _observers.set(tuple(x for x in _observers.get() if x is not self._observer))
        with _lock:
            _listeners -= 1
            _readers -= self._heads
            _listening, _reading = _listeners > 0, _readers > 0


def listen(observer: Observer, *, heads: bool = True) -> AbstractContextManager[None]:
    """Pass every :func:`observe` of this thread to ``observer``, inside the block. Of nested ones the outer comes first. With
    ``heads=False`` layers run as without it: those that compute their output without their heads' outputs declare nothing."""
    return _Listening(observer, heads)
