"""Matrix products on a CPU, by the faster one of torch's two libraries, MKL and oneDNN.

``torch.matmul`` uses MKL for float32. On AMD processors with AVX-512, oneDNN takes half as long. torch has no public
function for a oneDNN product, so this uses the operator that its compiler inserts for linear layers. If that operator
is missing, or may round to bfloat16, MKL is used.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_WORTHWHILE = 2**22  # multiplications in one product from which on the overhead of an operator does not matter


def products(x: Tensor, y: Tensor, scale: float = 1.0, out: Tensor | None = None) -> Tensor:
    """``scale · x @ y.mT`` of matrices ``(count, rows, width)`` and ``(count, columns, width)``.

    Args:
        out: memory for the result, ``(count, rows, columns)``, which need not be used.

    >>> products(torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[3.0, 4.0], [5.0, 6.0]]]))
    tensor([[[11., 17.]]])
    """
    linear = _linear(x, y)
    if linear is None and scale == 1.0:
        return torch.bmm(x, y.mT) if out is None else torch.bmm(x, y.mT, out=out)
    if linear is None:  # with beta=0 the first argument is not read
        return torch.baddbmm(x.new_empty(()), x, y.mT, beta=0, alpha=scale, out=out)
    x = x.contiguous() if scale == 1.0 else x.mul(scale).contiguous()
    if len(x) == 1:
        return linear(x[0], y[0], None, "none", [], "").unsqueeze(0)
    out = x.new_empty(len(x), x.shape[1], y.shape[1]) if out is None else out
    for i in range(len(x)):
        out[i].copy_(linear(x[i], y[i], None, "none", [], ""))
    return out


def _linear(x: Tensor, y: Tensor) -> Callable[..., Tensor] | None:
    """oneDNN's operator for x @ y.mT, if it is usable and faster; else None."""
    if x.dtype is not torch.float32 or math.prod(x.shape[1:]) * y.shape[1] < _WORTHWHILE:
        return None
    if not (_is_dense(y) or _is_dense(y.mT)):  # oneDNN is many times slower for rows with gaps between them
        return None
    if torch.is_grad_enabled() and (x.requires_grad or y.requires_grad):  # the operator is not differentiable
        return None
    settings: Any = torch.backends.mkldnn
    precision = getattr(getattr(settings, "matmul", None), "fp32_precision", None)  # not in older versions of torch
    exact = settings.enabled and precision in ("none", "ieee")
    return _operator() if exact and x.device.type == "cpu" else None  # type: ignore[no-any-return]


def _is_dense(x: Tensor) -> bool:
    """Whether each matrix is contiguous."""
    return x.stride(2) == 1 and x.stride(1) == x.shape[2]


@functools.cache
def _operator() -> Any:
    """oneDNN's operator; None where MKL is as fast, or if this version of torch does not have it."""
    if not torch.backends.mkldnn.is_available() or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return None
    return getattr(torch.ops.mkldnn, "_linear_pointwise", None)
