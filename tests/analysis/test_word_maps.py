"""Heat maps over a picture for each word of its prompt, from networks of diffusers."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.analysis import word_maps
from regard.maps import AttentionRecord, Map, Maps

WORDS = ["a", "red", "cat</w>", "cat</w>", "."]


@pytest.fixture(scope="module")
def diffusers(transformers):
    if importlib.util.find_spec("diffusers") is None:
        pytest.skip("diffusers is not installed (extra: parity)")
    return importlib.import_module("diffusers")


def test_it_is_the_mean_over_layers_steps_and_heads():
    torch.manual_seed(0)
    large, small = torch.rand(2, 3, 24, 5).softmax(-1), torch.rand(2, 3, 6, 5).softmax(-1)
    own = torch.rand(2, 3, 24, 24).softmax(-1)
    calls = {"down.0.attn2": [large, large.flip(0)], "down.1.attn2": [small], "down.0.attn1": [own]}
    maps = Maps(Map(name, [AttentionRecord.given(w, name) for w in each]) for name, each in calls.items())
    found = word_maps(maps, (4, 6), tokens=WORDS, sample=0)
    parts = [w[0].mean(0).mT.reshape(5, 4, 6) for w in (large, large.flip(0))]
    parts.append(F.interpolate(small[0].mean(0).mT.reshape(1, 5, 2, 3), (4, 6), mode="bilinear")[0])
    torch.testing.assert_close(found.heat, torch.stack(parts).mean(0))
    torch.testing.assert_close(found.heat.sum(0), torch.ones(4, 6))
    torch.testing.assert_close(found["cat"], found.heat[2:4].sum(0))
    assert found.maps == 3
    with pytest.raises(KeyError, match="no token is 'dog'"):
        found["dog"]


def test_the_unet_of_stable_diffusion(diffusers):
    unet = diffusers.UNet2DConditionModel(
        sample_size=8, block_out_channels=(16, 32), layers_per_block=1, norm_num_groups=8, cross_attention_dim=16,
        attention_head_dim=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip
    with torch.no_grad(), regard.capture(unet) as maps:
        for step in (9, 1):
            unet(torch.randn(2, 4, 8, 12), step, torch.randn(2, 5, 16))
    words = word_maps(maps, (8, 12), tokens=WORDS)
    cross = maps["*attn2"]
    assert words.maps == sum(len(found.calls) for found in cross.values()) == 2 * len(cross)
    torch.testing.assert_close(words.heat.sum(0), torch.ones(8, 12))
    shown = regard.show(words, image=torch.rand(3, 64, 96)).payload
    assert (shown.view, shown.meta["tokens"][:5]) == ("mixed", WORDS)
    row = shown.arrays["map0"].values[0, 1, 5:]
    torch.testing.assert_close(row, words.heat[1].flatten() / words.heat[1].sum(), atol=1e-4, rtol=1e-2)


def joint(kind, diffusers):
    if kind == "sd3":
        model = diffusers.SD3Transformer2DModel(
            sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_layers=2, attention_head_dim=8,
            num_attention_heads=2, joint_attention_dim=16, caption_projection_dim=16, pooled_projection_dim=16,
        )  # fmt: skip
        given = {"hidden_states": torch.randn(1, 4, 8, 8), "pooled_projections": torch.randn(1, 16)}
        return model, given, [("image", (4, 4)), ("text", 5)], 16
    model = diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, pooled_projection_dim=32, axes_dims_rope=[4, 4, 8],
    )  # fmt: skip
    given = {
        "hidden_states": torch.randn(1, 16, 4), "pooled_projections": torch.randn(1, 32),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(5, 3),
    }  # fmt: skip
    return model, given, [("text", 5), ("image", (4, 4))], 32


@pytest.mark.parametrize("kind", ["sd3", "flux"])
def test_joint_blocks(diffusers, kind):
    model, given, segments, width = joint(kind, diffusers)
    with torch.no_grad(), regard.capture(model.eval()) as maps:
        model(encoder_hidden_states=torch.randn(1, 5, width), timestep=torch.tensor([3.0]), **given)
    words = word_maps(maps, (4, 4), tokens=WORDS, segments=segments)
    image, text = (slice(16), slice(16, 21)) if kind == "sd3" else (slice(5, 21), slice(5))
    parts = [found.weights[-1].mean(0)[image, text].mT.reshape(5, 4, 4) for found in maps.values()]
    torch.testing.assert_close(words.heat, torch.stack(parts).mean(0))


def test_what_does_not_fit_is_named(user_errors):
    weights = torch.rand(1, 2, 16, 5).softmax(-1)
    maps = Maps([Map("attn2", [AttentionRecord.given(weights, "attn2")])])
    for message, options in {
        "no map has queries on a grid of 3 × 4": {"grid": (3, 4)},
        "grid must be the rows and columns": {"grid": 4},
        "no map has queries": {"grid": (4, 4), "tokens": ["a"]},
        "sample must lie within the batch of 1": {"grid": (4, 4), "sample": 3},
        "segments must be one image and one text": {"grid": (4, 4), "segments": [("text", 5)]},
    }.items():
        with pytest.raises(ValueError, match=message):
            word_maps(maps, **options)
