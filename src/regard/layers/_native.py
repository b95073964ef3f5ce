"""Self-attention in one call of torch's own operator, because a GPU would wait for Python between several calls."""

from typing import Any

import torch
import torch.nn.modules.module as hooks
from torch import Tensor, nn

from regard.observation import is_observed

DTYPES = (torch.float32, torch.bfloat16)


def native_attention(
    x: Tensor, qkv: nn.Module, output: nn.Module, heads: int, return_weights: bool
) -> Tensor | tuple[Tensor, Tensor]:
    """The output for ``x`` ``(batch, tokens, dim)``; on request also the weights ``(batch, heads, tokens, tokens)``. Without
    gradients."""
    width = x.shape[-1]
    inward: dict[str, Any] = qkv._parameters
    outward: dict[str, Any] = output._parameters
    out, weights = torch._native_multi_head_attention(
        x, x, x, width, heads, inward["weight"], inward["bias"], outward["weight"], outward["bias"], None,
        return_weights, False,
    )  # fmt: skip
    return (out, weights) if return_weights else out


def can_be_native(x: Tensor, qkv: object, output: object, heads: int, head_dim: int) -> bool:
    """Whether torch's operator may compute the layer: on a GPU without gradients. Not on a CPU, where it stores the map."""
    return x.is_cuda and not torch.is_grad_enabled() and fits_operator(x, qkv, output, heads, head_dim)


def fits_operator(x: Tensor, qkv: object, output: object, heads: int, head_dim: int) -> bool:
    """Whether torch's operator gives the same result and no hook or dispatch mode could notice the difference. On a GPU it
    stores no map unless requested."""
    return (
        x.dtype in DTYPES
        and head_dim % 8 == 0
        and head_dim <= 128
        and x.shape[-1] == heads * head_dim
        and x.numel() > 0
        and is_plain_linear(qkv, x, 3 * x.shape[-1])
        and is_plain_linear(output, x, x.shape[-1])
        and not is_watched(x)
    )


def is_plain_linear(layer: object, x: Tensor, width: int) -> bool:
    """Whether layer is an unmodified ``nn.Linear`` to ``width`` with a bias, without hooks, of the dtype and device of ``x``."""
    if type(layer) is not nn.Linear or "forward" in layer.__dict__ or layer._forward_hooks or layer._forward_pre_hooks:
        return False
    weight, bias = layer._parameters["weight"], layer._parameters["bias"]
    if type(weight) is not nn.Parameter or type(bias) is not nn.Parameter:
        return False
    return weight.dtype is bias.dtype is x.dtype and weight.device == x.device and len(bias) == width


def is_watched(x: Tensor) -> bool:
    """Whether a capture, a dispatch mode, a global module hook, a transform or a trace must see every step."""
    return bool(
        is_observed()
        or torch._C._len_torch_function_stack()
        or torch._C._len_torch_dispatch_stack()
        or hooks._global_forward_hooks
        or hooks._global_forward_pre_hooks
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state()
        or torch.is_autocast_enabled(x.device.type)
    )
