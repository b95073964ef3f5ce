"""The fast path of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``: one operator for the projections, the
attention and, in the encoder, the whole layer.

The attention's own output never leaves it. So the map is recomputed from the layer's input and weights, the rest of the
layer is computed on top, and the result compared with the layer's output.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.maps._names import Place
from regard.maps._seen import Scores, Seen, Selection, exact


@dataclass(frozen=True)
class _Layer:
    """The operator's arguments, by name; the last ten only for an encoder layer."""

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
        """What the operator does with the merged heads ``attended``, given the input at the same rows."""
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


def attention_in(module: nn.Module, args: tuple[Any, ...]) -> nn.Module | None:
    """The attention module whose weights the operator was given."""
    for part in module.modules():
        weight = getattr(part, "in_proj_weight", None)
        if weight is not None and any(weight is x for x in args):
            return part
    return None


def seen(operator: str, place: Place, args: tuple[Any, ...], out: Any) -> Seen | str:
    """The attention inside the operator, or why it cannot be known."""
    layer = _encoder_layer(*args) if operator == "_transformer_encoder_layer_fwd" else _multi_head(*args)
    if isinstance(layer, str):
        return layer
    # In this order: leaving inference mode turns gradients on.
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        return _seen(place, layer, out[0] if isinstance(out, tuple) else out)


def _seen(place: Place, layer: _Layer, out: Tensor) -> Seen:
    source, lengths = _padded(layer.source)
    output = _padded(out)[0]
    batch, tokens = source.shape[:2]
    # In the operator's own types, so that projections are rounded as it rounds them.
    projected = F.linear(layer.norm(source, 0) if layer.norm_first else source, layer.qkv_weight, layer.qkv_bias)
    query, key, value = exact(projected).unflatten(-1, (3, layer.heads, -1)).permute(2, 0, 3, 1, 4)
    device = source.device.type
    automatic, its_type = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
    keep = _keep(layer, batch, tokens)
    present = None
    if lengths is not None:
        present = torch.arange(tokens, device=source.device) < lengths[:, None]
        # A row that is padding does not exist: nothing is attended there.
        keep = present[:, None, None, :] & present[:, None, :, None]
    scores = Scores(query, key, query.shape[-1] ** -0.5, keep)

    def check(weights: Tensor, rows: Selection, heads: Selection) -> Tensor:
        whole = weights
        if weights.shape[1] != layer.heads:  # the projection mixes the heads: the others are needed to compare
            whole, _ = scores(rows, slice(None))
            whole[:, heads] = weights
        attended = (whole @ value).transpose(1, 2).flatten(2).to(projected.dtype)
        with torch.autocast(device, its_type, enabled=automatic):
            found = layer.rest(source[:, rows], attended)
        error = (exact(found) - exact(output[:, rows])).abs()
        if present is not None:
            error = error * present[:, rows, None]
        return error.amax() if error.numel() else error.new_zeros(())

    return Seen(
        name=place.name,
        module=place.module,
        kind="fast path",
        shape=(batch, layer.heads, tokens, tokens),
        build=scores,
        check=check,
        against="layer",
        value=value,
        compared=output,
        kernel="_transformer_encoder_layer_fwd" if layer.feed_forward else "_native_multi_head_attention",
    )


def _padded(x: Tensor) -> tuple[Tensor, Tensor | None]:
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), x._nested_tensor_size()[:, 0].to(x.device)


def _keep(layer: _Layer, batch: int, tokens: int) -> Tensor | None:
    """The operator takes any number that is not zero as "hidden"."""
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
        return "the fast path was called with other keys or values than its queries"
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
