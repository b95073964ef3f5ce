"""Read the weights of timm's vision transformers."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.support.module_checks import check_library_forward, check_linear_layers
from regard.support.text import listed

# theirs -> ours, inside a block
_BLOCK = {
    "norm1": "attention_norm",
    "attn.qkv": "attention.qkv",
    "attn.proj": "attention.output",
    "norm2": "feed_forward_norm",
    "mlp.fc1": "feed_forward.expand",
    "mlp.fc2": "feed_forward.contract",
}
_POOL = {
    "attn_pool.proj": "pooling.attention.output",
    "attn_pool.norm": "pooling.norm",
    "attn_pool.mlp.fc1": "pooling.feed_forward.expand",
    "attn_pool.mlp.fc2": "pooling.feed_forward.contract",
}
_POOLS = {"token": "class", "avg": "average", "map": "attention"}


def read_timm(
    source: nn.Module | Mapping[str, Tensor],
    heads: int | None,
    image_size: int | Sequence[int] | None,
    epsilon: float,
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The constructor arguments and the state of our model that equals ``source``. ``epsilon`` is that of our norms."""
    pool: str | None = None
    if isinstance(source, nn.Module):
        _refuse_variants(source, epsilon)
        module: Any = source
        own_heads = module.blocks[0].attn.num_heads
        if heads not in (None, own_heads):
            raise ValueError(f"heads is {heads} but the module has {own_heads}; leave heads out")
        heads, pool = own_heads, _POOLS[module.global_pool]
        image_size = module.patch_embed.img_size if image_size is None else image_size
    elif heads is None:
        raise ValueError("heads is needed: the number of heads cannot be read from a state")
    taken = _Taking(source.state_dict() if isinstance(source, nn.Module) else source)
    if "patch_embed.proj.weight" not in taken.state or "blocks.0.attn.qkv.weight" not in taken.state:
        raise ValueError(
            "source is not a timm vision transformer: it has no patch_embed.proj.weight or no blocks.0.attn.qkv.weight"
        )
    pool = _pool_of(taken.state) if pool is None else pool
    arguments, state = _tokens(taken, pool, image_size)
    dim = arguments["dim"]
    depth = 0
    while any(name.startswith(f"blocks.{depth}.") for name in taken.state):
        state |= _block(taken, f"blocks.{depth}.")
        depth += 1
    if pool == "attention":
        state |= _attention_pooling(taken, dim)
    state |= taken.layer("fc_norm" if pool == "average" else "norm", "norm", dim)
    num_classes = 0
    if "head.weight" in taken.state:
        num_classes = taken.state["head.weight"].shape[0]
        state |= taken.layer("head", "head", num_classes)
    taken.finish()
    hidden = state["blocks.0.feed_forward.expand.weight"].shape[0]
    arguments |= {"num_classes": num_classes, "depth": depth, "heads": heads, "hidden": hidden, "pool": pool}
    return arguments, state


def _tokens(
    taken: "_Taking", pool: str, image_size: int | Sequence[int] | None
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Arguments and state of everything before the first block: patches, positions, class token and registers."""
    state = {"patches.projection.weight": taken.take("patch_embed.proj.weight")}
    dim, channels, *patch = state["patches.projection.weight"].shape
    state["patches.projection.bias"] = taken.take("patch_embed.proj.bias", (dim,))
    prefix = torch.cat([taken.take(name, (1, 0, dim))[0] for name in ("cls_token", "reg_token")])
    grid = _grid(taken.state, len(prefix), image_size, patch)
    positions = "none"
    if "pos_embed" in taken.state:
        positions, table = "learned", taken.take("pos_embed")[0]
        if len(table) > math.prod(grid):  # constant positions of the prefix tokens are added to them here
            prefix, table = prefix + table[: len(prefix)], table[len(prefix) :]
        state["positions.table"] = table.unflatten(0, grid)
    class_token = int(pool == "class")
    if class_token:
        state["pooling.token"] = prefix[0]
    if len(prefix) > class_token:
        state["registers"] = prefix[class_token:]
    arguments = {
        "image_size": tuple(n * p for n, p in zip(grid, patch, strict=True)),
        "patch_size": tuple(patch),
        "channels": channels,
        "dim": dim,
        "positions": positions,
        "registers": len(prefix) - class_token,
    }
    return arguments, state


class _Taking:
    """A state whose tensors must all be used: a tensor that is left over belongs to a part that this model lacks."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.state = state
        self.left = set(state)

    def take(self, name: str, zeros: Sequence[int] | None = None) -> Tensor:
        """``zeros``: the shape of the zeros that replace an absent tensor, such as a bias."""
        if name not in self.state:
            if zeros is None:
                raise ValueError(f"source has no {name}")
            like = self.state["patch_embed.proj.weight"]
            return like.new_zeros(zeros)
        self.left.discard(name)
        return self.state[name]

    def layer(self, theirs: str, ours: str, features: int) -> dict[str, Tensor]:
        return {
            f"{ours}.weight": self.take(f"{theirs}.weight"),
            f"{ours}.bias": self.take(f"{theirs}.bias", (features,)),
        }

    def finish(self) -> None:
        if self.left:
            raise ValueError(f"source has weights that this model does not have: {listed(sorted(self.left))}")


def _block(taken: _Taking, prefix: str) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for theirs, ours in _BLOCK.items():
        features = taken.take(f"{prefix}{theirs}.weight").shape[0]
        state |= taken.layer(f"{prefix}{theirs}", f"{prefix}{ours}", features)
    for scale, layer in (("ls1.gamma", "attention.output"), ("ls2.gamma", "feed_forward.contract")):
        if prefix + scale in taken.state:
            # A factor per output feature is multiplied into the linear layer before it.
            factor = taken.take(prefix + scale)
            state[f"{prefix}{layer}.weight"] = factor[:, None] * state[f"{prefix}{layer}.weight"]
            state[f"{prefix}{layer}.bias"] = factor * state[f"{prefix}{layer}.bias"]
    return state


def _attention_pooling(taken: _Taking, dim: int) -> dict[str, Tensor]:
    probe = taken.take("attn_pool.latent")
    if probe.shape != (1, 1, dim):
        raise ValueError(
            f"attn_pool.latent has shape {tuple(probe.shape)}, but only one probe, (1, 1, {dim}), is known"
        )
    query, both = taken.layer("attn_pool.q", "", dim), taken.layer("attn_pool.kv", "", 2 * dim)
    state = {f"pooling.attention.qkv{name}": torch.cat([query[name], both[name]]) for name in (".weight", ".bias")}
    state["pooling.probe"] = probe[0]
    for theirs, ours in _POOL.items():
        state |= taken.layer(theirs, ours, taken.take(f"{theirs}.weight").shape[0])
    return state


def _pool_of(state: Mapping[str, Tensor]) -> str:
    if "attn_pool.latent" in state:
        return "attention"
    if "fc_norm.weight" in state:
        return "average"
    if "cls_token" in state:
        return "class"
    raise ValueError(
        "source has no cls_token, fc_norm or attn_pool, so its pooling cannot be determined: pass the module"
    )


def _grid(
    state: Mapping[str, Tensor], prefix: int, image_size: int | Sequence[int] | None, patch: Sequence[int]
) -> tuple[int, int]:
    """Rows and columns of patches: those of the image size, or a square that fits the positions."""
    tokens = state["pos_embed"].shape[1] if "pos_embed" in state else None
    if image_size is not None:
        height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
        grid = height // patch[0], width // patch[1]
        if tokens not in (None, math.prod(grid), math.prod(grid) + prefix):
            raise ValueError(
                f"image_size {image_size} makes {math.prod(grid)} patches of {tuple(patch)} and {prefix} prefix tokens, "
                f"but source has {tokens} positions"
            )
        return grid
    if tokens is None:
        raise ValueError("image_size is needed: source has no positions that determine the number of patches")
    sides = [math.isqrt(n) for n in {tokens, tokens - prefix} if n > 0 and math.isqrt(n) ** 2 == n]
    if len(sides) != 1:
        raise ValueError(
            f"image_size is needed: {tokens} positions and {prefix} prefix tokens do not determine a square grid"
        )
    return sides[0], sides[0]


def _refuse_variants(module: nn.Module, epsilon: float) -> None:
    """Raise an error for unsupported options that cannot be seen from the weights."""
    if not all(hasattr(module, name) for name in ("blocks", "patch_embed", "global_pool")):
        raise TypeError(f"source must be a timm VisionTransformer or its state, got {type(module).__name__}")
    reasons = {
        f"its pooling is {module.global_pool!r}": module.global_pool not in _POOLS,
        "it also pools its prefix tokens": getattr(module, "pool_include_prefix", False),
    }
    blocks: Any = module.blocks
    for block in blocks:
        activation, norms = block.mlp.act, (block.norm1, block.norm2)
        reasons |= {
            f"its blocks are {type(block).__name__}s": type(block).__name__ != "Block",
            f"its attention is {type(block.attn).__name__}": type(block.attn).__name__ != "Attention",
            f"its activation is {activation}": not isinstance(activation, nn.GELU) or activation.approximate != "none",
        }
        reasons |= {f"its norm is {norm}": not isinstance(norm, nn.LayerNorm) or norm.eps != epsilon for norm in norms}
    for part in (module, *(part for block in blocks for part in (block, block.attn, block.mlp))):
        check_library_forward("module", part, "timm.")
    check_linear_layers("module", module)
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(f"module cannot be loaded: {reason}, which this model does not have")
