"""Every layer is compiled whole, exported, autocast, and differentiated exactly."""

import pytest
import torch
from torch import nn

from regard import MultiHeadAttention
from regard.layers import (
    AbsolutePositionalEmbedding,
    AdditiveAttention,
    AttentionPooling,
    AveragePooling,
    BlockLinear,
    ClassTokenPooling,
    DecoderBlock,
    EncoderBlock,
    FeedForward,
    KeyValueCache,
    LayerNorm,
    PatchEmbedding,
)

X, CONTEXT = (2, 5, 8), (2, 3, 8)
KEEP = torch.tensor([True, False, True, True, True]).expand(5, 5)
LAYERS = {
    "self": (lambda: MultiHeadAttention(8, 2), [X], {"causal": True}),
    "masked": (lambda: MultiHeadAttention(8, 4, key_value_heads=2), [X], {"keep": KEEP, "causal": True}),
    "cross": (lambda: MultiHeadAttention(8, 2, context_dim=8, head_dim=3), [X, CONTEXT], {}),
    "widths": (lambda: MultiHeadAttention(8, 2, context_dim=6), [X, (2, 3, 6)], {}),
    "slices": (lambda: MultiHeadAttention(8, 2, slice_heads=True), [X], {}),
    "weights": (lambda: MultiHeadAttention(8, 2), [X], {"keep": KEEP, "return_weights": True}),
    "block linear": (lambda: BlockLinear(8, 6, 2), [X], {}),
    "additive": (lambda: AdditiveAttention(8, 8), [X, CONTEXT], {"return_weights": True}),
    "feed-forward": (lambda: FeedForward(8, activation="gelu_tanh"), [X], {}),
    "layer norm": (lambda: LayerNorm(8), [X], {}),
    "encoder": (lambda: EncoderBlock(8, 2), [X], {"keep": KEEP}),
    "decoder": (lambda: DecoderBlock(8, 2, norm="post"), [X, CONTEXT], {}),
    "sinusoidal": (lambda: AbsolutePositionalEmbedding(8, kind="sinusoidal"), [X], {}),
    "learned": (lambda: AbsolutePositionalEmbedding(8, (5, 1), interpolate=True), [(2, 6, 8)], {"grid": (3, 2)}),
    "one-hot": (lambda: AbsolutePositionalEmbedding(8, 6, kind="one-hot", combine="concatenate"), [X], {}),
    "patches": (lambda: PatchEmbedding((2, 3), 4), [(2, 3, 4, 6)], {}),
    "class token": (lambda: ClassTokenPooling(8), [X], {}),
    "average": (AveragePooling, [X], {"keep": KEEP[:2]}),
    "attention pooling": (lambda: AttentionPooling(8, 2), [X], {"keep": KEEP[:2]}),
}
every_layer = pytest.mark.parametrize("name", LAYERS)


def made(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, list[torch.Tensor], dict]:
    make, shapes, options = LAYERS[name]
    return make().to(dtype), [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes], options


def outputs(result: torch.Tensor | tuple) -> list[torch.Tensor]:
    return [result] if isinstance(result, torch.Tensor) else list(result)


@every_layer
def test_gradients_are_exact(name):
    layer, inputs, options = made(name)
    assert torch.autograd.gradcheck(lambda *inputs: tuple(outputs(layer(*inputs, **options))), inputs)


@pytest.fixture
def as_compiled(user_errors):
    """Without the run-time shape checks of the tests, which are no part of what a user compiles, and from scratch."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@every_layer
@pytest.mark.usefixtures("as_compiled")
def test_compiles_as_one_graph(name):
    layer, inputs, options = made(name)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    torch.testing.assert_close(outputs(compiled(*inputs, **options)), outputs(layer(*inputs, **options)))


@pytest.mark.usefixtures("as_compiled")
def test_compiled_code_gives_the_same_values_and_gradients():
    layer, x = EncoderBlock(8, 2).double(), torch.randn(X, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(lambda x: layer(x, keep=KEEP, return_weights=True), fullgraph=True)
    expected, out = layer(x, keep=KEEP, return_weights=True), compiled(x)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y[0].square().sum(), x) for y in (out, expected)))


@pytest.mark.usefixtures("as_compiled")
def test_a_step_with_a_cache_compiles_as_one_graph():
    layer, x, cache = MultiHeadAttention(8, 2).eval(), torch.randn(1, 3, 8), KeyValueCache()
    step = torch.compile(lambda x: layer(x, causal=True, cache=cache), fullgraph=True, backend="eager")
    with torch.no_grad():
        torch.testing.assert_close(torch.cat([step(x[:, :2]), step(x[:, 2:])], 1), layer(x, causal=True))


@every_layer
@pytest.mark.usefixtures("as_compiled")
def test_exports(name):
    layer, inputs, options = made(name)
    program = torch.export.export(layer.eval(), tuple(inputs), options)
    torch.testing.assert_close(outputs(program.module()(*inputs, **options)), outputs(layer(*inputs, **options)))


@pytest.mark.usefixtures("as_compiled")
@pytest.mark.parametrize("name", ["self", "slices", "sinusoidal", "average"])
def test_exports_with_any_batch_and_length(name):
    layer, inputs, _ = made(name)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    program = torch.export.export(layer.eval(), tuple(inputs), dynamic_shapes={"x": sizes})
    other = torch.randn(4, 7, 8, dtype=torch.float64)
    torch.testing.assert_close(program.module()(other), layer(other))


@every_layer
def test_autocast_computes_in_low_precision_near_the_full_result(name):
    layer, inputs, options = made(name, torch.float32)
    expected = outputs(layer(*inputs, **options))
    with torch.autocast("cpu", torch.bfloat16):
        low = outputs(layer(*inputs, **options))
    for ours, full in zip(low, expected, strict=True):
        torch.testing.assert_close(ours.float(), full, atol=0.05, rtol=0.05)
    sum(out.float().square().sum() for out in low).backward()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in layer.parameters())


@every_layer
def test_moves_to_low_precision(name):
    layer, inputs, options = made(name, torch.bfloat16)
    with torch.no_grad():
        assert all(out.dtype is torch.bfloat16 for out in outputs(layer(*inputs, **options)))


@every_layer
def test_training_equals_evaluation_without_dropout(name):
    layer, inputs, options = made(name)
    trained, evaluated = outputs(layer.train()(*inputs, **options)), outputs(layer.eval()(*inputs, **options))
    assert all(torch.equal(one, other) for one, other in zip(trained, evaluated, strict=True))
