"""Capture on timm and vit-pytorch models."""

import pytest
import torch

import regard

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "num_classes": 5}


def vit(timm, **extra):
    return timm.models.vision_transformer.VisionTransformer(**{**TINY, **extra}).eval()


def test_fused_attention_stays_on_and_its_maps_are_those_of_the_slow_one(timm, images):
    model = vit(timm)
    assert model.blocks[0].attn.fused_attn
    with torch.no_grad():
        plain = model(images)
        with regard.capture(model) as maps:
            out = model(images)
        assert torch.equal(out, plain)
        assert [found.kernel for found in maps.values()] == ["_scaled_dot_product_flash_attention_for_cpu"] * 2
        for block in model.blocks:
            block.attn.fused_attn = False
        with regard.capture(model) as slow:
            model(images)
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    torch.testing.assert_close(maps.stack(), slow.stack(), atol=1e-6, rtol=1e-4)
    assert {found.against for found in slow.values()} == {"product"}
    assert maps.residual < 1e-5


def test_a_wrong_map_is_noticed(timm, images, spoiled):
    model = vit(timm)
    torch.nn.init.normal_(model.pos_embed, std=3.0)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(images)
    assert min(found.residual for found in maps.values()) > 1e-3


@pytest.mark.parametrize(
    ("extra", "prefix"),
    [
        ({}, 1),
        ({"reg_tokens": 3}, 4),
        ({"class_token": False, "global_pool": "avg"}, 0),
        ({"no_embed_class": True, "reg_tokens": 1}, 2),
    ],
)
def test_prefix_tokens_are_those_the_model_counts(timm, extra, prefix):
    model = vit(timm, dynamic_img_size=True, **extra)
    for size, grid in (((32, 32), (4, 4)), ((16, 40), (2, 5))):
        with torch.no_grad(), regard.capture(model) as maps:
            model(torch.randn(1, 3, *size))
        assert (maps[0].grid, maps[0].prefix) == (grid, prefix)


def test_a_distilled_model_has_two_prefix_tokens(timm, images):
    model = timm.models.deit.VisionTransformerDistilled(**TINY).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(images)
    assert (maps[0].grid, maps[0].prefix) == ((4, 4), 2)


class Numbering(torch.nn.Module):
    """In the place of a block's attention: takes down which token lies where in each window."""

    def forward(self, x, mask=None):
        self.seen = x[..., 0].long() - 1
        return x


def cut_by(block, grid):
    """The windows' tokens as the block itself cuts them, and −1 for padding."""
    tokens = torch.arange(1.0, 1 + grid[0] * grid[1]).reshape(1, *grid, 1)
    attention, block.attn = block.attn, Numbering()
    cut = block._shifted_window_attn if hasattr(block, "_shifted_window_attn") else block._attn
    cut(tokens)
    seen, block.attn = block.attn.seen, attention
    return seen


@pytest.mark.parametrize("kind", ["Swin", "Swin, fused", "SwinV2", "SwinV2Cr"])
def test_swin_windows_lie_where_the_image_has_them(timm, kind):
    swin = {"Swin": "swin_transformer", "SwinV2": "swin_transformer_v2", "SwinV2Cr": "swin_transformer_v2_cr"}
    name = kind.partition(",")[0]
    module = getattr(timm.models, swin[name])
    build = getattr(module, {"Swin": "SwinTransformer", "SwinV2": "SwinTransformerV2"}.get(name, "SwinTransformerV2Cr"))
    # 12 × 12 tokens, every other block shifted; in windows of 5 × 5 they are padded, which the second version refuses.
    window = 5 if name == "Swin" else 4
    model = build(
        img_size=48, patch_size=4, embed_dim=8, depths=(2,), num_heads=(2,), window_size=window, num_classes=3
    ).eval()
    for part in model.modules():
        if hasattr(part, "fused_attn"):
            part.fused_attn = "fused" in kind
    blocks = [part for part in model.modules() if type(part).__name__.endswith("Block")]
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.randn(2, 3, 48, 48))
    assert [found.weights.shape for found in maps.values()] == [(2, 2, 144, 144)] * 2
    assert maps[1].latest.windows.shift == (2, 2)
    for found, block in zip(maps.values(), blocks, strict=True):
        assert torch.equal(found.latest.windows.index, cut_by(block, found.grid))
    assert maps.residual < 1e-5


def test_vit_pytorch_writes_its_attention_by_hand(images):
    vit_pytorch = pytest.importorskip("vit_pytorch")
    model = vit_pytorch.ViT(
        image_size=32, patch_size=8, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=48, dim_head=8
    ).eval()
    with torch.no_grad():
        plain = model(images)
        with regard.capture(model) as maps:
            out = model(images)
    assert torch.equal(out, plain)
    assert [found.shape for found in maps.values()] == [(2, 2, 17, 17)] * 2
    assert {found.against for found in maps.values()} == {"product"}
    assert maps.residual < 1e-5
    with pytest.raises(ValueError, match="not known"):  # this model keeps no note of its grid
        maps[0].grid  # noqa: B018
    assert maps[0].layout(grid=(4, 4)).prefix == 1
