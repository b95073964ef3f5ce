"""Text and image in one model: every word of a caption looks at the patches of a picture."""

from collections.abc import Sequence

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.layers import (
    AbsolutePositionalEmbedding,
    AveragePooling,
    DecoderBlock,
    DecoderWeights,
    EncoderBlock,
    LayerNorm,
    PatchEmbedding,
)
from regard.models._pretrained import Pretrained
from regard.models._tokens import as_attention_keep, check_keep, check_token_numbers
from regard.support.checks import check_count, check_positive, check_probability, check_sides

Keep = Bool[Tensor, "batch tokens"]


class TextImageFusion(Pretrained):
    r"""Two inputs of different length and width, brought together by cross-attention.

    .. math:: Z = \mathrm{encoder}(\text{patches}(x) + p) \in \mathbb R^{n \times d_i}, \qquad
        T \leftarrow \text{block}_l(T, Z) \in \mathbb R^{t \times d_t}, \qquad y = W \operatorname{mean}(T) + b

    In each of the blocks the tokens of the text look at each other, then at those of the image.

    Args:
        vocab_size: number of text tokens.
        image_size: height and width of the images, or one number for both.
        patch_size: height and width of a patch, or one number for both.
        num_classes: number of classes of a pair, such as 2: the text describes the image, or it does not.
        channels: channels of the images.
        length: the longest text.
        text_dim, image_dim: widths of the two kinds of tokens.
        heads: attention heads; they divide both widths.
        image_depth, depth: number of blocks of the image alone, and of those in which the text looks at it.
        dropout: probability of dropping, in training, attention weights, hidden features and sub-layer outputs.

    Shapes: token numbers ``(batch, t)`` and images ``(batch, channels, height, width)`` to ``(batch, num_classes)``.

    >>> from regard.models import TextImageFusion
    >>> model = TextImageFusion(60, (28, 56), 7, text_dim=16, image_dim=24, heads=2, depth=1).eval()
    >>> tokens, images = torch.randint(60, (2, 8)), torch.randn(2, 1, 28, 56)
    >>> scores, maps = model(tokens, images, return_weights=True)
    >>> scores.shape, maps[0].cross_attention.shape
    (torch.Size([2, 2]), torch.Size([2, 2, 8, 32]))
    """

    prefix_tokens = 0

    def __init__(
        self,
        vocab_size: int,
        image_size: int | Sequence[int],
        patch_size: int | Sequence[int],
        num_classes: int = 2,
        *,
        channels: int = 1,
        length: int = 16,
        text_dim: int = 64,
        image_dim: int = 96,
        heads: int = 4,
        image_depth: int = 1,
        depth: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, size in (("vocab_size", vocab_size), ("num_classes", num_classes), ("depth", depth)):
            check_positive(name, size)
        check_probability("dropout", dropout)
        check_count("image_depth", image_depth)
        self.vocab_size = vocab_size
        self.patches = PatchEmbedding(patch_size, image_dim, channels=channels)
        self.grid = self.patches.grid(*check_sides("image_size", image_size))
        self.image_positions = AbsolutePositionalEmbedding(image_dim, self.grid, interpolate=True)
        self.image_blocks = nn.ModuleList(EncoderBlock(image_dim, heads, dropout=dropout) for _ in range(image_depth))
        self.image_norm = LayerNorm(image_dim)
        self.embedding = nn.Embedding(vocab_size, text_dim)
        nn.init.trunc_normal_(self.embedding.weight, std=0.02)
        self.text_positions = AbsolutePositionalEmbedding(text_dim, length)
        self.blocks = nn.ModuleList(
            DecoderBlock(text_dim, heads, dropout=dropout, memory_dim=image_dim) for _ in range(depth)
        )
        self.norm = LayerNorm(text_dim)
        self.pooling = AveragePooling()
        self.head = nn.Linear(text_dim, num_classes)

    def encode_images(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch patches image_dim"]:
        """The patches after their own blocks."""
        x = self.image_positions(self.patches(images), grid=self.patches.grid(images.shape[2], images.shape[3]))
        for block in self.image_blocks:
            x = block(x)
        return self.image_norm(x)

    def forward(
        self,
        tokens: Int[Tensor, "batch tokens"],
        images: Float[Tensor, "batch channels height width"],
        *,
        keep: Keep | None = None,
        return_weights: bool = False,
    ) -> Float[Tensor, "batch num_classes"] | tuple[Float[Tensor, "batch num_classes"], list[DecoderWeights]]:
        """
        Args:
            tokens: ``(batch, t)``.
            images: ``(batch, channels, height, width)``.
            keep: True on the text's tokens, False on its padding.
            return_weights: also return, for each block, where the text looks: at itself ``(batch, heads, t, t)`` and
                at the image ``(batch, heads, t, patches)``.
        """
        check_token_numbers("tokens", tokens, self.vocab_size)
        check_keep("keep", keep, tokens)
        memory = self.encode_images(images)
        if memory.shape[0] != tokens.shape[0]:
            raise ValueError(f"images has batch size {memory.shape[0]} but tokens has {tokens.shape[0]}")
        x = self.text_positions(self.embedding(tokens))
        maps = []
        for block in self.blocks:
            if return_weights:
                x, weights = block(x, memory, causal=False, keep=as_attention_keep(keep), return_weights=True)
                maps.append(weights)
            else:
                x = block(x, memory, causal=False, keep=as_attention_keep(keep))
        scores = self.head(self.pooling(self.norm(x), keep=keep))
        return (scores, maps) if return_weights else scores
