"""Models that are trained, compared or converted here.

All models use the same argument names in the same order: first the input and output
(``image_size``, ``patch_size``, ``num_classes``, as timm calls them; ``vocab_size`` for text), then ``channels`` or
``length``, then the size of the network (``dim``, ``depth``, ``heads``, ``hidden``), then the options of that model, and
``dropout`` last.
"""

from regard.models._image_attention import AttentionSettings as AttentionSettings
from regard.models._image_encoder import ImageEncoder as ImageEncoder
from regard.models._image_encoder import paper_image_encoder as paper_image_encoder
from regard.models._onnx import export_onnx as export_onnx
from regard.models._plain_vision_transformer import PlainVisionTransformer as PlainVisionTransformer
from regard.models._pretrained import Pretrained as Pretrained
from regard.models._pyramid import AttentionPyramid as AttentionPyramid
from regard.models._resnet import ResNet18 as ResNet18
from regard.models._seq2seq import Seq2SeqRNN as Seq2SeqRNN
from regard.models._text_encoder import TextEncoder as TextEncoder
from regard.models._timm_attention import TimmGaussianAttention as TimmGaussianAttention
from regard.models._timm_attention import register_in_timm as register_in_timm
from regard.models._transformer import Transformer as Transformer
from regard.models._transformer import TransformerWeights as TransformerWeights
from regard.models._transformer import character_gpt as character_gpt
from regard.models._vision_transformer import VisionTransformer as VisionTransformer
