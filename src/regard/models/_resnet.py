"""ResNet-18: the convolutional baseline, to compare with and to convert."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.models._pretrained import Pretrained
from regard.support.checks import check_choice, check_count, check_dtype, check_positive
from regard.support.image_checks import check_images

STEMS = ("cifar", "imagenet")


class BasicBlock(nn.Module):
    r"""Two 3×3 convolutions with a shortcut around them.

    .. math:: y = \mathrm{relu}\bigl(s(x) + \mathrm{bn}(W_2 * \mathrm{relu}(\mathrm{bn}(W_1 * x)))\bigr)

    s is the identity or, where the shape changes, a 1×1 convolution with the same stride.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Sequential | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Float[Tensor, "batch _ _ _"]) -> Float[Tensor, "batch _ _ _"]:
        change = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(change + (x if self.downsample is None else self.downsample(x)))


class ResNet18(Pretrained):
    """Four stages of two blocks each, 64 to 512 channels wide, then the average over all positions and a linear layer.

    The parameters have the names of torchvision, so its weights can be loaded (with ``stem="imagenet"``).

    Args:
        num_classes: number of classes; 0 leaves the last layer out.
        channels: channels of the images.
        width: channels of the first stage.
        stem: ``"cifar"``: a 3×3 convolution, for small images; ``"imagenet"``: a 7×7 one with stride 2 and pooling.

    Shapes: images ``(batch, channels, height, width)`` to ``(batch, num_classes)``, images of any size.

    >>> from regard.models import ResNet18
    >>> sum(parameter.numel() for parameter in ResNet18(num_classes=10).parameters())
    11173962
    """

    def __init__(self, num_classes: int = 10, *, channels: int = 3, width: int = 64, stem: str = "cifar") -> None:
        super().__init__()
        check_count("num_classes", num_classes)
        check_positive("channels", channels)
        check_positive("width", width)
        check_choice("stem", stem, STEMS)
        self.channels, self.stem = channels, stem
        if stem == "cifar":
            self.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        else:
            self.conv1 = nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = _stage(width, width, 1)
        self.layer2 = _stage(width, 2 * width, 2)
        self.layer3 = _stage(2 * width, 4 * width, 2)
        self.layer4 = _stage(4 * width, 8 * width, 2)
        self.fc = nn.Linear(8 * width, num_classes) if num_classes else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward_features(
        self, images: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch features rows columns"]:
        check_images(images, self.channels)
        check_dtype("images", images, self.conv1.weight)
        x = F.relu(self.bn1(self.conv1(images)))
        if self.stem == "imagenet":
            x = F.max_pool2d(x, 3, stride=2, padding=1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))

    def pool(self, features: Float[Tensor, "batch features rows columns"]) -> Float[Tensor, "batch features"]:
        return features.mean((-2, -1))

    def forward_head(
        self, features: Float[Tensor, "batch features rows columns"]
    ) -> Float[Tensor, "batch num_classes"]:
        return self.fc(self.pool(features))

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch num_classes"]:
        return self.forward_head(self.forward_features(images))


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1))
