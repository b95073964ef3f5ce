"""Models: everything that is trained, compared or converted here."""

from regard.models._pretrained import Pretrained as Pretrained
from regard.models._resnet import ResNet18 as ResNet18
from regard.models._vision_transformer import VisionTransformer as VisionTransformer
