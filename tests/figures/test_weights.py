"""Figures of weights: labels that can be read, and titles that are complete."""

from itertools import pairwise

import pytest
import torch

from regard.figures import alignment, weight_map, weight_maps, weight_segments

PATH = "model.decoder.block.11.layer.1.EncDecAttention.with.a.long.path.of.modules · head 7"


def check_readable(figure):
    """No label lies on another one, and the title is inside of the figure."""
    figure.draw_without_rendering()
    for panel in figure.axes:
        for labels, low, high in ((panel.get_xticklabels(), "x0", "x1"), (panel.get_yticklabels(), "y0", "y1")):
            boxes = [label.get_window_extent() for label in labels if label.get_text()]
            for one, two in pairwise(sorted(boxes, key=lambda box: getattr(box, low))):
                slack = 0.2 * (getattr(one, high) - getattr(one, low))  # the line height is larger than the letters
                assert getattr(one, high) <= getattr(two, low) + slack
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


@pytest.mark.parametrize("shape", [(60, 60), (39, 60), (12, 60), (3, 60), (1, 45), (60, 20), (200, 200), (128, 60)])
@pytest.mark.parametrize("named", [False, True])
def test_labels_do_not_lie_on_each_other(shape, named):
    queries, keys = (
        [f"{kind}{n}" for n in range(count)] if named else None for kind, count in zip("qk", shape, strict=True)
    )
    weights = torch.rand(shape).softmax(-1)
    figure = weight_map(weights, torch.full(shape[:1], shape[1]), queries=queries, keys=keys, title=PATH)
    check_readable(figure)
    assert figure.get_suptitle().replace("\n", "").replace(" ", "") == PATH.replace(" ", "")


def test_labels_of_maps_side_by_side_do_not_lie_on_each_other():
    names = [f"token{n}" for n in range(60)]
    maps = [torch.rand(60, 60).softmax(-1) for _ in range(3)]
    figure = weight_maps(maps, ["a", "b", "b − a"], [(names, names)] * 3, title=PATH)
    check_readable(figure)


def color_bar(figure):
    """The marks of the color bar: their places and their texts."""
    bar = figure.axes[-1]
    found = zip(bar.get_xticks(), bar.get_xticklabels(), strict=True)
    return sorted((round(place, 6), label.get_text()) for place, label in found)


def test_the_color_bar_of_maps_with_one_key_ends_with_uniform_attention():
    assert color_bar(weight_map(torch.ones(5, 1), torch.ones(5))) == [(0.0, "0"), (1.0, "100 %\nuniform")]
    assert color_bar(weight_map(torch.full((3, 2), 0.5), torch.full((3,), 2.0)))[-1] == (1.0, "100 %")


def test_maps_of_queries_that_see_nothing_have_a_color_bar_with_zero():
    assert color_bar(weight_map(torch.zeros(2, 3), torch.zeros(2))) == [(0.0, "0")]


def test_the_color_bar_of_an_alignment_has_negative_marks_where_weights_are_negative():
    drawn = alignment(torch.tensor([[0.5, -0.5], [1.0, 0.0]]), ["a", "b"], ["c", "d"])
    assert color_bar(drawn)[0] == (-1.0, "−100 %")
    assert color_bar(drawn)[-1] == (1.0, "100 %")


@pytest.mark.parametrize("image", [None, torch.rand(30, 40, 3)])
def test_pictures_of_segments_keep_their_shape_and_share_one_scale(image):
    pictures = [torch.rand(6, 4) / 24, -torch.rand(2, 3) / 6]
    figure = weight_segments(pictures, [("a", 0.1), ("b", 0.2)], 30, images=[image, None])
    figure.draw_without_rendering()
    for panel, weights, shown in zip(figure.axes, pictures, (image, None), strict=False):
        tall, wide = weights.shape if shown is None else shown.shape[:2]
        box = panel.get_window_extent()
        assert box.height / box.width == pytest.approx(tall / wide, rel=0.02)
        assert panel.images[-1].get_clim() == (-1, 1)


@pytest.mark.parametrize(("written", "read"), [(3, 60), (60, 3), (400, 500)])
def test_long_alignments_have_labels_that_can_be_read(written, read):
    names = [[f"token{n}" for n in range(count)] for count in (read, written)]
    figure = alignment(torch.rand(written, read).softmax(-1), *names)
    check_readable(figure)
    assert max(figure.get_size_inches()) < 20


def test_single_letters_stand_upright():
    figure = alignment(torch.eye(3), [*"ab "], [*"ab "])
    assert [label.get_rotation() for label in figure.axes[0].get_xticklabels()] == [0, 0, 0]
