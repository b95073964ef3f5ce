"""The BERT-style text encoder: it predicts masked tokens and classifies by its first token."""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers import AbsolutePositionalEmbedding, EncoderBlock, LayerNorm
from regard.models._pretrained import Pretrained
from regard.models._tokens import as_attention_keep, check_keep, check_token_numbers
from regard.support.checks import check_choice, check_count, check_depth, check_flag, check_positive, check_probability

HEADS = ("tokens", "classes")
Vectors = Float[Tensor, "batch tokens dim"]


class TextEncoder(Pretrained):
    r"""Every token attends to every other. One head predicts masked tokens, another classifies the sequence.

    .. math:: z = \mathrm{norm}(E_x + p), \quad z \leftarrow \text{block}_l(z), \qquad
        \text{tokens}: E\, \mathrm{norm}(\phi(W_1 z_t + b_1)) + b, \qquad
        \text{classes}: W_3 \tanh(W_2 z_0 + b_2) + b_3

    The class is predicted from the first token. A vocabulary has the token ``<class>`` for it.

    Args:
        vocab_size: number of tokens.
        num_classes: number of classes; 0 leaves that head out.
        length: the longest sequence, with the class token.
        dim: width of the tokens.
        depth: number of blocks.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks, default ``4 · dim``.
        norm: ``"post"``, as in BERT, or ``"pre"``.
        dropout: probability of dropping, in training, attention weights, hidden features, sub-layer outputs and
            embedded tokens.

    Shapes: token numbers ``(batch, tokens)`` to ``(batch, tokens, vocab_size)`` or ``(batch, num_classes)``.

    >>> from regard.models import TextEncoder
    >>> model = TextEncoder(50, num_classes=3, length=16, dim=16, depth=1, heads=2).eval()
    >>> tokens = torch.randint(50, (2, 9))
    >>> model(tokens).shape, model(tokens, head="classes").shape
    (torch.Size([2, 9, 50]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        num_classes: int = 0,
        length: int = 512,
        dim: int = 256,
        depth: int = 4,
        heads: int = 4,
        hidden: int | None = None,
        norm: str = "post",
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        check_positive("vocab_size", vocab_size)
        check_positive("length", length)
        check_positive("dim", dim)
        check_count("num_classes", num_classes)
        check_depth("depth", depth)
        check_probability("dropout", dropout)
        self.vocab_size, self.dim, self.num_classes = vocab_size, dim, num_classes
        self.embedding = nn.Embedding(vocab_size, dim)
        nn.init.trunc_normal_(self.embedding.weight, std=0.02)
        self.positions = AbsolutePositionalEmbedding(dim, length)
        self.embedding_norm = LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        options: dict[str, Any] = {"dropout": dropout, "norm": norm}
        self.blocks = nn.ModuleList(EncoderBlock(dim, heads, hidden, **options) for _ in range(depth))
        self.norm = LayerNorm(dim) if norm == "pre" else nn.Identity()
        self.token_hidden = nn.Linear(dim, dim)
        self.token_norm = LayerNorm(dim)
        self.token_bias = nn.Parameter(torch.zeros(vocab_size))
        if num_classes:
            self.class_hidden = nn.Linear(dim, dim)
            self.class_output = nn.Linear(dim, num_classes)

    def forward_intermediates(
        self, tokens: Int[Tensor, "batch tokens"], *, keep: Bool[Tensor, "batch tokens"] | None = None
    ) -> tuple[Vectors, list[Vectors]]:
        """The output of :meth:`forward_features`, and the vectors after every block."""
        check_token_numbers("tokens", tokens, self.vocab_size)
        check_keep("keep", keep, tokens)
        x = self.dropout(self.embedding_norm(self.positions(self.embedding(tokens))))
        intermediates = []
        for block in self.blocks:
            x = block(x, keep=as_attention_keep(keep))
            intermediates.append(x)
        return self.norm(x), intermediates

    def forward_features(
        self, tokens: Int[Tensor, "batch tokens"], *, keep: Bool[Tensor, "batch tokens"] | None = None
    ) -> Vectors:
        """``(batch, tokens, dim)``."""
        return self.forward_intermediates(tokens, keep=keep)[0]

    def forward_tokens(self, vectors: Vectors) -> Float[Tensor, "batch tokens vocab_size"]:
        """Scores of the token at each position. The embedding is also the weight of the output."""
        hidden = self.token_norm(F.gelu(self.token_hidden(vectors)))
        return F.linear(hidden, self.embedding.weight, self.token_bias)

    def pool(self, vectors: Vectors) -> Float[Tensor, "batch dim"]:
        """One vector for each sequence: that of its first token."""
        return vectors[:, 0]

    def forward_classes(self, vectors: Vectors) -> Float[Tensor, "batch num_classes"]:
        """Scores of the classes, from the first token."""
        if not self.num_classes:
            raise ValueError("this model was created with num_classes=0: it has no head for classes")
        return self.class_output(torch.tanh(self.class_hidden(self.pool(vectors))))

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        *,
        keep: Bool[Tensor, "batch tokens"] | None = None,
        head: str = "tokens",
        return_intermediates: bool = False,
    ) -> Tensor | tuple[Tensor, list[Vectors]]:
        """
        Args:
            tokens: ``(batch, tokens)``.
            keep: True on tokens, False on padding.
            head: ``"tokens"``: scores of the token at each position, ``(batch, tokens, vocab_size)``; ``"classes"``:
                ``(batch, num_classes)``.
            return_intermediates: also return the vectors after each block.
        """
        check_flag("return_intermediates", return_intermediates)
        check_choice("head", head, HEADS)
        vectors, intermediates = self.forward_intermediates(tokens, keep=keep)
        scores = self.forward_tokens(vectors) if head == "tokens" else self.forward_classes(vectors)
        return (scores, intermediates) if return_intermediates else scores
