"""Silenced, replaced and edited heads inside each other, and captures inside of them, in any order."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.analysis import mask_heads


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj = 3, nn.Linear(12, 36), nn.Linear(12, 12)

    def split(self, x):
        return self.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4)

    def forward(self, x):
        return self.proj(F.scaled_dot_product_attention(*self.split(x)).transpose(1, 2).flatten(2))


@pytest.fixture
def layer():
    return Layer().double()


@pytest.fixture
def x():
    return torch.randn(2, 7, 12, dtype=torch.float64)


def by_hand(layer, x, change):
    """The layer's output with other weights ``(batch, heads, queries, keys)``."""
    q, k, v = layer.split(x)
    weights = change((q @ k.mT / 2).softmax(-1))
    return layer.proj((weights @ v).transpose(1, 2).flatten(2)), weights


def silenced(weights):
    return weights * torch.tensor([1.0, 0.0, 1.0], dtype=weights.dtype)[:, None, None]


def blocked(weights):
    kept = weights.clone()
    kept[..., 2] = 0
    return kept / kept.sum(-1, keepdim=True).clamp_min(1e-300)


def fitted(layer, x, prefix=0):
    with torch.no_grad(), regard.capture(layer) as maps:
        layer(x)
    return regard.locality(maps, (7 - prefix,), prefix)


@pytest.mark.parametrize("order", ["mask first", "edit first"])
def test_a_silent_head_stays_silent_in_an_edit(layer, x, order):
    want, weights = by_hand(layer, x, lambda weights: blocked(silenced(weights)))
    mask, edit = mask_heads(layer, {"Layer": [1]}), regard.edit(layer, "*", keys=2)
    first, second = (mask, edit) if order == "mask first" else (edit, mask)
    with torch.no_grad(), first, second, regard.capture(layer) as maps:
        out = layer(x)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(maps[0].weights, weights)
    assert maps[0].agrees


@pytest.mark.parametrize("prefix", [0, 3])
def test_the_map_of_a_replaced_head_is_its_gaussian(layer, x, prefix):
    found = fitted(layer, x, prefix)
    some = [found["Layer", 0], found["Layer", 2]]
    change = regard.replace_heads(layer, some, grid=(7 - prefix,))
    with torch.no_grad(), regard.capture(layer) as plain:
        layer(x)
    with torch.no_grad(), change, regard.capture(layer) as maps, regard.capture(layer, rows=[5, 0], heads=[2]) as part:
        out = layer(x)
    weights = maps[0].weights
    assert maps.residual < 1e-12
    torch.testing.assert_close(out, by_hand(layer, x, lambda _: weights)[0])
    torch.testing.assert_close(weights[:, 1], plain[0].weights[:, 1])
    torch.testing.assert_close(weights[:, :, :prefix], plain[0].weights[:, :, :prefix])
    gaussian = some[1].weights((7 - prefix,)).expand(2, -1, -1)
    torch.testing.assert_close(weights[:, 2, prefix:, prefix:], gaussian * (1 - sum(some[1].prefix)))
    torch.testing.assert_close(part[0].weights, weights[:, [2]][:, :, [5, 0]])


@pytest.mark.parametrize("order", ["replace first", "edit first"])
def test_a_replaced_head_is_not_put_back_by_an_edit(layer, x, order):
    """An edit blocks keys of the Gaussian; a Gaussian that comes later takes the place of the edited map."""
    found = fitted(layer, x)
    with torch.no_grad(), regard.replace_heads(layer, found), regard.capture(layer) as replaced:
        gaussian = layer(x)
    change, edit = regard.replace_heads(layer, found), regard.edit(layer, "*", keys=2)
    first, second = (change, edit) if order == "replace first" else (edit, change)
    with torch.no_grad(), first, second:
        out = layer(x)
    want = by_hand(layer, x, lambda _: blocked(replaced[0].weights))[0] if order == "replace first" else gaussian
    torch.testing.assert_close(out, want)


def test_silent_heads_have_no_relevance(layer, x):
    def score(out):
        return out[:, 3].sum(-1)

    with mask_heads(layer, {"Layer": [0, 1, 2]}):
        torch.testing.assert_close(regard.relevance(layer, x, score), torch.eye(7).double().expand(2, -1, -1))
    with mask_heads(layer, {"Layer": [1]}):
        found = regard.relevance(layer, x, score)
    weights = by_hand(layer, x, silenced)[1].detach().requires_grad_()
    out = by_hand(layer, x, lambda _: weights)[0]
    slope = torch.autograd.grad(score(out).sum(), weights)[0]
    torch.testing.assert_close(found, torch.eye(7) + (weights * slope).clamp_min(0).mean(1).detach())


def test_replaced_heads_in_generate_have_the_map_of_their_gaussians(transformers):
    sizes = {
        "vocab_size": 50,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 40,
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, eos_token_id=None)).eval()
    ids = torch.randint(3, 50, (1, 6))
    with torch.no_grad(), regard.capture(model) as maps:
        model(ids)
    found = regard.locality(maps, grid=(6,))
    for cache in ({}, {"cache_implementation": "static", "disable_compile": True}):
        with torch.no_grad(), regard.replace_heads(model, found), regard.capture(model) as maps:
            output = model.generate(ids, max_new_tokens=5, do_sample=False, pad_token_id=0, **cache)
        assert maps.residual < 1e-5
        whole = maps.generation(output)[0].weights
        torch.testing.assert_close(whole[0, 2], found[maps[0].name, 2].weights((10,)).float())


@pytest.mark.parametrize("change", ["edit", "mask_heads", "replace_heads"])
def test_a_capture_around_a_change_says_that_its_maps_are_those_before_it(layer, x, change):
    make = {
        "edit": lambda: regard.edit(layer, "*", keys=2),
        "mask_heads": lambda: mask_heads(layer, {"Layer": [1]}),
        "replace_heads": lambda: regard.replace_heads(layer, fitted(layer, x)),
    }[change]
    plain = by_hand(layer, x, lambda weights: weights)[1]
    with torch.no_grad(), regard.capture(layer) as around, make(), regard.capture(layer) as within:
        layer(x)
    torch.testing.assert_close(around[0].weights, plain)
    assert not torch.allclose(within[0].weights, plain)
    assert any("maps before the change" in note for note in around.notes)
    assert not within.notes


def test_looking_inside_of_a_capture_is_no_change(layer, x):
    with regard.capture(layer) as around, regard.capture(layer):
        regard.relevance(layer, x, lambda out: out[:, 3].sum(-1))
    assert not around.notes


def in_a_thread(layer, x):
    thread = threading.Thread(target=layer, args=(x,))
    thread.start()
    thread.join()


def under_vmap(layer, x):
    torch.func.vmap(lambda one: layer(one[None])[0])(x)


UNSEEN = {
    "in another thread": (in_a_thread, "did not run in this thread"),
    "under vmap": (under_vmap, r"runs inside torch\.func\.vmap"),
    "here, and under vmap": (lambda layer, x: (layer(x), under_vmap(layer, x)), r"runs inside torch\.func\.vmap"),
}


@torch.no_grad()
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch, under vmap
@pytest.mark.parametrize("way", list(UNSEEN))
def test_heads_that_a_change_cannot_reach_are_said(layer, x, way):
    run, says = UNSEEN[way]
    found = fitted(layer, x)
    with pytest.raises(ValueError, match=f"heads were not silenced: .*{says}"), mask_heads(layer, {"Layer": [1]}):
        run(layer, x)
    with pytest.warns(UserWarning, match=f"Layer were not replaced: .*{says}"), regard.replace_heads(layer, found):
        run(layer, x)
    with mask_heads(layer, {"Layer": []}):
        run(layer, x)


def test_a_block_in_which_nothing_ran_is_said(layer, x):
    says, found = "Layer did not run inside the block, or has no attention", fitted(layer, x)
    with pytest.warns(UserWarning, match=f"no heads of Layer were silenced: {says}"), mask_heads(layer, {"Layer": [1]}):
        pass
    with (
        pytest.warns(UserWarning, match=f"heads of Layer were not replaced: {says}"),
        regard.replace_heads(layer, found),
    ):
        pass
