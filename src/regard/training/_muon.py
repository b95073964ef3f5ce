"""Muon with matrices of one shape stacked: the same steps as :class:`torch.optim.Muon`, launched together."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class StackedMuon(torch.optim.Optimizer):
    """:class:`torch.optim.Muon` whose Newton–Schulz iteration runs once for all matrices of a shape, turned or not.

    With a small network on a GPU, launching the products of one matrix after another takes longer than computing them.
    Filters (out, in, height, width) are treated as matrices (out, in · height · width).

    Args:
        params: matrices and filters, or groups of them.
        lr: scaled for each matrix by √max(1, rows / columns), or with ``adjust_lr_fn="match_rms_adamw"`` as torch does.
        weight_decay, momentum, nesterov, adjust_lr_fn: as torch's.
        steps: iterations of Newton–Schulz.
        keep_norm: before each step, scale every matrix to the norm √rows. The scale of a matrix before a norm layer
            does not matter, but it would grow, and make the relative steps smaller and smaller.

    >>> weights = [torch.nn.Parameter(torch.randn(4, 8)) for _ in range(2)] + [torch.nn.Parameter(torch.randn(8, 4))]
    >>> optimizer = StackedMuon(weights, lr=0.1, weight_decay=0.0)
    >>> sum((weight ** 3).sum() for weight in weights).backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        adjust_lr_fn: str | None = None,
        steps: int = 5,
        keep_norm: bool = False,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "nesterov": nesterov}
        super().__init__(params, {**defaults, "adjust_lr_fn": adjust_lr_fn, "steps": steps, "keep_norm": keep_norm})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    sides = sorted((parameter.shape[0], parameter.shape[1:].numel()))
                    alike[(*sides, parameter.dtype, parameter.device)].append(parameter)
            for parameters in alike.values():
                self._step_alike(parameters, group)
        return loss

    def _step_alike(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        matrices = [as_matrix(parameter, parameter) for parameter in parameters]
        gradients = [as_matrix(parameter.grad, parameter) for parameter in parameters if parameter.grad is not None]
        averages = [as_matrix(self._momentum(parameter), parameter) for parameter in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, averages, group["momentum"]) if group["nesterov"] else averages
        flat = torch.stack([update if _is_flat(update) else update.T for update in updates])
        directions = orthogonal(flat, group["steps"]).to(flat.dtype)
        if group["keep_norm"]:
            norms = torch._foreach_norm(matrices)
            torch._foreach_clamp_min_(norms, 1e-30)  # a matrix of zeros stays one
            scales = torch._foreach_reciprocal(norms)
            torch._foreach_mul_(scales, [math.sqrt(matrix.shape[0]) for matrix in matrices])
            torch._foreach_mul_(matrices, list(scales))
        if group["weight_decay"]:
            torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        for turned in (False, True):
            ways = (directions.mT if turned else directions).unbind()
            chosen = [pair for pair in zip(matrices, ways, strict=True) if _is_flat(pair[0]) != turned]
            if chosen:
                targets, moves = map(list, zip(*chosen, strict=True))
                torch._foreach_add_(targets, moves, alpha=-_rate(group, targets[0].shape))

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]


def as_matrix(tensor: Tensor, parameter: Tensor) -> Tensor:
    """The parameter as a matrix with a row for each output: a view, so that it can be updated in place. Its columns are in
    the order of memory, since their order does not matter to the nearest orthogonal matrix.

    >>> as_matrix(torch.zeros(8, 4, 3, 3), torch.zeros(8, 4, 3, 3)).shape
    torch.Size([8, 36])
    """
    if tensor.ndim == 2:
        return tensor
    return (tensor if parameter.is_contiguous() else tensor.movedim(1, -1)).flatten(1)


def orthogonal(matrices: Tensor, steps: int = 5) -> Tensor:
    """Roughly the nearest semi-orthogonal matrix to each of a stack (n, rows ≤ columns): a few Newton–Schulz steps
    bring all singular values near one. The coefficients are torch's. A GPU computes in bfloat16. A CPU computes in
    float32: bfloat16 is not faster there, and float32 makes the step of several processes equal that of one."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    if x.device.type != "cpu":
        x = x.bfloat16()
    # bmm and baddbmm have less overhead than @: for many small products, the host is slower than the device.
    for _ in range(steps):
        gram = torch.bmm(x, x.mT)
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _is_flat(matrix: Tensor) -> bool:
    return matrix.shape[0] <= matrix.shape[1]


def _rate(group: dict[str, Any], shape: torch.Size) -> float:
    rows, columns = shape
    if group["adjust_lr_fn"] == "match_rms_adamw":
        return float(group["lr"]) * 0.2 * math.sqrt(max(rows, columns))
    return float(group["lr"]) * math.sqrt(max(1.0, rows / columns))
