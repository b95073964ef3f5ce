"""Labels in any script: with installed fonts that have the characters, else with code points, never as boxes."""

import io
import warnings

import pytest
import torch
from matplotlib.text import Text

import regard
from regard.figures import add_title, weight_map, weight_maps, weight_segments
from regard.figures.style import new_figure, text_width
from regard.views import _static_figure as static_figure

pytest.importorskip("matplotlib")

# Rare Chinese characters that only the font of the test has, and a character of private use that no font has.
FIRST, SECOND, NOWHERE = "\U00031350", "\U00031351", "\U0010f003"
CODE = "<U+10F003>"


@pytest.fixture(params=["both", "one each"])
def families(request, tmp_path):
    """Installed families that have two characters: in one font, or each in its own."""
    from matplotlib.font_manager import fontManager

    before = list(fontManager.ttflist)
    sets = [[FIRST, SECOND]] if request.param == "both" else [[FIRST], [SECOND]]
    names = []
    for number, characters in enumerate(sets):
        names.append(f"Regard test {request.param} {number}")
        path = tmp_path / f"{number}.ttf"
        write_font(path, names[-1], characters)
        fontManager.addfont(path)
    yield names
    fontManager.ttflist[:] = before
    fontManager._findfont_cached.cache_clear()


def write_font(path, name, characters):
    """A font that draws a square for each character, as wide as it is tall."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((50, 0))
    for corner in ((50, 900), (950, 900), (950, 0)):
        pen.lineTo(corner)
    pen.closePath()
    square = pen.glyph()
    glyphs = [".notdef", *(f"u{ord(one):X}" for one in characters)]
    font = FontBuilder(1000, isTTF=True)
    font.setupGlyphOrder(glyphs)
    font.setupCharacterMap({ord(one): glyph for one, glyph in zip(characters, glyphs[1:], strict=True)})
    font.setupGlyf(dict.fromkeys(glyphs, square))
    font.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 50)))
    font.setupHorizontalHeader(ascent=900, descent=-200)
    font.setupNameTable({"familyName": name, "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(path)


def drawn_labels(figure, axis="x"):
    """The labels, once the figure is written in every format: matplotlib warns where a font lacks a character."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        for kind in ("png", "svg", "pdf"):
            figure.savefig(io.BytesIO(), format=kind)
    return [label.get_text() for label in getattr(figure.axes[0], f"get_{axis}ticklabels")()]


def each_figure(names):
    """Every figure that labels tokens, with the axis of the labels."""
    weights = torch.eye(len(names))
    seen = torch.full((len(names),), len(names))
    yield weight_map(weights, seen, queries=names, keys=names, title=names[0]), "xy"
    yield weight_maps([weights] * 2, names[:2], [(names, names)] * 2, title=names[0]), "xy"
    yield regard.figures.alignment(weights, names, names), "xy"
    text = [(name, 0.5) for name in names]
    yield weight_segments([], text, 4, images=[], title=names[0]), "y"


def test_an_installed_font_with_the_characters_draws_them(families):
    names = [FIRST, f"a{SECOND}", FIRST + SECOND]
    for figure, axes in each_figure(names):
        for axis in axes:
            assert drawn_labels(figure, axis) == names
            label = getattr(figure.axes[0], f"get_{axis}ticklabels")()[-1]
            assert set(families) <= set(label.get_fontfamily())


def test_a_character_that_no_font_has_becomes_its_code_point_beside_those_that_are_drawn(families):
    names = [FIRST + NOWHERE, "\x01", "$x$"]
    for figure, axes in each_figure(names):
        for axis in axes:
            assert drawn_labels(figure, axis) == [FIRST + CODE, "<U+0001>", r"\$x\$"]


def test_an_added_font_is_used_from_then_on(tmp_path):
    from matplotlib.font_manager import fontManager

    draw = lambda: drawn_labels(weight_map(torch.eye(1), torch.ones(1), keys=["\U0010f009"]))  # noqa: E731
    assert draw() == ["<U+10F009>"]
    before = list(fontManager.ttflist)
    write_font(tmp_path / "late.ttf", "Regard test late", ["\U0010f009"])
    try:
        fontManager.addfont(tmp_path / "late.ttf")
        assert draw() == ["\U0010f009"]
    finally:
        fontManager.ttflist[:] = before


def test_the_token_in_the_title_of_text_with_an_image_is_no_formula():
    weights = torch.rand(1, 7, 7).softmax(-1)
    segments = [("text", 2), ("image", (2, 2)), ("text", 1)]
    shown = regard.show(weights, tokens=["a", "b", f"$_{{{NOWHERE}"], segments=segments)
    figure = static_figure.figure(shown.payload)
    drawn_labels(figure)
    assert figure.get_suptitle().replace("\n", "").endswith(rf"from \$_{{{CODE}")


@pytest.mark.parametrize("title", ["世界" * 8, NOWHERE * 16, "W" * 90])
def test_titles_of_any_script_stay_inside_of_the_figure(title):
    figure, _ = new_figure(1, 1, width=3.4, height=3.4)
    add_title(figure, title)
    figure.draw_without_rendering()
    box = figure._suptitle.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.width


def test_long_labels_of_wide_characters_leave_room_for_the_map(families):
    names = [FIRST * 60, NOWHERE * 60, "世" * 60]
    figure = weight_map(torch.eye(3), torch.full((3,), 3), queries=names, keys=names)
    labels = drawn_labels(figure)
    assert figure.axes[0].get_window_extent().width > 0.15 * figure.bbox.width
    assert all(text_width(label) <= 32 for label in labels)
    assert labels[1] == CODE * 3 + "…"  # no half of a code point


def each_chart(name):
    """Every figure in which a user's text is a title, a label of an axis, in a legend or below a bar."""
    yield regard.figures.curves(name, name, name, {name: ([1, 2], [1, 2]), "b": ([1, 2], [2, 1])})
    yield regard.figures.bars(name, name, {name: 1.0, "b": 2.0}, limit=1.5)
    yield regard.figures.matrices(name, {name: torch.eye(2)}, x=name, y=name)
    yield regard.figures.head_paths(name, {name: torch.randn(3, 2, 2)})
    yield regard.figures.heads([torch.zeros(1, 2)], [torch.ones(1, 2)], titles=[name])
    yield regard.figures.length_sweep({name: {8: {"characters": 0.9}}})


def test_texts_of_charts_have_fonts_as_labels_of_tokens_have(families):
    for figure in each_chart(f"a{FIRST}{SECOND}{NOWHERE}\x01"):
        drawn_labels(figure)
        figure.draw_without_rendering()
        texts = [text.get_text() for text in figure.findobj(Text) if FIRST in text.get_text()]
        assert texts
        assert all(NOWHERE not in text and "\x01" not in text for text in texts)


def test_formulas_and_lines_in_texts_of_charts_stay():
    figure = regard.figures.bars("n$^2$\nof n", "$y$", {"$x$\none": 1.0})
    panel = figure.axes[0]
    assert (panel.get_title(), panel.get_ylabel()) == ("n$^2$\nof n", "$y$")
    assert drawn_labels(figure) == ["$x$\none"]


def test_a_formula_is_not_broken_into_lines():
    formula = r"$\mathrm{softargmax}_{\beta}(q \cdot k)_{ij}$"
    figure = regard.figures.bars(f"the weights {formula} of all heads in the encoder's last layer", "y", {"a": 1.0})
    lines = figure.axes[0].get_title().split("\n")
    assert len(lines) > 1
    assert any(formula in line for line in lines)
    drawn_labels(figure)
