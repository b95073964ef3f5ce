"""The vision transformer: shapes, positions for other sizes, timm's weights with timm's outputs."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.layers import MultiHeadAttention
from regard.models import VisionTransformer
from regard.models._relative_bias import RelativeBias
from regard.models._vision_transformer import POOLS, POSITIONS

SMALL = {"dim": 16, "depth": 2, "heads": 2, "hidden": 24}


@given(
    pool=st.sampled_from(POOLS),
    positions=st.sampled_from(POSITIONS),
    registers=st.integers(0, 2),
    rows=st.integers(1, 3),
    columns=st.integers(1, 3),
    patch=st.sampled_from([2, (2, 3)]),
    channels=st.integers(1, 3),
)
def test_shapes_and_gradients(pool, positions, registers, rows, columns, patch, channels):
    height, width = (patch, patch) if isinstance(patch, int) else patch
    size = (rows * height, columns * width)
    model = VisionTransformer(
        size, patch, 5, channels=channels, pool=pool, positions=positions, registers=registers, **SMALL
    )
    images = torch.randn(2, channels, *size)
    logits, intermediates = model(images, return_intermediates=True)
    tokens = registers + (pool == "class") + rows * columns
    assert logits.shape == (2, 5)
    assert model.grid == model.grid_for(size) == (rows, columns)
    assert [x.shape for x in intermediates] == [(2, tokens, 16)] * 2
    torch.testing.assert_close(model.forward_head(model.forward_features(images)), logits)
    model(images).square().sum().backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not without
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_parameter_count_of_vit_tiny():
    with torch.device("meta"):
        model = VisionTransformer(224, 16, 1000)
    # 5,717,416 as published for DeiT-tiny, less the class token's own position, which is part of the token here.
    assert sum(parameter.numel() for parameter in model.parameters()) == 5_717_416 - 192


TIMM = [
    {},
    {"global_pool": "avg"},
    {"global_pool": "avg", "class_token": False},
    {"global_pool": "map", "class_token": False},
    {"init_values": 0.5, "reg_tokens": 3, "no_embed_class": True},
    {"reg_tokens": 2, "num_classes": 0, "qkv_bias": False},
    {"img_size": (12, 24), "patch_size": (4, 6), "in_chans": 1, "pos_embed": "none"},
]


def timm_model(timm, **options):
    sizes = {"img_size": 12, "patch_size": 4, "num_classes": 7, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = timm.models.vision_transformer.VisionTransformer(**{**sizes, **options})
    for parameter in model.parameters():  # biases and scales start at 0 or 1, where a lost one would not show
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


@pytest.mark.parametrize("options", TIMM)
def test_timm_weights_give_timm_outputs(timm, options):
    theirs = timm_model(timm, **options)
    ours = VisionTransformer.from_timm(theirs)
    assert not ours.training
    images = torch.randn(3, ours.patches.channels, *theirs.patch_embed.img_size, dtype=torch.float64)
    torch.testing.assert_close(ours(images), theirs(images))
    torch.testing.assert_close(ours.forward_features(images), theirs.forward_features(images))
    rebuilt = VisionTransformer(**ours.config).double().eval()
    rebuilt.load_state_dict(ours.state_dict())
    torch.testing.assert_close(rebuilt(images), theirs(images))


@pytest.mark.parametrize("options", TIMM[:-1])
def test_a_timm_state_tells_all_but_the_heads(timm, options, user_errors):
    theirs = timm_model(timm, **options)
    images = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    ours = VisionTransformer.from_timm(theirs.state_dict(), heads=2).eval()
    torch.testing.assert_close(ours(images), theirs(images))
    with pytest.raises(ValueError, match="heads is needed"):
        VisionTransformer.from_timm(theirs.state_dict())


def test_positions_are_interpolated_as_timm_does(timm):
    theirs = timm_model(timm, dynamic_img_size=True)
    ours = VisionTransformer.from_timm(theirs)
    for size in ((12, 20), (8, 8), (24, 12)):
        images = torch.randn(1, 3, *size, dtype=torch.float64)
        # In float32, as both interpolate.
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("positions", POSITIONS)
def test_takes_other_image_sizes(positions):
    model = VisionTransformer((8, 12), 4, 3, positions=positions, **SMALL).eval()
    for size in ((8, 12), (12, 8), (16, 24)):
        assert model(torch.randn(1, 3, *size)).shape == (1, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"qk_norm": True}, "q_norm"),
        ({"pre_norm": True}, "norm_pre"),
        ({"act_layer": torch.nn.ReLU}, "activation is ReLU"),
        ({"global_pool": "max"}, "pooling is 'max'"),
        ({"norm_layer": torch.nn.LayerNorm}, "its norm is LayerNorm.*eps=1e-05"),
    ],
)
def test_refuses_what_it_cannot_represent(timm, options, message, user_errors):
    with pytest.raises(ValueError, match=message):
        VisionTransformer.from_timm(timm_model(timm, **options))


def test_refuses_other_models(timm, user_errors):
    with pytest.raises(TypeError, match="must be a timm VisionTransformer"):
        VisionTransformer.from_timm(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="not a timm vision transformer"):
        VisionTransformer.from_timm({"weight": torch.ones(2, 2)}, heads=2)
    with pytest.raises(ValueError, match="heads is 4 but the module has 2"):
        VisionTransformer.from_timm(timm_model(timm), heads=4)
    with pytest.raises(ValueError, match="image_size 16 makes 16 patches"):
        VisionTransformer.from_timm(timm_model(timm).state_dict(), heads=2, image_size=16)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"image_size": 30}, "height of images .image_size. is 30, but must be a positive multiple"),
        ({"image_size": (8, 8, 8)}, "image_size must be a number or"),
        ({"pool": "max"}, "pool must be one of 'class'"),
        ({"positions": "rotary"}, "positions must be one of 'learned'"),
        ({"num_classes": -1}, "num_classes must be a whole number of 0 or more"),
        ({"registers": 1.5}, "registers must be a whole number of 0 or more"),
        ({"heads": 3}, "which 3 heads do not divide"),
        ({"depth": 0}, "depth must be 1 or more"),
    ],
)
def test_says_what_is_wrong_with_an_argument(arguments, message, user_errors):
    with pytest.raises((TypeError, ValueError), match=message):
        VisionTransformer(**{"image_size": 32, "patch_size": 4, "num_classes": 10, **SMALL, **arguments})


def test_says_what_is_wrong_with_an_image(user_errors):
    model = VisionTransformer(8, 4, 10, **SMALL)
    with pytest.raises(ValueError, match="must have 3 channels"):
        model(torch.ones(1, 1, 8, 8))
    with pytest.raises(ValueError, match=r"width of images .image_size. is 9"):
        model(torch.ones(1, 3, 8, 9))
    with pytest.raises(TypeError, match="like the layer's parameters"):
        model(torch.ones(1, 3, 8, 8, dtype=torch.float64))


def test_permuting_patches_without_positions_changes_nothing():
    model = VisionTransformer(8, 4, 3, pool="average", positions="none", **SMALL).double().eval()
    image = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    swapped = torch.cat([image[..., 4:], image[..., :4]], -1)
    torch.testing.assert_close(model(swapped), model(image))
    for positions in ("learned", "sinusoidal", "relative", "placed"):
        placed = VisionTransformer(8, 4, 3, pool="average", positions=positions, **SMALL).double().eval()
        for parameter in placed.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        assert (placed(swapped) - placed(image)).abs().max() > 1e-3


def test_placed_heads_follow_their_formula_and_tokens_without_a_place_do_not():
    model = VisionTransformer((8, 12), 4, 3, positions="placed", registers=1, **SMALL).double().eval()
    for block in model.blocks:
        torch.nn.init.zeros_(block.attention.qkv.weight[:32])  # no content: queries and keys are zero
        torch.nn.init.uniform_(block.attention.positions.center, -2, 2)
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.randn(2, 3, 8, 12, dtype=torch.float64))
    place = torch.cartesian_prod(torch.arange(2.0), torch.arange(3.0)).double()
    for block, found in zip(model.blocks, maps.values(), strict=True):
        away = (place - place[:, None])[None] - block.attention.center.detach()[:, None, None]
        score = -torch.einsum("hqki,hij,hqkj->hqk", away, block.attention.sharpness.detach(), away)
        expected = torch.nn.functional.pad(score, (2, 0, 2, 0)).softmax(-1)  # the class token and a register
        torch.testing.assert_close(found.weights, expected.expand(2, -1, -1, -1), atol=1e-12, rtol=1e-9)
        assert found.latest.agrees


def test_each_block_attends_once():
    model = VisionTransformer(8, 4, 3, pool="attention", **SMALL)
    assert sum(isinstance(module, MultiHeadAttention) for module in model.modules()) == 3


@given(rows=st.integers(1, 4), columns=st.integers(1, 4), own=st.tuples(st.integers(1, 4), st.integers(1, 4)))
def test_an_offset_of_zero_keeps_its_bias_on_every_grid(rows, columns, own):
    bias = RelativeBias(2, own, prefix=1)
    found = bias((rows, columns))[0, :, 1:, 1:]
    middle = bias.table[:, own[0] - 1, own[1] - 1]
    torch.testing.assert_close(found.diagonal(dim1=1, dim2=2), middle[:, None].expand(2, rows * columns))
