"""What an interceptor knows of a function of torch. Every call of the model's comes to it, so each is looked up once."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from regard.maps._contributions import PROJECTIONS


class KnownFunction(NamedTuple):
    """A function of torch, or an operator.

    Attributes:
        name: without that of the overload.
        handler: what runs it instead, if anything does.
        operator: whether it is called as an operator, not as a function.
        follows: whether a call matters only if one of its arguments is followed.
    """

    name: str
    handler: Callable[..., Any] | None
    operator: bool
    follows: bool


def known_function(func: Any, handlers: Mapping[str, Callable[..., Any]]) -> KnownFunction:
    """Look a function up.

    >>> known_function(torch.relu, {}), known_function(torch.ops.aten.mul.Tensor, {}).name
    (KnownFunction(name='relu', handler=None, operator=False, follows=True), 'mul')
    """
    operator = isinstance(func, torch._ops.OpOverload | torch._ops.OpOverloadPacket)
    name = getattr(func, "__name__", "")
    name = name.partition(".")[0] if operator else name
    handler = handlers.get(name)
    return KnownFunction(name, handler, operator, handler is None and not operator and name not in PROJECTIONS)
