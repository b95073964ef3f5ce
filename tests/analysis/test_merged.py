"""A network that merges tokens on the way up, seen through every tool: layers differ in their grids and their widths."""

import pytest
import torch

import regard
from regard.analysis import importance
from regard.maps import AttentionRecord, Layout, Map, Maps, merged_rows
from regard.models import AttentionSettings, ImageEncoder

KINDS = ["gaussian", "gated", "relative", "relative-content", "content"]


def encoder(kind="gaussian", **options):
    attention = AttentionSettings(kind, **options)
    return ImageEncoder((16, 32), 2, 5, dim=18, depth=4, heads=9, attention=attention, merge=(2,)).double().eval()


def captured(model, images, **options):
    with torch.no_grad(), regard.capture(model, **options) as maps:
        model(images)
    return maps


def averaging(rows, columns):
    """(merged tokens, tokens): a quarter of each of four, written as a loop."""
    found = torch.zeros(rows * columns, 4 * rows * columns, dtype=torch.float64)
    for row in range(2 * rows):
        for column in range(2 * columns):
            found[(row // 2) * columns + column // 2, row * 2 * columns + column] = 0.25
    return found


@pytest.fixture
def images():
    return torch.randn(2, 3, 16, 32, dtype=torch.float64)


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("second_output", [False, True])
def test_every_map_is_right_and_lies_on_its_own_grid(attention, second_output, images):
    maps = captured(encoder(attention, second_output=second_output), images)
    assert [found.shape for found in maps.values()] == [(2, 9, 128, 128)] * 2 + [(2, 9, 32, 32)] * 2
    assert [found.layout() for found in maps.values()] == [Layout((8, 16), 0)] * 2 + [Layout((4, 8), 0)] * 2
    assert not maps.missed
    assert all(found.agrees and found.residual < 1e-12 for found in maps.values())


@pytest.mark.parametrize("attention", ["gaussian", "content"])
def test_the_grid_is_that_of_the_image_and_not_that_of_the_tokens_number(attention):
    """32 × 16 has as many tokens as the 16 × 32 that the model was built for."""
    maps = captured(encoder(attention), torch.randn(1, 3, 32, 16, dtype=torch.float64))
    assert [found.grid for found in maps.values()] == [(16, 8)] * 2 + [(8, 4)] * 2


def test_a_grid_that_is_given_for_some_layers_leaves_the_others_theirs(images):
    maps = captured(encoder("gaussian"), images, grid=(4, 32))
    assert [found.grid for found in maps.values()] == [(4, 32)] * 2 + [(4, 8)] * 2


@pytest.mark.parametrize("attention", ["gaussian", "content"])
def test_rollout_spreads_a_merged_token_over_its_square(attention, images):
    maps = captured(encoder(attention), images)
    found = regard.rollout(maps)
    steps = [(torch.eye(w.shape[-1], dtype=w.dtype) + w.mean(1)) / 2 for w in (each.weights for each in maps.values())]
    torch.testing.assert_close(found, steps[3] @ steps[2] @ averaging(4, 8) @ steps[1] @ steps[0])
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 32, dtype=torch.float64))


@pytest.mark.parametrize("attention", ["gaussian", "content"])
def test_relevance_goes_through_the_merge(attention, images):
    model = encoder(attention)
    before, after = (regard.relevance(model, images, 1, only=only) for only in ("blocks.[01].*", "blocks.[23].*"))
    assert not torch.equal(before, torch.eye(128, dtype=torch.float64).expand_as(before))
    torch.testing.assert_close(regard.relevance(model, images, 1), after @ averaging(4, 8) @ before)


def test_prefix_tokens_stay_themselves_where_others_are_merged():
    rows = torch.randn(2, 2 + 4 * 6, 5)
    found = merged_rows(rows, Layout((4, 6), 2), Layout((2, 3), 2))
    assert torch.equal(found[:, :2], rows[:, :2])
    torch.testing.assert_close(found[:, 2:].double(), averaging(2, 3) @ rows[:, 2:].double())
    line = merged_rows(rows, Layout((26,), 0), Layout((13,), 0))
    torch.testing.assert_close(line, rows.unflatten(1, (13, 2)).mean(2))


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (None, Layout((2, 2), 0), r"rollout needs the same tokens in every layer, or grids .*\(unknown, then 2×2\)"),
        (Layout((4, 4), 0), None, "4×4, then unknown"),
        (Layout((2, 8), 0), Layout((2, 3), 0), "2×8, then 2×3"),
        (Layout((16,), 0), Layout((2, 2), 0), "16, then 2×2"),
        (Layout((4, 4), 0), Layout((1, 3), 1), "4×4, then 1×3"),
    ],
)
def test_rollout_refuses_where_grids_do_not_tell_what_became_one(before, after, says):
    tokens = (16, 4 if after is None else after.tokens)
    calls = [
        AttentionRecord.given(torch.rand(1, 1, n, n).softmax(-1), layout=layout)
        for n, layout in zip(tokens, (before, after), strict=True)
    ]
    with pytest.raises(ValueError, match=says):
        regard.rollout(Maps(Map(f"layer.{number}", [call]) for number, call in enumerate(calls)))


@pytest.mark.parametrize("attention", KINDS)
def test_heads_are_weighed_and_pruned_in_layers_of_different_widths(attention, images):
    model = encoder(attention)
    found = importance(model, [(images, torch.tensor([1, 3]))])
    assert [scores.shape for scores in found.scores.values()] == [(9,)] * 4
    kept = found.keep(10)
    small = regard.prune_heads(model, kept)
    with regard.analysis.mask_heads(model, {name: sorted(set(range(9)) - set(heads)) for name, heads in kept.items()}):
        expected = model(images)
    torch.testing.assert_close(small(images), expected)


def test_heads_that_are_gaussian_are_found_and_replaced_by_themselves(images):
    model = encoder(init="grid")
    found = regard.locality(captured(model, images))
    assert {name: layout.grid for name, layout in found.layouts.items()} == {
        f"blocks.{number}.attention": (8, 16) if number < 2 else (4, 8) for number in range(4)
    }
    for number, block in enumerate(model.blocks):
        centers = torch.tensor([found[f"blocks.{number}.attention", head].center for head in range(9)])
        torch.testing.assert_close(centers, block.attention.center.float(), atol=1e-3, rtol=0)
    with regard.replace_heads(model, found):
        replaced = model(images)
    torch.testing.assert_close(replaced, model(images), atol=1e-4, rtol=1e-3)


def test_layers_of_both_grids_become_convolution_where_the_grid_has_room_for_it():
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    model = encoder(init="grid")
    converted, report = regard.convert_network(model, to="convolution", example=images)
    assert [row.name for row in report.rows] == [f"blocks.{number}.attention" for number in range(4)]
    assert not any(isinstance(module, regard.GaussianAttention) for module in converted.modules())
    torch.testing.assert_close(converted(images), model(images), atol=1e-3, rtol=1e-3)
    _, report = regard.convert_network(model, to="convolution", example=images[:, :, :16])
    assert [row.after == "kept" for row in report.rows] == [False, False, True, True]
    assert "no interior on grid (4, 8)" in report.rows[2].note


def test_merging_counts_and_the_table_tells_the_two_kinds_of_blocks_apart():
    found = regard.cost(encoder(), (1, 3, 16, 32), dtype=torch.float64)
    assert found["merging.2"].multiply_adds == 32 * (4 * 18) * (2 * 18)
    assert found["merging.2"].parameters == (4 * 18) * (2 * 18) + 2 * 4 * 18
    names = [line.split()[0] for line in str(found).splitlines()[2:]]
    assert len(names) == len(set(names))
    assert {"blocks.0–1", "blocks.2–3", "blocks.0–1.attention", "blocks.2–3.attention"} <= set(names)


def test_rollout_and_relevance_of_a_foreign_network_that_merges(timm):
    swin = timm.models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=2, depths=(2, 1), num_heads=(2, 4), embed_dim=8, window_size=4, num_classes=3
    )
    swin, images = swin.double().eval(), torch.randn(1, 3, 32, 32, dtype=torch.float64)
    maps = captured(swin, images)
    assert [found.grid for found in maps.values()] == [(16, 16), (16, 16), (8, 8)]
    below, above = (regard.rollout(Maps(list(maps.values())[part])) for part in (slice(0, 2), slice(2, 3)))
    torch.testing.assert_close(regard.rollout(maps), above @ averaging(8, 8) @ below)
    assert regard.relevance(swin, images).shape == (1, 64, 256)
