"""Pruning the attention of transformers and timm: the weights of removed heads are deleted in place.

Their layers project to queries, keys and values (one layer each, or one for all three), read the number of heads from the
size of the result or from an attribute, and project the merged heads back. A layer that has any other parameter (a table of
position biases, learned sinks) is not supported and stays unchanged.
"""

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from regard.support.module_checks import is_unmodified

_LIBRARIES = ("timm.", "transformers.")
_SEPARATE = (("q_proj", "k_proj", "v_proj"), ("query", "key", "value"), ("q_lin", "k_lin", "v_lin"))
_FUSED = ("qkv", "c_attn")
_OUTPUT = ("o_proj", "out_proj", "c_proj", "proj", "out_lin", "dense")
_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
_SIZES = ("all_head_size", "attn_dim", "split_size", "head_size")
# Sizes that a forward may use to split or merge heads: they depend on the weights, or we change them.
_FREE_SIZES = ("head_dim", "attention_head_size", "dim_per_head", *_SIZES)
_NORMS = ("q_norm", "k_norm", "query_norm", "key_norm")
# Arguments of a call with scores that may differ from head to head.
_BIASES = ("alibi", "attention_mask", "attn_mask", "position_bias", "rel_2d_pos", "rel_pos", "relative_position_bias")
_OF_OTHER_LAYERS = ("shared_kv_states", "shared_key_values")  # arguments with the keys and values of another layer


@dataclass(frozen=True)
class ForeignAttention:
    """An attention module of another library, and its projections.

    Attributes:
        module: the module that attends.
        inputs: one projection for queries, keys and values together, or three.
        output: the projection of the merged heads.
        heads, shared, width: the number of query heads, of key and value heads, and the width of a head.
    """

    module: nn.Module
    inputs: tuple[nn.Module, ...]
    output: nn.Module
    heads: int
    shared: int
    width: int

    @classmethod
    def of(cls, module: nn.Module, parent: nn.Module | None) -> "ForeignAttention | None":
        """The attention of this module; None if it is not supported."""
        width = next(
            (w for name in ("head_dim", "attention_head_size") if isinstance(w := getattr(module, name, None), int)), 0
        )
        inputs, output = _inputs(module), _output(module, parent)
        if (
            not type(module).__module__.startswith(_LIBRARIES)
            or "forward" in vars(module)
            or width < 1
            or inputs is None
            or output is None
        ):
            return None
        sizes = [_size(layer)[1] for layer in inputs]
        sizes = [sizes[0] // 3] * 3 if len(inputs) == 1 else sizes
        heads, shared = sizes[0] // width, sizes[1] // width
        fits = sizes == [heads * width, shared * width, shared * width] and _size(output)[0] == heads * width
        if not fits or not shared or heads % shared or not _nothing_else(module, (*inputs, output), width):
            return None
        if not _takes_any_heads(module, heads * width):
            return None
        stated = {count for name in _COUNTS if isinstance(count := getattr(module, name, None), int)}
        return cls(module, inputs, output, heads, shared, width) if stated <= {heads} else None

    def prune(self, kept: Sequence[int]) -> None:
        """Remove the other heads, in place."""
        group = self.heads // self.shared
        of_each = [head // group for head in kept]
        distinct = sorted(set(of_each))
        even = all(of_each.count(i) * len(distinct) == len(kept) for i in distinct)
        used = distinct if even else of_each  # uneven groups: every head gets its own copy of the keys and values
        if len(self.inputs) == 1:
            keep_outputs_or_inputs(
                self.inputs[0], [self.heads * part + head for part in range(3) for head in kept], self.width, out=True
            )
        else:
            for layer, heads in zip(self.inputs, (list(kept), used, used), strict=True):
                keep_outputs_or_inputs(layer, heads, self.width, out=True)
        keep_outputs_or_inputs(self.output, list(kept), self.width, out=False)
        module, before, after = self.module, self.heads * self.width, len(kept) * self.width
        for name in _COUNTS:
            if getattr(module, name, None) == self.heads:
                setattr(module, name, len(kept))
        for name in _SIZES:
            if getattr(module, name, None) == before:
                setattr(module, name, after)
        for name, count in (("num_key_value_heads", len(used)), ("num_key_value_groups", len(kept) // len(used))):
            if hasattr(module, name):
                setattr(module, name, count)
        module.register_forward_pre_hook(HeadsOfBiases(tuple(kept), self.heads), with_kwargs=True)


@dataclass(frozen=True)
class HeadsOfBiases:
    """A hook that selects the biases of the kept heads, since the model computes them for all heads and several layers."""

    kept: tuple[int, ...]
    heads: int

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        names = inspect.signature(module.forward).parameters
        given = [self._of_kept(name, x) for name, x in zip(names, args, strict=False)]
        return (*given, *args[len(given) :]), {name: self._of_kept(name, x) for name, x in kwargs.items()}

    def _of_kept(self, name: str, x: Any) -> Any:
        if name not in _BIASES or not isinstance(x, Tensor):
            return x
        chosen = torch.tensor(self.kept, device=x.device)
        if x.ndim == 4 and x.shape[1] == self.heads > 1:
            return x[:, chosen]
        folded = x.ndim == 3 and x.shape[1] == 1 and x.shape[0] % self.heads == 0  # (batch · heads, 1, keys)
        if name == "alibi" and folded:
            return x.unflatten(0, (-1, self.heads))[:, chosen].flatten(0, 1)
        return x


def foreign_attention(model: nn.Module) -> list[ForeignAttention]:
    """All attention of other libraries in the model that can be pruned."""
    found = []
    parents = {id(child): parent for parent in model.modules() for child in parent.children()}
    holders = holders_of_parts(model)
    for module in model.modules():
        attention = ForeignAttention.of(module, parents.get(id(module)))
        if attention is not None and all(holders[id(part)] == 1 for part in (*attention.inputs, attention.output)):
            found.append(attention)
    return found


def holders_of_parts(model: nn.Module) -> Counter[int]:
    """How often the modules of the model hold each module, by its ``id``: a projection that is used twice keeps its size."""
    return Counter(id(child) for parent in model.modules() for child in parent._modules.values())


def _inputs(module: nn.Module) -> tuple[nn.Module, ...] | None:
    for names in _SEPARATE:
        layers = [getattr(module, name, None) for name in names]
        if all(map(_is_projection, layers)):
            return tuple(layer for layer in layers if layer is not None)
    fused = next((layer for name in _FUSED if _is_projection(layer := getattr(module, name, None))), None)
    return None if fused is None else (fused,)


def _output(module: nn.Module, parent: nn.Module | None) -> nn.Module | None:
    own = next((layer for name in _OUTPUT if _is_projection(layer := getattr(module, name, None))), None)
    if own is not None:
        return own
    # BERT and similar: parent.self attends, parent.output.dense projects.
    beside = getattr(getattr(parent, "output", None), "dense", None)
    return beside if getattr(parent, "self", None) is module and _is_projection(beside) else None


def _is_projection(layer: object) -> bool:
    known = type(layer) is nn.Linear or type(layer).__name__ == "Conv1D"
    return known and isinstance(layer, nn.Module) and is_unmodified(layer)


def _size(layer: nn.Module) -> tuple[int, int]:
    """Inputs and outputs. The Conv1D of transformers is a transposed linear layer."""
    weight: Tensor = layer.weight  # type: ignore[assignment]
    return (weight.shape[1], weight.shape[0]) if isinstance(layer, nn.Linear) else (weight.shape[0], weight.shape[1])


def _takes_any_heads(module: nn.Module, size: int) -> bool:
    """Whether ``forward`` works with any number of heads. If it takes a size from elsewhere, or the keys and values of
    another layer, fewer heads would not fit or would mix tokens.

    Args:
        size: the width of all heads together.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(module).forward)))
    except (OSError, TypeError, SyntaxError):
        return False
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in _OF_OTHER_LAYERS:
            return False
        if isinstance(node, ast.Attribute) and "head" in node.attr and ast.unparse(node.value) == "self":
            value = getattr(module, node.attr, None)
            if isinstance(value, int) and value == size and node.attr not in (*_SIZES, *_COUNTS, *_FREE_SIZES):
                return False
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("view", "reshape")
        ):
            last = ast.unparse(node.args[-1]) if node.args else ""
            free = last == "-1" or "shape" in last or last.removeprefix("self.") in _FREE_SIZES
            if not free or any("config" in ast.unparse(arg) for arg in node.args):
                return False
    return True


def _nothing_else(module: nn.Module, projections: tuple[nn.Module, ...], width: int) -> bool:
    """Whether it has no parameters besides the projections and norms over the width of one head."""
    known = {id(parameter) for layer in projections for parameter in layer.parameters()}
    for name in _NORMS:
        norm = getattr(module, name, None)
        if isinstance(norm, nn.Module):
            known |= {id(parameter) for parameter in norm.parameters() if tuple(parameter.shape) == (width,)}
    return all(id(parameter) in known for parameter in module.parameters())


def keep_outputs_or_inputs(layer: nn.Module, heads: list[int], width: int, *, out: bool) -> None:
    """Keep the outputs into these heads, or the inputs from them."""
    linear = isinstance(layer, nn.Linear)
    axis = 0 if linear == out else 1
    places = (torch.tensor(heads)[:, None] * width + torch.arange(width)).flatten()
    for name in ("weight", "bias") if out else ("weight",):
        parameter = getattr(layer, name)
        if parameter is None:
            continue
        along = axis if name == "weight" else 0
        part = parameter.detach().index_select(along, places.to(parameter.device)).clone()
        setattr(layer, name, nn.Parameter(part, requires_grad=parameter.requires_grad))
    size = len(places)
    if linear:
        setattr(layer, "out_features" if out else "in_features", size)
    else:
        setattr(layer, "nf" if out else "nx", size)
