"""The attention of a model, seen by means that share nothing with regard: operators of aten, below all of Python.

Kernels are replaced by torch's own formula (``SDPBackend.MATH``), so that every softmax and every product is an operator
that a dispatch mode sees. Results of softmax are followed through operators that keep weights what they are. What is
multiplied with another tensor in a batched product is a map: its operand, as the operator received it.
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in ("bmm", "baddbmm"):
            self._product(args[-2], args[-1])
        out = func(*args, **kwargs)
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

    def _product(self, left: Tensor, right: Tensor) -> None:
        of_left, of_right = id(left) in self._kept, id(right) in self._kept
        if of_left or of_right:
            weights = left if of_left else right.mT
            self.seen.append(Seen(self.running[-1], weights.detach().clone()))


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
