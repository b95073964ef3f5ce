"""``nn.Transformer`` as our own, with the same outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from regard.models._transformer import Transformer

_SHARED = {
    "self_attn.in_proj_": "attention.qkv.",
    "self_attn.out_proj.": "attention.output.",
    "linear1.": "feed_forward.expand.",
    "linear2.": "feed_forward.contract.",
    "norm1.": "attention_norm.",
}
_ENCODER = {**_SHARED, "norm2.": "feed_forward_norm."}
_DECODER = {
    **_SHARED,
    "multihead_attn.in_proj_": "cross_attention.qkv.",
    "multihead_attn.out_proj.": "cross_attention.output.",
    "norm2.": "cross_attention_norm.",
    "norm3.": "feed_forward_norm.",
}


def from_torch(
    cls: type[Transformer], module: nn.Transformer, vocabulary: int, source_vocabulary: int | None
) -> Transformer:
    if not isinstance(module, nn.Transformer):
        raise TypeError(f"module must be a torch.nn.Transformer, got {type(module).__name__}")
    if not isinstance(module.encoder, nn.TransformerEncoder) or not isinstance(module.decoder, nn.TransformerDecoder):
        raise ValueError("module has an encoder or decoder of another kind (custom_encoder, custom_decoder)")
    layers: list[Any] = [*module.encoder.layers, *module.decoder.layers]
    first = layers[0]
    for norm in [part for part in module.modules() if isinstance(part, nn.LayerNorm)]:
        if norm.eps != 1e-5:
            raise ValueError(f"module has a layer norm with eps={norm.eps}, but this model's are 1e-5")
    activations = [name for name, function in (("relu", F.relu), ("gelu", F.gelu)) if first.activation is function]
    if not activations:
        raise ValueError(f"module has the activation {first.activation}, but only torch's relu and gelu are known")
    model = cls(
        vocabulary,
        source_vocabulary=source_vocabulary,
        dim=module.d_model,
        heads=module.nhead,
        hidden=first.linear1.out_features,
        encoder_depth=len(module.encoder.layers),
        decoder_depth=len(module.decoder.layers),
        norm="pre" if first.norm_first else "post",
        activation=activations[0],
        dropout=first.dropout.p,
        final_norm=True,
    )
    model.to(dtype=first.linear1.weight.dtype, device=first.linear1.weight.device)
    state = _translated(module)
    own = model.state_dict()
    with torch.no_grad():
        for name, tensor in own.items():
            if name.startswith(("encoder", "decoder")):
                # A layer made without biases is one whose biases are zero.
                tensor.copy_(state.pop(name)) if name in state else tensor.zero_()
    if state:
        raise ValueError(f"module has weights for which this model has no place: {', '.join(sorted(state))}")
    return model.train(module.training)


def _translated(module: nn.Transformer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict().items():
        part, _, rest = name.partition(".")
        if rest.startswith("norm."):
            state[f"{part}_{rest}"] = tensor
            continue
        _, number, inside = rest.split(".", 2)
        table = _ENCODER if part == "encoder" else _DECODER
        for theirs, ours in table.items():
            if inside.startswith(theirs):
                inside = ours + inside.removeprefix(theirs)
                break
        state[f"{part}.{number}.{inside}"] = tensor
    return state
