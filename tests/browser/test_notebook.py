"""Views in a notebook: a page that plays what anywidget promises a module, with the widget's own source and data."""

import base64

import pytest
import torch
from playwright.sync_api import expect

import regard

pytestmark = pytest.mark.browser

# What anywidget does: the module from a blob, then render({ model, el }); bytes arrive as a DataView.
HOST = """
async ({ esm, payload, buffer }) => {
  const bytes = (text) => new DataView(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
  const values = { payload, buffer: bytes(buffer), selection: {} };
  const listeners = {};
  window.model = {
    saved: 0,
    get: (name) => values[name],
    set: (name, value) => { values[name] = value; },
    save_changes: () => { window.model.saved += 1; },
    on: (event, callback) => { (listeners[event] ??= new Set()).add(callback); },
    off: (event, callback) => { listeners[event]?.delete(callback); },
    send: () => {},
    change: (payload, buffer) => {
      Object.assign(values, { payload, buffer: bytes(buffer) });
      listeners["change:payload"]?.forEach((callback) => callback());
    },
    listening: () => Object.values(listeners).reduce((sum, set) => sum + set.size, 0),
  };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.createElement("div");
  document.body.append(el);
  window.clean = await module.default.render({ model: window.model, el });
}
"""


@pytest.fixture
def open_notebook(new_page, look):
    def open_it(shown, **options):
        page = new_page(**options)
        page.goto("about:blank")
        widget = shown.widget
        buffer = base64.b64encode(widget.buffer).decode()
        page.evaluate(HOST, {"esm": str(widget._esm), "payload": widget.payload, "buffer": buffer})
        look.settle(page)
        return page

    return open_it


def selection(page):
    return page.evaluate("() => window.model.get('selection')")


def test_heads_over_training(open_notebook, look, run):
    page = open_notebook(regard.show(run))
    before = look.pixels(page, ".rg-panels")
    page.get_by_label("step").fill("0")
    assert look.pixels(page, ".rg-panels") != before
    page.keyboard.press("Escape")
    page.locator(".rg-panels canvas").first.focus()
    page.keyboard.press("ArrowDown")
    look.settle(page)
    assert selection(page)["head"] == 0


def test_image_attention(open_notebook, look, image_maps):
    maps, image = image_maps
    page = open_notebook(regard.show(maps, image=image))
    page.get_by_label("layer", exact=True).select_option("2")
    page.get_by_label("head", exact=True).select_option("mean")
    before = look.pixels(page, ".rg-main")
    page.mouse.click(*look.point(page, ".rg-main", 0.05, 60))
    assert look.pixels(page, ".rg-main") != before
    assert selection(page) == {"layer": "blocks.2.attention", "head": "mean", "query": 2}
    assert page.evaluate("() => window.model.saved") > 0


def test_merged_tokens_are_picked_by_their_number_in_their_own_layer(open_notebook, look, merged_maps):
    maps, image = merged_maps
    page = open_notebook(regard.show(maps, image=image))
    page.get_by_label("layer", exact=True).select_option("3")
    page.get_by_label("head", exact=True).select_option("rollout")
    width = page.locator(".rg-main canvas").bounding_box()["width"]
    page.mouse.click(*look.point(page, ".rg-main", width * 13.5 / 32, 2 + width * 21.5 / 32))
    assert "of 16 × 16 gets" in look.subtitle(page)
    assert selection(page) == {"layer": list(maps)[-1], "head": "rollout", "query": 5 * 8 + 3}
    page.get_by_label("layer", exact=True).select_option("0")
    look.settle(page)
    assert selection(page) == {"layer": next(iter(maps)), "head": "rollout", "query": 10 * 16 + 6}


def test_token_attention(open_notebook, look, text_maps):
    page = open_notebook(regard.show(text_maps, tokens=[f"w{i}" for i in range(8)]))
    before = look.pixels(page, ".rg-main")
    page.mouse.click(*look.point(page, ".rg-atlas", 0.35, 0.2))
    assert look.pixels(page, ".rg-main") != before
    assert selection(page)["layer"] == "layers.0.self_attn"


def test_new_data_are_drawn_and_cleaning_leaves_nothing(open_notebook, look):
    first, second = (regard.show([torch.rand(n, 4, 4).softmax(-1)] * n) for n in (3, 2))
    page = open_notebook(first)
    page.get_by_label("layer", exact=True).select_option("2")
    page.get_by_label("head", exact=True).select_option("0")
    page.get_by_text("Arcs").click()
    before = look.pixels(page, ".rg-main")
    buffer = base64.b64encode(second.payload.buffer).decode()
    page.evaluate("([payload, buffer]) => window.model.change(payload, buffer)", [second.payload.header, buffer])
    look.settle(page)
    assert look.pixels(page, ".rg-main") != before
    assert page.get_by_role("radio", name="Arcs").is_checked()  # what was picked stays picked, as far as it is there
    assert look.subtitle(page).startswith("layer 1 · head 0")
    page.evaluate("() => window.clean()")
    expect(page.locator(".regard")).to_have_count(0)
    assert page.evaluate("() => window.model.listening()") == 0


def test_it_follows_the_notebooks_theme(open_notebook, look):
    page = open_notebook(regard.show(torch.rand(1, 3, 3).softmax(-1)), mode="light")
    expect(page.locator(".regard")).to_have_attribute("data-theme", "light")
    page.evaluate("() => { document.body.dataset.jpThemeLight = 'false'; }")
    page.wait_for_selector(".regard[data-theme=dark]")


def test_keys_of_a_view_do_not_reach_the_notebook(open_notebook, look):
    page = open_notebook(regard.show(torch.rand(2, 3, 3).softmax(-1)))
    page.evaluate(
        "() => { window.heard = []; document.body.addEventListener('keydown', (e) => window.heard.push(e.key)); }"
    )
    page.locator(".rg-main canvas").focus()
    for key in ("a", "m", "ArrowDown"):
        page.keyboard.press(key)
    assert page.evaluate("() => window.heard") == []


def test_two_widgets_live_beside_each_other(open_notebook, look):
    shown = regard.show(torch.rand(2, 3, 3).softmax(-1))
    page = open_notebook(shown)
    buffer = base64.b64encode(shown.widget.buffer).decode()
    page.evaluate(HOST, {"esm": str(shown.widget._esm), "payload": shown.widget.payload, "buffer": buffer})
    look.settle(page)
    expect(page.locator(".regard")).to_have_count(2)
    before = look.pixels(page, ".regard >> nth=0 >> .rg-main")
    page.get_by_text("Arcs").nth(1).click()
    assert look.pixels(page, ".regard >> nth=0 >> .rg-main") == before
