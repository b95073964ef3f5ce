"""The check of a map allows for the rounding of the products that the model really computes."""

import pytest
import torch
from torch import nn

import regard


class DividedLater(nn.Module):
    """A softmax whose sum is divided by after the product with the values, with a bias for each head."""

    num_heads = 2

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)
        self.bias = nn.Parameter(torch.randn(2, 12, 12))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / 2 + self.bias
        grown = (scores - scores.amax(-1, keepdim=True)).exp()
        return self.proj((grown @ v / grown.sum(-1, keepdim=True)).transpose(1, 2).flatten(2))


def test_a_product_in_half_precision_that_is_divided_in_single_precision_agrees():
    torch.manual_seed(0)
    model, x = DividedLater(), torch.randn(3, 12, 8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), regard.capture(model) as maps:
        model(x)  # a warning would be an error here
    assert maps[0].agrees
    with torch.no_grad(), regard.capture(model) as exact:
        model(x)
    assert exact[0].residual < 1e-6 < maps[0].residual


def test_a_wrong_map_under_autocast_does_not_agree(spoiled):
    torch.manual_seed(0)
    model, x = DividedLater(), torch.randn(3, 12, 8)
    autocast = torch.autocast("cpu", torch.bfloat16)
    with pytest.warns(UserWarning, match="do not reproduce"), torch.no_grad(), autocast, regard.capture(model) as maps:
        model(x)
    assert not maps[0].agrees


class Logarithms(nn.Module):
    """A softmax by way of its logarithm."""

    num_heads = 2

    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        self.weights = (q @ k.mT / 2).log_softmax(-1).exp()
        return self.proj((self.weights @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_exponentials_of_the_logarithm_of_a_softmax_are_a_map_in_any_precision(dtype):
    torch.manual_seed(0)
    model = Logarithms().to(dtype)
    for _ in range(10):  # rounding differs from input to input
        with torch.no_grad(), regard.capture(model) as maps:
            model(torch.randn(4, 40, 8, dtype=dtype))
        assert not maps.missed
        torch.testing.assert_close(maps[0].weights, model.weights.float())
