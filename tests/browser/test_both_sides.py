"""Comparisons, and text with images in it: what is pointed at on one side is shown on the other."""

import pytest
import torch

import regard

pytestmark = pytest.mark.browser


def test_a_comparison_marks_one_cell_on_all_sides(open_file, look):
    a, b = torch.full((2, 4, 4), 0.25), torch.full((2, 4, 4), 0.25)
    b[1] = torch.eye(4)
    page = open_file(regard.show(a, b, tokens=list("wxyz"), names=("before", "after")))
    assert "head 1 · 75 % of the attention moved · the head that changes most" in look.subtitle(page)
    before = [look.pixels(page, ".rg-three", side) for side in range(3)]
    look.point(page, ".rg-three", 0.3, 0.5)
    said = look.subtitle(page)
    assert "before 25 %, after " in said
    assert "after − before " in said
    assert all(look.pixels(page, ".rg-three", side) != before[side] for side in range(3))
    page.get_by_label("head", exact=True).select_option("0")
    assert "head 0 · 0 % of the attention moved" in look.subtitle(page)


def test_a_word_shows_its_patches_and_a_patch_its_words(open_file, look):
    weights = torch.zeros(1, 7, 7)
    weights[0, :, 0] = 1.0
    weights[0, 6] = torch.tensor([0, 0, 0, 0, 0, 0.9, 0.1])  # the last word looks at the last patch,
    weights[0, 5] = torch.tensor([0, 0.8, 0.2, 0, 0, 0, 0])  # and this patch at the second word
    segments = [("text", 2), ("image", (2, 2)), ("text", 1)]
    page = open_file(regard.show(weights, tokens=["see", "this", "cat"], image=torch.rand(3, 8, 8), segments=segments))
    assert "“cat” looks at patch (1, 1) 90 %, “cat” 9.9 % · 90 % on the image" in look.subtitle(page)
    words = look.pixels(page, ".rg-image", 1)
    look.point(page, ".rg-image", 0.75, 0.75)  # the last patch
    assert "patch (1, 1) looks at “this” 80 %, patch (0, 0) 20 %" in look.subtitle(page)
    assert look.pixels(page, ".rg-image", 1) != words
    page.get_by_text("Is looked at by").click()
    look.point(page, ".rg-image", 0.75, 0.75)
    assert "patch (1, 1) is looked at by “cat” 90 %" in look.subtitle(page)
    patches = look.pixels(page, ".rg-image", 0)
    look.point(page, ".rg-image", 8, 8, 1)  # the first word
    assert "“see” is looked at by" in look.subtitle(page)
    assert look.pixels(page, ".rg-image", 0) != patches
