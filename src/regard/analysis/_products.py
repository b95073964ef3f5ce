"""The multiply-adds of each operator, by torch's formulas, and by ours for operators without one."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

# From the shapes of an operator's arguments to its floating-point operations, two for each multiply-add.
Formula = Callable[..., int]


def _product(first: int) -> Formula:
    """(…, m, k) × (…, k, n), the arguments number ``first`` and ``first + 1``."""
    return lambda *shapes, **_: 2 * math.prod(shapes[first]) * shapes[first + 1][-1]


def _product_with_vector(first: int) -> Formula:
    return lambda *shapes, **_: 2 * math.prod(shapes[first])


def _grouped_product(one: Any, other: Any, *_: Any, **options: Any) -> int:
    """Products of groups, as of the tokens and the matrix of each expert. An axis that both have counts the groups; else the
    groups are parts of one axis of the first or second operand, and each of its entries belongs to one group."""
    groups = one[0] if len(one) == len(other) == 3 else 1
    return 2 * groups * math.prod(one[-2:]) * other[-1]


def _attention(query: Any, key: Any, value: Any, *_: Any, **options: Any) -> int:
    """Scores and averages over all pairs. Heads may share keys and values, which torch's formula does not support."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent(inputs: Any, weights: Any, *more: Any, **_: Any) -> int:
    """oneDNN takes two weight matrices as arguments, cuDNN a list of all weights, biases included."""
    matrices = [shape for shape in weights if len(shape) == 2] if isinstance(weights, list) else [weights, more[0]]
    return 2 * math.prod(inputs[:-1]) * sum(map(math.prod, matrices))


def _mix_plane(value: Any, rows: Any, columns: Any, *_: Any, **options: Any) -> int:
    """One pass along each axis with matrices (heads, outputs, inputs)."""
    heads, row_outputs, row_inputs = rows
    _, column_outputs, column_inputs = columns
    passes = row_outputs * column_inputs * (row_inputs + column_outputs)
    return 2 * value[0] * heads * value[3] * passes


def _gaussian_plane(value: Any, center: Any, sharpness: Any, rows: int, columns: int, **options: Any) -> int:
    return _mix_plane(value, (center[0], rows, rows), (center[0], columns, columns))


def _gaussian_grid(value: Any, center: Any, sharpness: Any, grid: Any, **options: Any) -> int:
    """One pass along each axis, counted in full, since the locality of the heads is only known on the device."""
    return 2 * value[0] * center[0] * value[3] * math.prod(grid) * sum(grid)


_LACKING: dict[str, Formula] = {
    **dict.fromkeys(("aten::addmm_", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"), _product(1)),
    **dict.fromkeys(("aten::mv", "aten::dot", "aten::vdot"), _product_with_vector(0)),
    **dict.fromkeys(("aten::addmv", "aten::addmv_"), _product_with_vector(1)),
    **dict.fromkeys(("aten::_grouped_mm", "aten::_scaled_grouped_mm"), _grouped_product),
    **dict.fromkeys(("aten::mkldnn_rnn_layer", "aten::_cudnn_rnn"), _recurrent),
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "regard::mix_plane": _mix_plane,
    "regard::gaussian_plane": _gaussian_plane,
    "regard::gaussian_grid": _gaussian_grid,
}


def formulas() -> dict[Any, Formula]:
    """Formulas by operator, including those that users registered with torch's ``register_flop_formula``. Each takes the
    arguments of one call, and its result as ``out_val``."""
    known = {}
    for name, formula in _LACKING.items():
        namespace, _, operator = name.partition("::")
        if hasattr(getattr(torch.ops, namespace), operator):
            known[getattr(getattr(torch.ops, namespace), operator)] = formula
    return FlopCounterMode(display=False, custom_mapping=known).flop_registry


_PRODUCTS = re.compile(r"attention|cdist|convolution|euclidean_dist|_fft|linalg_(?!vector_norm)|linear|matmul|rnn|_mm")


def may_multiply(operator: Any, name: str) -> bool:
    """Whether to report an operator without a formula: if it is not torch's, or if its name suggests products."""
    if isinstance(operator, torch._ops.HigherOrderOperator) or operator.namespace not in ("aten", "prim", "prims"):
        return True
    return _PRODUCTS.search(name) is not None and "upsample" not in name
