"""Convert the weights of multi-head attention from and to the layouts of other libraries: torch, and timm's fused one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard.support.checks import check_flag, describe
from regard.support.module_checks import check_library_forward, check_linear_layers, check_own_forward

AnyModule = TypeVar("AnyModule", bound=nn.Module)
TIMM_NAMES = {
    "qkv.weight": "qkv.weight",
    "qkv.bias": "qkv.bias",
    "proj.weight": "output.weight",
    "proj.bias": "output.bias",
}


@dataclass(frozen=True)
class LayerParts:
    """The parts from which a layer is built.

    Attributes:
        arguments: the arguments of its constructor.
        state: its tensors by name.
        source: the module they come from, whose mode (training, frozen) the layer takes over.
        owners: for a tensor of ``state`` that is a slice or a concatenation of parameters of the source: those
            parameters. Such a tensor is frozen only if all of its owners are.
    """

    arguments: dict[str, Any]
    state: Mapping[str, Tensor]
    source: nn.Module | None = None
    owners: Mapping[str, Sequence[Tensor]] = field(default_factory=dict)

    def build(self, make: Callable[..., AnyModule]) -> AnyModule:
        """A new module that holds copies of the tensors."""
        with torch.device("meta"):  # allocate no memory for initial weights that are replaced
            module = make(**self.arguments)
        module.load_state_dict({name: tensor.detach().clone() for name, tensor in self.state.items()}, assign=True)
        if self.source is not None:
            module.train(self.source.training)
            for name, parameter in module.named_parameters():
                owners = self.owners.get(name, [self.state[name]])
                parameter.requires_grad_(any(owner.requires_grad for owner in owners))
        return module


def from_torch(module: nn.MultiheadAttention) -> LayerParts:
    """The parts of our layer that equals ``module``."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"module must be a torch.nn.MultiheadAttention, got {describe(module)}")
    check_own_forward("module", module, nn.MultiheadAttention)
    if module.bias_k is not None or module.bias_v is not None:
        raise ValueError("module has add_bias_kv=True: this layer has no extra learned key")
    if module.add_zero_attn:
        raise ValueError("module has add_zero_attn=True: this layer has no extra key of zeros")
    arguments = {
        "dim": module.embed_dim,
        "heads": module.num_heads,
        "context_dim": module.kdim,
        "value_dim": module.vdim,
        "bias": module.in_proj_bias is not None,
        "output_bias": module.out_proj.bias is not None,
        "dropout": module.dropout,
    }
    # What torch reads of the output projection, whose weight may be computed from other parameters, as those of the inputs.
    state: dict[str, Tensor] = {"output.weight": module.out_proj.weight}
    if module.out_proj.bias is not None:
        state["output.bias"] = module.out_proj.bias
    if module.embed_dim == module.kdim == module.vdim:
        names: tuple[str, ...] = ("qkv",)
        state["qkv.weight"] = module.in_proj_weight
    else:
        names = ("query", "key", "value")
        weights = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
        state |= {f"{name}.weight": weight for name, weight in zip(names, weights, strict=True)}
    owners: dict[str, list[Tensor]] = {}
    if module.in_proj_bias is not None:
        biases = module.in_proj_bias.chunk(len(names))
        state |= {f"{name}.bias": bias for name, bias in zip(names, biases, strict=True)}
        owners = {f"{name}.bias": [module.in_proj_bias] for name in names}
    return LayerParts(arguments, state, module, owners)


def to_torch(layer: nn.Module, arguments: Mapping[str, Any], batch_first: bool) -> LayerParts:
    """The parts of the ``nn.MultiheadAttention`` that equals our layer, which has these constructor arguments."""
    check_flag("batch_first", batch_first)
    _refuse_variants(arguments, "torch.nn.MultiheadAttention", "context_dim", "value_dim")
    biased = arguments["bias"]
    if biased != arguments["output_bias"]:
        raise ValueError(
            f"torch.nn.MultiheadAttention has biases at both projections or at neither, but this layer has "
            f"bias={biased}, output_bias={not biased}"
        )
    theirs = {
        "embed_dim": arguments["dim"],
        "num_heads": arguments["heads"],
        "dropout": arguments["dropout"],
        "bias": biased,
        "kdim": arguments["context_dim"],
        "vdim": arguments["value_dim"],
        "batch_first": batch_first,
    }
    own: dict[str, Tensor] = dict(layer.named_parameters())
    state = {f"out_proj.{name.removeprefix('output.')}": own[name] for name in own if name.startswith("output.")}
    packed = "qkv.weight" in own
    if packed:
        state["in_proj_weight"] = own["qkv.weight"]
    else:
        state |= {f"{name[0]}_proj_weight": own[f"{name}.weight"] for name in ("query", "key", "value")}
    owners: dict[str, list[Tensor]] = {}
    if biased:
        biases = [own[f"{name}.bias"] for name in (("qkv",) if packed else ("query", "key", "value"))]
        state["in_proj_bias"] = torch.cat(biases)
        owners["in_proj_bias"] = biases
    return LayerParts(theirs, state, layer, owners)


def from_timm(source: nn.Module | Mapping[str, Tensor], heads: int | None) -> LayerParts:
    """The parts of our layer that equals a timm ``Attention``, given as the module or as its state."""
    state: Mapping[str, Tensor]
    dropout = 0.0
    if isinstance(source, nn.Module):
        own_heads = getattr(source, "num_heads", None)
        if heads not in (None, own_heads):
            raise ValueError(f"heads is {heads} but the module has num_heads={own_heads}; leave heads out")
        _refuse_timm_variants(source)
        check_library_forward("module", source, "timm.")
        check_linear_layers("module", source)
        state, heads = dict(source.named_parameters()), own_heads
        dropout = getattr(getattr(source, "attn_drop", None), "p", 0.0)
    else:
        state = source
    unknown = sorted(set(state) - set(TIMM_NAMES))
    missing = [name for name in ("qkv.weight", "proj.weight") if name not in state]
    if unknown or missing:
        raise ValueError(
            "source does not have the fused layout (qkv.weight, qkv.bias, proj.weight, proj.bias): "
            + "; ".join(f"{what} {', '.join(names)}" for what, names in (("no", missing), ("also", unknown)) if names)
        )
    if heads is None:
        raise ValueError("heads is needed: the number of heads cannot be read from a state")
    qkv, proj = state["qkv.weight"], state["proj.weight"]
    if qkv.ndim != 2 or proj.ndim != 2 or qkv.shape[0] != 3 * proj.shape[1] or proj.shape[1] % heads:
        raise ValueError(
            f"qkv.weight has shape {tuple(qkv.shape)} and proj.weight {tuple(proj.shape)}; with {heads} heads they "
            f"must be (3·width, dim) and (out_dim, width), width a multiple of {heads}"
        )
    arguments = {
        "dim": qkv.shape[1],
        "heads": heads,
        "out_dim": proj.shape[0],
        "head_dim": proj.shape[1] // heads,
        "bias": "qkv.bias" in state,
        "output_bias": "proj.bias" in state,
        "dropout": dropout,
    }
    ours = {TIMM_NAMES[name]: value for name, value in state.items()}
    return LayerParts(arguments, ours, source if isinstance(source, nn.Module) else None)


def to_timm(layer: nn.Module, arguments: Mapping[str, Any]) -> dict[str, Tensor]:
    _refuse_variants(arguments, "timm's Attention", "out_dim", "head_dim")
    ours = layer.state_dict()
    return {theirs: ours[name] for theirs, name in TIMM_NAMES.items() if name in ours}


def _refuse_variants(arguments: Mapping[str, Any], target: str, *allowed: str) -> None:
    """Raise an error if the layer has an option that the target lacks."""
    dim, heads = arguments["dim"], arguments["heads"]
    usual = {
        "context_dim": dim,
        "value_dim": dim,
        "out_dim": dim,
        "head_dim": dim // heads,
        "key_value_heads": heads,
        "beta": None,
        "slice_heads": False,
    }
    for name, value in usual.items():
        if name not in allowed and arguments[name] != value:
            raise ValueError(f"{target} has no {name}: it must be {value}, but this layer has {arguments[name]}")


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
