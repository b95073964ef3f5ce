"""Windows are put back onto the image: where each token of a window lies is what the model itself cuts."""

import contextlib

import pytest
import torch

import regard


class Numbering(torch.nn.Module):
    """In the place of a layer's attention: takes down which token lies where in each window."""

    def forward(self, x=None, *rest, hidden_states=None, **more):
        x = hidden_states if x is None else x
        self.seen = x[..., 0].long().flatten(1) - 1
        return x


def cut_by(block, grid, channels_first):
    """The windows' tokens as the block itself cuts them, and −1 for padding."""
    tokens = torch.arange(1.0, 1 + grid[0] * grid[1]).reshape(1, *grid, 1)
    tokens = tokens.permute(0, 3, 1, 2) if channels_first else tokens
    attention, block.attn = block.attn, Numbering()
    block.norm1 = block.cpe1 = torch.nn.Identity()
    with contextlib.suppress(Exception):  # what follows the attention needs real tokens
        block(tokens)
    seen, block.attn = block.attn.seen, attention
    return seen


MODELS = {
    "SAM": ("vision_transformer_sam.VisionTransformerSAM", {
        "img_size": 40, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "window_size": 2, "num_classes": 3,
        "global_attn_indexes": (1,),
    }, 40, (5, 5)),
    "MaxViT": ("maxxvit.MaxxVit", {
        "cfg": {"embed_dim": (8,), "depths": (1,), "block_type": ("M",), "stem_width": 8},
        "img_size": 64, "num_classes": 3,
    }, 64, (16, 16)),
    "Twins": ("twins.Twins", {
        "img_size": 32, "patch_size": 4, "embed_dims": (8, 8, 8, 8), "num_heads": (2, 2, 2, 2), "depths": (1, 1, 1, 1),
        "wss": (3, 2, 2, 1), "sr_ratios": (1, 1, 1, 1), "mlp_ratios": (2, 2, 2, 2), "num_classes": 3,
    }, 32, (8, 8)),
    "Nest": ("nest.Nest", {
        "img_size": 32, "patch_size": 4, "num_levels": 2, "embed_dims": (8, 8), "num_heads": (2, 2), "depths": (1, 1),
        "num_classes": 3,
    }, 32, (8, 8)),
    "DaViT": ("davit.DaVit", {
        "embed_dims": (8,), "depths": (1,), "num_heads": (2,), "window_size": 3, "num_classes": 3,
    }, 32, (8, 8)),
}  # fmt: skip


def windowed(timm, name):
    path, options, size, grid = MODELS[name]
    module, kind = path.split(".")
    module = getattr(timm.models, module)
    if name == "MaxViT":
        cfg = {**options["cfg"], "transformer_cfg": module.MaxxVitTransformerCfg(dim_head=4, window_size=(4, 4))}
        options = {**options, "cfg": module.MaxxVitCfg(**cfg)}
    torch.manual_seed(0)
    model = getattr(module, kind)(**options).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.randn(2, 3, size, size))
    return model, [found for found in maps.values() if found.windows is not None], grid


@pytest.mark.parametrize("name", MODELS)
def test_windows_lie_on_the_image(timm, name):
    _, found, grid = windowed(timm, name)
    assert found
    first = found[0]
    assert first.grid == grid
    assert first.shape == (2, 2, grid[0] * grid[1], grid[0] * grid[1])
    whole = first.weights.sum(-1)
    padded = any(side % window for side, window in zip(grid, first.latest.windows.window, strict=True))
    assert whole.max() < 1 + 1e-5
    if not padded:
        torch.testing.assert_close(whole, torch.ones_like(whole))
    assert first.agrees


@pytest.mark.parametrize("name", ["SAM", "MaxViT", "DaViT"])
def test_windows_are_where_the_model_cuts_them(timm, name):
    model, found, grid = windowed(timm, name)
    kinds = ("Block", "PartitionAttentionCl", "SpatialBlock")
    blocks = [part for part in model.modules() if type(part).__name__ in kinds]
    if name == "MaxViT":
        assert [one.latest.windows.strided for one in found] == [False, True]
    for one, block in zip(found, blocks, strict=False):
        cut = block._partition_attn if name == "MaxViT" else block
        assert torch.equal(one.latest.windows.index, _cut(block, cut, grid, channels_first=name == "DaViT"))


def _cut(block, cut, grid, channels_first):
    if cut is block:
        return cut_by(block, grid, channels_first)
    tokens = torch.arange(1.0, 1 + grid[0] * grid[1]).reshape(1, *grid, 1)
    attention, block.attn = block.attn, Numbering()
    cut(tokens)
    seen, block.attn = block.attn.seen, attention
    return seen


@pytest.mark.parametrize("kind", ["Sam", "VitDet"])
def test_windows_of_transformers(transformers, kind):
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 40, "patch_size": 8}
    if kind == "Sam":
        config = transformers.SamVisionConfig(
            **small, window_size=2, global_attn_indexes=[1], output_channels=8, mlp_dim=16
        )
        model = transformers.SamVisionModel(config).eval()
    else:
        config = transformers.VitDetConfig(**small, window_size=2, window_block_indices=[0], pretrain_image_size=40)
        model = transformers.VitDetModel(config).eval()
    with torch.no_grad(), regard.capture(model) as maps:
        model(pixel_values=torch.randn(2, 3, 40, 40))
    first, second = maps.values()
    assert (first.grid, first.shape) == ((5, 5), (2, 2, 25, 25))
    assert first.latest.windows.window == (2, 2)
    assert second.windows is None
    near = torch.arange(25).reshape(5, 5)[:2, :2].flatten()
    assert first.weights[:, :, 0, near].min() > 0
    torch.testing.assert_close(first.weights[:, :, 0, near].sum(-1), first.weights[:, :, 0].sum(-1))


def test_rows_of_windows_are_no_rows_of_the_image(timm):
    torch.manual_seed(0)
    options = {"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 8, "depths": (1,), "num_heads": (2,)}
    model, x = timm.models.swin_transformer.SwinTransformer(**options, num_classes=3).eval(), torch.randn(2, 3, 16, 16)
    with torch.no_grad(), regard.capture(model) as whole:
        model(x)
    torch.testing.assert_close(whole[0].row(-3), whole[0].weights[:, :, 61])
    torch.testing.assert_close(whole[0].block([9, 2], slice(1, 8)), whole[0].weights[:, :, [9, 2], 1:8])
    with pytest.raises(IndexError, match="from -64 to 63, got 64"):
        whole[0].row(64)
    with torch.no_grad(), regard.capture(model, rows=[0, 3]) as rows:
        model(x)
    assert rows[0].shape == (8, 2, 2, 16)
    assert "rows= are those of each window" in str(rows)
    for use in (
        rows[0].layout,
        lambda: regard.show(rows, image=x[0]),
        lambda: regard.figures.attention(rows[0], query=3),
    ):
        with pytest.raises(ValueError, match=r"how the 16 tokens of .* lie on a grid is not known"):
            use()
    assert rows[0].layout((4, 4)).prefix == 0
    with torch.no_grad(), regard.capture(model, reduce=lambda _, weights, rows: weights) as folded:
        model(x)
    torch.testing.assert_close(folded[0].reduced, whole[0].weights)
