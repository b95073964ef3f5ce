"""Multi-head attention from and to other people's layouts of the same weights: torch's, and timm's fused one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from regard.support.checks import replaced_method

if TYPE_CHECKING:
    from regard.layers._multi_head import MultiHeadAttention

AnyModule = TypeVar("AnyModule", bound=nn.Module)
TIMM_NAMES = {
    "qkv.weight": "qkv.weight",
    "qkv.bias": "qkv.bias",
    "proj.weight": "output.weight",
    "proj.bias": "output.bias",
}


def from_torch(cls: type[MultiHeadAttention], module: nn.MultiheadAttention) -> MultiHeadAttention:
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"module must be a torch.nn.MultiheadAttention, got {type(module).__name__}")
    if replaced_method(module, nn.MultiheadAttention, "forward"):
        raise TypeError(f"module is a {type(module).__name__}, whose own forward computes what is not known here")
    if module.bias_k is not None or module.bias_v is not None:
        raise ValueError("module was made with add_bias_kv=True: its extra, learned key has no place in this layer")
    if module.add_zero_attn:
        raise ValueError("module was made with add_zero_attn=True: its extra key of zeros has no place in this layer")
    with torch.device("meta"):
        layer = cls(
            module.embed_dim,
            module.num_heads,
            context_dim=module.kdim,
            value_dim=module.vdim,
            bias=module.in_proj_bias is not None,
            output_bias=module.out_proj.bias is not None,
            dropout=module.dropout,
        )
    names = ("qkv",) if layer.packed else ("query", "key", "value")
    weights = (
        (module.in_proj_weight,) if layer.packed else (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    )
    state: dict[str, Tensor] = {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    sources: dict[str, list[Tensor]] = {}
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(len(names))
        state |= {f"{name}.bias": bias for name, bias in zip(names, biases, strict=True)}
        sources = {f"{name}.bias": [module.in_proj_bias] for name in names}
    state |= {f"output.{name}": value for name, value in module.out_proj.named_parameters()}
    return _fill(layer, state, module, sources)


def to_torch(layer: MultiHeadAttention, batch_first: bool) -> nn.MultiheadAttention:
    _refuse_variants(layer, "torch.nn.MultiheadAttention", "context_dim", "value_dim")
    weights, biases = layer.input_weights(), layer.input_biases()
    biased = biases[0] is not None
    if biased != (layer.output.bias is not None):
        raise ValueError(
            f"torch.nn.MultiheadAttention has biases at both projections or at neither, but this layer has "
            f"bias={biased}, output_bias={not biased}"
        )
    module = nn.MultiheadAttention(
        layer.dim,
        layer.heads,
        dropout=layer.dropout,
        bias=biased,
        kdim=layer.context_dim,
        vdim=layer.value_dim,
        batch_first=batch_first,
        device="meta",
    )
    state: dict[str, Tensor] = {f"out_proj.{name}": value for name, value in layer.output.named_parameters()}
    if layer.packed:
        state["in_proj_weight"] = layer.qkv.get_parameter("weight")
    else:
        state |= {f"{name}_proj_weight": weight for name, weight in zip("qkv", weights, strict=True)}
    sources: dict[str, list[Tensor]] = {}
    if biased:
        state["in_proj_bias"] = torch.cat([bias for bias in biases if bias is not None])
        parts = (layer.qkv,) if layer.packed else (layer.query, layer.key, layer.value)
        sources["in_proj_bias"] = [part.get_parameter("bias") for part in parts]
    return _fill(module, state, layer, sources)


def from_timm(
    cls: type[MultiHeadAttention], source: nn.Module | Mapping[str, Tensor], heads: int | None
) -> MultiHeadAttention:
    state: Mapping[str, Tensor]
    dropout = 0.0
    if isinstance(source, nn.Module):
        own_heads = getattr(source, "num_heads", None)
        if heads not in (None, own_heads):
            raise ValueError(f"heads is {heads} but the module has num_heads={own_heads}; leave heads out")
        _refuse_timm_variants(source)
        state, heads = dict(source.named_parameters()), own_heads
        dropout = getattr(getattr(source, "attn_drop", None), "p", 0.0)
    else:
        state = source
    strange = sorted(set(state) - set(TIMM_NAMES))
    missing = [name for name in ("qkv.weight", "proj.weight") if name not in state]
    if strange or missing:
        raise ValueError(
            "source does not have the fused layout (qkv.weight, qkv.bias, proj.weight, proj.bias): "
            + "; ".join(f"{what} {', '.join(names)}" for what, names in (("no", missing), ("also", strange)) if names)
        )
    if heads is None:
        raise ValueError("heads is needed: a state does not tell the number of heads")
    qkv, proj = state["qkv.weight"], state["proj.weight"]
    if qkv.ndim != 2 or proj.ndim != 2 or qkv.shape[0] != 3 * proj.shape[1] or proj.shape[1] % heads:
        raise ValueError(
            f"qkv.weight has shape {tuple(qkv.shape)} and proj.weight {tuple(proj.shape)}; with {heads} heads they "
            f"must be (3·width, dim) and (out_dim, width), width a multiple of {heads}"
        )
    with torch.device("meta"):
        layer = cls(
            qkv.shape[1],
            heads,
            out_dim=proj.shape[0],
            head_dim=proj.shape[1] // heads,
            bias="qkv.bias" in state,
            output_bias="proj.bias" in state,
            dropout=dropout,
        )
    return _fill(
        layer,
        {TIMM_NAMES[name]: value for name, value in state.items()},
        source if isinstance(source, nn.Module) else None,
    )


def to_timm(layer: MultiHeadAttention) -> dict[str, Tensor]:
    _refuse_variants(layer, "timm's Attention", "out_dim", "head_dim")
    ours = layer.state_dict()
    return {theirs: ours[name] for theirs, name in TIMM_NAMES.items() if name in ours}


def _refuse_variants(layer: MultiHeadAttention, target: str, *allowed: str) -> None:
    """The layer must have nothing beyond what the target can hold."""
    usual = {
        "context_dim": layer.dim,
        "value_dim": layer.dim,
        "out_dim": layer.dim,
        "head_dim": layer.dim // layer.heads,
        "key_value_heads": layer.heads,
        "beta": None,
        "slice_heads": False,
    }
    for name, value in usual.items():
        if name not in allowed and getattr(layer, name) != value:
            raise ValueError(f"{target} has no {name}: it must be {value}, but this layer has {getattr(layer, name)}")


def _refuse_timm_variants(module: nn.Module) -> None:
    reasons = {
        "q_norm": "it normalizes its queries and keys (qk_norm)",
        "k_norm": "it normalizes its queries and keys (qk_norm)",
        "norm": "it normalizes before its output projection (scale_norm)",
        "gate": "it multiplies its output by a gate (gated)",
    }
    for name, reason in reasons.items():
        if not isinstance(getattr(module, name, None), nn.Identity | None):
            raise ValueError(f"module cannot be loaded: {reason}, which this layer does not")
    dropped = getattr(getattr(module, "proj_drop", None), "p", 0.0)
    if dropped:
        raise ValueError(f"module drops outputs (proj_drop={dropped}), which this layer does not: add an nn.Dropout")
    scale, heads = getattr(module, "scale", None), getattr(module, "num_heads", None)
    width = getattr(getattr(module, "proj", None), "in_features", None)
    if scale is not None and heads and width and abs(scale * (width / heads) ** 0.5 - 1) > 1e-6:
        raise ValueError(f"module has scale {scale}, but its fused path takes 1/√head_dim = {(width / heads) ** -0.5}")


def _fill(
    module: AnyModule,
    state: Mapping[str, Tensor],
    like: nn.Module | None,
    sources: Mapping[str, Sequence[Tensor]] | None = None,
) -> AnyModule:
    """Give a module that was made without memory copies of the tensors, and the mode (training, frozen) of another.

    ``sources`` names the parameters that a tensor of ``state`` was cut from or joined of, where it is none itself: it
    is frozen only if all of them are.
    """
    module.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
    if like is not None:
        module.train(like.training)
        for name, parameter in module.named_parameters():
            owners = (sources or {}).get(name, [state[name]])
            parameter.requires_grad_(any(owner.requires_grad for owner in owners))
    return module
