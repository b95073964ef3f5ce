"""ResNet-18: the count of the CIFAR form, torchvision's names and outputs of the other."""

import pytest
import torch

from regard.models import ResNet18


def test_parameter_count():
    with torch.device("meta"):
        model = ResNet18()
    assert sum(parameter.numel() for parameter in model.parameters()) == 11_173_962


def test_torchvision_weights_give_its_outputs(timm):  # the fixture makes torchvision importable
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=7).double().eval()
    for buffer in theirs.buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
    ours = ResNet18(7, stem="imagenet").double().eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 48, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    ours.train(), theirs.train()
    torch.testing.assert_close(ours(images), theirs(images))
    torch.testing.assert_close(ours.layer3[0].bn1.running_var, theirs.layer3[0].bn1.running_var)


@pytest.mark.parametrize("size", [(32, 32), (8, 20)])
def test_shapes(size):
    model = ResNet18(5, channels=1, width=4).eval()
    features = model.forward_features(torch.randn(2, 1, *size))
    assert features.shape == (2, 32, (size[0] + 7) // 8, (size[1] + 7) // 8)
    assert model.forward_head(features).shape == (2, 5)
    assert ResNet18(0, width=4).eval()(torch.randn(2, 3, 8, 8)).shape == (2, 32)


def test_bad_input(user_errors):
    with pytest.raises(ValueError, match="stem must be one of 'cifar', 'imagenet'"):
        ResNet18(stem="small")
    with pytest.raises(ValueError, match="must have 3 channels"):
        ResNet18(width=4)(torch.ones(1, 1, 8, 8))
    with pytest.raises(ValueError, match="must have 4"):
        ResNet18(width=4)(torch.ones(3, 8, 8))
