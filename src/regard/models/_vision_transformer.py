"""The vision transformer: patches of an image as tokens of an encoder."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import (
    AbsolutePositionalEmbedding,
    AttentionPooling,
    AveragePooling,
    ClassTokenPooling,
    EncoderBlock,
    LayerNorm,
    PatchEmbedding,
    PlacedAttention,
)
from regard.models._pretrained import Pretrained
from regard.models._relative_bias import RelativeBias
from regard.models._timm import read_timm
from regard.support.checks import (
    check_choice,
    check_count,
    check_depth,
    check_flag,
    check_probability,
    check_sides,
    static_sizes,
)

POOLS = ("class", "average", "attention")
EPSILON = 1e-6  # of the layer norms, as in timm
POSITIONS = ("learned", "sinusoidal", "relative", "placed", "none")
Images = Float[Tensor, "batch channels height width"]
Tokens = Float[Tensor, "batch tokens dim"]


class VisionTransformer(Pretrained):
    r"""An image is divided into patches, an encoder attends among them, and a pooled vector predicts the class.

    .. math:: z = (\text{prefix}, \text{patches}(x) + p), \qquad z \leftarrow \text{block}_l(z), \qquad
        y = W\,\mathrm{pool}(\mathrm{norm}(z)) + b

    Args:
        image_size: height and width of the images, or one number for both. ``forward`` also takes other
            multiples of the patch: learned positions are interpolated.
        patch_size: height and width of a patch, or one number for both.
        num_classes: number of classes; 0 leaves the last layer out.
        channels: channels of the images.
        dim: width of the tokens.
        depth: number of blocks.
        heads: attention heads of each block.
        hidden: width inside the feed-forward networks, default ``4 · dim``.
        pool: ``"class"``: a learned token is put before the patches and read at the end; ``"average"`` of the patches,
            normalized afterwards; ``"attention"``: a learned query attends to the patches.
        positions: ``"learned"``, ``"sinusoidal"``, ``"none"``: a vector is added to each patch, or none is;
            ``"relative"``: each block's heads have a learned bias for each offset between two patches; ``"placed"``:
            each head looks for content near a learned offset, on any grid (:class:`PlacedAttention`).
        registers: number of further learned tokens before the patches, which the output does not read.
        dropout: probability of dropping, in training, attention weights, hidden features and sub-layer outputs.

    ``prefix_tokens`` is the number of tokens before the patches, ``grid`` the rows and columns of patches.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, num_classes)``.

    >>> from regard.models import VisionTransformer
    >>> model = VisionTransformer(32, 4, 10, dim=64, depth=2, heads=4).eval()
    >>> images = torch.randn(2, 3, 32, 32)
    >>> model(images).shape, model.grid_for(48), model.prefix_tokens
    (torch.Size([2, 10]), (12, 12), 1)
    >>> logits, tokens = model(images, return_intermediates=True)
    >>> len(tokens), tokens[-1].shape
    (2, torch.Size([2, 65, 64]))
    """

    def __init__(
        self,
        image_size: int | Sequence[int],
        patch_size: int | Sequence[int],
        num_classes: int,
        *,
        channels: int = 3,
        dim: int = 192,
        depth: int = 12,
        heads: int = 3,
        hidden: int | None = None,
        pool: str = "class",
        positions: str = "learned",
        registers: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_depth("depth", depth)
        check_choice("pool", pool, POOLS)
        check_choice("positions", positions, POSITIONS)
        check_probability("dropout", dropout)
        check_count("num_classes", num_classes)
        check_count("registers", registers)
        self.dim, self.pool_kind, self.position_kind = dim, pool, positions
        self.patches = PatchEmbedding(patch_size, dim, channels=channels)
        self.grid = self.grid_for(image_size)
        self.prefix_tokens = registers + (pool == "class")
        self.positions: AbsolutePositionalEmbedding | None = None
        if positions in ("learned", "sinusoidal"):
            self.positions = AbsolutePositionalEmbedding(
                dim, self.grid, kind=positions, interpolate=positions == "learned"
            )
        self.registers = nn.Parameter(torch.empty(registers, dim)) if registers else None
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                dim, heads, hidden, dropout=dropout, epsilon=EPSILON,
                attention=PlacedAttention(dim, heads, dropout=dropout) if positions == "placed" else None,
            )
            for _ in range(depth)
        )  # fmt: skip
        self.biases: nn.ModuleList | None = None
        if positions == "relative":
            self.biases = nn.ModuleList(RelativeBias(heads, self.grid, prefix=self.prefix_tokens) for _ in range(depth))
        self.norm = LayerNorm(dim, epsilon=EPSILON)
        self.pooling: nn.Module
        if pool == "class":
            self.pooling = ClassTokenPooling(dim)
        elif pool == "average":
            self.pooling = AveragePooling()
        else:
            self.pooling = AttentionPooling(dim, heads, hidden, dropout=dropout, epsilon=EPSILON)
        self.head = nn.Linear(dim, num_classes) if num_classes else nn.Identity()

    @classmethod
    def from_timm(
        cls,
        source: nn.Module | Mapping[str, Tensor],
        *,
        heads: int | None = None,
        image_size: int | Sequence[int] | None = None,
    ) -> "VisionTransformer":
        """The model that equals a timm vision transformer, given as the module, or as its state and the number of heads.
        Outputs in evaluation mode are the same. Its dropout is not copied.

        Layer scales become part of the linear layers before them, and the position of the class token becomes part of
        the token. Models with other parts (norms of queries and keys, other activations or blocks) are refused.
        """
        arguments, state = read_timm(source, heads, image_size, EPSILON)
        with torch.device("meta"):  # no memory for initial weights that nobody uses
            model = cls(**arguments)
        model.load_state_dict({name: tensor.detach().clone() for name, tensor in state.items()}, assign=True)
        return model.train(source.training) if isinstance(source, nn.Module) else model

    def grid_for(self, image_size: int | Sequence[int]) -> tuple[int, int]:
        """Rows and columns of patches in an image of this size."""
        return self.patches.grid(*check_sides("image_size", image_size))

    def forward_intermediates(self, images: Images) -> tuple[Tokens, list[Tokens]]:
        """The output of :meth:`forward_features`, and the tokens after every block, without the norm."""
        x = self.patches(images)
        grid = self.patches.grid(*static_sizes(images)[2:])
        if self.positions is not None:
            x = self.positions(x, grid=grid)
        if self.registers is not None:
            x = torch.cat([self.registers.to(x.dtype).expand(x.shape[0], -1, -1), x], 1)
        if isinstance(self.pooling, ClassTokenPooling):
            x = self.pooling.prepend(x)
        x = self.dropout(x)
        intermediates = []
        for i, block in enumerate(self.blocks):
            options: dict[str, Any] = {}
            if self.biases is not None:
                options["bias"] = self.biases[i](grid).to(x.dtype)
            elif self.position_kind == "placed":
                options = {"grid": grid, "prefix": self.prefix_tokens}
            x = block(x, **options)
            intermediates.append(x)
        return x if self.pool_kind == "average" else self.norm(x), intermediates

    def forward_features(self, images: Images) -> Tokens:
        """Tokens ``(batch, prefix + patches, dim)``, normalized unless ``pool="average"``, which normalizes the average."""
        return self.forward_intermediates(images)[0]

    def pool(self, tokens: Tokens) -> Float[Tensor, "batch dim"]:
        """One vector for each image."""
        if self.pool_kind == "class":
            return self.pooling(tokens)
        return self.pooling(tokens[:, self.prefix_tokens :])

    def forward_head(self, tokens: Tokens) -> Float[Tensor, "batch num_classes"]:
        """From the output of ``forward_features`` to the logits."""
        pooled = self.pool(tokens)
        return self.head(self.norm(pooled) if self.pool_kind == "average" else pooled)

    def forward(
        self, images: Images, *, return_intermediates: bool = False
    ) -> Float[Tensor, "batch num_classes"] | tuple[Float[Tensor, "batch num_classes"], list[Tokens]]:
        """
        Args:
            images: ``(batch, channels, height, width)``.
            return_intermediates: also return the tokens after each block, prefix tokens first.
        """
        check_flag("return_intermediates", return_intermediates)
        tokens, intermediates = self.forward_intermediates(images)
        logits = self.forward_head(tokens)
        return (logits, intermediates) if return_intermediates else logits
