"""Multi-head attention: torch's module, the sum of heads, slices as block-diagonal projections, shared heads."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.reference import multi_head_attention, sliced_multi_head_attention, sum_of_heads

NAMES = ("query", "key", "value", "out")


def random(*shape, grad=False):
    return torch.randn(shape, dtype=torch.float64, requires_grad=grad)


def weights_for(heads, width, dim, dim_context, *, shared=None, value_width=3, out=5, biases=True):
    shared = shared or heads
    inner = (heads * width, shared * width, shared * value_width)
    weights = {
        "w_query": random(inner[0], dim),
        "w_key": random(inner[1], dim_context),
        "w_value": random(inner[2], dim_context),
        "w_out": random(out, heads * value_width),
    }
    if biases:
        weights |= {f"b_{name}": random(n) for name, n in zip(NAMES, (*inner, out), strict=True)}
    return weights


@given(heads=st.integers(1, 3), cross=st.booleans(), causal=st.booleans(), seed=st.integers(0, 99))
def test_equals_torchs_module_with_its_masks_turned_round(heads, cross, causal, seed):
    torch.manual_seed(seed)
    dim, queries, keys = 2 * heads, 4, 5 if cross else 4
    module = nn.MultiheadAttention(dim, heads, kdim=3 if cross else None, vdim=3 if cross else None, batch_first=True)
    module = module.double()
    nn.init.normal_(module.in_proj_bias)
    nn.init.normal_(module.out_proj.bias)
    x = random(2, queries, dim)
    context = random(2, keys, 3) if cross else x
    keep = torch.rand(2, 1, 1, keys) < 0.7
    keep[..., 0] = True
    blocked = torch.ones(queries, keys, dtype=torch.bool).triu(1 + keys - queries) if causal else None
    expected, maps = module(
        x,
        context,
        context,
        key_padding_mask=~keep[:, 0, 0],
        attn_mask=blocked,
        average_attn_weights=False,
    )
    if cross:
        w_query, w_key, w_value = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    else:
        w_query, w_key, w_value = module.in_proj_weight.chunk(3)
    b_query, b_key, b_value = module.in_proj_bias.chunk(3)
    output, weights = multi_head_attention(
        x,
        context,
        w_query,
        w_key,
        w_value,
        module.out_proj.weight,
        b_query=b_query,
        b_key=b_key,
        b_value=b_value,
        b_out=module.out_proj.bias,
        heads=heads,
        keep=keep,
        causal=causal,
    )
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(weights, maps)


@given(
    shared=st.integers(1, 2),
    group=st.integers(1, 3),
    biases=st.booleans(),
    lead=st.lists(st.integers(1, 2), max_size=2),
    beta=st.sampled_from([None, 0.0, 2.0, math.inf]),
)
def test_the_sum_of_heads_is_the_concatenation_even_where_a_row_attends_to_nothing(shared, group, biases, lead, beta):
    heads = shared * group
    x, context = random(*lead, 3, 4), random(*lead, 5, 6)
    weights = weights_for(heads, 2, 4, 6, shared=shared, biases=biases)
    keep = torch.rand(3, 5) < 0.5
    keep[1] = False
    options = {"heads": heads, "keep": keep, "beta": beta, "bias": random(*[1] * len(lead), heads, 3, 5)}
    output, maps = multi_head_attention(x, context, **weights, **options)
    summed, same_maps = sum_of_heads(x, context, **weights, **options)
    torch.testing.assert_close(summed, output)
    torch.testing.assert_close(same_maps, maps)
    assert (maps[..., 1, :] == 0).all()


def test_shared_key_heads_are_key_heads_repeated_for_neighbors():
    x, context = random(2, 3, 4), random(2, 5, 6)
    weights = weights_for(4, 2, 4, 6, shared=2)
    full = dict(weights)
    for name, width in (("key", 2), ("value", 3)):
        for kind in ("w", "b"):
            blocks = weights[f"{kind}_{name}"].unflatten(0, (2, width))
            full[f"{kind}_{name}"] = blocks.repeat_interleave(2, 0).flatten(0, 1)
    torch.testing.assert_close(
        multi_head_attention(x, context, **weights, heads=4), multi_head_attention(x, context, **full, heads=4)
    )


@given(heads=st.integers(1, 3), biases=st.booleans())
def test_slices_are_block_diagonal_projections(heads, biases):
    x, context = random(2, 3, 2 * heads), random(2, 4, 3 * heads)
    weights = {
        "w_query": random(heads, 2, 2),
        "w_key": random(heads, 2, 3),
        "w_value": random(heads, 5, 3),
    }
    rest = {"w_out": random(4, 5 * heads)}
    offsets = {}
    if biases:
        offsets = {"b_query": random(heads, 2), "b_key": random(heads, 2), "b_value": random(heads, 5)}
        rest["b_out"] = random(4)
    sliced = sliced_multi_head_attention(x, context, **weights, **offsets, **rest, heads=heads, beta=0.7)
    whole = multi_head_attention(
        x,
        context,
        **{name: torch.block_diag(*weight) for name, weight in weights.items()},
        **{name: offset.flatten() for name, offset in offsets.items()},
        **rest,
        heads=heads,
        beta=0.7,
    )
    torch.testing.assert_close(sliced, whole)


def test_values_may_come_from_somewhere_else():
    x, context, values = random(3, 4), random(5, 6), random(5, 2)
    weights = weights_for(2, 2, 4, 6) | {"w_value": random(6, 2)}
    output, maps = multi_head_attention(x, context, **weights, heads=2, values=values)
    _, expected_maps = multi_head_attention(x, context, **(weights | {"w_value": random(6, 6)}), heads=2)
    torch.testing.assert_close(maps, expected_maps)
    heads = (values @ weights["w_value"].mT + weights["b_value"]).unflatten(-1, (2, 3)).transpose(0, 1)
    expected = (maps @ heads).transpose(0, 1).flatten(-2) @ weights["w_out"].mT + weights["b_out"]
    torch.testing.assert_close(output, expected)


def test_a_temperature_for_each_head():
    x = random(2, 3, 4)
    weights = weights_for(2, 2, 4, 4)
    beta = torch.tensor([0.0, math.inf], dtype=torch.float64).reshape(2, 1, 1)
    _, maps = multi_head_attention(x, x, **weights, heads=2, beta=beta)
    torch.testing.assert_close(maps[:, 0], torch.full((2, 3, 3), 1 / 3, dtype=torch.float64))
    assert set(maps[:, 1].unique().tolist()) <= {0.0, 1.0}


def test_gradients():
    x, context = random(3, 4, grad=True), random(2, 6, grad=True)
    weights = [w.requires_grad_() for w in weights_for(2, 2, 4, 6, biases=False).values()]
    for form in (multi_head_attention, sum_of_heads):
        assert torch.autograd.gradcheck(lambda *given: form(*given, heads=2)[0], (x, context, *weights))  # noqa: B023


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"heads": 0}, ValueError, "w_query has 4 rows, which cannot be divided between heads=0"),
        ({"heads": 3}, ValueError, "w_query has 4 rows, which cannot be divided between heads=3"),
        (
            {"w_key": torch.ones(3, 6), "b_key": None},
            ValueError,
            "w_key has 3 rows and w_value 6, but heads=2 of width 2",
        ),
        ({"keep": torch.ones(2, 3, 5, dtype=torch.bool)}, ValueError, r"keep has shape \(2, 3, 5\).*\(2, 2, 3, 5\)"),
        ({"beta": torch.ones(3, 1, 1)}, ValueError, r"beta has shape \(3, 1, 1\)"),
    ],
)
@pytest.mark.usefixtures("user_errors")
def test_bad_input_is_named(arguments, error, says):
    good = {"x": torch.ones(2, 3, 4), "context": torch.ones(2, 5, 6), "heads": 2}
    good |= {name: weight.float() for name, weight in weights_for(2, 2, 4, 6).items()}
    with pytest.raises(error, match=says):
        multi_head_attention(**(good | arguments))


@pytest.mark.usefixtures("user_errors")
def test_bad_slices_are_named():
    x, weight = torch.ones(3, 4), torch.ones(2, 2, 2)
    with pytest.raises(ValueError, match=r"w_query has shape \(2, 2, 2\), weights of 2 heads, but heads is 4"):
        sliced_multi_head_attention(x, x, weight, weight, weight, torch.ones(1, 4), heads=4)
