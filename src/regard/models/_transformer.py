"""The transformer of the original paper: encoder and decoder, or the decoder alone."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from regard.layers import (
    AbsolutePositionalEmbedding,
    DecoderBlock,
    DecoderCache,
    EncoderBlock,
    KeyValueCache,
    LayerNorm,
)
from regard.models._pretrained import Pretrained
from regard.models._tokens import (
    as_attention_keep,
    check_end,
    check_keep,
    check_no_keep,
    check_same_batch,
    check_source,
    check_token_numbers,
    greedy,
)
from regard.models._torch import fill, read_torch
from regard.support.checks import (
    check_choice,
    check_depth,
    check_flag,
    check_ndim,
    check_positive,
    check_probability,
    check_tensor,
    check_width,
    describe,
)

POSITIONS = ("sinusoidal", "learned", "none")
Keep = Bool[Tensor, "batch tokens"]
Vectors = Float[Tensor, "batch tokens dim"]
Cache = list[DecoderCache] | list[KeyValueCache]


class TransformerWeights(NamedTuple):
    """The maps of every block, each ``(batch, heads, queries, keys)``. Without an encoder only ``decoder`` has maps."""

    encoder: tuple[Tensor, ...]
    decoder: tuple[Tensor, ...]
    cross: tuple[Tensor, ...]


class Transformer(Pretrained):
    r"""An encoder reads the source; a decoder writes the target token by token and attends to its own tokens and the source.

    .. math:: M = \mathrm{encoder}(\sqrt d\, E_s + p), \qquad
        \mathrm{scores}_t = W\, \mathrm{decoder}(\sqrt d\, E_{t' \le t} + p,\; M) + b

    W is the embedding of the target. Without an encoder there is no source and no cross-attention: a language model
    (see :func:`character_gpt`).

    Args:
        vocab_size: number of target tokens.
        source_vocab_size: number of source tokens; by default source and target share one vocabulary and embedding.
        length: the longest sequence, needed for learned positions.
        dim: width of the tokens.
        depth: number of blocks of the encoder and of the decoder; one number for both, or a pair. ``(0, n)`` has no
            encoder.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks, default ``4 · dim``.
        activation: of the feed-forward networks, see :class:`FeedForward`.
        norm: ``"post"``, as in the original, or ``"pre"``.
        final_norm: whether a norm follows the last block of encoder and decoder, by default with ``norm="pre"``.
        positions: ``"sinusoidal"``, ``"learned"`` or ``"none"``.
        dropout: probability of dropping, in training, attention weights, hidden features, sub-layer outputs and
            embedded tokens.

    Shapes: sources ``(batch, s)`` and targets ``(batch, t)`` of token numbers to scores ``(batch, t, vocab_size)``. The
    scores at position t are for the next token.

    >>> from regard.models import Transformer
    >>> model = Transformer(11, dim=16, depth=(1, 2), heads=2).eval()
    >>> source, target = torch.randint(11, (2, 7)), torch.randint(11, (2, 5))
    >>> model(source, target).shape
    torch.Size([2, 5, 11])
    >>> model.generate(source, target[:, :1], tokens=4).shape
    torch.Size([2, 4])
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        source_vocab_size: int | None = None,
        length: int | None = None,
        dim: int = 512,
        depth: int | Sequence[int] = 6,
        heads: int = 8,
        hidden: int | None = None,
        activation: str = "relu",
        norm: str = "post",
        final_norm: bool | None = None,
        positions: str = "sinusoidal",
        dropout: float = 0.1,
    ) -> None:
        if final_norm is not None:
            check_flag("final_norm", final_norm)
        super().__init__()
        check_positive("vocab_size", vocab_size)
        if source_vocab_size is not None:
            check_positive("source_vocab_size", source_vocab_size)
        check_positive("dim", dim)
        check_choice("positions", positions, POSITIONS)
        check_probability("dropout", dropout)
        encoder_depth, decoder_depth = _depths(depth)
        if positions == "learned" and length is None:
            raise ValueError(
                "length must be the number of tokens of the longest sequence where positions are learned, got None"
            )
        if length is not None:
            check_positive("length", length)
        if not encoder_depth and source_vocab_size is not None:
            raise ValueError(f"source_vocab_size is {source_vocab_size}, but depth {depth} has no encoder")
        self.dim, self.vocab_size = dim, vocab_size
        self.embedding = _embedding(vocab_size, dim)
        self.source_embedding = None if source_vocab_size is None else _embedding(source_vocab_size, dim)
        self.positions: AbsolutePositionalEmbedding | None = None
        if positions != "none":
            grid = length if positions == "learned" else None
            self.positions = AbsolutePositionalEmbedding(dim, grid, kind=positions)
        self.dropout = nn.Dropout(dropout)
        options: dict[str, Any] = {"activation": activation, "dropout": dropout, "norm": norm}
        self.encoder = nn.ModuleList(EncoderBlock(dim, heads, hidden, **options) for _ in range(encoder_depth))
        block: type[nn.Module] = DecoderBlock if encoder_depth else EncoderBlock
        self.decoder = nn.ModuleList(block(dim, heads, hidden, **options) for _ in range(decoder_depth))
        last = norm == "pre" if final_norm is None else final_norm
        self.encoder_norm = LayerNorm(dim) if last and encoder_depth else nn.Identity()
        self.decoder_norm = LayerNorm(dim) if last else nn.Identity()
        self.output_bias = nn.Parameter(torch.zeros(vocab_size))

    @classmethod
    def from_torch(
        cls, module: nn.Transformer, vocab_size: int, *, source_vocab_size: int | None = None
    ) -> "Transformer":
        """The blocks of an ``nn.Transformer`` with its weights. It has no embedding, so that is new and untrained.

        All layers must have the same options (custom stacks of torch's own layers work too), and both parts or neither
        end in a norm. Frozen parameters stay frozen. A bias that torch's layers lack is zero, and frozen with its weight.

        >>> from regard.models import Transformer
        >>> theirs = torch.nn.Transformer(16, 2, 1, 1, 24, batch_first=True).eval()
        >>> ours, x, y = Transformer.from_torch(theirs, 11), torch.randn(2, 7, 16), torch.randn(2, 5, 16)
        >>> mask = theirs.generate_square_subsequent_mask(5)
        >>> torch.allclose(ours.decode(y, ours.encode(x)), theirs(x, y, tgt_mask=mask), atol=1e-5)
        True
        """
        arguments, state = read_torch(module)
        model = cls(vocab_size, source_vocab_size=source_vocab_size, **arguments)
        fill(model, state)
        return model.train(module.training)

    def encode(
        self,
        source: Int[Tensor, "batch tokens"] | Vectors,
        *,
        keep: Keep | None = None,
        maps: list[Tensor] | None = None,
    ) -> Vectors:
        """The memory ``(batch, s, dim)`` of a source.

        Args:
            source: token numbers ``(batch, s)``, or embedded vectors ``(batch, s, dim)``.
            keep: True on tokens, False on padding.
            maps: a list to which the attention maps of the blocks are appended.
        """
        if not len(self.encoder):
            raise ValueError("this model has no encoder: it takes no source")
        if maps is not None and not isinstance(maps, list):
            raise TypeError(f"maps must be a list, to which maps are appended, got {describe(maps)}")
        check_tensor("source", source)
        check_keep("keep", keep, source)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x = self._embed("source", source, table, 0)
        for block in self.encoder:
            if maps is None:
                x = block(x, keep=as_attention_keep(keep))
            else:
                x, weights = block(x, keep=as_attention_keep(keep), return_weights=True)
                maps.append(weights)
        return self.encoder_norm(x)

    def decode(
        self,
        target: Int[Tensor, "batch tokens"] | Vectors,
        memory: Float[Tensor, "batch source_tokens dim"] | None = None,
        *,
        memory_keep: Bool[Tensor, "batch source_tokens"] | None = None,
        cache: Cache | None = None,
        maps: list[Any] | None = None,
    ) -> Vectors:
        """The decoder's vectors ``(batch, t, dim)``; each depends on the target up to its own position.

        Args:
            target: token numbers ``(batch, t)``, or vectors that are already embedded.
            memory: the output of :meth:`encode`; None without an encoder.
            memory_keep: True on the source's tokens, False on its padding.
            cache: from :meth:`empty_cache`; then ``target`` holds only the tokens since the last call.
            maps: a list to which the attention maps of the blocks are appended.
        """
        if (memory is None) is bool(len(self.encoder)):
            raise ValueError(
                "memory is needed: pass source, or encode(source)" if memory is None else "this model has no encoder"
            )
        if memory is not None:
            check_ndim("memory", memory, "batch source_tokens dim")
            check_keep("memory_keep", memory_keep, memory)
        else:
            check_no_keep("memory_keep", memory_keep)
        start = 0 if cache is None else self._tokens_in(cache)
        x = self._embed("target", target, self.embedding, start)
        if memory is not None:
            check_same_batch("target", x, "memory", memory)
        for i, block in enumerate(self.decoder):
            options: dict[str, Any] = {"causal": True, "cache": None if cache is None else cache[i]}
            if memory is not None:
                options |= {"memory": memory, "memory_keep": as_attention_keep(memory_keep)}
            if maps is None:
                x = block(x, **options)
            else:
                x, weights = block(x, return_weights=True, **options)
                maps.append(weights)
        return self.decoder_norm(x)

    def scores(self, vectors: Vectors) -> Float[Tensor, "batch tokens vocab_size"]:
        """Scores of the next token at each position, from the decoder's vectors."""
        return nn.functional.linear(vectors, self.embedding.weight, self.output_bias)

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"] | None,
        target: Int[Tensor, "batch tokens"],
        *,
        source_keep: Bool[Tensor, "batch source_tokens"] | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "batch tokens vocab_size"] | tuple[Float[Tensor, "batch tokens vocab_size"], TransformerWeights]:
        """
        Args:
            source: ``(batch, s)``; None without an encoder.
            target: ``(batch, t)``, the input of the decoder. Padding at its end does not change earlier outputs.
            source_keep: True on the source's tokens, False on its padding.
            return_weights: also return the attention maps of all blocks.
        """
        check_flag("return_weights", return_weights)
        encoder: list[Tensor] | None = [] if return_weights else None
        decoder: list[Any] | None = [] if return_weights else None
        check_source(source, source_keep, target, "target")
        memory = None if source is None else self.encode(source, keep=source_keep, maps=encoder)
        scores = self.scores(self.decode(target, memory, memory_keep=source_keep, maps=decoder))
        if encoder is None or decoder is None:
            return scores
        if source is None:
            return scores, TransformerWeights((), tuple(decoder), ())
        own, cross = ([getattr(maps, name) for maps in decoder] for name in ("attention", "cross_attention"))
        return scores, TransformerWeights(tuple(encoder), tuple(own), tuple(cross))

    def empty_cache(self) -> Cache:
        """An empty cache for :meth:`decode`, for one batch."""
        if len(self.encoder):
            return [DecoderCache.empty() for _ in self.decoder]
        return [KeyValueCache() for _ in self.decoder]

    @torch.no_grad()
    def generate(
        self,
        source: Int[Tensor, "batch source_tokens"] | None,
        prompt: Int[Tensor, "batch prompt"],
        *,
        tokens: int,
        end: int | None = None,
        source_keep: Bool[Tensor, "batch source_tokens"] | None = None,
        use_cache: bool = True,
    ) -> Int64[Tensor, "batch new"]:
        """Greedy decoding: the tokens that follow ``prompt``, the best one at each step.

        Args:
            source: ``(batch, s)``; None without an encoder.
            prompt: ``(batch, p)``, such as one ``<begin>`` each.
            tokens: the largest number of tokens to generate.
            end: the token that ends a row: the row repeats it from then on. Decoding stops when every row has ended.
            source_keep: True on the source's tokens, False on its padding.
            use_cache: keep the keys and values of earlier steps. The tokens are the same without.
        """
        check_flag("use_cache", use_cache)
        check_end(end, self.vocab_size)
        check_token_numbers("prompt", prompt, self.vocab_size)
        check_source(source, source_keep, prompt, "prompt")
        memory = None if source is None else self.encode(source, keep=source_keep)
        cache = self.empty_cache() if use_cache else None

        def next_scores(so_far: Tensor) -> Tensor:
            new = so_far if cache is None else so_far[:, self._tokens_in(cache) :]
            return self.scores(self.decode(new, memory, memory_keep=source_keep, cache=cache)[:, -1:])[:, 0]

        return greedy(next_scores, prompt, tokens, end)

    def _embed(self, name: str, x: Tensor, table: nn.Embedding, start: int) -> Tensor:
        if isinstance(x, Tensor) and x.is_floating_point():
            check_ndim(name, x, "batch tokens dim")
            check_width(name, x, self.dim)
            return x
        check_token_numbers(name, x, table.num_embeddings)
        x = table(x) * math.sqrt(self.dim)
        if self.positions is not None:
            x = self.positions(x, start=start)
        return self.dropout(x)

    def _tokens_in(self, cache: Cache) -> int:
        if not isinstance(cache, list) or len(cache) != len(self.decoder):
            raise ValueError(
                f"cache must be a list with one entry per block of the decoder, {len(self.decoder)}, as from empty_cache(), "
                f"got {describe(cache)}"
            )
        first = cache[0]
        return first.attention.tokens if isinstance(first, DecoderCache) else first.tokens


def character_gpt(
    vocab_size: int, *, length: int = 128, dim: int = 128, depth: int = 4, heads: int = 4, dropout: float = 0.1
) -> Transformer:
    """A small language model: a :class:`Transformer` without encoder, pre-norm, with learned positions.

    >>> from regard.models import character_gpt
    >>> model = character_gpt(30, dim=16, depth=1).eval()
    >>> model(None, torch.randint(30, (2, 9))).shape
    torch.Size([2, 9, 30])
    """
    return Transformer(
        vocab_size,
        length=length,
        dim=dim,
        depth=(0, depth),
        heads=heads,
        activation="gelu",
        norm="pre",
        positions="learned",
        dropout=dropout,
    )


def _depths(depth: Any) -> tuple[int, int]:
    """Blocks of the encoder and of the decoder."""
    pair = (depth, depth) if isinstance(depth, int) else depth
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise TypeError(f"depth must be a number of blocks or a pair (encoder, decoder), got {describe(depth)}")
    check_depth("depth of the encoder", pair[0], least=0)
    check_depth("depth of the decoder", pair[1])
    return pair[0], pair[1]


def _embedding(vocab_size: int, dim: int) -> nn.Embedding:
    table = nn.Embedding(vocab_size, dim)
    nn.init.normal_(table.weight, std=dim**-0.5)  # times √dim, entries are as large as the positions
    return table
