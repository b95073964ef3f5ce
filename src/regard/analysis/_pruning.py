"""``prune_heads``: remove heads together with their weights."""

import copy
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor, nn

from regard.analysis._changed_heads import HeadNumbers, check_heads, plain_heads
from regard.analysis._importance import Importance
from regard.analysis._pruned_foreign import ForeignAttention, foreign_attention
from regard.analysis._pruned_interleaved import InterleavedAttention, interleaved_attention
from regard.analysis._pruned_layers import OwnLayer, heads_of_layer, prune_layer, why_unknown
from regard.layers import (
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    RelativeAttention,
    keep_from_torch,
)
from regard.maps import ModuleNames
from regard.support.checks import describe

_HOOKS = ("_forward_", "_backward_", "_is_full_backward_hook")

Prunable = nn.Module | ForeignAttention | InterleavedAttention

_NONE = (
    "there is none: prune_heads works on regard's own layers, on nn.MultiheadAttention, and on attention of transformers "
    "and timm that has no parameters but its projections"
)


class PrunedMultiheadAttention(MultiHeadAttention):
    """``nn.MultiheadAttention`` with some of its heads: called the same way, with smaller weights.

    Attributes:
        kept: the numbers of its heads among the ``original_heads``.
    """

    kept: tuple[int, ...]
    original_heads: int
    batch_first: bool
    embed_dim: int

    def __init__(self, module: nn.MultiheadAttention) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(vars(MultiHeadAttention.from_torch(module)))
        self.kept, self.original_heads = tuple(range(self.heads)), self.heads
        self.batch_first = module.batch_first
        self.embed_dim, self.num_heads = module.embed_dim, self.heads
        # With these nn.TransformerEncoderLayer does not take its fast path, which cannot compute this layer.
        self.in_proj_bias = None
        self._qkv_same_embed_dim = False
        self.__dict__.update({name: hooks for name, hooks in vars(module).items() if name.startswith(_HOOKS)})

    def prune(self, heads: Sequence[int]) -> None:
        """Remove the other heads, in place."""
        prune_layer(self, heads)
        self.kept, self.num_heads = tuple(self.kept[head] for head in heads), len(heads)

    def forward(  # type: ignore[override]
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ValueError("is_causal is a hint about attn_mask: pass the mask too")
        batched = query.ndim == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        keep, bias = keep_from_torch(attn_mask, key_padding_mask, heads=self.original_heads)
        keep, bias = self._of_kept(keep), self._of_kept(bias)
        context = None if key is query and value is query else key
        out = super().forward(
            query,
            context,
            None if context is None or value is key else value,
            keep=keep,
            bias=None if bias is None else bias.to(query.dtype),
            return_weights=need_weights,
        )
        weights: Tensor | None = None
        if isinstance(out, tuple):
            out, weights = out
            weights = weights.mean(1) if average_attn_weights else weights
        if not batched:
            return out[0], None if weights is None else weights[0]
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _of_kept(self, mask: Tensor | None) -> Tensor | None:
        if mask is None or mask.ndim < 4 or mask.shape[1] == 1:
            return mask
        return mask[:, list(self.kept)]


_BASES = (
    PrunedMultiheadAttention,
    MultiHeadAttention,
    GaussianAttention,
    RelativeAttention,
    GatedPositionalAttention,
    nn.MultiheadAttention,
)


def prune_heads(model: nn.Module, keep: Mapping[str, HeadNumbers] | Importance, count: int | None = None) -> nn.Module:
    """A copy of the model that keeps only some heads, with smaller weights.

    Its outputs are those of the model with the other heads silenced. This works for regard's own layers (multi-head,
    Gaussian, relative, gated), ``nn.MultiheadAttention``, and attention of transformers and timm without parameters
    besides its projections, alone or inside any model. The given model is not changed. The configuration of a pruned
    transformers model still states the original number of heads: save its weights with torch.

    Args:
        keep: the heads to keep, by the name of the attention or by a pattern such as ``"layers.*"``, at least one
            each; attention that is not named keeps all heads. Or the result of ``regard.analysis.importance``.
        count: with an importance, the total number of heads to keep.

    >>> layer = regard.MultiHeadAttention(16, 4)
    >>> small = regard.prune_heads(layer, {"MultiHeadAttention": [0, 2]})
    >>> sum(p.numel() for p in layer.parameters()), sum(p.numel() for p in small.parameters())
    (1088, 552)
    >>> small(torch.randn(1, 3, 16)).shape
    torch.Size([1, 3, 16])
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    prunable = _prunable(model)
    chosen = _chosen(prunable, _kept(keep, count, prunable), type(model).__name__)
    copied = copy.deepcopy(model)
    twins = {id(old): new for old, new in zip(model.modules(), copied.modules(), strict=True)}
    for name, heads in chosen.items():
        layer = prunable[name]
        if len(heads) == _count(layer):
            continue
        if isinstance(layer, ForeignAttention):
            inputs = tuple(twins[id(projection)] for projection in layer.inputs)
            replace(layer, module=twins[id(layer.module)], inputs=inputs, output=twins[id(layer.output)]).prune(heads)
            continue
        if isinstance(layer, InterleavedAttention):
            replace(layer, module=twins[id(layer.module)]).prune(heads)
            continue
        twin: nn.Module = twins[id(layer)]
        if isinstance(twin, nn.MultiheadAttention):
            whole, twin = twin, PrunedMultiheadAttention(twin)
            copied = _put(copied, whole, twin)
        if isinstance(twin, PrunedMultiheadAttention):
            twin.prune(heads)
        elif isinstance(twin, OwnLayer):
            prune_layer(twin, heads)
    for module in copied.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False  # only its fast path uses nested tensors
    return copied


def _kept(
    keep: Mapping[str, HeadNumbers] | Importance, count: int | None, prunable: Mapping[str, Prunable]
) -> Mapping[str, HeadNumbers]:
    """The heads to keep, by name or pattern."""
    if isinstance(keep, Importance):
        if count is None:
            raise ValueError("count is needed with an importance: the number of heads to keep")
        # Attention that cannot be pruned may be named if it keeps all its heads.
        kept = keep.keep(count).items()
        return {name: heads for name, heads in kept if name in prunable or len(heads) < len(keep.scores[name])}
    if count is not None:
        raise ValueError(
            f"count is {describe(count)}, but must be None with a mapping, which already names the heads to keep; "
            "it is for an importance"
        )
    if not isinstance(keep, Mapping) or not all(isinstance(name, str) for name in keep):
        raise TypeError(
            f"keep must be a mapping from names of attention to the heads to keep, or an importance, got {describe(keep)}"
        )
    return keep


def _chosen(prunable: Mapping[str, Prunable], keep: Mapping[str, HeadNumbers], model: str) -> dict[str, Sequence[int]]:
    """The heads to keep, by name, checked."""
    chosen: dict[str, Sequence[int]] = {}
    for pattern, heads in keep.items():
        found = [pattern] if pattern in prunable else fnmatch.filter(prunable, pattern)
        if not found:
            there = f"the attention that can be pruned is {sorted(prunable)}" if prunable else _NONE
            raise KeyError(f"keep must name attention of the model (a {model}), but names {pattern!r}; {there}")
        for name in found:
            total = _count(prunable[name])
            numbers = plain_heads(heads)
            check_heads(name, numbers, total, "keep: heads")
            if not numbers:
                raise ValueError(f"keep names no head of {name!r}: at least one of its {total} must stay")
            layer = prunable[name]
            base = next((known for known in _BASES if isinstance(layer, known)), None)
            if base and isinstance(layer, base) and len(numbers) < total and (reason := why_unknown(layer, base)):
                raise ValueError(f"keep: no head of {name!r} can be removed, because it {reason}")
            chosen[name] = sorted(numbers)
    return chosen


def _prunable(model: nn.Module) -> dict[str, Prunable]:
    """The attention whose heads can be removed, by name."""
    names = ModuleNames(model)
    own = [module for module in model.modules() if isinstance(module, OwnLayer | nn.MultiheadAttention)]
    foreign: list[ForeignAttention | InterleavedAttention] = [*foreign_attention(model), *interleaved_attention(model)]
    others: dict[str, Prunable] = {str(names.of(found.module)): found for found in foreign}
    return {**{str(names.of(module)): module for module in own}, **others}


def _count(layer: Prunable) -> int:
    return layer.heads if isinstance(layer, ForeignAttention | InterleavedAttention) else heads_of_layer(layer)


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> nn.Module:
    """Put ``new`` in the place of ``old``, also if several modules share it."""
    if model is old:
        return new
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                parent._modules[name] = new
    return model
