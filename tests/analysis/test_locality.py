"""Locality: the best Gaussian per head, heads replaced by it, and its course over checkpoints."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import regard
from regard.analysis import Head, Locality, trajectory
from regard.analysis._changed_heads import changing
from regard.analysis._fit import _Moments, fit_gaussians
from regard.functional import gaussian_weights
from regard.layers import GaussianAttention
from regard.maps import AttentionRecord, Map, Maps


def maps_of(weights, name="attn", **more):
    return Maps([Map(name, [AttentionRecord.given(weights, **more)])])


@settings(max_examples=15)
@given(
    grid=st.sampled_from([(6,), (4, 5), (7, 3), (3, 2, 3)]),
    center=st.floats(-2, 2),
    sharpness=st.floats(0.02, 3.0),
)
def test_a_gaussian_head_is_found_exactly(grid, center, sharpness):
    centers = torch.full((2, len(grid)), center, dtype=torch.float64) * torch.tensor([[1.0], [-0.5]])
    alphas = torch.tensor([sharpness, sharpness / 2], dtype=torch.float64)
    found = fit_gaussians(gaussian_weights(centers, alphas, grid)[None], grid)
    rebuilt = gaussian_weights(found.center, found.sharpness, grid)
    torch.testing.assert_close(rebuilt, gaussian_weights(centers, alphas, grid), atol=1e-6, rtol=0)
    assert (found.fit > 1 - 1e-6).all()


def test_no_other_gaussian_fits_better():
    grid = (3, 4)
    centers, alphas = torch.tensor([[0.5, -1.0], [1.0, 0.3]]).double(), torch.tensor([0.3, 0.6]).double()
    local = (gaussian_weights(centers, alphas, grid).log() + torch.randn(3, 2, 12, 12).double()).softmax(-1)
    found = fit_gaussians(local, grid)

    def likelihood(center, sharpness):
        return (local * gaussian_weights(center, sharpness, grid).log()).sum((0, 2, 3)) / (3 * 12)

    best = likelihood(found.center, found.sharpness)
    for _ in range(200):
        center = found.center + torch.randn_like(found.center) * 0.3
        sharpness = found.sharpness * torch.rand(2, dtype=torch.float64).mul(2)
        assert (likelihood(center, sharpness) <= best + 1e-10).all()
    entropy = torch.special.entr(local).sum((0, 2, 3)) / (3 * 12)
    torch.testing.assert_close(found.fit, (best + math.log(12)) / (math.log(12) - entropy))


def test_the_extremes_are_found_too():
    n = 16
    uniform, shift = torch.full((1, 1, n, n), 1 / n).double(), torch.eye(n).double()[None, None]
    assert fit_gaussians(uniform, (4, 4)).fit == 1
    found = fit_gaussians(shift, (4, 4))
    assert found.fit > 0.999
    assert found.sharpness > 20
    corner = torch.zeros(1, 1, n, n).double()
    corner[..., -1] = 1  # always the last token: a center far beyond the border
    found = fit_gaussians(corner, (4, 4))
    assert found.fit > 0.999
    assert (found.center.abs() <= 12 + 1e-9).all()


def test_a_head_that_follows_content_fits_badly_and_one_that_follows_position_well():
    content = torch.randn(4, 1, 25, 25).mul(4).softmax(-1)
    position = gaussian_weights(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0]), (5, 5)).expand(4, 1, 25, 25)
    found = regard.locality(maps_of(torch.cat([content, position], 1)), grid=(5, 5))
    assert found["attn", 0].fit < 0.2
    assert found["attn", 0].overlap < 0.5
    assert found["attn", 1].fit > 0.99
    assert found["attn", 1].overlap > 0.99
    assert [head.head for head in found.best(1)] == [1]
    assert [head.head for head in found.where(fit=0.9)] == [1]
    assert "(0.00, 1.00)" in str(found) or "(-0.00, 1.00)" in str(found)
    with pytest.raises(KeyError, match="there is no head"):
        found["attn", 2]


def test_prefix_tokens_are_set_aside_and_their_share_is_kept():
    local = gaussian_weights(torch.tensor([[1.0, 0.0]]), torch.tensor([0.8]), (3, 4))[0]
    weights = torch.zeros(1, 1, 14, 14)
    weights[..., 2:, 2:] = 0.7 * local
    weights[..., 2:, 0], weights[..., 2:, 1] = 0.1, 0.2
    weights[..., :2, :] = 1 / 14
    head = regard.locality(maps_of(weights), grid=(3, 4), prefix=2)["attn", 0]
    assert head.center == pytest.approx((1.0, 0.0), abs=1e-4)
    assert head.sharpness == pytest.approx(0.8, abs=1e-4)
    assert head.prefix == pytest.approx((0.1, 0.2))
    assert head.fit > 0.999


def test_a_causal_head_is_fitted_over_the_keys_it_sees():
    full = gaussian_weights(torch.tensor([[-1.0]]), torch.tensor([0.9]), (8,)).tril()
    weights = (full / full.sum(-1, keepdim=True))[None]
    head = regard.locality(maps_of(weights), grid=(8,))["attn", 0]
    assert head.causal
    assert head.center == pytest.approx((-1.0,), abs=1e-4)
    assert head.sharpness == pytest.approx(0.9, abs=1e-4)
    assert head.fit > 0.999
    torch.testing.assert_close(head.weights((8,)).float(), weights[0, 0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_wide_heads_of_long_texts_are_fitted_as_wide_heads(causal):
    size = 500
    wide = gaussian_weights(torch.tensor([[9.0], [0.0]]).double(), torch.tensor([1e-5, 0.0]).double(), (size,))
    wide = wide.tril() if causal else wide
    found = regard.locality(maps_of((wide / wide.sum(-1, keepdim=True))[None]), grid=(size,))
    assert all(head.overlap > 0.9999 for head in found)  # with a sharpness of 1e-4, the second has 0.53
    assert found["attn", 0].center == pytest.approx((9.0,), abs=0.05)
    assert found["attn", 0].sharpness == pytest.approx(1e-5, rel=1e-2)


@pytest.mark.parametrize("decay", [0.03, 0.1, 1.0, 3.0])
def test_causal_heads_whose_weights_decay_have_weights_and_the_best_center(decay):
    size = 400
    offset = torch.arange(size) - torch.arange(size)[:, None].double()
    weights = (decay * offset).masked_fill(offset > 0, -math.inf).softmax(-1)[None, None]
    head = regard.locality(maps_of(weights), grid=(size,))["attn", 0]
    assert head.causal
    assert head.overlap > 0.98  # the part of a Gaussian before the query underflowed
    torch.testing.assert_close(head.weights((size,)).sum(-1), torch.ones(size, dtype=torch.float64))
    moments, center = _Moments(weights, (size,), True), head.center[0]

    def likelihood(sharpness):
        return moments.likelihood(torch.tensor([[2 * sharpness * center, sharpness]], dtype=torch.float64))[0].item()

    best = likelihood(head.sharpness)
    assert all(likelihood(head.sharpness * factor) < best for factor in (0.98, 1.02))


def test_a_token_that_looks_at_itself_looks_nowhere_else():
    weights = torch.eye(6, dtype=torch.float64)[None, None]
    head = regard.locality(maps_of(weights), grid=(6,))["attn", 0]
    assert head.center == pytest.approx((0.0,), abs=1e-6)
    assert not head.causal
    assert head.overlap > 1 - 1e-9


def test_sharp_causal_heads_are_found_where_they_look():
    places = torch.arange(6)
    shifts = [torch.nn.functional.one_hot((places - back).clamp_min(0), 6).double() for back in (0, 1, 2)]
    found = regard.locality(maps_of(torch.stack(shifts)[None]), grid=(6,))
    for back, head in enumerate(found):
        assert head.causal
        assert head.center == pytest.approx((-back,), abs=1e-3)
        assert head.overlap > 1 - 1e-9


class Gaussians(nn.Module):
    """Fused attention that is Gaussian by construction: a bias does it all."""

    def __init__(self, prefix=0, grid=(4, 4)):
        super().__init__()
        self.prefix_tokens, self.grid, self.num_heads = prefix, grid, 2
        self.center, self.sharpness = torch.tensor([[0.0, 1.0], [-1.0, 0.5]]), torch.tensor([0.8, 0.4])
        self.value, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        v = self.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
        bias = gaussian_weights(self.center, self.sharpness, self.grid).log()
        full = torch.zeros(2, x.shape[1], x.shape[1])
        full[:, self.prefix_tokens :, self.prefix_tokens :] = bias
        q = torch.zeros_like(v)
        out = nn.functional.scaled_dot_product_attention(q, q, v, attn_mask=full)
        return self.head(out.transpose(1, 2).flatten(2).tanh().mean(1))


@pytest.mark.parametrize("prefix", [0, 2])
def test_replacing_gaussian_heads_by_their_fit_changes_nothing(prefix):
    model, x = Gaussians(prefix), torch.randn(3, 16 + prefix, 8)
    with torch.no_grad():
        plain = model(x)
        with regard.capture(model) as maps:
            model(x)
        found = regard.locality(maps)
        replaced = regard.replace_heads(model, found)
        torch.testing.assert_close(replaced(x), plain, atol=1e-4, rtol=1e-3)
        with replaced:
            torch.testing.assert_close(model(x), plain, atol=1e-4, rtol=1e-3)
        assert torch.equal(model(x), plain)  # itself again


def test_the_replacement_is_as_precise_as_the_values():
    layer = GaussianAttention(8, 2, axes=1).double()
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    center, sharpness = (0.1, 0.2), (0.3, 0.7)
    with torch.no_grad():
        layer.positions.center.copy_(torch.tensor(center, dtype=torch.float64)[:, None])
        heads = [Head("GaussianAttention", i, (center[i],), sharpness[i], 1.0, 1.0, (), 0.0) for i in range(2)]
        value = layer.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
        own = gaussian_weights(
            torch.tensor(center, dtype=torch.float64)[:, None], torch.tensor(sharpness, dtype=torch.float64), (6,)
        )
        expected = layer.output((own @ value).transpose(1, 2).flatten(2))
        found = regard.replace_heads(layer, heads, grid=(6,))(x)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=1e-13)


def test_the_replacement_is_the_gaussian_of_the_values():
    model, x = Gaussians(1), torch.randn(2, 17, 8)
    head = Head("Gaussians", 1, (1.0, -1.0), 0.3, 1.0, 1.0, (0.25,), 0.0)
    outputs = []

    class Spy(nn.Module):
        def forward(self, v):
            outputs.append(v)
            return v

    model.head = nn.Sequential(Spy(), model.head)
    with torch.no_grad():
        regard.replace_heads(model, [head], grid=(4, 4))(x)
        model(x)
        v = model.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
        weights = torch.zeros(2, 17, 17)
        own = gaussian_weights(model.center, model.sharpness, (4, 4))
        weights[:, 1:, 1:] = own / 2  # a zero score for the prefix token weighs as much as the whole Gaussian
        weights[:, 1:, 0] = 0.5
        weights[:, 0] = 1 / 17
        weights[1, 1:, 1:] = 0.75 * gaussian_weights(torch.tensor([[1.0, -1.0]]), torch.tensor([0.3]), (4, 4))[0]
        weights[1, 1:, 0] = 0.25
        expected = (weights @ v).transpose(1, 2).flatten(2).tanh().mean(1)
    torch.testing.assert_close(outputs[0], expected)
    assert not torch.allclose(outputs[1], expected, atol=1e-3)


@pytest.mark.parametrize("family", ["timm", "torch", "eager"])
def test_heads_can_be_replaced_in_every_kind_of_model(timm, transformers, family, images):
    if family == "timm":
        model = timm.models.vision_transformer.VisionTransformer(32, 8, embed_dim=16, depth=2, num_heads=2).eval()
        given, names = images, ["blocks.0.attn", "blocks.1.attn"]
    elif family == "eager":
        config = transformers.ViTConfig(
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=16,
            image_size=32,
            patch_size=8,
        )
        config._attn_implementation = "eager"
        model = transformers.ViTForImageClassification(config).eval()
        given, names = {"pixel_values": images}, ["vit.layers.0.attention", "vit.layers.1.attention"]
    else:
        model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 16, batch_first=True), 2).eval()
        given, names = torch.randn(2, 16, 16), ["layers.0.self_attn", "layers.1.self_attn"]
    more = {"grid": (4, 4)} if family == "torch" else {}

    def run():
        return model(given) if isinstance(given, torch.Tensor) else model(**given)

    with torch.no_grad(), regard.capture(model, **more) as maps:
        run()
    found = regard.locality(maps)
    assert sorted({head.name for head in found}) == names
    sharp = [Head(head.name, head.head, (0.0, 0.0), 30.0, 1.0, 1.0, (0.0,) * len(head.prefix), 0.0) for head in found]
    replaced = regard.replace_heads(model, Locality(sharp, found.layouts))
    # A capture inside has the maps of the replaced heads, here shifts by nothing, with which the model's outputs agree.
    with torch.no_grad(), replaced, regard.capture(model) as inner:
        run()
    assert list(inner) == names
    assert inner.residual < 1e-6
    for name, found in inner.items():
        prefix, before = found.layout(more.get("grid")).prefix, maps[name].weights
        torch.testing.assert_close(
            found.weights[:, :, prefix:], torch.eye(before.shape[3])[prefix:].expand_as(before[:, :, prefix:])
        )
        assert (found.weights - before).abs().max() > 0.1
        torch.testing.assert_close(found.weights[:, :, :prefix].sum(-1), torch.ones(2, 2, prefix))


def test_the_cost_of_replacing_is_measured():
    model, x = Gaussians(), torch.randn(40, 16, 8)
    with torch.no_grad():
        labels = model(x).argmax(-1)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    batches = [(x[:25], labels[:25]), (x[25:], labels[25:])]
    fitted = regard.locality(maps)
    same = regard.replace_heads(model, fitted).measure(batches)
    assert (same.before, same.after, same.agreement, same.samples, same.heads) == (1.0, 1.0, 1.0, 40, 2)
    wrong = [Head(h.name, h.head, (0.0, 0.0), 30.0, 0.0, 0.0, (), 0.0) for h in fitted]
    cost = regard.replace_heads(model, wrong, grid=(4, 4)).measure(batches)
    assert cost.before == 1.0
    assert cost.after < 1.0
    assert cost.after == cost.agreement
    assert "2 heads replaced: accuracy 1.0000 →" in str(cost)


def test_windows_are_replaced_over_the_whole_image(transformers, images):
    config = transformers.SwinConfig(
        image_size=32, patch_size=4, embed_dim=16, depths=[2], num_heads=[2], window_size=4
    )
    model = transformers.SwinModel(config).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        plain = model(images)[0]
    found = regard.locality(maps)
    assert found.layouts["encoder.layers.0.blocks.1.attention"].grid == (8, 8)
    with torch.no_grad():
        assert not torch.equal(regard.replace_heads(model, found)(images)[0], plain)


@pytest.mark.usefixtures("user_errors")
def test_replacing_says_what_does_not_fit():
    model, x = Gaussians(), torch.randn(1, 16, 8)
    head = Head("Gaussians", 0, (0.0, 0.0), 1.0, 1.0, 1.0, (), 0.0)
    with pytest.raises(ValueError, match="the layout of the tokens of 'Gaussians' is not known"):
        regard.replace_heads(model, [head])
    with pytest.raises(ValueError, match="fitted on 9"):
        regard.replace_heads(model, [head], grid=(3, 3))(x)
    with pytest.raises(ValueError, match="different numbers below 2"):
        regard.replace_heads(model, [Head("Gaussians", 5, (0.0, 0.0), 1.0, 1.0, 1.0, (), 0.0)], grid=(4, 4))(x)
    with pytest.raises(ValueError, match="fitted with 0 prefix tokens, not 1"):
        regard.replace_heads(model, [head], grid=(4, 4), prefix=1)
    with pytest.raises(TypeError, match=r"the result of regard\.locality"):
        regard.replace_heads(model, [3])
    with pytest.raises(
        TypeError, match=r"heads must be the result of regard\.locality, or a part of it, got 3 \(int\)"
    ):
        regard.replace_heads(model, 3)
    other = Head("elsewhere", 0, (0.0, 0.0), 1.0, 1.0, 1.0, (), 0.0)
    with pytest.warns(UserWarning, match="heads of elsewhere were not replaced"):
        regard.replace_heads(model, [other], grid=(4, 4))(x)


def test_the_trajectory_follows_heads_over_checkpoints(tmp_path, timm, images):
    from safetensors.torch import save_file

    model = timm.models.vision_transformer.VisionTransformer(32, 8, embed_dim=16, depth=1, num_heads=2).eval()
    expected = {}
    for step in (2, 10, 1):
        torch.manual_seed(step)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.5)
        prefix = "model." if step == 10 else ""
        state = {prefix + name: tensor.clone() for name, tensor in model.state_dict().items()}
        (tmp_path / f"step-{step}").mkdir()
        save_file(state, tmp_path / f"step-{step}" / "weights.safetensors")
        save_file({"momentum": torch.ones(3)}, tmp_path / f"step-{step}" / "optimizer.safetensors")
        with torch.no_grad(), regard.capture(model) as maps:
            model(images)
        expected[step] = regard.locality(maps)["blocks.0.attn", 1]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = trajectory(model, tmp_path, images)
    assert [path.parent.name for path in found.checkpoints] == ["step-1", "step-2", "step-10"]
    course = found.of("blocks.0.attn", 1)
    torch.testing.assert_close(course["fit"], torch.tensor([expected[step].fit for step in (1, 2, 10)]))
    assert course["center"].shape == (3, 2)
    assert "step-10/weights.safetensors" in str(found)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_folder_without_checkpoints_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must be a directory"):
        trajectory(nn.Linear(1, 1), tmp_path / "none", torch.ones(1))
    with pytest.raises(ValueError, match="no checkpoints"):
        trajectory(nn.Linear(1, 1), tmp_path, torch.ones(1))


def test_fitted_heads_run_at_any_length_and_in_generate(transformers):
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    model, ids = transformers.GPT2LMHeadModel(config).eval().double(), torch.randint(0, 50, (2, 6))
    with torch.no_grad(), regard.capture(model) as maps:
        model(ids)
    found = regard.locality(maps, grid=(6,)).best(3)
    options = {"max_new_tokens": 5, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.no_grad(), regard.replace_heads(model, found):
        text = model.generate(ids, **options)
        whole = model.generate(ids, use_cache=False, **options)
        logits = model(text[:, :-1]).logits
    assert torch.equal(text, whole)
    assert torch.equal(text[:, 6:], logits[:, 5:].argmax(-1))


def test_fitted_heads_run_at_another_resolution(timm):
    model = timm.models.vision_transformer.VisionTransformer(
        32, 8, num_classes=3, embed_dim=24, depth=1, num_heads=3, dynamic_img_size=True
    ).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.randn(2, 3, 32, 32))
    found = regard.locality(maps)
    x = torch.randn(2, 3, 48, 40)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    assert maps[0].grid == (6, 5)
    head = found["blocks.0.attn", 1]
    rows = torch.cat([torch.full((30, 1), head.prefix[0]), (1 - head.prefix[0]) * head.weights((6, 5))], 1)
    seen = []

    def change(record, output):
        value = record.running.value[:, 1].double()
        new = output.clone()
        new[:, 1, 1:] = (rows @ value).to(output.dtype)
        seen.append(new)
        return new

    with torch.no_grad(), changing(model, change):
        expected = model(x)
    with torch.no_grad():
        torch.testing.assert_close(regard.replace_heads(model, Locality([head], found.layouts))(x), expected)
    assert seen


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["Bert", "Llama", "Mistral"])
@pytest.mark.parametrize("padded", [slice(0, 3), slice(6, 9)], ids=["left", "right"])
def test_a_replaced_head_does_not_look_at_padding(transformers, family, padded, implementation):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32, "intermediate_size": 40}
    window = {"sliding_window": 4, "num_key_value_heads": 2} if family == "Mistral" else {}
    config = getattr(transformers, f"{family}Config")
    model = getattr(transformers, f"{family}Model")(
        config(vocab_size=50, **sizes, **window, attn_implementation=implementation)
    )
    model, ids, mask = model.double().eval(), torch.randint(3, 50, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    with regard.capture(model) as maps:
        model(ids)
    change = regard.replace_heads(model, regard.locality(maps, (9,), 0))
    mask[0, padded] = 0
    real = mask[0].bool()
    positions = {"position_ids": (mask.cumsum(-1) - 1).clamp_min(0)}
    with change, regard.capture(model) as within:
        found = model(ids, attention_mask=mask, **positions)[0]
    alone = change({"input_ids": ids[:1, real]})[0]
    torch.testing.assert_close(found[0, real], alone[0])
    assert within.residual < 1e-12
    assert not within[0].weights[0][:, real][..., ~real].any()
    torch.testing.assert_close(found[1], change({"input_ids": ids})[0][1])
