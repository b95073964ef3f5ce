"""Sentences about words from right to left read from left to right: first the query, then the key, then the weight."""

import pytest
import torch

import regard

pytestmark = pytest.mark.browser
QUERY, KEY = "שלום", "مرحبا"

# The left edges of parts of an element's text, as it is drawn.
EDGES = """([selector, parts]) => {
  const element = document.querySelector(selector);
  const walker = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let from = 0;
  return parts.map((part) => {
    for (const node of nodes) {
      const at = node.data.indexOf(part, from);
      if (at < 0) continue;
      from = at + part.length;
      const range = document.createRange();
      range.setStart(node, at);
      range.setEnd(node, at + part.length);
      return range.getBoundingClientRect().left;
    }
    return null;
  });
}"""


def in_order(page, selector, parts):
    edges = page.evaluate(EDGES, [selector, parts])
    assert None not in edges, (parts, page.locator(selector).inner_text())
    return edges == sorted(edges)


def maps():
    """A head of which each of four words looks at the next one."""
    return torch.eye(4).roll(1, 1).mul(8).softmax(-1)[None]


WORDS = [QUERY, KEY, "אבג", "abc"]


def point(page, look, *, number=0):
    """At the cell of the first row and the second column: the row of its token, found by the tip."""
    box = page.locator(".rg-main canvas").nth(number).bounding_box()
    for x in range(60, int(box["width"]), 16):
        for y in range(60, int(box["height"]), 16):
            page.mouse.move(box["x"] + x, box["y"] + y)
            tip = page.locator(".rg-main .rg-tip").nth(number)
            if tip.is_visible() and tip.inner_text().strip("\u2068").startswith(QUERY) and KEY in tip.inner_text():
                look.settle(page)
                return
    raise AssertionError("no cell from the query to the key")


@pytest.mark.parametrize("view", ["tokens", "compare", "two heads"])
def test_the_query_comes_first_in_what_is_said_about_a_cell(open_file, look, view):
    weights = maps()
    if view == "compare":
        page = open_file(regard.show(weights, weights.flip(-1), tokens=WORDS))
    else:
        page = open_file(regard.show(torch.cat([weights, weights.flip(-1)]), tokens=WORDS))
    if view == "two heads":
        page.get_by_label("compare with").select_option(label="head 1")
    point(page, look)
    assert in_order(page, ".rg-main .rg-tip", [QUERY, "→", KEY, "%"])
    assert in_order(page, ".rg-subtitle", [QUERY, "→", KEY, "%"])


def test_the_best_keys_follow_the_query_in_their_order(open_file, look):
    page = open_file(regard.show(maps(), tokens=WORDS))
    page.locator(".rg-main canvas").focus()
    page.keyboard.press("ArrowDown")
    assert in_order(page, ".rg-subtitle", [QUERY, "looks at", KEY, "%"])


def test_a_sentence_about_a_word_and_an_image_reads_from_left_to_right(open_file):
    weights = torch.rand(1, 8, 8).softmax(-1)
    weights[0, 1] = torch.tensor([0.9, 0.01, 0.02, 0.02, 0.02, 0.01, 0.01, 0.01])
    shown = regard.show(weights, segments=[("text", 2), ("image", (2, 2)), ("text", 2)], tokens=WORDS)
    page = open_file(shown)
    page.locator(".rg-main canvas").last.focus()
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    assert in_order(page, ".rg-subtitle", [WORDS[1], "looks at", WORDS[0], "%"])


def test_a_very_long_token_does_not_hide_the_weight(open_file, look):
    names = ["x" * 900, "y" * 900, "z", "abc"]
    page = open_file(regard.show(maps(), tokens=names), width=420)
    box = page.locator(".rg-main canvas").bounding_box()
    page.mouse.move(box["x"] + 200, box["y"] + 200)
    look.settle(page)
    tip = page.locator(".rg-main .rg-tip")
    assert tip.is_visible()
    assert tip.inner_text().endswith("%")
    assert tip.evaluate("(one) => one.scrollWidth <= one.clientWidth")
