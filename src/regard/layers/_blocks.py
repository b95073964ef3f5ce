"""The blocks of a transformer's encoder and decoder."""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.layers._cache import KeyValueCache
from regard.layers._feed_forward import FeedForward
from regard.layers._layer_norm import LayerNorm
from regard.layers._multi_head import MultiHeadAttention
from regard.support.checks import (
    check_choice,
    check_flag,
    check_ndim,
    check_positive,
    check_tensor,
    check_width,
    describe,
)

NORMS = ("pre", "post")


class DecoderWeights(NamedTuple):
    """The two maps of a decoder block, each ``(batch, heads, tokens, keys)``."""

    attention: Tensor
    cross_attention: Tensor


class DecoderCache(NamedTuple):
    """The keys and values that a decoder block stores between steps: those of its own tokens, and those of the memory."""

    attention: KeyValueCache
    cross_attention: KeyValueCache

    @classmethod
    def empty(cls) -> "DecoderCache":
        return cls(KeyValueCache(), KeyValueCache())


class _Block(nn.Module):
    """The common part of both blocks: sub-layers with residual paths, and a norm before or after each."""

    def __init__(
        self, dim: int, hidden: int | None, activation: str, dropout: float, norm: str, epsilon: float
    ) -> None:
        super().__init__()
        check_choice("norm", norm, NORMS)
        self.dim, self.norm, self.dropout = dim, norm, dropout
        self.feed_forward = FeedForward(dim, hidden, activation=activation, dropout=dropout)
        self.feed_forward_norm = LayerNorm(dim, epsilon=epsilon)

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.norm == "pre" else x

    def _after(self, x: Tensor, change: Tensor, norm: nn.Module) -> Tensor:
        x = x + F.dropout(change, self.dropout, self.training)
        return x if self.norm == "pre" else norm(x)

    def _feed_forward_step(self, x: Tensor) -> Tensor:
        change = self.feed_forward(self._before(x, self.feed_forward_norm))
        return self._after(x, change, self.feed_forward_norm)

    def _check_tokens(self, name: str, x: Tensor) -> None:
        check_ndim(name, x, "batch tokens dim")
        check_width(name, x, self.dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, norm={self.norm!r}, dropout={self.dropout}"


class EncoderBlock(_Block):
    r"""Attention, then a feed-forward network, each with a residual path around it.

    .. math:: \text{pre:}\quad  x \leftarrow x + f(\mathrm{norm}(x)) \qquad
        \text{post:}\quad x \leftarrow \mathrm{norm}(x + f(x)) \qquad
        f = \text{attention, feed-forward}

    Args:
        dim: width of the tokens.
        heads: number of attention heads, if ``attention`` is not given.
        hidden: width inside the feed-forward network, default ``4 · dim``.
        activation: of the feed-forward network, see :class:`FeedForward`.
        dropout: probability, in training, of dropping attention weights, hidden features and sub-layer outputs.
        norm: ``"pre"`` or ``"post"``.
        epsilon: ε of the layer norms.
        attention: a module to use instead of :class:`MultiHeadAttention`, from ``(batch, tokens, dim)`` to the same.

    >>> from regard.layers import EncoderBlock
    >>> block = EncoderBlock(16, 4)
    >>> out, weights = block(torch.randn(2, 5, 16), causal=True, return_weights=True)
    >>> out.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int | None = None,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        norm: str = "pre",
        epsilon: float = 1e-5,
        attention: nn.Module | None = None,
    ) -> None:
        super().__init__(dim, hidden, activation, dropout, norm, epsilon)
        self.attention = _attention_or_new("attention", attention, dim, heads, dropout)
        self.attention_norm = LayerNorm(dim, epsilon=epsilon)

    def forward(
        self, x: Float[Tensor, "batch tokens dim"], *, return_weights: bool = False, **options: Any
    ) -> Float[Tensor, "batch tokens dim"] | tuple[Float[Tensor, "batch tokens dim"], Tensor]:
        """
        Args:
            x: ``(batch, tokens, dim)``.
            return_weights: also return the attention map.
            options: other arguments of the attention module: ``keep``, ``bias``, ``causal`` and ``cache`` for
                :class:`MultiHeadAttention`, ``grid`` for a positional one.
        """
        check_flag("return_weights", return_weights)
        self._check_tokens("x", x)
        change, weights = _attend(self.attention, self._before(x, self.attention_norm), return_weights, **options)
        out = self._feed_forward_step(self._after(x, change, self.attention_norm))
        return (out, weights) if return_weights else out


class DecoderBlock(_Block):
    """Causal self-attention, attention to the encoder's output (the memory), then a feed-forward network.

    The residual paths and norms are those of :class:`EncoderBlock`.

    Args:
        dim: width of the tokens.
        heads: number of attention heads, unless both attention modules are given.
        hidden, activation, dropout, norm, epsilon: see :class:`EncoderBlock`.
        memory_dim: width of the memory, default ``dim``.
        attention, cross_attention: modules to use instead of :class:`MultiHeadAttention`. The first maps ``(batch,
            tokens, dim)`` to the same, the second also takes the memory.

    >>> from regard.layers import DecoderBlock
    >>> block = DecoderBlock(16, 4)
    >>> out, weights = block(torch.randn(2, 5, 16), torch.randn(2, 7, 16), return_weights=True)
    >>> weights.attention.shape, weights.cross_attention.shape
    (torch.Size([2, 4, 5, 5]), torch.Size([2, 4, 5, 7]))
    """

    def __init__(
        self,
        dim: int,
        heads: int | None = None,
        hidden: int | None = None,
        *,
        activation: str = "gelu",
        dropout: float = 0.0,
        norm: str = "pre",
        epsilon: float = 1e-5,
        memory_dim: int | None = None,
        attention: nn.Module | None = None,
        cross_attention: nn.Module | None = None,
    ) -> None:
        if memory_dim is not None:
            check_positive("memory_dim", memory_dim)
        super().__init__(dim, hidden, activation, dropout, norm, epsilon)
        self.attention = _attention_or_new("attention", attention, dim, heads, dropout)
        self.attention_norm = LayerNorm(dim, epsilon=epsilon)
        self.cross_attention = _attention_or_new("cross_attention", cross_attention, dim, heads, dropout, memory_dim)
        self.cross_attention_norm = LayerNorm(dim, epsilon=epsilon)

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        memory: Float[Tensor, "batch keys memory_dim"],
        *,
        causal: bool = True,
        memory_keep: Bool[Tensor, "..."] | None = None,
        cache: DecoderCache | None = None,
        return_weights: bool = False,
        **options: Any,
    ) -> Float[Tensor, "batch tokens dim"] | tuple[Float[Tensor, "batch tokens dim"], DecoderWeights]:
        """
        Args:
            x: ``(batch, tokens, dim)``.
            memory: ``(batch, keys, memory_dim)``, the output of the encoder.
            causal: whether a token sees only itself and those before it.
            memory_keep: which memory tokens may be attended, True = attend; shapes as in :class:`MultiHeadAttention`.
            cache: keys and values of earlier steps; then ``x`` holds only the new tokens.
            return_weights: also return both maps.
            options: other arguments of the self-attention, such as ``keep`` and ``bias``.
        """
        check_flag("causal", causal)
        check_flag("return_weights", return_weights)
        self._check_tokens("x", x)
        check_ndim("memory", memory, "batch keys memory_dim")
        if isinstance(self.cross_attention, MultiHeadAttention):
            check_width("memory", memory, self.cross_attention.context_dim)
        if memory_keep is not None:
            check_tensor("memory_keep", memory_keep)
            if memory_keep.dtype is not torch.bool:
                raise TypeError(f"memory_keep must be a boolean tensor (True = attend), got {describe(memory_keep)}")
            if memory_keep.ndim == 0 or memory_keep.shape[-1] not in (1, memory.shape[1]):
                raise ValueError(
                    f"memory_keep has shape {tuple(memory_keep.shape)}, but its last axis must be {memory.shape[1]}, the "
                    f"number of memory tokens"
                )
        if cache is not None and not isinstance(cache, DecoderCache):
            raise TypeError(f"cache must be a DecoderCache, got {describe(cache)}")
        own, cross = (None, None) if cache is None else cache
        own_options = {**options, **_given(causal=causal or None, cache=own)}
        change, weights = _attend(self.attention, self._before(x, self.attention_norm), return_weights, **own_options)
        x = self._after(x, change, self.attention_norm)
        cross_options = _given(context=memory, keep=memory_keep, cache=cross)
        change, cross_weights = _attend(
            self.cross_attention, self._before(x, self.cross_attention_norm), return_weights, **cross_options
        )
        x = self._after(x, change, self.cross_attention_norm)
        out = self._feed_forward_step(x)
        return (out, DecoderWeights(weights, cross_weights)) if return_weights else out


def _attention_or_new(
    name: str, attention: nn.Module | None, dim: int, heads: int | None, dropout: float, context_dim: int | None = None
) -> nn.Module:
    if attention is None:
        if heads is None:
            raise ValueError(f"heads is needed to create {name}; or pass {name}, a module")
        return MultiHeadAttention(dim, heads, context_dim=context_dim, dropout=dropout)
    if not isinstance(attention, nn.Module):
        raise TypeError(f"{name} must be an nn.Module, got {describe(attention)}")
    return attention


def _given(**options: Any) -> dict[str, Any]:
    """The options that are not None. A user's module need not accept the others."""
    return {name: value for name, value in options.items() if value is not None}


def _attend(attention: nn.Module, x: Tensor, return_weights: bool, **options: Any) -> tuple[Tensor, Any]:
    if return_weights:
        out, weights = attention(x, return_weights=True, **options)
        return out, weights
    return attention(x, **options), None
