"""Pruning attention whose one projection holds queries, keys and values head by head (GPT-NeoX, BLOOM, Falcon)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from regard.analysis._pruned_foreign import HeadsOfBiases, holders_of_parts, keep_outputs_or_inputs
from regard.support.module_checks import is_unmodified

# Classes of transformers that split the projection in one of the ways of `InterleavedAttention.units`.
_KNOWN = ("GPTNeoXAttention", "BloomAttention", "FalconAttention")


@dataclass(frozen=True)
class InterleavedAttention:
    """An attention module of transformers with an interleaved projection.

    Attributes:
        module: the module that attends.
        heads, shared, width: the number of query heads, of key and value heads, and the width of a head.
    """

    module: Any
    heads: int
    shared: int
    width: int

    @classmethod
    def of(cls, module: nn.Module) -> "InterleavedAttention | None":
        """The attention of this module; None unless its class is known and its projections have the expected sizes."""
        if type(module).__name__ not in _KNOWN or not type(module).__module__.startswith("transformers."):
            return None
        layer: Any = module
        if "forward" in vars(layer) or not all(map(_is_projection, (layer.query_key_value, layer.dense))):
            return None
        width = layer.head_size if hasattr(layer, "head_size") else layer.head_dim
        heads = layer.dense.in_features // width
        shared = layer.num_kv_heads if hasattr(layer, "num_kv_heads") else heads
        fits = layer.query_key_value.out_features == (heads + 2 * shared) * width
        return cls(module, heads, shared, width) if fits else None

    def prune(self, kept: Sequence[int]) -> None:
        """Remove the other heads, in place."""
        group = self.heads // self.shared
        sizes = {sum(head // group == i for head in kept) for i in {head // group for head in kept}}
        even = len(sizes) == 1  # otherwise every head gets its own copy of the keys and values
        module, units = self.module, self.units(kept, even)
        keep_outputs_or_inputs(module.query_key_value, units, self.width, out=True)
        keep_outputs_or_inputs(module.dense, list(kept), self.width, out=False)
        if hasattr(module, "num_heads"):
            module.num_heads = len(kept)
        if hasattr(module, "num_kv_heads"):
            module.num_kv_heads = (len(units) - len(kept)) // 2
        module.register_forward_pre_hook(HeadsOfBiases(tuple(kept), self.heads), with_kwargs=True)

    def units(self, kept: Sequence[int], even: bool) -> list[int]:
        """The parts of the projection to keep; a part is as wide as a head.

        Each group of heads has its queries, one key and one value, side by side.

        >>> InterleavedAttention(None, 4, 2, 8).units([0, 2], True), InterleavedAttention(None, 4, 2, 8).units([0, 1, 2], False)
        ([0, 2, 3, 4, 6, 7], [0, 2, 3, 1, 2, 3, 4, 6, 7])
        """
        group = self.heads // self.shared
        found: list[int] = []
        for head in kept:
            first = (head // group) * (group + 2)
            same = even and bool(found) and found[-1] == first + group + 1
            found = found[:-2] if same else found
            found += [first + head % group, first + group, first + group + 1]
        return found


def _is_projection(layer: nn.Module) -> bool:
    return (type(layer) is nn.Linear or type(layer).__name__ == "FalconLinear") and is_unmodified(layer)


def interleaved_attention(model: nn.Module) -> list[InterleavedAttention]:
    """All attention of the model with an interleaved projection."""
    holders = holders_of_parts(model)
    found = (InterleavedAttention.of(module) for module in model.modules())
    return [
        attention
        for attention in found
        if attention is not None
        and holders[id(attention.module.query_key_value)] == holders[id(attention.module.dense)] == 1
    ]
