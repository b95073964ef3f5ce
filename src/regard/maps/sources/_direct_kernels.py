"""Calls the kernel of ``scaled_dot_product_attention`` directly, to get its logsumexp.

The function chooses a kernel and drops the logsumexp that the kernel returns. A dispatch mode could watch this from
outside, but takes more time on the host than the call itself. So torch is asked for its choice, and the same kernel is
called with the same arguments. Unusual calls (masks, dropout, other modes) are left to the mode
:class:`regard.maps.sources._function_call.KernelWitness`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from regard.maps._operator_watch import watching_key

_FLASH, _EFFICIENT, _CUDNN = (
    int(backend.value)  # type: ignore[attr-defined]
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)
)
_NAMES = {
    ("cpu", _FLASH): "_scaled_dot_product_flash_attention_for_cpu",
    ("cuda", _FLASH): "_scaled_dot_product_flash_attention",
    ("cuda", _EFFICIENT): "_scaled_dot_product_efficient_attention",
    ("cuda", _CUDNN): "_scaled_dot_product_cudnn_attention",
}
# The name and the function of a kernel, by the device and by torch's choice.
_KERNELS = {key: (name, getattr(torch, name, None)) for key, name in _NAMES.items()}
_NOTHING = (None, None)
# Functions of torch that run at each attention: looking them up takes as long as calling them.
_flash, _efficient = torch._C._get_flash_sdp_enabled, torch._C._get_mem_efficient_sdp_enabled
_math, _cudnn = torch._C._get_math_sdp_enabled, torch._C._get_cudnn_sdp_enabled
_priority_order, _deterministic = torch._C._get_sdp_priority_order, torch._C._get_deterministic_algorithms
_dispatch_modes, _function_modes = torch._C._len_torch_dispatch_stack, torch._C._len_torch_function_stack
_transforms, _autocast = torch._C._are_functorch_transforms_active, torch.is_autocast_enabled
_grad, _attention = torch.is_grad_enabled, torch._C._nn.scaled_dot_product_attention
_is_excluded, _exclude = (
    torch._C._dispatch_tls_is_dispatch_key_excluded,
    torch._C._dispatch_tls_set_dispatch_key_excluded,
)
_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


class KernelRun(NamedTuple):
    """What ran inside a call: the name of the kernel, and the logsumexp that it returned."""

    kernel: str | None
    logsumexp: Tensor | None


def run_directly(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, KernelRun] | None:
    """What ``scaled_dot_product_attention`` returns for these arguments, and what ran; None if the call is unusual.

    >>> q = torch.randn(1, 2, 5, 8)
    >>> out, run = run_directly((q, q, q), {"is_causal": True})
    >>> torch.equal(out, torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)), run.logsumexp.shape
    (True, torch.Size([1, 2, 5]))
    """
    given = dict(zip(_ARGUMENTS, args, strict=False))
    given.update(kwargs)
    if given.get("attn_mask") is not None or given.get("dropout_p", 0.0) != 0.0:
        return None
    query, key, value = given.get("query"), given.get("key"), given.get("value")
    scale, causal, shared = given.get("scale"), bool(given.get("is_causal")), bool(given.get("enable_gqa"))
    if not (type(query) is type(key) is type(value) is Tensor) or not _usual(query, key, value, shared):
        return None
    ran = run_usual(query, key, value, scale, causal, shared, query.device.type)
    return None if ran is None else (ran[0], KernelRun(*ran[1:]))


def run_usual(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None, causal: bool, shared: bool, device: str
) -> tuple[Tensor, str, Tensor | None] | None:
    """As :func:`run_directly`, for tensors whose form and dtypes were checked before: the output, the kernel's name, and its
    logsumexp. None if the kernel that torch would choose has no logsumexp, or needs its inputs in another form.

    Args:
        shared: the argument ``enable_gqa``: query heads share key heads.
        device: the type of the tensors' device.
    """
    if _changed_by_modes(device):
        return None
    choice = torch._fused_sdp_choice(query, key, value, None, 0.0, causal, scale=scale, enable_gqa=shared)
    name, kernel = _KERNELS.get((device, choice), _NOTHING)
    if name is None or kernel is None or (choice == _EFFICIENT and query.shape[1] != key.shape[1]):
        return None
    # Two of the kernels return the logsumexp only on request (the argument True). The output is the same.
    if device == "cpu":
        out = kernel(query, key, value, 0.0, causal, scale=scale)
    elif choice == _CUDNN:
        out = kernel(query, key, value, None, True, 0.0, causal, False, scale=scale)
    elif choice == _FLASH:
        out = kernel(query, key, value, 0.0, causal, False, scale=scale)
    else:
        out = kernel(query, key, value, None, True, 0.0, causal, scale=scale)
    total = out[1]
    return out[0], name, total if isinstance(total, Tensor) and total.numel() else None


def run_as_called(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None,
    causal: bool,
    shared: bool,
    device: str,
    chosen: dict[Any, str],
) -> tuple[Tensor, str, None] | None:
    """As :func:`run_usual`, without the logsumexp: torch's function chooses and calls the kernel in one step, which takes less
    time on the host. It is not watched meanwhile.

    Args:
        chosen: names of the kernels that torch chose for calls of this form, by torch's settings. New ones are added.
    """
    if _changed_by_modes(device):
        return None
    settings = (
        _flash(), _efficient(), _math(), _cudnn(), *_priority_order(), _deterministic(),
        _grad() and (query.requires_grad or key.requires_grad or value.requires_grad),
    )  # fmt: skip
    name = chosen.get(settings)
    if name is None:
        choice = torch._fused_sdp_choice(query, key, value, None, 0.0, causal, scale=scale, enable_gqa=shared)
        name = _NAMES.get((device, choice))
        if name is None:
            return None
        chosen[settings] = name
    # As ``with unwatched()``, which takes longer.
    watching = watching_key()
    before = _is_excluded(watching)
    _exclude(watching, True)
    try:
        return _attention(query, key, value, None, 0.0, causal, scale=scale, enable_gqa=shared), name, None
    finally:
        _exclude(watching, before)


def _changed_by_modes(device: str) -> bool:
    """Whether a mode may count or change calls: then the call that the model made must be left as it is."""
    return bool(_dispatch_modes() or _function_modes() or _transforms() or _autocast(device))


def _usual(query: Tensor, key: Tensor, value: Tensor, shared: bool) -> bool:
    """Whether kernels take these tensors as they are: four axes, a width without padding, one dtype, matching heads."""
    of_query, of_key = query.shape, key.shape
    if len(of_query) != 4 or len(of_key) != 4 or of_key != value.shape or 0 in of_query or 0 in of_key:
        return False
    same_heads = of_query[1] == of_key[1] or (shared and of_query[1] % of_key[1] == 0)
    fits = same_heads and of_query[0] == of_key[0] and of_query[3] == of_key[3] and of_query[3] % 8 == 0
    alike = query.dtype == key.dtype == value.dtype and query.device == key.device == value.device
    return fits and alike
