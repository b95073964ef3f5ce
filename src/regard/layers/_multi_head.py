"""Multi-head attention: several attentions in parallel, each with its own projection of the input."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.functional import attention
from regard.layers import _interchange
from regard.layers._block_linear import BlockLinear
from regard.layers._cache import KeyValueCache
from regard.layers._native import can_be_native, native_attention
from regard.layers._packed import Projection, apart, is_cheap_to_copy, packed_heads, stacked_heads
from regard.support.checks import (
    check_beta,
    check_dtype,
    check_flag,
    check_ndim,
    check_positive,
    check_probability,
    check_width,
    describe,
)
from regard.support.module_checks import check_linear_layers, check_own_forward

Weights = Float[Tensor, "batch heads tokens keys"]


class MultiHeadAttention(nn.Module):
    r"""Self- or cross-attention with several heads.

    .. math:: \mathrm{out} = \mathrm{concat}(H_1, \dots, H_h)\, W_o + b_o, \qquad
        H_i = \mathrm{softmax}(\beta\, Q_i K_i^\top + \mathrm{bias})\, V_i

    .. math:: Q_i = X W_{q,i} + b_{q,i}, \quad K_i = C W_{k,i} + b_{k,i}, \quad V_i = C' W_{v,i} + b_{v,i}

    X is the input. C, the context, gives the keys; it is X in self-attention. C′ gives the values; it is C by default.

    Args:
        dim: width of X.
        heads: h.
        context_dim, value_dim: widths of C (default ``dim``) and C′ (default ``context_dim``).
        out_dim: width of the output, default ``dim``.
        head_dim: width of a head, default ``dim / heads``.
        key_value_heads: number of key/value heads, which neighboring query heads share; a divisor of ``heads``, which is
            the default.
        bias: whether the input projections have a bias.
        output_bias: whether the output projection has a bias, default as ``bias``.
        dropout: probability of dropping an attention weight in training.
        beta: inverse temperature in [0, ∞], default ``1/√head_dim``.
        slice_heads: head i reads only the i-th slice of the input: a block-diagonal projection with 1/h of the weights.

    Inputs of equal width share one packed projection ``qkv``, so that self-attention needs one product. Otherwise the
    projections are ``query``, ``key`` and ``value``. The output projection is ``output``.

    >>> layer = regard.MultiHeadAttention(16, 4, context_dim=6)
    >>> out, weights = layer(torch.randn(2, 5, 16), torch.randn(2, 7, 6), return_weights=True)
    >>> out.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 4, 5, 7]))
    """

    qkv: Projection
    query: Projection
    key: Projection
    value: Projection

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        context_dim: int | None = None,
        value_dim: int | None = None,
        out_dim: int | None = None,
        head_dim: int | None = None,
        key_value_heads: int | None = None,
        bias: bool = True,
        output_bias: bool | None = None,
        dropout: float = 0.0,
        beta: float | None = None,
        slice_heads: bool = False,
    ) -> None:
        check_flag("bias", bias)
        if output_bias is not None:
            check_flag("output_bias", output_bias)
        check_flag("slice_heads", slice_heads)
        super().__init__()
        check_positive("dim", dim)
        check_positive("heads", heads)
        if head_dim is None and dim % heads:
            raise ValueError(f"dim is {dim}, which {heads} heads do not divide: change heads, or pass head_dim")
        self.dim, self.heads = dim, heads
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.context_dim = dim if context_dim is None else context_dim
        self.value_dim = self.context_dim if value_dim is None else value_dim
        self.out_dim = dim if out_dim is None else out_dim
        self.key_value_heads = heads if key_value_heads is None else key_value_heads
        for name in ("head_dim", "context_dim", "value_dim", "out_dim", "key_value_heads"):
            check_positive(name, getattr(self, name))
        if heads % self.key_value_heads:
            raise ValueError(f"key_value_heads is {self.key_value_heads}, but must divide heads, {heads}")
        check_probability("dropout", dropout)
        if beta is not None:
            check_beta(beta)
        self.dropout, self.beta, self.slice_heads = dropout, beta, slice_heads
        self._check_slices()
        self._add_projections(bias, bias if output_bias is None else output_bias)
        self.reset_parameters()

    def _check_slices(self) -> None:
        if not self.slice_heads:
            return
        if self.key_value_heads != self.heads:
            raise ValueError(
                f"slice_heads gives every head its own slice, so key_value_heads must be {self.heads} (or left out), "
                f"got {self.key_value_heads}"
            )
        for name in ("dim", "context_dim", "value_dim"):
            if getattr(self, name) % self.heads:
                raise ValueError(f"{name} is {getattr(self, name)}, which {self.heads} heads do not divide into slices")

    def _add_projections(self, bias: bool, output_bias: bool) -> None:
        def projection(width: int, heads: int) -> Projection:
            features = heads * self.head_dim
            if self.slice_heads:
                return BlockLinear(width, features, self.heads, bias=bias)
            return nn.Linear(width, features, bias=bias)

        self.packed = self.dim == self.context_dim == self.value_dim
        if self.packed:
            self.qkv = projection(self.dim, self.heads + 2 * self.key_value_heads)
        else:
            self.query = projection(self.dim, self.heads)
            self.key = projection(self.context_dim, self.key_value_heads)
            self.value = projection(self.value_dim, self.key_value_heads)
        self.output = nn.Linear(self.heads * self.head_dim, self.out_dim, bias=output_bias)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Glorot's uniform initialization of each projection by its own widths; biases start at 0."""
        for weight in self.input_weights():
            bound = math.sqrt(6 / (weight.shape[-1] + weight.shape[-2]))
            weight.uniform_(-bound, bound)
        nn.init.xavier_uniform_(self.output.weight)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def input_weights(self) -> tuple[Tensor, Tensor, Tensor]:
        """W_q, W_k, W_v, each ``(its heads · head_dim, width)``, or with ``slice_heads`` ``(heads, head_dim, slice)``;
        views of the packed weight where there is one."""
        if not self.packed:
            return self.query.weight, self.key.weight, self.value.weight
        query, key, value = self.qkv.weight.split(self._sizes(), int(self.slice_heads))
        return query, key, value

    def input_biases(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """b_q, b_k, b_v in the layout of :meth:`input_weights`."""
        if not self.packed:
            return self.query.bias, self.key.bias, self.value.bias
        if self.qkv.bias is None:
            return None, None, None
        query, key, value = self.qkv.bias.split(self._sizes(), int(self.slice_heads))
        return query, key, value

    def _sizes(self) -> list[int]:
        """Rows of the packed weight (with ``slice_heads``: of each block) for queries, keys and values."""
        if self.slice_heads:
            return [self.head_dim] * 3
        return [count * self.head_dim for count in (self.heads, self.key_value_heads, self.key_value_heads)]

    def forward(
        self,
        x: Float[Tensor, "batch tokens dim"],
        context: Float[Tensor, "batch keys context_dim"] | None = None,
        value: Float[Tensor, "batch keys value_dim"] | None = None,
        *,
        keep: Bool[Tensor, "..."] | None = None,
        bias: Float[Tensor, "..."] | None = None,
        causal: bool = False,
        return_weights: bool = False,
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "batch tokens out_dim"] | tuple[Float[Tensor, "batch tokens out_dim"], Weights]:
        """Attend from every token of ``x`` to those of ``context`` (or of ``x`` itself).

        Args:
            x: ``(batch, tokens, dim)``.
            context: ``(batch, keys, context_dim)``, any number of keys.
            value: ``(batch, keys, value_dim)``, if the values come from another input than the keys.
            keep: True = attend; ``(tokens, keys)``, or ``(batch, heads, tokens, keys)`` with 1 where an axis is shared.
                For padded items: ``keep[:, None, None, :]``. Two axes are never (batch, keys), also if their sizes fit.
            bias: added to the scores, same shapes.
            causal: a token sees itself and those before it; aligned at the end.
            return_weights: also return the map, ``(batch, heads, tokens, keys)``, before dropout.
            cache: self-attention appends the new keys and values to it and attends to everything in it. With
                ``context`` the first call fills it, and later calls read it instead of projecting the context again.

        A token with nothing to attend to gives the output projection of zeros, and finite gradients.
        """
        check_flag("causal", causal)
        check_flag("return_weights", return_weights)
        if context is None and value is None and cache is None and self._is_plain_input(x):
            if keep is None and bias is None and not causal and self._can_be_native(x):
                return native_attention(x, self.qkv, self.output, self.heads, return_weights)
            query, key, values = self._own_heads(x, return_weights)
        else:
            self._check_inputs(x, context, value)
            query, key, values = self._project(x, context, value, cache)
        attended = attention(
            query,
            key,
            values,
            beta=self.beta,
            keep=keep,
            bias=bias,
            causal=causal,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
        )
        if isinstance(attended, tuple):
            return self.output(attended[0].transpose(1, 2).flatten(2)), attended[1]
        return self.output(attended.transpose(1, 2).flatten(2))

    def _is_plain_input(self, x: Tensor) -> bool:
        """Whether x needs no further check. A GPU waits for the host at every call, so common inputs skip the full checks."""
        if not self.packed or torch.compiler.is_compiling() or type(x) is not Tensor:
            return False
        shape, weight = x.shape, self._modules["output"].__dict__["_parameters"].get("weight")
        return len(shape) == 3 and shape[2] == self.dim and type(weight) is nn.Parameter and weight.dtype is x.dtype

    def _can_be_native(self, x: Tensor) -> bool:
        heads = self.heads == self.key_value_heads and self.beta is None and not (self.training and self.dropout)
        modules = self._modules
        return heads and can_be_native(x, modules["qkv"], modules["output"], self.heads, self.head_dim)

    def _own_heads(self, x: Tensor, return_weights: bool) -> Sequence[Tensor]:
        """Queries, keys and values of self-attention from the packed projection."""
        layer = self.qkv
        if isinstance(layer, BlockLinear):
            return packed_heads(layer, (x, x, x), self._sizes(), self.head_dim)
        product = layer(x)
        if return_weights and self.heads == self.key_value_heads and is_cheap_to_copy(product):
            return stacked_heads(product, self.head_dim)
        return apart(product, self._sizes(), self.head_dim)

    def _check_inputs(self, x: Tensor, context: Tensor | None, value: Tensor | None) -> None:
        check_ndim("x", x, "batch tokens dim")
        for name, given, width in (
            ("x", x, self.dim),
            ("context", context, self.context_dim),
            ("value", value, self.value_dim),
        ):
            if given is None:
                if name == "context" and self.context_dim != self.dim:
                    raise ValueError(f"context is needed: its width is {width}, so x of width {self.dim} gives no keys")
                if name == "value" and self.value_dim != self.context_dim:
                    raise ValueError(
                        f"value is needed: its width is {width}, so keys of width {self.context_dim} give no values"
                    )
                continue
            check_ndim(name, given, "batch tokens dim")
            check_width(name, given, width)
            check_dtype(name, given, self.output.weight)
            if given.shape[0] != x.shape[0]:
                raise ValueError(f"{name} has batch size {given.shape[0]} but x has {x.shape[0]}")
        source = x if context is None else context
        if value is not None and value.shape[1] != source.shape[1]:
            raise ValueError(
                f"value has {value.shape[1]} tokens but there are {source.shape[1]} keys: each key needs its value"
            )

    def _project(
        self, x: Tensor, context: Tensor | None, value: Tensor | None, cache: KeyValueCache | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each ``(batch, heads, tokens, head_dim)``."""
        if cache is not None and not isinstance(cache, KeyValueCache):
            raise TypeError(f"cache must be a KeyValueCache, got {describe(cache)}")
        if context is not None and cache is not None and cache.tokens:
            key, values = cache.key, cache.value
            if key is None or values is None or key.shape[2] != context.shape[1]:
                raise ValueError(f"cache holds {cache.tokens} keys but context has {context.shape[1]} tokens")
            (query,) = self._heads(x, None, None)
            return query, key, values
        source = x if context is None else context
        query, key, values = self._heads(x, source, source if value is None else value)
        if cache is not None:
            key, values = cache.extend(key, values)
        return query, key, values

    def _heads(self, *sources: Tensor | None) -> Sequence[Tensor]:
        """Queries, keys and values from their three sources; a source of None is left out."""
        if self.packed:
            return packed_heads(self.qkv, sources, self._sizes(), self.head_dim)
        layers = (self.query, self.key, self.value)
        products = [layer(source) for layer, source in zip(layers, sources, strict=True) if source is not None]
        return [apart(product, [product.shape[-1]], self.head_dim)[0] for product in products]

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention) -> "MultiHeadAttention":
        """The same layer with the same weights, bit for bit; masks differ, see :func:`keep_from_torch`.

        Frozen parameters stay frozen. A parameter made of several is frozen only if all of them are. The same holds for
        :meth:`to_torch` and :meth:`from_timm`.

        >>> theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True)
        >>> ours, x = regard.MultiHeadAttention.from_torch(theirs), torch.randn(2, 5, 16)
        >>> torch.allclose(ours(x), theirs(x, x, x)[0], atol=1e-6)
        True
        """
        return _interchange.from_torch(module).build(cls)

    def to_torch(self, *, batch_first: bool = True) -> nn.MultiheadAttention:
        """The same layer as a torch module with the same weights, if torch's module has the options of this layer."""
        check_flag("batch_first", batch_first)
        self.check_known()
        return _interchange.to_torch(self, self._arguments(), batch_first).build(nn.MultiheadAttention)

    @classmethod
    def from_timm(cls, source: nn.Module | Mapping[str, Tensor], heads: int | None = None) -> "MultiHeadAttention":
        """From a module with the fused layout that timm uses (``qkv``, ``proj``, ``num_heads``), or from its state
        (``{"qkv.weight": (3·dim, dim), "proj.weight": …}``) and the number of heads.

        >>> state = {"qkv.weight": torch.randn(48, 16), "proj.weight": torch.eye(16), "proj.bias": torch.zeros(16)}
        >>> regard.MultiHeadAttention.from_timm(state, heads=4)
        MultiHeadAttention(
          dim=16, heads=4, head_dim=4
          (qkv): Linear(in_features=16, out_features=48, bias=False)
          (output): Linear(in_features=16, out_features=16, bias=True)
        )
        """
        return _interchange.from_timm(source, heads).build(cls)

    def to_timm(self) -> dict[str, Tensor]:
        """The state of the equal timm module, for its ``load_state_dict``. The tensors are shared."""
        self.check_known()
        return _interchange.to_timm(self, self._arguments())

    def check_known(self) -> None:
        """Raise an error if the weights do not say what this layer computes: in a subclass, or with adapters."""
        check_own_forward("the layer", self, MultiHeadAttention)
        check_linear_layers("the layer", self)

    def _arguments(self) -> dict[str, Any]:
        """The constructor's arguments, defaults filled in."""
        first = self.qkv if self.packed else self.query
        names = (
            "dim",
            "heads",
            "context_dim",
            "value_dim",
            "out_dim",
            "head_dim",
            "key_value_heads",
            "dropout",
            "beta",
        )
        biases = {"bias": first.bias is not None, "output_bias": self.output.bias is not None}
        return {name: getattr(self, name) for name in (*names, "slice_heads")} | biases

    def extra_repr(self) -> str:
        shown = [f"dim={self.dim}, heads={self.heads}, head_dim={self.head_dim}"]
        defaults = {
            "context_dim": self.dim,
            "value_dim": self.context_dim,
            "out_dim": self.dim,
            "key_value_heads": self.heads,
            "dropout": 0.0,
            "beta": None,
            "slice_heads": False,
        }
        shown += [f"{name}={getattr(self, name)}" for name, usual in defaults.items() if getattr(self, name) != usual]
        return ", ".join(shown)
