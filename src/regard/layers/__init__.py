"""Layers: attention and the other parts of a transformer."""

from regard.layers._absolute_positions import AbsolutePositionalEmbedding as AbsolutePositionalEmbedding
from regard.layers._additive import AdditiveAttention as AdditiveAttention
from regard.layers._block_linear import BlockLinear as BlockLinear
from regard.layers._blocks import DecoderBlock as DecoderBlock
from regard.layers._blocks import DecoderCache as DecoderCache
from regard.layers._blocks import DecoderWeights as DecoderWeights
from regard.layers._blocks import EncoderBlock as EncoderBlock
from regard.layers._cache import KeyValueCache as KeyValueCache
from regard.layers._feed_forward import FeedForward as FeedForward
from regard.layers._gated import GatedPositionalAttention as GatedPositionalAttention
from regard.layers._gaussian_attention import GaussianAttention as GaussianAttention
from regard.layers._gaussian_heads import GaussianHeads as GaussianHeads
from regard.layers._grids import flat_tokens as flat_tokens
from regard.layers._grids import like_input as like_input
from regard.layers._layer_norm import LayerNorm as LayerNorm
from regard.layers._multi_head import MultiHeadAttention as MultiHeadAttention
from regard.layers._patches import PatchEmbedding as PatchEmbedding
from regard.layers._placed import PlacedAttention as PlacedAttention
from regard.layers._pooling import AttentionPooling as AttentionPooling
from regard.layers._pooling import AveragePooling as AveragePooling
from regard.layers._pooling import ClassTokenPooling as ClassTokenPooling
from regard.layers._relative import RelativeAttention as RelativeAttention
from regard.layers._relative import RelativePositionalEmbedding as RelativePositionalEmbedding
from regard.layers._separable import SeparableAttention as SeparableAttention
from regard.layers._torch_masks import keep_from_torch as keep_from_torch
