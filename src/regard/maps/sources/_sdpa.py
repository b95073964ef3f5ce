"""The source of ``torch.nn.functional.scaled_dot_product_attention``.

The map is computed from the arguments of the call. It is compared with the kernel's output, and with its logsumexp if
it returns one.
"""

from typing import Any

import torch
from torch import Tensor

from regard.maps._operator_watch import is_described
from regard.maps._record import AttentionRecord
from regard.maps.sources._function_call import FunctionCall, kernel_record
from regard.maps.sources._gathered import as_read
from regard.maps.tokens._axes import AxisReading, read_axes
from regard.maps.tokens._axis_evidence import evidence_for, is_own, stated_by
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band

_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")  # the others are passed by name


def sdpa(call: FunctionCall) -> AttentionRecord:
    """The record of a call of ``scaled_dot_product_attention``."""
    given: dict[str, Any] = {**dict(zip(_ARGUMENTS, call.args, strict=False)), **call.kwargs}
    query, key, value, mask, out = given["query"], given["key"], given["value"], given.get("attn_mask"), call.output
    scale = query.shape[-1] ** -0.5 if given.get("scale") is None else float(given["scale"])
    if query.dtype != out.dtype:  # autocast, which converts the arguments inside the call
        query, key, value = (x.to(out.dtype) for x in (query, key, value))
    query, key, value = (_batched(x, out) for x in (query, key, value))
    reading = _reading(call, query, key, value)
    flat = reading.without_queries
    query, key, value, output = (flat.arrange(x) for x in (query, key, value, out))
    band = Band(right=0) if given.get("is_causal") else None
    if mask is not None and is_described(mask):
        at_end = mask.variant.name == "LOWER_RIGHT"
        band = Band(right=0, shift=mask.seq_len_kv - mask.seq_len_q if at_end else 0)
        mask = None
    if mask is not None and mask.ndim != 2:
        mask = _with_axes(mask, out, flat)
    keep = mask if mask is not None and mask.dtype is torch.bool else None
    clean = None
    if given.get("dropout_p", 0.0) > 0:
        # The output contains dropout, so run the call again without it. That draws no random numbers.
        if is_described(given.get("attn_mask")):
            given["attn_mask"] = given["attn_mask"]._materialize(query.device)
        with torch.no_grad(), torch._C.DisableTorchFunction():
            clean = flat.arrange(call.function(**{**given, "dropout_p": 0.0}))
    logsumexp = call.witness.logsumexp if call.witness is not None else None
    record = kernel_record(
        call,
        "sdpa",
        AttentionScores(query, key, scale, keep, mask if keep is None else None, band),
        value,
        output,
        restore=lambda new: flat.undo(new, tuple(out.shape)),
        logsumexp=arranged(logsumexp, output) if out.ndim < 5 else None,  # with more axes its order is another one
        clean=clean,
        kernel=(call.witness.kernel if call.witness is not None else None) or "math",
        axes=reading.axes,
    )
    return as_read(record, reading)


def _reading(call: FunctionCall, query: Tensor, key: Tensor, value: Tensor) -> AxisReading:
    """What the axes are. The answer is remembered by the module, and by the form of the tensors and of the module's input.

    With a single query, as in generation, the number of keys does not matter.
    """
    site, out = call.site, call.output
    of_key, of_value = key.stride(), value.stride()
    like: tuple[Any, ...]
    if query.shape[-2] == 1:
        order = tuple(step[axis] > step[-2] for step in (of_key, of_value) for axis in range(len(step) - 2))
        like = (id(site.module), query.shape, query.stride(), key.shape[:-2], value.shape[-1], key.shape[-2] > 1, order)
    else:
        stated, projected, first, arguments = stated_by(site, value.shape[-1])
        own = is_own(first, arguments, tuple(out.shape))
        given = None if first is None else (first.shape, first.is_contiguous(), own)
        tensors = (query.shape, query.stride(), key.shape, of_key, value.shape, of_value, out.shape)
        like = (id(site.module), *tensors, stated, projected, given)
    remembered = site.remembered.get(like)
    if remembered is not None:
        return remembered  # type: ignore[no-any-return]
    evidence = evidence_for(site, value.shape[-1], tuple(out.shape), query, key, value)
    per_query = key.shape[:-2] == query.shape[:-2]
    reading = read_axes(
        (*query.shape[:-1], key.shape[-2]), value.shape[-1], evidence, per_query=per_query, documented=True
    )
    site.remembered[like] = reading
    return reading


def _with_axes(mask: Tensor, out: Tensor, reading: AxisReading) -> Tensor:
    """The mask with the axes of the map; axes may have size 1."""
    if reading.is_plain:
        return mask[(None,) * (4 - mask.ndim)]
    return reading.arrange(mask.expand(*out.shape[:-2], *mask.shape[-2:]))


def arranged(logsumexp: Tensor | None, output: Tensor) -> Tensor | None:
    """The logsumexp as ``(batch, heads, queries)``: some kernels pad the queries, others add an axis of size 1."""
    if logsumexp is None or logsumexp.shape == output.shape[:3]:
        return logsumexp
    if logsumexp.ndim == 3 and logsumexp.shape[2] > output.shape[2]:
        logsumexp = logsumexp[:, :, : output.shape[2]]
    return logsumexp.reshape(output.shape[:3]) if logsumexp.numel() == output.shape[:3].numel() else None


def _batched(x: Tensor, out: Tensor) -> Tensor:
    """x with the output's leading axes: the kernel expands those of size 1 (heads may stay fewer)."""
    if x.ndim <= 3 or x.ndim != out.ndim or x.shape[:-3] == out.shape[:-3]:
        return x
    return x.expand(*out.shape[:-3], *x.shape[-3:])
