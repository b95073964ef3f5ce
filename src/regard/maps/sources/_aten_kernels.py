"""The source of aten kernels that a model calls directly, because they return the logsumexp with the output."""

from typing import Any

import torch.nn.functional as F

from regard.maps._record import AttentionRecord
from regard.maps.sources._direct_kernels import KernelRun
from regard.maps.sources._function_call import KERNELS_WITH_LOGSUMEXP, FunctionCall
from regard.maps.sources._sdpa import sdpa


def aten_kernel(call: FunctionCall) -> AttentionRecord:
    """The record of a direct call, made as for ``scaled_dot_product_attention``, which calls the same kernels."""
    overload = KERNELS_WITH_LOGSUMEXP[call.name]
    names = (argument.name for argument in overload._schema.arguments)
    given: dict[str, Any] = {**dict(zip(names, call.args, strict=False)), **call.kwargs}
    mask = given.get("attn_mask", given.get("attn_bias"))
    kwargs = {name: given[name] for name in ("dropout_p", "is_causal", "scale") if given.get(name) is not None}
    witness = KernelRun(call.name, call.output[1])
    args = (given["query"], given["key"], given["value"], mask)
    return sdpa(FunctionCall(call.site, F.scaled_dot_product_attention, args, kwargs, call.output[0], witness))
