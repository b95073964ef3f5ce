"""The source of the fast path of ``nn.MultiheadAttention`` and ``nn.TransformerEncoderLayer``.

On this path one operator computes the projections, the attention and, in the encoder, the whole layer. It does not
return the output of the attention. So the map is computed from the layer's input and weights, then the rest of the
layer from the map, and the result is compared with the layer's output.
"""

from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._function_call import FunctionCall
from regard.maps.weights._attention_scores import AttentionScores, Selection, exact


@dataclass(frozen=True)
class _Layer:
    """The operator's arguments.

    Attributes:
        source: ``(batch, tokens, width)``.
        heads: the number of heads.
        projections: weight and bias of the projection to queries, keys and values, and of the output projection.
        mask, mask_type: the mask; type 1 is ``(batch, keys)``, other types also have an axis of queries.
        encoder: the layer around the attention; None for the attention alone.
    """

    source: Tensor
    heads: int
    projections: tuple[Tensor, ...]
    mask: Tensor | None = None
    mask_type: int | None = None
    encoder: "_EncoderLayer | None" = None

    def projected(self, source: Tensor) -> Tensor:
        """Queries, keys and values, in one tensor."""
        first = self.encoder is not None and self.encoder.norm_first
        return F.linear(self.encoder.norm(source, 0) if first else source, *self.projections[:2])  # type: ignore[union-attr]

    def output(self, rows: Tensor, attended: Tensor) -> Tensor:
        """The operator's output for some rows, from its input at these rows and the merged heads ``attended``."""
        out = F.linear(attended, *self.projections[2:])
        return out if self.encoder is None else self.encoder(rows, out)

    @classmethod
    def of(cls, operator: str, args: tuple[Any, ...]) -> "_Layer | str":
        """The arguments of one of the two operators, which torch passes by position; a reason if they are not supported."""
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
    """The submodule whose weights are among the operator's arguments."""
    for part in module.modules():
        weight = getattr(part, "in_proj_weight", None)
        if weight is not None and any(weight is x for x in args):
            return part
    return None


def torch_fast_path(call: FunctionCall) -> AttentionRecord | str:
    """The record of a call of one of the two operators."""
    layer = _Layer.of(call.name, call.args)
    if isinstance(layer, str):
        return layer
    # no_grad comes second, because leaving inference mode turns gradients on.
    with torch.inference_mode(False), torch.no_grad(), torch._C.DisableTorchFunction():
        return _record(call, layer, call.output[0] if isinstance(call.output, tuple) else call.output)


def _record(call: FunctionCall, layer: _Layer, out: Tensor) -> AttentionRecord:
    """The record, whose check computes the rest of the layer from the map."""
    source, lengths = _padded(layer.source)
    output = _padded(out)[0]
    batch, tokens = source.shape[:2]
    # Computed in the dtype of the operator, to round as it does.
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
        """max |the layer computed from these weights − its output|."""
        whole = weights
        # The output projection mixes the heads, so the comparison needs all of them, each in its own place.
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
    """A nested tensor, padded with zeros, and the lengths of its sequences; other tensors unchanged."""
    if not x.is_nested:
        return x, None
    return x.to_padded_tensor(0.0), x._nested_tensor_size()[:, 0].to(x.device)


def _keep(layer: _Layer, batch: int, tokens: int) -> Tensor | None:
    """The operator's mask as ``keep`` (True = attend). In the mask, zero means attend."""
    if layer.mask is None:
        return None
    keep = ~layer.mask.bool()
    if layer.mask_type == 1:
        return keep.reshape(batch, 1, 1, tokens)
    return keep if keep.ndim == 4 else keep.reshape(-1, 1, tokens, tokens)


def without_mode_dispatch(func: FunctionType) -> FunctionType:
    """A copy of a function of ``torch.nn.functional`` that does not hand itself to the active mode: it sees none."""
    scope = {**vars(F), "has_torch_function": lambda relevant: False}
    inner = FunctionType(func.__code__, scope, func.__name__, func.__defaults__, func.__closure__)
    inner.__kwdefaults__ = func.__kwdefaults__
    return inner
