"""The fast path of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``: one operator for the projections, the
attention and, in the encoder, the whole layer.

The operator does not return the output of the attention. So the map is recomputed from the layer's input and weights,
the rest of the layer is computed on top of it, and the result is compared with the layer's output.
"""

from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.maps._attention_scores import AttentionScores, Selection, exact
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._function_call import FunctionCall


@dataclass(frozen=True)
class _Layer:
    """The operator's arguments.

    Attributes:
        source: ``(batch, tokens, width)``.
        heads: the number of heads.
        projections: weight and bias of the projection to queries, keys and values, and of that of the merged heads.
        mask, mask_type: which keys are hidden; type 1 is a mask of keys, others are of queries and keys.
        encoder: the layer around the attention; None for the attention alone.
    """

    source: Tensor
    heads: int
    projections: tuple[Tensor, ...]
    mask: Tensor | None = None
    mask_type: int | None = None
    encoder: "_EncoderLayer | None" = None

    def projected(self, source: Tensor) -> Tensor:
        """Queries, keys and values."""
        first = self.encoder is not None and self.encoder.norm_first
        return F.linear(self.encoder.norm(source, 0) if first else source, *self.projections[:2])  # type: ignore[union-attr]

    def output(self, rows: Tensor, attended: Tensor) -> Tensor:
        """The operator's output from the merged heads ``attended``, given its input at the same rows."""
        out = F.linear(attended, *self.projections[2:])
        return out if self.encoder is None else self.encoder(rows, out)

    @classmethod
    def of(cls, operator: str, args: tuple[Any, ...]) -> "_Layer | str":
        """The arguments of either operator, which torch passes by position."""
        if operator == "_transformer_encoder_layer_fwd":
            source, _, heads, *projections, gelu, norm_first, eps = args[:10]
            mask, mask_type = (*args[18:], None, None)[:2]
            encoder = _EncoderLayer(gelu, norm_first, eps, args[10:14], args[14:18])
            return cls(source, heads, tuple(projections), mask, mask_type, encoder)
        query, key, value, _, heads, *projections = args[:9]
        mask, _, _, mask_type = (*args[9:], None, None, None, None)[:4]
        if key is not query or value is not query:
            return "the fast path was called with keys or values that are not its queries"
        return cls(query, heads, tuple(projections), mask, mask_type)


@dataclass(frozen=True)
class _EncoderLayer:
    """The layer around the attention. Both ``norms`` and both layers of ``feed_forward`` are weight, bias, weight, bias."""

    gelu: bool
    norm_first: bool
    eps: float
    norms: tuple[Tensor, ...]
    feed_forward: tuple[Tensor, ...]

    def norm(self, x: Tensor, which: int) -> Tensor:
        weight, bias = self.norms[2 * which : 2 * which + 2]
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.eps)

    def __call__(self, rows: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its input and the output of the attention."""
        out = rows + attended
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
    layer = _Layer.of(call.name, call.args)
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
    projected = layer.projected(source)
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
        # The projection mixes the heads, so the comparison needs all of them, each in its own place.
        if isinstance(heads, Tensor) or weights.shape[1] != layer.heads:
            whole, _ = scores(rows, slice(None))
            whole[:, heads] = weights
        attended = (whole @ value).transpose(1, 2).flatten(2).to(projected.dtype)
        with torch.autocast(device, autocast_dtype, enabled=autocast):
            found = layer.output(source[:, rows], attended)
        error = (exact(found) - exact(output[:, rows])).abs()
        if present is not None:
            error = error * present[:, rows, None]
        return error.amax() if error.numel() else error.new_zeros(())

    computation = Computation(weights=scores, module=call.site.module, value=value, compare=compare, compared=output)
    computation.projection = lambda: (scores(slice(None), slice(None))[0] @ value, layer.projections[2].mT)
    return AttentionRecord(
        name=call.site.name,
        kind="fast path",
        shape=(batch, layer.heads, tokens, tokens),
        check=Check("layer"),
        kernel=call.name,
        computation=computation,
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


def without_question(func: FunctionType) -> FunctionType:
    """The same function of ``torch.nn.functional``, to which no mode seems to be active: it passes itself to none."""
    scope = {**vars(F), "has_torch_function": lambda relevant: False}
    inner = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    inner.__kwdefaults__ = func.__kwdefaults__
    return inner
