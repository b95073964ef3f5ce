"""The fast path of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``: one operator for the projections, the
attention and, in the encoder, the whole layer.

The operator does not return the output of the attention. So the map is recomputed from the layer's input and weights,
the rest of the layer is computed on top of it, and the result is compared with the layer's output.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps._scores import AttentionScores, Selection, exact
from regard.maps.sources._function_call import FunctionCall


@dataclass(frozen=True)
class _Layer:
    """The operator's arguments, by name; those with a default only for an encoder layer."""

    source: Tensor
    heads: int
    qkv_weight: Tensor
    qkv_bias: Tensor
    out_weight: Tensor
    out_bias: Tensor
    mask: Tensor | None
    mask_type: int | None
    norm_first: bool = False
    norms: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    eps: float = 0.0
    feed_forward: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    gelu: bool = False

    def norm(self, x: Tensor, which: int) -> Tensor:
        if self.norms is None:
            return x
        weight, bias = self.norms[2 * which : 2 * which + 2]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def rest(self, rows: Tensor, attended: Tensor) -> Tensor:
        """The operator's output from the merged heads ``attended``, given its input at the same rows."""
        out = F.linear(attended, self.out_weight, self.out_bias)
        if self.feed_forward is None:
            return out
        out = rows + out
        if not self.norm_first:
            out = self.norm(out, 0)
        w1, b1, w2, b2 = self.feed_forward
        hidden = F.linear(self.norm(out, 1) if self.norm_first else out, w1, b1)
        out = out + F.linear(F.gelu(hidden) if self.gelu else F.relu(hidden), w2, b2)
        return out if self.norm_first else self.norm(out, 1)


def attention_module(module: nn.Module, args: tuple[Any, ...]) -> nn.Module | None:
    """The part of the module whose weights are among the operator's arguments."""
    for part in module.modules():
        weight = getattr(part, "in_proj_weight", None)
        if weight is not None and any(weight is x for x in args):
            return part
    return None


def torch_fast_path(call: FunctionCall) -> AttentionRecord | str:
    layer = (_encoder_layer if call.name == "_transformer_encoder_layer_fwd" else _multi_head)(*call.args)
    if isinstance(layer, str):
        return layer
    # In this order: leaving inference mode turns gradients on.
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        return _record(call, layer, call.output[0] if isinstance(call.output, tuple) else call.output)


def _record(call: FunctionCall, layer: _Layer, out: Tensor) -> AttentionRecord:
    source, lengths = _padded(layer.source)
    output = _padded(out)[0]
    batch, tokens = source.shape[:2]
    # In the operator's own dtypes, so that projections are rounded as the operator rounds them.
    projected = F.linear(layer.norm(source, 0) if layer.norm_first else source, layer.qkv_weight, layer.qkv_bias)
    query, key, value = exact(projected).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    device = source.device.type
    autocast, autocast_dtype = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    keep = _keep(layer, batch, tokens)
    present = None
    if lengths is not None:
        present = torch.arange(tokens, device=source.device) < lengths[:, None]
        keep = present[:, None, None, :] & present[:, None, :, None]  # padding attends to nothing
    scores = AttentionScores(query, key, query.shape[-1] ** -0.5, keep)

    def compare(weights: Tensor, rows: Selection, heads: Selection) -> Tensor:
        whole = weights
        if weights.shape[1] != layer.heads:  # the projection mixes the heads, so the comparison needs all of them
            whole, _ = scores(rows, slice(None))
            whole[:, heads] = weights
        attended = (whole @ value).transpose(1, 2).flatten(2).to(projected.dtype)
        with torch.autocast(device, autocast_dtype, enabled=autocast):
            found = layer.rest(source[:, rows], attended)
        error = (exact(found) - exact(output[:, rows])).abs()
        if present is not None:
            error = error * present[:, rows, None]
        return error.amax() if error.numel() else error.new_zeros(())

    return AttentionRecord(
        name=call.site.name,
        kind="fast path",
        shape=(batch, layer.heads, tokens, tokens),
        check=Check("layer"),
        kernel=call.name,
        computation=Computation(weights=scores, module=call.site.module, value=value, compare=compare, compared=output),
    )


def _padded(x: Tensor) -> tuple[Tensor, Tensor | None]:
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), x._nested_tensor_size()[:, 0].to(x.device)


def _keep(layer: _Layer, batch: int, tokens: int) -> Tensor | None:
    """In the operator's mask every number except zero hides a key."""
    if layer.mask is None:
        return None
    keep = ~layer.mask.bool()
    if layer.mask_type == 1:
        return keep.reshape(batch, 1, 1, tokens)
    return keep if keep.ndim == 4 else keep.reshape(-1, 1, tokens, tokens)


def _multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim: int,
    num_head: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> _Layer | str:
    if key is not query or value is not query:
        return "the fast path was called with keys or values that are not its queries"
    return _Layer(query, num_head, qkv_weight, qkv_bias, proj_weight, proj_bias, mask, mask_type)


def _encoder_layer(
    src: Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    proj_weight: Tensor,
    proj_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    ffn_weight_1: Tensor,
    ffn_bias_1: Tensor,
    ffn_weight_2: Tensor,
    ffn_bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> _Layer | str:
    return _Layer(
        src,
        num_heads,
        qkv_weight,
        qkv_bias,
        proj_weight,
        proj_bias,
        mask,
        mask_type,
        norm_first,
        (norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2),
        eps,
        (ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2),
        use_gelu,
    )
