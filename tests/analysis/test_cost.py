"""Multiply-adds and bytes: by hand where a formula says them, and as torch's own counter where both count."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

import regard
from regard.analysis import cost
from regard.layers import AdditiveAttention, GatedPositionalAttention, GaussianAttention, RelativeAttention
from regard.models import ImageEncoder, ResNet18, Seq2SeqRNN, Transformer, VisionTransformer


def torch_flops(model, *inputs, **options):
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval().requires_grad_(False)(*inputs, **options)
    return counter.get_total_flops()


@given(rows=st.integers(1, 5), inputs=st.integers(1, 6), outputs=st.integers(1, 6), bias=st.booleans())
def test_a_linear_layer(rows, inputs, outputs, bias):
    layer = nn.Linear(inputs, outputs, bias=bias)
    found = cost(layer, (2, rows, inputs))
    assert found.multiply_adds == 2 * rows * inputs * outputs
    assert found.parameters == inputs * outputs + bias * outputs
    assert found.parameter_bytes == 4 * found.parameters
    assert found.activation_bytes == 4 * 2 * rows * (inputs + outputs)
    assert found.bytes == found.parameter_bytes + found.activation_bytes
    assert cost(layer.double(), (2, rows, inputs)).bytes == 2 * found.bytes


@given(
    axes=st.integers(1, 3),
    groups=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    transposed=st.booleans(),
)
def test_convolutions_equal_torchs_count(axes, groups, kernel, stride, transposed):
    name = f"Conv{'Transpose' if transposed else ''}{axes}d"
    layer = getattr(nn, name)(2 * groups, 3 * groups, kernel, stride, padding=kernel - 1, groups=groups)
    shape = (2, 2 * groups, *[5] * axes)
    assert 2 * cost(layer, shape).multiply_adds == torch_flops(layer, torch.zeros(shape))


@given(
    heads=st.integers(1, 3),
    width=st.integers(1, 4),
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    masked=st.booleans(),
    weights=st.booleans(),
)
def test_attention_counts_every_pair_twice(heads, width, queries, keys, masked, weights):
    dim = heads * width
    layer = regard.MultiHeadAttention(dim, heads, context_dim=dim + 1)
    keep = torch.ones(queries, keys, dtype=torch.bool).tril() if masked else None
    found = cost(layer, [(2, queries, dim), (2, keys, dim + 1)], keep=keep, return_weights=weights)
    projections = 2 * dim * (2 * queries * dim + 2 * keys * (dim + 1))
    assert found.multiply_adds == projections + 2 * 2 * queries * keys * dim
    # Fused: queries, keys, values and outputs move (and a mask, where there is one), not the map.
    if not weights and not masked:
        linear = sum(row.activation_bytes for row in found.rows[1:])
        assert found.activation_bytes - linear == 4 * 2 * dim * (2 * queries + 2 * keys)


BOTH = {
    "resnet": (lambda: ResNet18(3, width=4), [(2, 3, 16, 16)], None),
    "vit": (lambda: VisionTransformer(8, 4, 3, dim=16, depth=2, heads=2, pool="attention"), [(2, 3, 8, 8)], None),
    "gaussian": (lambda: ImageEncoder(8, 2, 3, dim=18, depth=2), [(2, 3, 8, 8)], None),
    "gaussian-large": (lambda: ImageEncoder(32, 2, 3, dim=18, depth=1), [(2, 3, 32, 32)], None),
    "relative": (lambda: ImageEncoder(8, 2, 3, dim=18, depth=2, attention="relative"), [(2, 3, 8, 8)], None),
    "gru": (lambda: Seq2SeqRNN(9, dim=4, hidden=5, depth=2), [(2, 7), (2, 5)], torch.int64),
    "transformer": (lambda: Transformer(9, dim=8, depth=1, heads=2), [(2, 7), (2, 5)], torch.int64),
    **{
        f"converted-{plan}": (
            lambda plan=plan: regard.conv_to_attention(nn.Conv2d(3, 8, 3, padding=1), plan=plan),
            [(1, 3, 32, 32)],
            None,
        )
        for plan in ("taps", "attention")
    },
}


@pytest.mark.parametrize("name", BOTH)
def test_twice_the_multiply_adds_are_torchs_flops(name):
    """Without memory, where torch takes fused attention apart and so counts it."""
    make, shapes, dtypes = BOTH[name]
    with torch.device("meta"):
        model = make()
        kinds = dtypes if isinstance(dtypes, list) else [dtypes] * len(shapes)
        inputs = [torch.zeros(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]
    found = cost(model, shapes, dtype=dtypes)
    assert found.multiply_adds > 0
    assert 2 * found.multiply_adds == torch_flops(model, *inputs)
    assert not found.uncounted


@pytest.mark.parametrize(
    "name", ["resnet", "gaussian", "gaussian-large", "relative", "gru", "converted-taps", "converted-attention"]
)
def test_twice_the_multiply_adds_are_torchs_flops_on_the_processor(name):
    """Where Gaussian heads run tile by tile, into memory that is given."""
    make, shapes, dtypes = BOTH[name]
    model = make()
    inputs = [torch.zeros(shape, dtype=dtypes) for shape in shapes]
    assert 2 * cost(model, shapes, dtype=dtypes).multiply_adds == torch_flops(model, *inputs)


# Plans depend on the device, and so does the order of the products of a converted convolution.
@pytest.mark.parametrize("name", sorted(set(BOTH) - {"gaussian-large", "converted-attention"}))
def test_the_device_does_not_change_the_count_of_products(name):
    make, shapes, dtypes = BOTH[name]
    with torch.device("meta"):
        without = cost(make(), shapes, dtype=dtypes)
    assert cost(make(), shapes, dtype=dtypes).multiply_adds == pytest.approx(without.multiply_adds, rel=0.02)


def test_a_lstm_counts_as_the_steps_it_takes():
    layer = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    weights = sum(weight.numel() for name, weight in layer.named_parameters() if name.startswith("weight"))
    assert cost(layer, (2, 5, 3)).multiply_adds == 2 * 5 * weights
    assert cost(layer.to("meta"), (2, 5, 3)).multiply_adds == 2 * 5 * weights


@pytest.mark.parametrize("full_width", [False, True])
def test_gaussian_heads_count_by_their_plan(full_width):
    rows, columns, dim, heads = 12, 16, 18, 9
    layer = GaussianAttention(dim, heads, full_width=full_width, init="grid")
    head_dim = dim if full_width else dim // heads
    tokens = rows * columns
    linear = tokens * dim * heads * head_dim * (1 if full_width else 2)
    mixed = heads * tokens * head_dim
    separable = cost(layer, (1, rows, columns, dim))
    assert separable.multiply_adds == linear + mixed * (rows + columns)
    layer.plan = "dense"
    dense = cost(layer, (1, rows, columns, dim))
    building = dense.multiply_adds - linear - mixed * tokens
    assert 0 <= building <= heads * tokens**2  # the product of the two axis matrices
    # However it is cut into tiles: values come in, outputs go out.
    value = tokens * (dim if full_width else heads * head_dim)
    around = sum(row.activation_bytes for row in separable.rows if row.kind == "Linear")
    for found in (separable, dense):
        assert found.activation_bytes - around == 4 * (value + mixed)


def test_local_heads_cost_time_linear_in_tokens():
    layer = GaussianAttention(4, 4, init="grid")
    found = []
    for size in (128, 192, 256):
        layer.freeze_plan((size, size))
        products = cost(layer, (1, size, size, 4))
        assert products.activation_bytes == 4 * size * size * (3 * 2 * 4)
        found.append((products.multiply_adds - 2 * size * size * 16) / size**2)
    assert found == pytest.approx([found[0]] * 3)
    layer.plan = "auto"  # finds local heads by itself on a CPU
    assert cost(layer, (1, 256, 256, 4)).multiply_adds == products.multiply_adds
    layer.plan = "separable"
    assert cost(layer, (1, 256, 256, 4)).multiply_adds > 5 * products.multiply_adds


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_full_sharpness_matrix_costs_every_pair(covariance):
    layer = GaussianAttention(4, 2, covariance=covariance)
    attended = cost(layer, (1, 16, 16, 4)).multiply_adds - 2 * 256 * 16
    assert attended == (256 * 32 * 4 if covariance == "diagonal" else 256 * 256 * 4 + attended % 256)


def test_other_layers_of_ours():
    tokens, dim, heads = 12, 8, 2
    gated = cost(GatedPositionalAttention(dim, heads, init="normal"), (1, 3, 4, dim))
    content = 2 * tokens * tokens * dim
    assert gated.multiply_adds > 4 * tokens * dim * dim + content + tokens * 7 * dim - 1
    relative = cost(RelativeAttention(dim, heads, (3, 4)), (1, tokens, dim), grid=(3, 4))
    assert relative.multiply_adds > 4 * tokens * dim * dim + content
    additive = cost(AdditiveAttention(5, 6, 7), [(2, 3, 5), (2, 4, 6)])
    assert additive.multiply_adds == 2 * (3 * 5 * 7 + 4 * 6 * 7 + 3 * 4 * 7 + 3 * 4 * 6)


def test_torchs_encoder_layer_is_counted_although_it_has_a_fast_path():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    assert cost(layer, (2, 5, 8)).multiply_adds == 10 * (4 * 64 + 2 * 8 * 16) + 2 * 2 * 5 * 5 * 8
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    assert cost(attention, [(2, 5, 8)] * 3).multiply_adds == 10 * 4 * 64 + 2 * 2 * 5 * 5 * 8
    assert torch.backends.mha.get_fastpath_enabled()


def test_grouped_heads_and_flex_attention():
    class Flex(nn.Module):
        def forward(self, query, key, value):
            return flex_attention(query, key, value)

    layer = regard.MultiHeadAttention(8, 4, key_value_heads=2)
    assert cost(layer, (1, 6, 8)).multiply_adds == 6 * 8 * (8 + 8 + 8) + 2 * 6 * 6 * 8
    shapes = [(1, 2, 16, 4)] * 3
    with warnings.catch_warnings():  # torch warns of eager flex_attention once in a process
        warnings.filterwarnings("ignore", "flex_attention", UserWarning)
        found = cost(Flex(), shapes)
    assert found.multiply_adds == 2 * 2 * 16 * 16 * 4


class Shared(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.first = nn.Sequential(self.inner)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        return F.linear(self.first(self.inner(x)), self.unused.weight)


def test_rows_are_modules_with_what_is_inside():
    found = cost(Shared(), (2, 3))
    assert found.multiply_adds == 3 * 18
    assert (found["inner"].multiply_adds, found["inner"].calls) == (36, 2)
    assert (found["first"].multiply_adds, found["first"].parameters) == (18, 12)
    assert [row.name for row in found.rows] == ["", "inner", "first"]
    assert found.operations == {"addmm": 36, "mm": 18}
    with pytest.raises(KeyError, match="no module 'unused' was called"):
        found["unused"]


def test_the_table_sums_what_is_alike():
    model = VisionTransformer(8, 4, 3, dim=16, depth=3, heads=2)
    text = str(cost(model, (1, 3, 8, 8)))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["module", "kind", "calls", "multiply-adds", "share", "parameters", "bytes"]
    blocks = next(line for line in lines if line[0] == "blocks.*")
    assert blocks[1:3] == ["EncoderBlock", "3"]
    assert len({len(line) for line in text.splitlines()}) == 1
    assert "blocks.*.attention " in text
    assert "blocks.*.attention.qkv" not in text
    assert "blocks.*.attention.qkv" in cost(model, (1, 3, 8, 8)).table(depth=3)


def test_the_model_is_left_as_it_was():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 36, 2))
    model[2].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    draws = torch.random.get_rng_state()
    with pytest.raises(ValueError, match=r"input_shape is .* but must be what the model"):
        cost(model, (1, 3, 9, 9))
    cost(model, (1, 3, 8, 8))
    assert [module.training for module in model.modules()] == [True, True, True, False, True, True]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), draws)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_other_inputs():
    model = Transformer(9, dim=8, depth=(0, 1), heads=2)
    by_shape = cost(model, [None, (2, 5)], dtype=torch.int64)
    assert cost(model, [None, torch.ones(2, 5, dtype=torch.int64)]).multiply_adds == by_shape.multiply_adds
    assert cost(nn.ReLU(), (3, 4)).multiply_adds == 0
    layer = GaussianAttention(4, 2)
    assert cost(layer, (1, 6, 4), grid=(2, 3)).multiply_adds == cost(layer, (1, 2, 3, 4)).multiply_adds


@torch.library.custom_op("regard_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


class Grouped(nn.Module):
    def forward(self, one, other, ends):
        return torch._grouped_mm(one, other, offs=ends)


@pytest.mark.parametrize(
    ("one", "other", "groups"),
    [
        ((8, 16), (2, 16, 32), [(3, 16, 32), (5, 16, 32)]),
        ((2, 8, 16), (16, 8), [(8, 16, 3), (8, 16, 5)]),
        ((16, 8), (8, 32), [(16, 3, 32), (16, 5, 32)]),
        ((2, 8, 16), (2, 16, 32), [(8, 16, 32), (8, 16, 32)]),
    ],
)
def test_grouped_products_are_those_of_all_groups(one, other, groups):
    ends = None if len(one) == len(other) == 3 else torch.tensor([3, 8], dtype=torch.int32)
    given = [torch.ones(shape, dtype=torch.bfloat16) for shape in (one, other)]
    found = cost(Grouped(), [*given, ends])
    assert found.multiply_adds == sum(map(math.prod, groups))
    assert not found.uncounted


def test_experts_count_as_many_products_in_groups_as_one_by_one(transformers):
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
    }
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    counts = []
    for way in ("grouped_mm", "eager"):
        config = transformers.Qwen3MoeConfig(vocab_size=50, intermediate_size=40, **sizes, **experts)
        config._experts_implementation = way
        counts.append(cost(transformers.Qwen3MoeForCausalLM(config), [torch.randint(0, 50, (2, 7))]))
    assert counts[0].multiply_adds == counts[1].multiply_adds
    assert counts[0].operations.keys() != counts[1].operations.keys()
    assert not counts[0].uncounted


class Custom(nn.Module):
    def forward(self, x):
        return twice(x)


class Failing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        raise RuntimeError(f"not for {self.inner(x).shape}")


class Fallback(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Failing(), nn.Linear(4, 8)

    def forward(self, x):
        try:
            return self.first(x)
        except RuntimeError:
            return self.second(x)


def test_a_module_that_fails_ends_there():
    """The model goes on without it: what comes later is not a part of it."""
    found = cost(Fallback(), (2, 4))
    assert [(row.name, row.multiply_adds) for row in found.rows] == [
        ("", 96), ("first", 32), ("first.inner", 32), ("second", 64)
    ]  # fmt: skip


def test_what_is_not_known_is_said():
    found = cost(Custom(), (3, 4))
    assert found.uncounted == {"regard_test.twice": 1}
    assert "uncounted  regard_test.twice (1×)" in str(found)

    @register_flop_formula(torch.ops.regard_test.twice)
    def formula(shape, *args, out_shape=None, **options):
        return 2 * math.prod(shape)

    try:
        found = cost(Custom(), (3, 4))
    finally:
        del flop_registry[torch.ops.regard_test.twice]
    assert found.multiply_adds == 12
    assert not found.uncounted
    assert cost(nn.Bilinear(2, 3, 4), [(5, 2), (5, 3)]).uncounted == {"_trilinear": 1}


def test_bad_input(user_errors):
    layer = nn.Linear(2, 2)
    calls = [
        (lambda: cost(F.relu, (1, 2)), "model must be an nn.Module"),
        (lambda: cost(layer, 2), "input_shape must be a shape such as"),
        (lambda: cost(layer, torch.ones(1, 2)), "input_shape must be a shape such as"),
        (lambda: cost(layer, [(1, -2)]), "whole numbers of 0 or more"),
        (lambda: cost(layer, [(1, "2")]), "whole numbers of 0 or more"),
        (lambda: cost(layer, [(1, 2)], dtype=[None, None]), "2 entries, but there are 1 inputs"),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
    with pytest.raises(AttributeError, match="no attribute 'flops'"):
        _ = cost(layer, (1, 2)).flops
