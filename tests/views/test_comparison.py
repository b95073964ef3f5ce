"""Two sets of maps side by side, and their difference."""

import pytest
import torch

import regard


def weights(heads, queries, keys, seed):
    torch.manual_seed(seed)
    return torch.rand(1, heads, queries, keys).pow(3).softmax(-1)


def test_the_difference_is_that_of_the_maps():
    a, b = ({"layers.0.attn": weights(2, 4, 4, i), "layers.1.attn": weights(2, 4, 4, i + 10)} for i in (0, 1))
    b["layers.1.attn"][:, 1] = torch.eye(4)
    payload = regard.show(a, b, tokens=list("abcd"), names=("before", "after")).payload
    assert (payload.view, payload.meta["names"]) == ("compare", ["before", "after"])
    for number, name in enumerate(a):
        exact = (b[name] - a[name])[0]
        torch.testing.assert_close(payload.arrays[f"difference{number}"].values, exact, atol=0.005, rtol=0)
        torch.testing.assert_close(payload.arrays[f"second{number}"].values, b[name][0], atol=0.005, rtol=0)
        moved = exact.abs().sum(-1).mean(-1) / 2
        torch.testing.assert_close(torch.tensor(payload.meta["layers"][number]["change"]), moved, atol=1e-4, rtol=1e-3)
    assert payload.meta["opening"] == {"layer": 1, "head": 1, "why": payload.meta["opening"]["why"]}
    same = regard.show(a, a).payload
    assert all(change == 0 for layer in same.meta["layers"] for change in layer["change"])


def test_two_prompts_are_compared_where_their_tokens_are_the_same():
    one, other = weights(1, 4, 4, 0), weights(1, 5, 5, 1)
    payload = regard.show(one, other, tokens=(["the", "cat", "sat", "."], ["the", "old", "cat", "sat", "."])).payload
    layer = payload.meta["layers"][0]
    assert layer["rows"] == layer["columns"] == [[0, 0], [1, 2], [2, 3], [3, 4]]
    kept = [0, 2, 3, 4]
    expected = other[0][:, kept][:, :, kept] - one[0]
    torch.testing.assert_close(payload.arrays["difference0"].values, expected, atol=0.005, rtol=0)
    with pytest.raises(ValueError, match="4 queries on one side and 5 on the other"):
        regard.show(one, other)


def test_two_models_are_paired_by_order_and_what_does_not_fit_is_named():
    one = {"h.0": weights(2, 3, 3, 0), "h.1": weights(2, 3, 3, 1)}
    other = {"layers.0": weights(2, 3, 3, 2), "layers.1": weights(4, 3, 3, 3)}
    payload = regard.show(one, other).payload
    assert [(layer["name"], layer["other_name"]) for layer in payload.meta["layers"]] == [("h.0", "layers.0")]
    assert "h.1, layers.1" in payload.meta["notes"][-1]
    with pytest.raises(ValueError, match="2 and 1 maps, and no name in common"):
        regard.show(one, {"x": weights(2, 3, 3, 2)})
    with pytest.raises(TypeError, match="other must be maps"):
        regard.show(one, 3)
    for unused in ({"words": True}, {"image": torch.rand(3, 4, 4)}, {"segments": [("text", 3)]}):
        with pytest.raises(ValueError, match="does not go with a comparison"):
            regard.show(one, one, **unused)
    with pytest.raises(TypeError, match=r"names is .* but needs two sets of maps"):
        regard.show(one, names=("a", "b"))


@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_a_comparison_is_one_file(tmp_path, suffix):
    show = regard.show(weights(2, 4, 4, 0), weights(2, 4, 4, 1), tokens=list("abcd"), names=("before", "after"))
    text = show.save(tmp_path / f"both.{suffix}").read_text("utf-8")
    if suffix == "svg":
        assert "<svg" in text
        with pytest.raises(ValueError, match="head must be one of"):
            show.save(tmp_path / "x.svg", head=7)
    else:
        assert "Attention, compared" in text
