"""Random weights and correct outputs of the vision transformer of notebook 4, for its checks."""

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.course._expect import Draw

State = dict[str, Tensor]


def block_state(draw: Draw, dim: int, prefix: str = "") -> State:
    """Random weights of one block, by the names that its layers have."""
    shapes = {
        "norm1.weight": (dim,), "norm1.bias": (dim,), "norm2.weight": (dim,), "norm2.bias": (dim,),
        "qkv.weight": (3 * dim, dim), "qkv.bias": (3 * dim,), "output.weight": (dim, dim), "output.bias": (dim,),
        "mlp.0.weight": (2 * dim, dim), "mlp.0.bias": (2 * dim,), "mlp.2.weight": (dim, 2 * dim), "mlp.2.bias": (dim,),
    }  # fmt: skip
    return {prefix + name: 0.5 * draw(*shape) + ("norm" in name and "weight" in name) for name, shape in shapes.items()}


def block_attention(
    state: State, x: Tensor, heads: int, *, scale: float | None = None, axis: int = -1, swapped: bool = False,
    merged: bool = True,
) -> Tensor:  # fmt: skip
    """The attention of a block, correct or with a typical mistake."""
    parts = F.linear(x, state["qkv.weight"], state["qkv.bias"]).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    query, key, value = (parts[1], parts[0], parts[2]) if swapped else parts
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    mixed = (query @ key.mT * scale).softmax(axis) @ value
    mixed = mixed.transpose(1, 2).flatten(2) if merged else mixed.reshape(x.shape)
    return F.linear(mixed, state["output.weight"], state["output.bias"])


def block_mlp(state: State, x: Tensor) -> Tensor:
    hidden = F.gelu(F.linear(x, state["mlp.0.weight"], state["mlp.0.bias"]))
    return F.linear(hidden, state["mlp.2.weight"], state["mlp.2.bias"])


def block_norm(state: State, number: int, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], state[f"norm{number}.weight"], state[f"norm{number}.bias"])


def block_output(state: State, x: Tensor, heads: int) -> Tensor:
    """The output of a whole pre-norm block."""
    x = x + block_attention(state, block_norm(state, 1, x), heads)
    return x + block_mlp(state, block_norm(state, 2, x))


def vision_state(draw: Draw, *, size: int, patch: int, channels: int, classes: int, dim: int, depth: int) -> State:
    """Random weights of the whole model."""
    tokens = 1 + (size // patch) ** 2
    state = {
        "embedding.weight": 0.3 * draw(dim, channels * patch * patch), "embedding.bias": draw(dim),
        "class_token": draw(1, 1, dim), "positions": draw(1, tokens, dim),
        "norm.weight": 1 + 0.5 * draw(dim), "norm.bias": draw(dim),
        "head.weight": draw(classes, dim), "head.bias": draw(classes),
    }  # fmt: skip
    for number in range(depth):
        state |= block_state(draw, dim, f"blocks.{number}.")
    return state


def vision_output(
    state: State, images: Tensor, *, patch: int, heads: int, depth: int, first: bool = True, positions: bool = True,
    read: str = "class", norm: bool = True,
) -> Tensor:  # fmt: skip
    """The class scores, correct or with a typical mistake."""
    x = F.linear(F.unfold(images, patch, stride=patch).mT, state["embedding.weight"], state["embedding.bias"])
    token = state["class_token"].expand(len(images), -1, -1)
    x = torch.cat([token, x] if first else [x, token], 1) + positions * state["positions"]
    for number in range(depth):
        prefix = f"blocks.{number}."
        own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        x = block_output(own, x, heads)
    if norm:
        x = F.layer_norm(x, x.shape[-1:], state["norm.weight"], state["norm.bias"])
    chosen = {"class": x[:, 0], "last": x[:, -1], "mean": x.mean(1)}[read]
    return F.linear(chosen, state["head.weight"], state["head.bias"])
