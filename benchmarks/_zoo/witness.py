"""The attention of a model, seen by means that share nothing with regard: operators of aten, below all of Python.

Kernels are replaced by torch's own formula (``SDPBackend.MATH``), so that every softmax and every product is an operator
that a dispatch mode sees. Results of softmax are followed through operators that keep weights what they are. What is
multiplied with another tensor in a batched product is a map: its operand, as the operator received it. If the module takes the
logsumexp of scores and multiplies the rows of the product, these factors belong to the map: a learned sink.
"""

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

_SOFTMAX = {"_softmax", "_safe_softmax"}
_MOVES = {
    *("view", "_unsafe_view", "reshape", "expand", "permute", "transpose", "t", "unsqueeze", "squeeze", "alias"),
    *(
        "detach",
        "as_strided",
        "slice",
        "select",
        "clone",
        "_to_copy",
        "copy_",
        "contiguous",
        "split",
        "unbind",
        "chunk",
    ),
    *("split_with_sizes", "repeat", "index", "index_select", "gather", "constant_pad_nd", "_reshape_alias", "squeeze_"),
}
_ELEMENTWISE = {
    "mul",
    "div",
    "where",
    "masked_fill",
    "masked_fill_",
    "mul_",
    "div_",
    "add",
    "sub",
    "nan_to_num",
    "add_",
}


@dataclass(eq=False)
class Seen:
    """Weights that were multiplied with values.

    Attributes:
        name: the module that ran, innermost.
        weights: ``(products, queries, keys)``, as the operator received them.
    """

    name: str
    weights: Tensor


class _Operators(TorchDispatchMode):
    def __init__(self, running: list[str]) -> None:
        super().__init__()
        self.running = running
        self.seen: list[Seen] = []
        self._kept: dict[int, Tensor] = {}  # the tensors themselves, so that no other one takes their id
        self._products: dict[int, tuple[Tensor, Seen]] = {}
        self._logsumexps: set[str] = set()  # modules that take one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        seen = self._product(args[-2], args[-1]) if name in ("bmm", "baddbmm") else None
        out = func(*args, **kwargs)
        self._follow_product(name, args, out, seen)
        if name in _SOFTMAX and out.ndim >= 2:
            self._kept[id(out)] = out
        elif name in _MOVES or name in _ELEMENTWISE:
            known = next((x for x in tree_iter((args, kwargs)) if isinstance(x, Tensor) and id(x) in self._kept), None)
            if known is not None:
                for x in tree_iter(out):
                    if isinstance(x, Tensor) and (name in _MOVES or x.numel() == known.numel()):
                        self._kept[id(x)] = x
        return out

    def forget(self) -> None:
        self._kept.clear()
        self._products.clear()

    def _follow_product(self, name: str, args: Any, out: Any, seen: Seen | None) -> None:
        if name == "logsumexp":
            self._logsumexps.add(self.running[-1])
        known = next((found for x in args[:2] if (found := self._products.get(id(x)))), None)
        if seen is not None:
            self._products[id(out)] = (out, seen)
        elif known is not None and name in ("view", "_unsafe_view", "reshape"):
            self._products[id(out)] = (out, known[1])
        elif known is not None and name == "mul" and self.running[-1] in self._logsumexps:
            factor = args[1] if args[0] is known[0] else args[0]
            if isinstance(factor, Tensor) and factor.ndim == out.ndim and factor.shape[-1] == 1:
                rows = factor.expand(*out.shape[:-1], 1).reshape(*known[1].weights.shape[:-1], 1)
                known[1].weights = known[1].weights * rows

    def _product(self, left: Tensor, right: Tensor) -> Seen | None:
        of_left, of_right = id(left) in self._kept, id(right) in self._kept
        if of_left or of_right:
            weights = left if of_left else right.mT
            self.seen.append(Seen(self.running[-1], weights.detach().clone()))
            return self.seen[-1] if of_left else None
        return None


@contextmanager
def witness(model: nn.Module) -> Iterator[list[Seen]]:
    """The list of what is seen while ``model`` runs in this block."""
    names = {id(module): path or type(model).__name__ for path, module in model.named_modules()}
    running = ["(outside the model)"]

    def enter(module: nn.Module, args: Any) -> None:
        running.append(names.get(id(module), running[-1]))

    def leave(module: nn.Module, args: Any, out: Any) -> None:
        running.pop()

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave, always_call=True)]
    operators = _Operators(running)
    try:
        with formula(), operators:
            yield operators.seen
    finally:
        operators.forget()
        for hook in hooks:
            hook.remove()


@contextmanager
def formula() -> Iterator[None]:
    """Attention by torch's own formula instead of a kernel."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def difference(ours: Tensor, seen: Tensor) -> float | None:
    """max |ours − seen|; None if they cannot be the same map.

    Args:
        ours: ``(batch, heads, queries, keys)``.
        seen: ``(products, queries, keys)``; samples, windows, heads and queries may lie in any order.
    """
    if ours.numel() != seen.numel() or ours.shape[-1] != seen.shape[-1] or ours.numel() == 0:
        return None
    ours, seen = ours.double(), seen.double().reshape(-1, seen.shape[-1])
    best = float("inf")
    for samples in (1, 2) if ours.shape[0] % 2 == 0 else (1,):
        split = ours.unflatten(0, (samples, -1))
        for order in itertools.permutations(range(4)):
            rows = split.permute(*order, 4).reshape(seen.shape)
            best = min(best, float((rows - seen).abs().max()))
            if best < 1e-4:
                return best
    return best
