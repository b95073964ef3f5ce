"""Whole networks to attention and back."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import regard
from regard import data
from regard.convert import ConvolutionalAttention, GaussianConvolution, convert_network
from regard.layers import GaussianAttention, MultiHeadAttention
from regard.models import ResNet18


@pytest.fixture(scope="module")
def resnet():
    torch.manual_seed(0)
    model = ResNet18(10)
    for module in model.modules():  # batch norm as after training: nothing is one or zero
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module")
def images():
    mini = data.load("fashion-mini").train.images[:3].float().div(255).sub(0.5)
    real = nn.functional.pad(mini, (2, 2, 2, 2)).expand(-1, 3, -1, -1)
    return {"random": torch.randn(2, 3, 32, 32), "real": real}


@pytest.mark.parametrize("kind", ["random", "real"])
def test_resnet18_becomes_attention_only_with_the_same_logits(resnet, images, kind):
    x = images[kind]
    before = copy.deepcopy(resnet.state_dict())
    attention, report = convert_network(resnet, example=x)
    assert not any(isinstance(module, nn.Conv2d) for module in attention.modules())
    assert sum(isinstance(module, ConvolutionalAttention) for module in attention.modules()) == 20
    with torch.no_grad():
        expected, found = resnet(x), attention(x)
    assert ((found - expected).abs().max() / expected.abs().max()).item() <= 1e-5
    assert all(row.error <= row.bound for row in report.rows)
    assert len(report.converted) == 20
    assert report.kept == ()
    # The input is left as it was, and the way back is bit for bit.
    after = resnet.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    back, _ = convert_network(attention, to="convolution")
    state = back.state_dict()
    assert list(state) == list(before)
    assert all(torch.equal(state[name], value) for name, value in before.items())
    with torch.no_grad():
        torch.testing.assert_close(back(x), expected, atol=0, rtol=0)


def test_a_spoiled_layer_shows_in_the_logits(resnet, images):
    """The comparison above can fail: a head that looks one pixel aside is seen."""
    attention, _ = convert_network(resnet)
    attention.layer2[0].conv1.pads = ((0, 2), (1, 1))
    with torch.no_grad():
        expected, found = resnet(images["random"]), attention(images["random"])
    assert ((found - expected).abs().max() / expected.abs().max()).item() > 1e-3


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.sharp = GaussianAttention(8, 4, init="grid", sharpness=12.0)
        self.soft = GaussianAttention(8, 4, sharpness=1e-5)
        self.content = MultiHeadAttention(8, 2)

    def forward(self, x):
        x = x + self.sharp(x)
        x = x + self.soft(x.flatten(1, 2), grid=(12, 12)).unflatten(1, (12, 12))
        return x + self.content(x.flatten(1, 2)).unflatten(1, (12, 12))


def test_only_what_is_convolution_becomes_convolution():
    model = Mixed()
    converted, report = convert_network(model, to="convolution", example=torch.randn(2, 12, 12, 8))
    assert isinstance(converted.sharp, GaussianConvolution)
    assert isinstance(converted.soft, GaussianAttention)
    assert isinstance(converted.content, MultiHeadAttention)
    rows = {row.name: row for row in report.rows}
    assert rows["sharp"].error <= rows["sharp"].bound
    assert "so soft" in rows["soft"].note
    assert "by content" in rows["content"].note
    assert report.share == pytest.approx(1 / 3)
    table = str(report)
    assert "1 of 3 layers became convolution" in table
    assert all(name in table for name in rows)


def test_a_module_used_twice_stays_one():
    shared = nn.Conv1d(3, 3, 3, padding=1)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    attention, report = convert_network(model)
    assert attention[0] is attention[2]
    assert len(report.rows) == 1
    x = torch.randn(1, 3, 9)
    torch.testing.assert_close(attention(x), model(x), atol=1e-5, rtol=1e-5)


def test_training_mode_and_batch_statistics_are_left_alone():
    model = nn.Sequential(nn.Conv1d(3, 3, 3), nn.BatchNorm1d(3)).train()
    convert_network(model, example=torch.randn(2, 3, 9))
    assert model.training
    assert model[1].training
    assert torch.equal(model[1].running_mean, torch.zeros(3))


def test_a_model_that_is_one_convolution():
    converted, report = convert_network(nn.Conv1d(2, 3, 3))
    assert isinstance(converted, ConvolutionalAttention)
    assert "(model)" in str(report)


def test_layers_that_cannot_be_expressed_are_kept_with_the_reason():
    model = nn.Sequential(nn.ConvTranspose2d(3, 3, 3), nn.Conv2d(3, 3, 3))
    converted, report = convert_network(model)
    assert isinstance(converted[0], nn.ConvTranspose2d)
    assert "spreads inputs" in report.kept[0].note


def hooked(conv):
    conv.register_forward_hook(lambda module, inputs, output: 2 * output)
    return conv


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
@pytest.mark.parametrize("called", [False, True], ids=["fresh", "called before"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hooked, "has hooks"),
        (nn.utils.spectral_norm, "its weight is no parameter"),
        (nn.utils.weight_norm, "its weight is no parameter"),
        (lambda conv: prune.l1_unstructured(conv, "weight", 0.5), "its weight is no parameter"),
        (lambda conv: prune.l1_unstructured(conv, "bias", 0.5), "its bias is no parameter"),
        (nn.utils.parametrizations.weight_norm, "parametrized"),
        (nn.utils.parametrizations.spectral_norm, "parametrized"),
    ],
)
def test_what_is_added_to_a_convolution_is_kept(change, reason, called):
    """Hooks and computed weights: the layer stays, with everything that can be trained, and computes the same."""
    model = nn.Sequential(change(nn.Conv2d(2, 3, 3)), nn.Conv2d(3, 2, 1)).eval()
    x = torch.randn(1, 2, 6, 6)
    if called:
        model(x)
    converted, report = convert_network(model, example=x)
    torch.testing.assert_close(converted(x), model(x), atol=1e-5, rtol=1e-5)
    assert [row.name for row in report.kept] == ["0"]
    assert reason in report.kept[0].note
    assert [name for name, _ in converted.named_parameters()] == [name for name, _ in model.named_parameters()]
    with torch.no_grad():  # the copy's own weights make its output
        for parameter in converted[0].parameters():
            parameter.normal_()
    assert not torch.allclose(converted(x), model(x), atol=1e-3)


def test_what_is_added_to_attention_is_kept():
    x = torch.randn(1, 2, 6, 6)
    attention, _ = convert_network(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Conv2d(3, 2, 1)))
    hooked(attention[0])
    back, report = convert_network(attention, to="convolution")
    assert [row.name for row in report.kept] == ["0"]
    torch.testing.assert_close(back(x), attention(x), atol=1e-5, rtol=1e-5)


def test_an_error_above_the_bound_is_said_aloud():
    attention, report = convert_network(nn.Sequential(nn.Conv2d(2, 3, 3, padding=1)))
    assert report.beyond == ()
    assert "NOT AS CERTIFIED" not in str(report)
    attention[0].pads = ((0, 2), (1, 1))  # it no longer computes what its weights say
    with pytest.warns(RuntimeWarning, match=r"measured error is above the certified bound in 0 \(error"):
        _, report = convert_network(attention, to="convolution")
    assert [row.name for row in report.beyond] == ["0"]
    assert "NOT AS CERTIFIED" in str(report)


def test_an_error_that_is_not_a_number_is_said_aloud():
    with pytest.warns(RuntimeWarning, match="error nan"):
        convert_network(nn.Conv1d(1, 1, 1), example=torch.full((1, 1, 4), float("nan")))


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(8, 8, 3, padding=1)
        self.gaussian = GaussianAttention(8, 4, init="grid", sharpness=12.0)
        self.content = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        tokens = self.convolution(input=x).flatten(2).mT
        tokens = self.gaussian(grid=(12, 12), x=tokens)
        return self.content(value=tokens, key=tokens, query=tokens)[0]


@pytest.mark.parametrize("to", ["attention", "convolution"])
def test_layers_may_be_called_by_keyword(to):
    model, x = ByKeyword(), torch.randn(2, 8, 12, 12)
    converted, report = convert_network(model, to, example=x)
    assert len(report.converted) == 1
    assert report.converted[0].error <= report.converted[0].bound
    assert converted(x).shape == model(x).shape


@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="to must be one of 'attention', 'convolution', got 'mlp'"):
        convert_network(nn.Conv1d(1, 1, 1), to="mlp")
    with pytest.raises(TypeError, match=r"model must be an nn\.Module"):
        convert_network("resnet")
    with pytest.raises(ValueError, match="tolerance must be"):
        convert_network(nn.Conv1d(1, 1, 1), tolerance=-1)


class ChannelsFirst(nn.Module):
    """Heads in the place of a convolution, called like one."""

    def __init__(self):
        super().__init__()
        self.heads = GaussianAttention(6, 4, head_dim=2, init="grid", sharpness=9.0)

    def forward(self, x):
        return self.heads(x)


def test_heads_that_are_called_with_channels_first_are_measured_so():
    network, x = ChannelsFirst(), torch.randn(2, 6, 12, 14)
    converted, report = convert_network(network, to="convolution", example=x)
    (row,) = report.rows
    error = (converted(x) - network(x)).abs()[..., 1:-1, 1:-1].max().item()
    assert 0 < 0.5 * error <= row.error <= row.bound


def test_a_network_is_converted_where_no_bound_applies():
    network, x = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1)), torch.randn(1, 3, 8, 8)
    heads = ChannelsFirst()
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        converted, report = convert_network(network, example=x)
        _, other = convert_network(heads, to="convolution")
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(converted(x), network(x))
    for row in (*report.rows, *other.rows):
        assert row.bound is None
        assert row.error is not None
        assert "no bound: error_bound does not apply where float32 products may be computed in less" in row.note
    converted, report = convert_network(copy.deepcopy(network).to("meta"))
    assert (report.rows[0].bound, report.rows[0].error) == (None, None)
    assert converted(x.to("meta")).shape == network(x).shape


def test_an_empty_example_and_wide_padding_convert():
    network = nn.Sequential(nn.Conv1d(2, 3, 3, padding=30, padding_mode="reflect"))
    _, report = convert_network(network)
    assert report.rows[0].error <= report.rows[0].bound
    _, report = convert_network(network, example=torch.randn(0, 2, 40))
    assert (report.rows[0].after, report.rows[0].error) == ("attention, 3 heads", None)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (regard.layers.PlacedAttention(4, 2), "attends by content"),
        (regard.conv_to_attention(nn.Conv2d(2, 2, 3), trainable=True), "may have moved from the taps"),
        (regard.layers.SeparableAttention(4, 2), "profiles are not Gaussian"),
    ],
    ids=["placed", "trainable", "separable"],
)
def test_attention_that_is_no_convolution_is_listed_with_the_reason(layer, reason):
    network, report = convert_network(nn.Sequential(layer), to="convolution")
    assert [row.after for row in report.rows] == ["kept"]
    assert reason in report.rows[0].note
    assert type(network[0]) is type(layer)
