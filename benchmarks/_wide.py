"""Wide heads: interpolated between a few nodes per axis, beside whole axis matrices. A table of benchmarks/gaussian.py."""

import functools
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from _floor import TENSORS, graph_milliseconds
from _measure import Limit, milliseconds, side_by_side
from _rivals import eager_milliseconds, inputs
from regard.functional import gaussian_attention, plan_for

SIDES = {"cuda": (128, 256, 512, 1024), "cpu": (64, 128)}
SPANS = (0.3, 4.0, 8.0, 16.0)  # lengths of an axis, in standard deviations of the heads


def wide_rows(options: Namespace, limit: Limit, bandwidth: float) -> list[dict[str, Any]]:
    """Forward and backward, and how far the outputs and the gradients of centers are from those in float64."""
    rows = []
    for side in SIDES["cpu" if options.device == "cpu" else "cuda"]:
        for span in SPANS:
            if limit.allows(f"wide heads, {side}², {span:g} standard deviations"):
                rows.append({"side / σ": span, **_row(options, (side, side), (span / side) ** 2 / 2, bandwidth)})
                print("wide", rows[-1], flush=True)
    return rows


def _row(options: Namespace, grid: tuple[int, int], sharpness: float, bandwidth: float) -> dict[str, Any]:
    value, above, center, alpha = inputs(grid, sharpness, options.device)
    wanted = value, center, alpha
    plan = plan_for(center, alpha, grid, value.dtype)
    nodes = plan.heads[0].nodes
    ways = {"matrices": "separable", **({} if nodes is None else {"interpolated": plan})}

    def step(way: Any) -> None:
        torch.autograd.grad(gaussian_attention(*wanted, grid, plan=way), wanted, above)

    steps: dict[str, Callable[[], None]] = {name: functools.partial(step, way) for name, way in ways.items()}
    row: dict[str, Any] = {
        "grid": "×".join(map(str, grid)), "sharpness": f"{sharpness:.3g}", "nodes": "×".join(map(str, nodes or ())),
    }  # fmt: skip
    if options.device == "cpu":
        row |= milliseconds(side_by_side(steps, rounds=options.rounds, patience=options.patience))
    else:
        floor = 1e3 * TENSORS * value.numel() * value.element_size() / bandwidth
        row["floor"] = round(floor, 4)
        for name, call in steps.items():
            row[name] = round(graph_milliseconds(call), 4)
            row[f"{name} / floor"] = round(row[name] / floor, 2)
            row[f"{name}, eager"] = round(eager_milliseconds(call, runs=2), 4)
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            torch.cuda.synchronize()
            row[f"{name}, peak / value"] = round(
                (torch.cuda.max_memory_allocated() - before) / value.numel() / value.element_size(), 2
            )
    if grid[0] <= 256:  # in float64 larger grids would take long
        exact = _results(*(x.detach().double().requires_grad_() for x in wanted), above.double(), grid, "separable")
        for name, way in ways.items():
            row[f"{name}, off"] = _off(_results(*wanted, above, grid, way), exact)
    return row


def _results(value: Tensor, center: Tensor, alpha: Tensor, above: Tensor, grid: Any, way: Any) -> list[Tensor]:
    """The output, and the gradients of values, centers and sharpness."""
    out = gaussian_attention(value, center, alpha, grid, plan=way)
    return [out, *torch.autograd.grad(out, (value, center, alpha), above)]


def _off(found: list[Tensor], exact: list[Tensor]) -> list[float]:
    """‖found − exact‖ / ‖exact‖."""
    pairs = zip(found, exact, strict=True)
    return [float(f"{float((a.double() - b).norm() / b.norm()):.2g}") for a, b in pairs]
