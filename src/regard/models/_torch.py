"""Read the weights of an ``nn.Transformer``."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.support.module_checks import replaced_method

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
_ACTIVATIONS = {F.relu: "relu", F.gelu: "gelu"}
_KNOWN: dict[str, tuple[Any, Any, tuple[str, ...]]] = {  # part: its class, its layers' class, the layers' methods
    "encoder": (nn.TransformerEncoder, nn.TransformerEncoderLayer, ("_sa_block", "_ff_block")),
    "decoder": (nn.TransformerDecoder, nn.TransformerDecoderLayer, ("_sa_block", "_mha_block", "_ff_block")),
}


def read_torch(module: nn.Transformer) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The constructor arguments of our model, without those of its embedding, and the parameters of its blocks."""
    if not isinstance(module, nn.Transformer):
        raise TypeError(f"module must be a torch.nn.Transformer, got {type(module).__name__}")
    settings = _common_settings(module)
    arguments = {
        "dim": settings["d_model"],
        "heads": settings["nhead"],
        "hidden": settings["dim_feedforward"],
        "depth": (len(_layers(module, "encoder")), len(_layers(module, "decoder"))),
        "norm": "pre" if settings["norm_first"] else "post",
        "activation": settings["activation"],
        "dropout": settings["dropout"],
        "final_norm": _has_final_norms(module),
    }
    return arguments, _translated(module)


def fill(model: nn.Module, state: dict[str, Tensor]) -> None:
    """Copy the parameters of :func:`read_torch` into the blocks of our model."""
    own = {name: value for name, value in model.named_parameters() if name.startswith(("encoder", "decoder"))}
    # A layer without biases equals one with zero biases; nothing else may be missing.
    missing = [name for name in own if name not in state and not name.endswith(".bias")]
    if missing:
        raise ValueError(f"module lacks weights that this model has: {', '.join(missing)}")
    unknown = sorted(set(state) - set(own))
    if unknown:
        raise ValueError(f"module has weights that this model does not have: {', '.join(unknown)}")
    like = state["decoder.0.feed_forward.expand.weight"]
    model.to(dtype=like.dtype, device=like.device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in own:
                continue
            if name in state:
                parameter.copy_(state[name])
            else:
                parameter.zero_()
            # A bias that torch's layer lacks is frozen with its weight.
            source = state[name if name in state else name.removesuffix("bias") + "weight"]
            parameter.requires_grad_(source.requires_grad)


def _common_settings(module: nn.Transformer) -> dict[str, Any]:
    """The settings that all layers of encoder and decoder share. Our model has each of them once."""
    common: dict[str, Any] = {}
    for part in _KNOWN:
        for number, layer in enumerate(_layers(module, part)):
            where = f"{part}.layers.{number}"
            for name, value in _settings(layer, where).items():
                if common.setdefault(name, value) != value:
                    raise ValueError(
                        f"module's layers must all have the same settings: {where} has {name}={value}, but earlier layers "
                        f"have {common[name]}"
                    )
    if common["d_model"] != module.d_model or common["batch_first"] != module.batch_first:
        raise ValueError(
            f"module has d_model={module.d_model} and batch_first={module.batch_first}, but its layers "
            f"{common['d_model']} and {common['batch_first']}"
        )
    return common


def _layers(module: nn.Transformer, part: str) -> list[Any]:
    stack, (kind, layer_kind, methods) = getattr(module, part), _KNOWN[part]
    if not isinstance(stack, kind) or replaced_method(stack, kind, "forward"):
        raise ValueError(
            f"module's {part} is of another kind (custom_{part}): {type(stack).__name__}; a {kind.__name__} would fit"
        )
    for number, layer in enumerate(stack.layers):
        if not isinstance(layer, layer_kind) or replaced_method(layer, layer_kind, "forward", *methods):
            raise ValueError(
                f"module's {part}.layers.{number} is a {type(layer).__name__}, whose computation is not known here; a "
                f"{layer_kind.__name__} would fit"
            )
    if not len(stack.layers):
        raise ValueError(f"module has no layers in its {part}; 1 or more would fit")
    return list(stack.layers)


def _settings(layer: Any, where: str) -> dict[str, Any]:
    """The arguments of torch's layer."""
    activation = _ACTIVATIONS.get(layer.activation)
    if activation is None:
        raise ValueError(
            f"module has the activation {layer.activation} ({where}), but only torch's relu and gelu are known"
        )
    attentions = [part for part in (layer.self_attn, getattr(layer, "multihead_attn", None)) if part is not None]
    for attention in attentions:
        if type(attention) is not nn.MultiheadAttention or attention.add_zero_attn or attention.bias_k is not None:
            raise ValueError(f"module's {where} must have the nn.MultiheadAttention that torch's layer creates")
    for name, norm in layer.named_children():
        if name.startswith("norm"):
            _check_norm(norm, f"{where}.{name}")
    heads = {attention.num_heads for attention in attentions}
    dropouts = {part.p for part in layer.children() if isinstance(part, nn.Dropout)}
    dropouts |= {attention.dropout for attention in attentions}
    layouts = {attention.batch_first for attention in attentions}
    for name, values in (("nhead", heads), ("dropout", dropouts), ("batch_first", layouts)):
        if len(values) > 1:
            raise ValueError(f"module's {where} has several values of {name}, {sorted(values)}; this model has one")
    return {
        "d_model": layer.linear1.in_features,
        "nhead": heads.pop(),
        "dim_feedforward": layer.linear1.out_features,
        "activation": activation,
        "norm_first": layer.norm_first,
        "dropout": dropouts.pop(),
        "batch_first": layouts.pop(),
    }


def _has_final_norms(module: nn.Transformer) -> bool:
    norms = {part: getattr(module, part).norm for part in _KNOWN}
    missing = [part for part, norm in norms.items() if norm is None]
    if len(missing) == len(norms):
        return False
    if missing:
        raise ValueError(
            f"module's {missing[0]} has no final norm (norm=None) while the other has one; this model has both or neither"
        )
    for part, norm in norms.items():
        _check_norm(norm, f"{part}.norm")
    return True


def _check_norm(norm: nn.Module, where: str) -> None:
    if type(norm) is not nn.LayerNorm:
        raise ValueError(f"module's {where} is a {type(norm).__name__}, but this model's norms are nn.LayerNorm")
    if norm.eps != 1e-5:
        raise ValueError(f"module has a layer norm with eps={norm.eps} ({where}), but this model's are 1e-5")
    if not norm.elementwise_affine:
        raise ValueError(f"module's {where} has no weight (elementwise_affine=False), but this model's norms have one")


def _translated(module: nn.Transformer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        part, _, rest = name.partition(".")
        if rest.startswith("norm."):
            state[f"{part}_{rest}"] = tensor
            continue
        if not rest.startswith("layers."):  # not part of our model: rejected later under this name
            state[name] = tensor
            continue
        _, number, inside = rest.split(".", 2)
        table = _ENCODER if part == "encoder" else _DECODER
        for theirs, ours in table.items():
            if inside.startswith(theirs):
                inside = ours + inside.removeprefix(theirs)
                break
        state[f"{part}.{number}.{inside}"] = tensor
    return state
