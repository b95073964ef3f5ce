"""Our layers inside other people's tools: tracing, ONNX, quantization, LoRA, torch.func, FSDP; channels first."""

import copy
import io
import os
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import regard
from regard.layers import (
    EncoderBlock,
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    RelativeAttention,
    SeparableAttention,
)

SHARP = {"init": "grid", "sharpness": 9.0}
LAYERS = {
    "gaussian": (lambda: GaussianAttention(12, 4), (2, 5, 6, 12)),
    "full width": (lambda: GaussianAttention(12, 9, full_width=True, init="grid"), (2, 5, 6, 12)),
    "gated": (lambda: GatedPositionalAttention(12, 4), (2, 5, 6, 12)),
    "content": (lambda: MultiHeadAttention(12, 4), (2, 7, 12)),
    "block": (lambda: EncoderBlock(12, 2), (2, 7, 12)),
    "from convolution": (lambda: regard.conv_to_attention(nn.Conv2d(4, 6, 3, padding=1), plan="attention"), (2, 4, 8, 8)),
    "trainable": (lambda: regard.conv_to_attention(nn.Conv2d(4, 6, 3, padding=1), trainable=True), (2, 4, 8, 8)),
    "to convolution": (lambda: regard.attention_to_conv(GaussianAttention(12, 4, **SHARP)), (2, 11, 13, 12)),
}  # fmt: skip
WITH_LINEAR = ["gaussian", "full width", "gated", "content", "block"]
every_layer = pytest.mark.parametrize("name", LAYERS)
pytestmark = pytest.mark.usefixtures("user_errors")  # the shape checks of the tests are no part of what is traced


def made(name):
    make, shape = LAYERS[name]
    return make().eval(), torch.randn(shape)


@pytest.fixture
def quiet():
    """Torch warns that a trace is for one shape, that a fused kernel has no batching rule, that an output is a view."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@every_layer
@pytest.mark.usefixtures("quiet")
def test_traced(name):
    layer, x = made(name)
    traced = torch.jit.trace(layer, (x,))
    other = torch.randn_like(x)
    torch.testing.assert_close(traced(other), layer(other))


@every_layer
@pytest.mark.usefixtures("quiet")
def test_onnx_by_torchscript(name):
    """A layer with keyword-only arguments goes into a network first: the exporter passes their defaults by position."""
    onnxruntime = pytest.importorskip("onnxruntime")
    layer, x = made(name)
    file = io.BytesIO()
    torch.onnx.export(nn.Sequential(layer), (x,), file, dynamo=False)
    session = onnxruntime.InferenceSession(file.getvalue())
    other = torch.randn_like(x)
    [found] = session.run(None, {session.get_inputs()[0].name: other.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), layer(other).detach(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", WITH_LINEAR)
@pytest.mark.usefixtures("quiet")
def test_quantized(name):
    layer, x = made(name)
    quantized = torch.ao.quantization.quantize_dynamic(copy.deepcopy(layer), {nn.Linear}, dtype=torch.qint8)
    assert any("quantized" in type(module).__module__ for module in quantized.modules())
    assert not torch.equal(quantized(x), layer(x))
    torch.testing.assert_close(quantized(x), layer(x), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", WITH_LINEAR)
@pytest.mark.usefixtures("quiet", "transformers")
def test_lora(name):
    """Every linear layer gets an adapter, which starts at zero, is trained, and can be merged."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra: parity)")
    layer, x = made(name)
    linear = [path for path, module in layer.named_modules() if isinstance(module, nn.Linear)]
    adapted = peft.get_peft_model(copy.deepcopy(layer), peft.LoraConfig(r=2, target_modules=linear))
    torch.testing.assert_close(adapted(x), layer(x))
    optimizer = torch.optim.SGD([each for each in adapted.parameters() if each.requires_grad], lr=0.01)
    for _ in range(2):  # the first step moves B alone, for A times zero has no gradient
        optimizer.zero_grad()
        adapted(x).square().sum().backward()
        optimizer.step()
    trained = adapted.eval()(x)
    assert not torch.allclose(trained, layer(x))
    torch.testing.assert_close(adapted.merge_and_unload()(x), trained, atol=1e-4, rtol=1e-4)


def test_lora_on_cross_attention(transformers):
    """One adapter on a packed projection, which queries and keys use apart."""
    peft = pytest.importorskip("peft", reason="peft is not installed (extra: parity)")
    layer, x, context = MultiHeadAttention(12, 4), torch.randn(2, 5, 12), torch.randn(2, 3, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = peft.get_peft_model(copy.deepcopy(layer), peft.LoraConfig(r=2, target_modules=["qkv"]))
    torch.testing.assert_close(adapted(x, context), layer(x, context))


class Doubled(nn.Module):
    def forward(self, weight):
        return 2 * weight


@every_layer
def test_parametrized(name):
    """Every parameter, centers too."""
    layer, x = made(name)
    doubled, parametrized = copy.deepcopy(layer), copy.deepcopy(layer)
    with torch.no_grad():
        for parameter in doubled.parameters():
            parameter.mul_(2)
    for module in list(parametrized.modules()):
        for own in list(dict(module.named_parameters(recurse=False))):
            parametrize.register_parametrization(module, own, Doubled())
    torch.testing.assert_close(parametrized(x), doubled(x))


@every_layer
@pytest.mark.usefixtures("quiet")
def test_gradients_of_each_sample_by_torch_func(name):
    layer, x = made(name)
    parameters = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().mean()

    each = torch.func.vmap(torch.func.grad(lambda p, x: loss(p, x[None])), (None, 0))(parameters, x)
    alone = torch.func.grad(loss)(parameters, x[1:])
    for key, value in alone.items():
        torch.testing.assert_close(each[key][1], value)


@pytest.fixture(scope="module")
def one_process():
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29577", "RANK": "0", "WORLD_SIZE": "1"}.items():
            patch.setitem(os.environ, key, value)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.destroy_process_group()


@every_layer
@pytest.mark.usefixtures("quiet")
def test_sharded(name, one_process):
    """FSDP gathers parameters before a layer's own call, and the gradients are those of the plain layer."""
    from torch.distributed.fsdp import fully_shard

    layer, x = made(name)
    sharded = fully_shard(copy.deepcopy(layer), mesh=one_process)
    out = sharded(x)
    torch.testing.assert_close(out, layer(x))
    out.square().sum().backward()
    layer(x).square().sum().backward()
    for (key, ours), theirs in zip(sharded.named_parameters(), layer.parameters(), strict=True):
        assert type(ours).__name__ == "DTensor", key
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


def grid_layers():
    return {
        "gaussian": GaussianAttention(12, 4, out_dim=10),
        "gated": GatedPositionalAttention(12, 4),
        "relative": RelativeAttention(12, 4, extent=(7, 7)),
        "separable": SeparableAttention(12, 4),
        "convolution": regard.attention_to_conv(GaussianAttention(12, 4, **SHARP)),
    }


@pytest.mark.parametrize("name", grid_layers())
class TestChannelsFirst:
    def test_the_width_tells(self, name):
        layer, x = grid_layers()[name], torch.randn(2, 5, 6, 12)
        torch.testing.assert_close(layer(x.movedim(-1, 1)), layer(x).movedim(-1, 1))
        torch.testing.assert_close(layer(x, grid=(5, 6)), layer(x))
        torch.testing.assert_close(layer(x.flatten(1, 2), grid=(5, 6)), layer(x).flatten(1, 2))

    def test_where_it_does_not_the_input_is_refused(self, name):
        layer, x = grid_layers()[name], torch.randn(2, 12, 6, 12)
        with pytest.raises(ValueError, match=r"\(2, 12, 6, 12\), whose second and last .* grid=\(12, 6\) .* permute"):
            layer(x)
        if name != "relative":  # whose table is for 7 × 7
            assert layer(x, grid=(12, 6)).shape[:3] == (2, 12, 6)

    @pytest.mark.parametrize("shape", [(2, 5, 6, 11), (2, 30, 12), (12,)])
    def test_what_was_passed_is_quoted(self, name, shape):
        words = r"(permute|pass grid=|must be)"
        with pytest.raises(ValueError, match=rf"x has shape \({', '.join(map(str, shape))},?\).*{words}"):
            grid_layers()[name](torch.randn(shape))


def test_channels_first_on_one_axis():
    layer, x = GaussianAttention(12, 4, axes=1), torch.randn(2, 7, 12)
    torch.testing.assert_close(layer(x.mT), layer(x).mT)
    torch.testing.assert_close(layer(x, grid=(7,)), layer(x))
    square = torch.randn(2, 12, 12)  # sequences are (batch, tokens, width), of any length
    torch.testing.assert_close(layer(square), layer(square, grid=(12,)))


@pytest.mark.parametrize(
    "call",
    [
        lambda x: GaussianAttention(12, 4)(x, grid=(5, 7)),
        lambda x: MultiHeadAttention(12, 4)(x),
        lambda x: MultiHeadAttention(12, 4)(x.mT, context=x),
    ],
)
def test_channels_first_tokens_are_refused_with_what_would_fit(call):
    with pytest.raises(ValueError, match=r"\(2, 12, 35\).*channels first, pass (x|context)\.movedim\(1, -1\)"):
        call(torch.randn(2, 12, 35))


def test_an_array_of_another_library_is_described_not_printed():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"x must be a tensor, got a ndarray of float64 and shape \(2, 35, 12\)$"):
        MultiHeadAttention(12, 4)(numpy.zeros((2, 35, 12)))


def test_timm_takes_gaussian_heads_by_name(timm):
    regard.models.register_in_timm()
    options = {
        "img_size": 32,
        "embed_dim": 16,
        "depth": 2,
        "num_classes": 3,
        "class_token": False,
        "global_pool": "avg",
    }
    model = timm.create_model("vit_tiny_patch16_224", patch_size=8, num_heads=4, attn_layer="gaussian", **options)
    x = torch.randn(2, 3, 32, 32)
    with regard.capture(model) as maps:
        assert model(x).shape == (2, 3)
    assert [found.weights.shape for found in maps.values()] == [(2, 4, 16, 16)] * 2
    wrong = timm.create_model(
        "vit_tiny_patch16_224", patch_size=8, num_heads=4, attn_layer="gaussian", **{**options, "class_token": True}
    )
    with pytest.raises(ValueError, match="build the model with class_token=False"):
        wrong(x)
