"""Statistics of maps whose rows have another sum than 1, or negative weights: differences, sigmoids, contributions."""

import pytest
import torch

import regard
from regard.analysis import distance, entropy
from regard.maps import AttentionRecord, Map, Maps


def maps_of(weights, kind):
    return Maps([Map("attn", [AttentionRecord.given(weights, "attn", kind=kind)])])


def signed():
    return 1.3 * torch.randn(2, 3, 6, 6).double().softmax(-1) - 0.9 * torch.randn(2, 3, 6, 6).double().softmax(-1)


@pytest.mark.parametrize("kind", ["difference", "sigmoid", "contributions", "composed"])
def test_every_statistic_is_that_of_the_shares_of_each_row(kind):
    positive = torch.rand(2, 3, 6, 6).double() * torch.linspace(0.01, 3, 6).double()[:, None]
    weights = signed() if kind == "difference" else positive
    shares = weights.abs() / weights.abs().sum(-1, keepdim=True)
    found, want = maps_of(weights, kind), maps_of(shares, "softmax")
    for of in (entropy, lambda maps: distance(maps, grid=(6,))):
        torch.testing.assert_close(of(found), of(want))
    assert (entropy(found)["attn"] > 0).all()
    for pattern in ("previous", "first", "local", want[0]):
        one, two = ({head.head: head.score for head in regard.find_heads(maps, pattern)} for maps in (found, want))
        assert one == pytest.approx(two)
        one = {head.head: head.score for head in regard.find_heads(want, found[0])}
        assert one == pytest.approx({head.head: head.score for head in regard.find_heads(want, want[0])})
    for grid, prefix in (((6,), 0), ((2, 2), 2)):
        for one, two in zip(*(regard.locality(maps, grid, prefix) for maps in (found, want)), strict=True):
            assert (*one.center, one.sharpness, one.fit, one.overlap, *one.prefix) == pytest.approx(
                (*two.center, two.sharpness, two.fit, two.overlap, *two.prefix)
            )
            assert sum(one.prefix) <= 1


@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_rollout_of_differences_has_no_negative_shares(fusion):
    weights = signed()
    found = regard.rollout([weights, weights.mT.softmax(-1)], fusion=fusion)
    torch.testing.assert_close(found, regard.rollout([weights.abs(), weights.mT.softmax(-1)], fusion=fusion))
    assert (found >= 0).all()


def test_what_a_sink_takes_belongs_to_no_key():
    weights = torch.eye(6).roll(-1, 1).tril()[None, None] * 0.3
    assert regard.find_heads(maps_of(weights, "sdpa"), "previous")[0].score == pytest.approx(0.3)
