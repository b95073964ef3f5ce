"""Recurrent encoder–decoders with and without attention: the bottleneck of one state, and how attention removes it."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor, nn

from regard.functional import attention as dot_product_attention
from regard.layers import AbsolutePositionalEmbedding, AdditiveAttention
from regard.models._padded_sequences import State, run_padded
from regard.models._pretrained import Pretrained
from regard.models._tokens import check_end, check_keep, check_source, check_token_numbers, greedy
from regard.support.checks import (
    check_choice,
    check_depth,
    check_flag,
    check_positive,
    check_probability,
    values_are_readable,
)

CELLS: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
ATTENTIONS = ("none", "dot", "additive")
POSITIONS = {"none": None, "one-hot": "one-hot", "sine": "sinusoidal"}
Tokens = Int[Tensor, "batch tokens"]
SourceKeep = Bool[Tensor, "batch source_tokens"]


class DotAttention(nn.Module):
    r"""Decoder states attend to encoder states: :math:`a_{ij} = \mathrm{softmax}_j(q_i^\top k_j)`, not scaled."""

    def forward(
        self,
        query: Float[Tensor, "batch queries hidden"],
        key: Float[Tensor, "batch keys hidden"],
        *,
        keep: Bool[Tensor, "batch 1 keys"] | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        # Add an axis for one head, so that the batch is not read as the heads.
        check_flag("return_weights", return_weights)
        query, key = query[:, None], key[:, None]
        mask = None if keep is None else keep[:, None]
        if return_weights:
            out, weights = dot_product_attention(query, key, key, beta=1.0, keep=mask, return_weights=True)
            return out[:, 0], weights[:, 0]
        return dot_product_attention(query, key, key, beta=1.0, keep=mask)[:, 0]


class Seq2SeqRNN(Pretrained):
    r"""A recurrent encoder reads the source; a recurrent decoder starts from its last state and writes the target.

    .. math:: h_j = \mathrm{cell}(x_j, h_{j-1}), \quad h'_0 = h_n, \quad h'_i = \mathrm{cell}'(y_i, h'_{i-1}), \qquad
        \mathrm{scores}_i = W u_i + b

    .. math:: \text{none}: u_i = h'_i \qquad
        \text{attention}: u_i = \tanh\bigl(W_u\,(h'_i, \textstyle\sum_j a_{ij} h_j) + b_u\bigr), \quad
        a_{i\cdot} = \mathrm{softmax}_j(e(h'_i, h_j))

    with :math:`e = h_i'^\top h_j` (dot) or a small network (:class:`AdditiveAttention`). Without attention, the
    decoder knows the source only through one state. With attention, a is the alignment of target and source.

    Args:
        vocab_size: number of target tokens.
        source_vocab_size: number of source tokens; by default source and target share one vocabulary and embedding.
        length: the longest sequence, needed for one-hot positions.
        dim: width of an embedded token.
        depth: number of recurrent layers.
        hidden: width of the state.
        cell: ``"rnn"`` (tanh), ``"gru"`` or ``"lstm"``.
        attention: ``"none"``, ``"dot"`` or ``"additive"``.
        positions: ``"none"``, ``"one-hot"`` or ``"sine"``; they are appended to every embedded token.
        position_dim: width of sine positions, default ``dim``.
        dropout: probability, in training, of dropping embedded features, those between recurrent layers, and those of u.

    Shapes: sources ``(batch, s)`` and targets ``(batch, t)`` of token numbers to scores ``(batch, t, vocab_size)``.
    The scores at position t are for the next token; alignment ``(batch, t, s)``.

    >>> from regard.models import Seq2SeqRNN
    >>> model = Seq2SeqRNN(30, dim=8, hidden=16, attention="dot").eval()
    >>> source, target = torch.randint(30, (2, 7)), torch.randint(30, (2, 5))
    >>> scores, alignment = model(source, target, return_weights=True)
    >>> scores.shape, alignment.shape
    (torch.Size([2, 5, 30]), torch.Size([2, 5, 7]))
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        source_vocab_size: int | None = None,
        length: int | None = None,
        dim: int = 64,
        depth: int = 1,
        hidden: int = 128,
        cell: str = "gru",
        attention: str = "additive",
        positions: str = "none",
        position_dim: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("dim", dim), ("hidden", hidden)):
            check_positive(name, size)
        check_depth("depth", depth)
        for name, given in (
            ("source_vocab_size", source_vocab_size),
            ("length", length),
            ("position_dim", position_dim),
        ):
            if given is not None:
                check_positive(name, given)
        check_choice("cell", cell, tuple(CELLS))
        check_choice("attention", attention, ATTENTIONS)
        check_choice("positions", positions, tuple(POSITIONS))
        check_probability("dropout", dropout)
        if positions == "one-hot" and length is None:
            raise ValueError(f"length is None, but positions {positions!r} need the length of the longest sequence")
        self.vocab_size, self.hidden = vocab_size, hidden
        self.embedding = nn.Embedding(vocab_size, dim)
        self.source_embedding = None if source_vocab_size is None else nn.Embedding(source_vocab_size, dim)
        self.positions: AbsolutePositionalEmbedding | None = None
        kind = POSITIONS[positions]
        if kind is not None:
            self.positions = AbsolutePositionalEmbedding(
                dim,
                length if kind == "one-hot" else None,
                kind=kind,
                combine="concatenate",
                position_dim=position_dim if kind == "sinusoidal" else None,
            )
        width = dim if self.positions is None else self.positions.out_dim
        self.dropout = nn.Dropout(dropout)
        options: dict[str, Any] = {"batch_first": True, "dropout": dropout if depth > 1 else 0.0}
        self.encoder = CELLS[cell](width, hidden, depth, **options)
        self.decoder = CELLS[cell](width, hidden, depth, **options)
        self.attention: nn.Module | None = None
        if attention != "none":
            self.attention = DotAttention() if attention == "dot" else AdditiveAttention(hidden, hidden)
            self.combine = nn.Linear(2 * hidden, hidden)
        self.output = nn.Linear(hidden, vocab_size)

    def encode(
        self, source: Tokens, *, keep: Bool[Tensor, "batch tokens"] | None = None
    ) -> tuple[Float[Tensor, "batch tokens hidden"], State]:
        """All states of the upper layer, and the last state of every layer.

        ``keep``: True on tokens, False on padding, which must stand at the end and never reaches a state.
        """
        x = self._embed("source", source, self.embedding if self.source_embedding is None else self.source_embedding)
        check_keep("keep", keep, source)
        if keep is None:
            return self.encoder(x)
        if values_are_readable(keep) and bool((keep[:, 1:] & ~keep[:, :-1]).any()):
            raise ValueError("keep must be True up to the last token of each row: padding must come at the end")
        return run_padded(self.encoder, x, keep)

    def decode(
        self,
        target: Tokens,
        states: Float[Tensor, "batch source_tokens hidden"],
        state: State,
        *,
        keep: SourceKeep | None = None,
        start: int = 0,
        return_weights: bool = False,
    ) -> tuple[Float[Tensor, "batch tokens vocab_size"], State, Float[Tensor, "batch tokens source_tokens"] | None]:
        """Scores, the state after the last token, and (on request) the alignment.

        Args:
            target: ``(batch, t)``.
            states, state: from :meth:`encode`; after the first call, the state that the last call returned.
            keep: True on the source's tokens.
            start: the position of the first of these tokens in the target.
            return_weights: also return the alignment; the model must have attention.
        """
        check_flag("return_weights", return_weights)
        queries, state = self.decoder(self._embed("target", target, self.embedding, start), state)
        if self.attention is None:
            if return_weights:
                raise ValueError("return_weights needs attention, but this model was created with attention='none'")
            return self.output(self.dropout(queries)), state, None
        mask = None if keep is None else keep[:, None]
        weights = None
        if return_weights:
            context, weights = self.attention(queries, states, keep=mask, return_weights=True)
        else:
            context = self.attention(queries, states, keep=mask)
        combined = torch.tanh(self.combine(torch.cat([queries, context], -1)))
        return self.output(self.dropout(combined)), state, weights

    def forward(
        self,
        source: Int[Tensor, "batch source_tokens"],
        target: Tokens,
        *,
        source_keep: SourceKeep | None = None,
        return_weights: bool = False,
    ) -> (
        Float[Tensor, "batch tokens vocab_size"]
        | tuple[Float[Tensor, "batch tokens vocab_size"], Float[Tensor, "batch tokens source_tokens"]]
    ):
        """
        Args:
            source: ``(batch, s)``.
            target: ``(batch, t)``, the input of the decoder.
            source_keep: True on the source's tokens, False on its padding, which stands at the end.
            return_weights: also return the alignment ``(batch, t, s)``.
        """
        check_flag("return_weights", return_weights)
        check_source(source, source_keep, target, "target")
        states, state = self.encode(source, keep=source_keep)
        scores, _, weights = self.decode(target, states, state, keep=source_keep, return_weights=return_weights)
        return scores if weights is None else (scores, weights)

    @torch.no_grad()
    def generate(
        self,
        source: Int[Tensor, "batch source_tokens"],
        prompt: Int[Tensor, "batch prompt"],
        *,
        tokens: int,
        end: int | None = None,
        source_keep: SourceKeep | None = None,
        return_weights: bool = False,
    ) -> Int64[Tensor, "batch new"] | tuple[Int64[Tensor, "batch new"], Float[Tensor, "batch new source_tokens"]]:
        """Greedy decoding: the tokens that follow ``prompt``, the best one at each step.

        Args:
            source: ``(batch, s)``.
            prompt: ``(batch, p)``, such as one ``<begin>`` each.
            tokens: the largest number of tokens to generate.
            end: the token that ends a row: the row repeats it from then on. Decoding stops when every row has ended.
            source_keep: True on the source's tokens, False on its padding.
            return_weights: also return the alignment of each new token, ``(batch, new, s)``.
        """
        check_flag("return_weights", return_weights)
        check_source(source, source_keep, prompt, "prompt")
        check_token_numbers("prompt", prompt, self.embedding.num_embeddings)
        check_end(end, self.embedding.num_embeddings)
        states, state = self.encode(source, keep=source_keep)
        seen, alignment = 0, []

        def next_scores(so_far: Tensor) -> Tensor:
            nonlocal seen, state
            scores, state, weights = self.decode(
                so_far[:, seen:], states, state, keep=source_keep, start=seen, return_weights=return_weights
            )
            seen = so_far.shape[1]
            if weights is not None:
                alignment.append(weights[:, -1])
            return scores[:, -1]

        said = greedy(next_scores, prompt, tokens, end)
        return (said, torch.stack(alignment, 1)) if return_weights else said

    def _embed(self, name: str, tokens: Tensor, table: nn.Embedding, start: int = 0) -> Tensor:
        check_token_numbers(name, tokens, table.num_embeddings)
        x = self.dropout(table(tokens))
        return x if self.positions is None else self.positions(x, start=start)
