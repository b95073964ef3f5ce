"""``scaled_dot_product_attention``: the map is recomputed from what the kernel was given, and compared with what it
returned: its output, and its logsumexp where it has one."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.maps._names import Place
from regard.maps._seen import Scores, Seen, Selection, canonical, heads_of, product_error, uncanonical

_aten = torch.ops.aten


def _overload(name: str) -> Any:
    packet = getattr(_aten, name, None)
    return getattr(packet, "default", None)


# Kernels that return (output, logsumexp, …) in one layout: (batch, heads, queries[, 1]).
_WITH_LOGSUMEXP = {
    _overload(name)
    for name in (
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_fused_attention_overrideable",
    )
} - {None}
_WITHOUT = {_overload("_scaled_dot_product_attention_math_for_mps"), _overload("_safe_softmax"), _overload("_softmax")}
_WHOLE = _overload("scaled_dot_product_attention")


class Evidence(TorchDispatchMode):
    """Looks under one call: which kernel ran, and the logsumexp it returned."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch loads its compiler for every mode, which takes seconds; here compiled code runs as Python anyway.
        return False

    def __init__(self) -> None:
        super().__init__()
        self.kernel: str | None = None
        self.logsumexp: Tensor | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is _WHOLE:  # in inference mode the call arrives here in one piece
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        if func in _WITH_LOGSUMEXP:
            self.kernel = func.overloadpacket.__name__
            self.logsumexp = out[1] if isinstance(out[1], Tensor) and out[1].numel() else None
        elif func in _WITHOUT and self.kernel is None:
            self.kernel = "math"
        return out


def seen_sdpa(
    place: Place,
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    out: Tensor,
    evidence: Evidence,
) -> Seen:
    given = _arguments(*args, **kwargs)
    query, key, value, mask = (given[name] for name in ("query", "key", "value", "attn_mask"))
    scale = given["scale"]
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    heads = heads_of(place.module)
    if query.dtype != out.dtype:  # autocast, which converts below the level of this call
        query, key, value = (x.to(out.dtype) for x in (query, key, value))
    query, key, value, output = (canonical(_batched(x, out), heads) for x in (query, key, value, out))
    if hasattr(mask, "_materialize"):  # torch.nn.attention.bias: a mask that is only described
        mask = mask._materialize(query.device)
    if mask is not None:
        if mask.ndim != 2 and out.ndim > 4:
            mask = mask.expand(*out.shape[:-2], *mask.shape[-2:])
        mask = canonical(_batched(mask, out), heads) if mask.ndim != 2 else mask
    keep = mask if mask is not None and mask.dtype is torch.bool else None
    bias = mask if keep is None else None
    scores = Scores(query, key, scale, keep, bias, "start" if given["is_causal"] else None)

    checked = output
    against = "kernel"
    if given["dropout_p"] > 0:
        # The output holds random zeros. The same call without them draws no random numbers.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            checked = canonical(func(**{**given, "dropout_p": 0.0}), heads)
        against = "kernel, run again without dropout"

    def check(weights: Tensor, rows: Selection, chosen: Selection) -> Tensor:
        return product_error(weights, value, checked, rows, chosen)

    return Seen(
        name=place.name,
        module=place.module,
        kind="sdpa",
        shape=scores.shape,
        build=scores,
        check=check,
        against=against,
        output=output,
        value=value,
        logsumexp=_arranged(evidence.logsumexp, output) if out.ndim < 5 else None,  # in the order of other axes
        restore=lambda new: uncanonical(new, tuple(out.shape), heads),
        kernel=evidence.kernel or "math",
    )


def _arranged(logsumexp: Tensor | None, output: Tensor) -> Tensor | None:
    """``(batch, heads, queries)`` from what a kernel returns: some pad the queries, some leave an axis of 1."""
    if logsumexp is None:
        return None
    if logsumexp.ndim == 3 and logsumexp.shape[2] > output.shape[2]:
        logsumexp = logsumexp[:, :, : output.shape[2]]
    return logsumexp.reshape(output.shape[:3]) if logsumexp.numel() == output.shape[:3].numel() else None


def _arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> dict[str, Any]:
    return locals()


def _batched(x: Tensor, out: Tensor) -> Tensor:
    """With the output's leading axes: the kernel stretches those of size 1 (heads may stay fewer)."""
    if x.ndim <= 3 or x.ndim != out.ndim:
        return x
    return x.expand(*out.shape[:-3], *x.shape[-3:])
