"""Muon with matrices of one shape stacked: the same steps as :class:`torch.optim.Muon`, launched together."""

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class StackedMuon(torch.optim.Muon):
    """:class:`torch.optim.Muon` whose Newton–Schulz iteration runs once for all matrices of a shape, turned or not.

    A small network on a GPU spends longer on launching one matrix's products after another's than on the products.

    >>> weights = [torch.nn.Parameter(torch.randn(4, 8)) for _ in range(2)] + [torch.nn.Parameter(torch.randn(8, 4))]
    >>> optimiser = StackedMuon(weights, lr=0.1, weight_decay=0.0)
    >>> sum((weight ** 3).sum() for weight in weights).backward()
    >>> optimiser.step()
    """

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
                    alike[(*sorted(parameter.shape), parameter.dtype, parameter.device)].append(parameter)
            for parameters in alike.values():
                self._step_alike(parameters, group)
        return loss

    def _step_alike(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        averages = [self._momentum(parameter) for parameter in parameters]
        torch._foreach_lerp_(averages, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, averages, group["momentum"]) if group["nesterov"] else averages
        flat = torch.stack([update if _is_flat(update) else update.T for update in updates])
        directions = orthogonal(flat, group["ns_coefficients"], group["ns_steps"], group["eps"]).to(flat.dtype)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for turned in (False, True):
            ways = (directions.mT if turned else directions).unbind()
            chosen = [pair for pair in zip(parameters, ways, strict=True) if _is_flat(pair[0]) != turned]
            if chosen:
                targets, moves = map(list, zip(*chosen, strict=True))
                torch._foreach_add_(targets, moves, alpha=-_rate(group, targets[0].shape))

    def _momentum(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        return state["momentum_buffer"]


def orthogonal(matrices: Tensor, coefficients: tuple[float, float, float], steps: int, epsilon: float) -> Tensor:
    """Roughly the nearest semi-orthogonal matrix to each of a stack (n, rows ≤ columns), in bfloat16: a few
    Newton–Schulz steps bring all singular values near one."""
    # bmm and baddbmm, not @: a step's many small products cost the host more than the device.
    a, b, c = coefficients
    x = (matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp_min(epsilon)).bfloat16()
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
