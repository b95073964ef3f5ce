"""A map is computed in its own memory: with and without gradients alike, under transforms, and nothing passed changes."""

import math

import torch
import torch.autograd.forward_ad as forward_ad
from hypothesis import given
from hypothesis import strategies as st

from regard import attention


def inputs(groups: int = 2) -> list[torch.Tensor]:
    shapes = ((2, 4, 3, 5), (2, groups, 6, 5), (2, groups, 6, 2))
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@given(
    groups=st.sampled_from([1, 2, 4]),
    beta=st.sampled_from([None, 0.0, 2.0, math.inf]),
    masked=st.booleans(),
    biased=st.booleans(),
)
def test_maps_are_the_same_without_gradients_and_inputs_stay_as_they_were(groups, beta, masked, biased):
    tensors = inputs(groups)
    options = {
        "keep": torch.rand(2, 1, 3, 6) < 0.5 if masked else None,
        "bias": torch.randn(1, 4, 3, 6, dtype=torch.float64) if biased else None,
    }
    before = [t.clone() for t in (*tensors, *options.values()) if t is not None]
    expected = attention(*(t.requires_grad_() for t in tensors), beta=beta, **options, return_weights=True)
    with torch.no_grad():
        result = attention(*tensors, beta=beta, **options, return_weights=True)
    torch.testing.assert_close(result, tuple(t.detach() for t in expected))
    for now, then in zip([t for t in (*tensors, *options.values()) if t is not None], before, strict=True):
        assert torch.equal(now, then)


def test_maps_under_vmap_and_forward_derivatives():
    query, key, value = (t[0] for t in inputs(4))
    biases, keeps = torch.randn(7, 4, 3, 6, dtype=torch.float64), torch.rand(7, 4, 3, 6) < 0.5

    def mapped(bias, keep):
        return attention(query, key, value, bias=bias, keep=keep, return_weights=True)

    expected = [mapped(bias, keep) for bias, keep in zip(biases, keeps, strict=True)]
    out, weights = torch.func.vmap(mapped)(biases, keeps)
    torch.testing.assert_close(out, torch.stack([out for out, _ in expected]))
    torch.testing.assert_close(weights, torch.stack([weights for _, weights in expected]))

    def of_query(query):
        return attention(query, key, value, bias=biases[0], return_weights=True)[1]

    direction, step = torch.randn_like(query), 1e-6
    slope = (of_query(query + step * direction) - of_query(query - step * direction)) / (2 * step)
    torch.testing.assert_close(torch.func.jvp(of_query, (query,), (direction,))[1], slope, rtol=1e-5, atol=1e-8)
    with forward_ad.dual_level():
        dual = of_query(forward_ad.make_dual(query, direction))
        torch.testing.assert_close(forward_ad.unpack_dual(dual).tangent, slope, rtol=1e-5, atol=1e-8)
