"""The source of ``xformers.ops.memory_efficient_attention``, whose tensors are ``(batch, tokens, heads, width)``.

Three axes are a single head, five are groups of heads.
"""

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.sources._function_call import FunctionCall, kernel_record
from regard.maps.weights._attention_scores import AttentionScores


def xformers(call: FunctionCall) -> AttentionRecord:
    """The record of a call of ``memory_efficient_attention``."""
    given = call.arguments()
    output, logsumexp = call.output[:2] if isinstance(call.output, tuple) else (call.output, None)
    shape = output.shape
    query, key, value, output = map(_heads_first, (given["query"], given["key"], given["value"], output))
    bias = given.get("attn_bias")
    if bias is not None and not isinstance(bias, Tensor):
        bias = bias.materialize((*query.shape[:3], key.shape[2]), dtype=torch.float32, device=query.device)
    if bias is not None and bias.ndim == 5:
        bias = bias.flatten(1, 2)
    if bias is not None and bias.ndim == 3:
        bias = bias.unsqueeze(1)
    clean = None
    if given.get("p"):
        with torch.no_grad():
            again = call.function(**{**given, "p": 0.0})
        clean = _heads_first(again[0] if isinstance(again, tuple) else again)
    return kernel_record(
        call,
        "xformers",
        AttentionScores(query, key, given.get("scale") or query.shape[-1] ** -0.5, bias=bias),
        value,
        output,
        restore=lambda new: new.transpose(1, 2).reshape(shape),
        logsumexp=logsumexp,
        clean=clean,
    )


def _heads_first(x: Tensor) -> Tensor:
    """``x`` as ``(batch, heads, tokens, width)``."""
    x = x.unsqueeze(2) if x.ndim == 3 else x.flatten(2, 3) if x.ndim == 5 else x
    return x.transpose(1, 2)
