"""Views 4 to 6 as files: what they compute is shown, every control changes it, and nothing is asked of any network."""

import base64
import io
import re

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

import regard
from regard.functional._taps import shift_leak
from regard.reference import worked_example

pytestmark = pytest.mark.browser


def number(text):
    """A number as the views write it: 0.145, −3, 2.5·10⁻⁷."""
    text = text.replace("−", "-").translate(str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-"))
    found = re.fullmatch(r"(?:(-?[\d.]+)·)?10(-?\d+)", text)
    return float(found[1] or 1) * 10.0 ** int(found[2]) if found and "·" in text else float(text)


def test_numbers_are_read_back():
    assert [number(text) for text in ("0.145", "−3", "2.5·10⁻⁷")] == [0.145, -3.0, 2.5e-7]


def slide(page, label, value):
    page.get_by_label(label, exact=True).first.fill(str(value))


class TestMechanism:
    @pytest.fixture
    def page(self, open_file):
        return open_file(regard.show("mechanism"))

    def pictures(self, page, look):
        return [look.pixels(page, ".rg-mechanism", at) for at in range(5)]

    def test_it_begins_with_the_worked_example(self, page, look):
        example = worked_example()
        shown = [float(page.get_by_label(f"Keys {row}, second number").input_value()) for row in (1, 2, 3)]
        assert shown == (example.hidden @ example.w_key.mT)[:, 1].tolist()
        assert "its output is (23, 46), hard attention's (23, 46)" in look.subtitle(page)

    def test_beta_goes_from_zero_to_infinity(self, page, look):
        before = self.pictures(page, look)
        slide(page, "β", 0)
        value = worked_example().hidden @ worked_example().w_value.mT
        mean = ", ".join(f"{x:.4g}" for x in value.mean(0).tolist())
        assert f"its output is ({mean})" in look.subtitle(page)
        after = self.pictures(page, look)
        # Keys are drawn by their weights too: everything moves.
        assert all(a != b for a, b in zip(before, after, strict=True))
        slide(page, "β", 1)
        assert look.subtitle(page).startswith("At β = ∞, q₂ gives 100 % of its attention to k₁")
        page.get_by_role("button", name="β = 1/√d").click()
        assert look.subtitle(page).startswith("At β = 0.7071")

    def test_what_is_shown_is_the_library_s(self, page, look):
        """After edits of all three, at a β between the ends."""
        page.get_by_label("example").select_option("lookup")
        slide(page, "β", 0.62)
        page.get_by_label("Keys 2, first number").fill("1.5")
        page.get_by_label("Values 3, second number").fill("-7")
        page.get_by_label("Queries 1, first number").fill("0.75")
        beta = number(re.search(r"β = (\S+),", look.subtitle(page))[1])
        read = lambda name, rows: torch.tensor(  # noqa: E731
            [
                [
                    float(page.get_by_label(f"{name} {row}, {place} number").input_value())
                    for place in ("first", "second")
                ]
                for row in range(1, rows + 1)
            ],
            dtype=torch.float64,
        )
        out = regard.attention(read("Queries", 3), read("Keys", 3), read("Values", 3), beta=beta)
        shown = re.search(r"its output is \((\S+), (\S+)\)", look.subtitle(page)).groups()
        assert [number(x) for x in shown] == pytest.approx(out[0].tolist(), abs=2e-3)

    def test_a_key_is_pushed_and_stretched_by_hand(self, page, look):
        page.get_by_label("example").select_option("lookup")
        key = [page.get_by_label(f"Keys 1, {place} number") for place in ("first", "second")]
        before, output = [each.input_value() for each in key], look.subtitle(page)
        box = page.locator(".rg-mechanism canvas").first.bounding_box()
        # The plane holds points within 2.5 of its middle; key 1 lies at (2, 0).
        place = lambda x, y: (  # noqa: E731
            box["x"] + box["width"] / 2 + x * min(box["width"], box["height"]) / 5,
            box["y"] + box["height"] / 2 - y * min(box["width"], box["height"]) / 5,
        )
        page.mouse.move(*place(2, 0))
        page.mouse.down()
        page.mouse.move(*place(1.5, 0.5), steps=4)
        page.mouse.move(*place(1, 1), steps=4)
        page.mouse.up()
        look.settle(page)
        pushed = [float(each.input_value()) for each in key]
        assert before == ["2", "0"]
        assert pushed == pytest.approx([1, 1], abs=0.1)
        assert look.subtitle(page) != output
        page.locator(".rg-mechanism canvas").first.focus()
        page.keyboard.press("+")
        look.settle(page)
        assert [float(each.input_value()) for each in key] == pytest.approx([1.1 * x for x in pushed], abs=0.02)

    def test_the_query_is_dragged_and_the_output_follows(self, page, look):
        page.get_by_label("example").select_option("compass")
        look.settle(page)
        query = [page.get_by_label(f"Queries 1, {place} number") for place in ("first", "second")]
        before = look.subtitle(page)
        box = page.locator(".rg-mechanism canvas").first.bounding_box()
        # The plane reaches from x = −1 to 1.6, and a quarter further.
        scale = min(box["width"], box["height"]) / 2 / (1.3 * 1.25)
        middle = box["x"] + box["width"] / 2 - 0.3 * scale, box["y"] + box["height"] / 2
        page.mouse.move(middle[0] + 1.6 * scale, middle[1] - 0.6 * scale)
        page.mouse.down()
        page.mouse.move(middle[0], middle[1] - 1.2 * scale, steps=5)
        page.mouse.up()
        look.settle(page)
        assert [float(each.input_value()) for each in query] == pytest.approx([0, 1.2], abs=0.1)
        assert look.subtitle(page) != before

    def test_another_query_asks_and_tokens_come_and_go(self, page, look):
        page.get_by_role("button", name="q₃ asks").click()
        assert ", q₃ gives" in look.subtitle(page)
        page.get_by_role("button", name="more keys").click()
        look.settle(page)
        expect(page.get_by_label("Values 4, first number")).to_be_visible()
        for _ in range(5):
            page.get_by_role("button", name="fewer queries").click()
        assert ", q₁ gives" in look.subtitle(page)

    def test_it_can_be_saved(self, page):
        for kind in ("PNG", "SVG"):
            with page.expect_download() as download:
                page.get_by_role("button", name=kind, exact=True).click()
            content = download.value.path().read_bytes()
            assert download.value.suggested_filename == f"mechanism.{kind.lower()}"
            if kind == "PNG":
                width, height = Image.open(io.BytesIO(content)).size
                assert width > 1000 < height
            else:
                assert b"<svg" in content
                assert "k₁".encode() in content


def test_an_example_of_one_s_own(open_file, look):
    page = open_file(
        regard.show("mechanism", query=torch.eye(2), key=torch.eye(2), value=torch.eye(2) * 8, beta=torch.inf)
    )
    assert "At β = ∞" in look.subtitle(page)
    assert "its output is (8, 0)" in look.subtitle(page)


class TestConvolution:
    @pytest.fixture
    def page(self, open_file):
        return open_file(regard.show("convolution"))

    def plane(self, page, look, name):
        return look.pixels(page, f".rg-plane-{name}")

    def errors(self, page, look):
        return [number(x) for x in re.search(r"at most (\S+) from.* than (\S+)$", look.subtitle(page)).groups()]

    def test_sharper_heads_converge_to_the_convolution_below_the_bound(self, page, look):
        exact, soft = self.plane(page, look, "convolution"), self.plane(page, look, "attention")
        heads = look.pixels(page, ".rg-nine")
        found = []
        for position in (0.1, 0.3, 0.5, 0.7, 0.95):
            slide(page, "sharpness α", position)
            error, bound = self.errors(page, look)
            assert error <= bound * 1.01
            found.append(error)
        assert found == sorted(found, reverse=True)
        assert found[-1] < 1e-12
        assert self.plane(page, look, "convolution") == exact
        assert self.plane(page, look, "attention") != soft
        assert look.pixels(page, ".rg-nine") != heads
        # A blur of an image in [0, 1] has a kernel that sums to 1: the bound is the leak itself.
        slide(page, "sharpness α", 0.5)
        assert self.errors(page, look)[1] == pytest.approx(shift_leak([10.0, 10.0]), rel=0.03)

    def test_every_switch_changes_the_convolution(self, page, look):
        slide(page, "sharpness α", 1)
        seen = [self.plane(page, look, "convolution")]

        def check():
            seen.append(self.plane(page, look, "convolution"))
            assert len(set(seen)) == len(seen)
            error, bound = self.errors(page, look)
            assert error <= bound * 1.01 < 1e-10

        page.get_by_label("kernel").select_option("edge")
        check()
        for border in ("reflect", "replicate", "circular"):
            page.get_by_label("border").select_option(border)
            check()
        page.get_by_text("dilation 1").locator("..").locator("..").get_by_text("3").click()
        check()
        page.get_by_text("stride 1").locator("..").locator("..").get_by_text("2").click()
        check()
        page.get_by_label("padding").select_option("none")
        check()
        page.get_by_label("image", exact=True).select_option("rings")
        check()
        page.get_by_label("weight in row 2, column 3").fill("4")
        check()
        assert page.get_by_label("kernel").input_value() == "edited"

    def test_heads_without_padding_attend_to_what_exists(self, page, look):
        slide(page, "sharpness α", 1)
        page.get_by_label("border").select_option("replicate")
        repeated = self.plane(page, look, "convolution")
        page.get_by_label("border").select_option("native")
        assert self.plane(page, look, "convolution") == repeated
        error, bound = self.errors(page, look)
        assert error <= bound < 1e-10

    def test_pointing_at_a_pixel_moves_the_heads(self, page, look):
        before = look.pixels(page, ".rg-nine")
        look.point(page, ".rg-plane-image", 0.02, 0.02)
        assert look.pixels(page, ".rg-nine") != before

    def test_it_plays(self, page, look):
        page.get_by_label("play").click()
        page.wait_for_function("() => Number(document.querySelector('input[type=range]').value) > 0.2")
        page.get_by_label("pause").click()
        look.settle(page)

    def test_an_image_of_one_s_own_is_read_by_the_browser(self, page, look):
        file = io.BytesIO()
        Image.linear_gradient("L").save(file, "PNG")
        before = self.plane(page, look, "image")
        page.locator("input[type=file]").set_input_files(
            {"name": "a.png", "mimeType": "image/png", "buffer": file.getvalue()}
        )
        page.wait_for_function("() => [...document.querySelectorAll('select')].some((one) => one.value === 'own')")
        assert self.plane(page, look, "image") != before
        page.locator("input[type=file]").set_input_files({"name": "b.png", "mimeType": "image/png", "buffer": b"no"})
        expect(page.get_by_role("alert")).to_contain_text("b.png is not an image", use_inner_text=True)


@pytest.fixture(scope="module")
def claims():
    return regard.show("claims", claims=["temperature", "a6-theorem-1", "a6-heads-move"])


class TestClaims:
    @pytest.fixture
    def page(self, open_file, claims):
        return open_file(claims)

    def listed(self, page):
        return page.locator(".rg-claim").evaluate_all("(all) => all.map((one) => one.dataset.claim)")

    def test_all_are_there_by_topic(self, page, claims):
        listed = claims.payload.meta["claims"]
        assert self.listed(page) == [claim["id"] for claim in listed]
        assert page.locator(".rg-topic").all_inner_texts() == ["Temperature 13", "Convolution 2"]

    def test_filters_leave_what_they_say(self, page, claims, look):
        listed = claims.payload.meta["claims"]
        every = look.pixels(page, ".rg-claims")
        page.get_by_label("misconceptions only").check()
        assert self.listed(page) == [claim["id"] for claim in listed if claim["verdict"] != "holds"]
        assert look.pixels(page, ".rg-claims") != every
        page.get_by_role("button", name="those that fail").click()
        assert self.listed(page) == [claim["id"] for claim in listed if claim["verdict"] == "fails"]
        page.get_by_label("search the statements").fill("softargmax sign")
        assert self.listed(page) == ["hw4-softargmax-sign"]
        page.get_by_label("search the statements").fill("nothing of the kind")
        expect(page.locator(".rg-claims")).to_contain_text("No statement matches", use_inner_text=True)
        page.get_by_label("search the statements").fill("")
        page.get_by_label("misconceptions only").uncheck()
        page.get_by_role("button", name="those that fail").click()
        page.get_by_label("source").select_option("a6")
        assert self.listed(page) == ["a6-theorem-1", "a6-heads-move"]

    def test_a_claim_opens_with_its_derivation_and_evidence(self, page, claims):
        claim = next(claim for claim in claims.payload.meta["claims"] if claim["id"] == "hw4-softargmax-sign")
        entry = page.locator("[data-claim=hw4-softargmax-sign]")
        expect(entry.locator(".rg-body")).to_have_count(0)
        entry.locator("button").press("Enter")
        text = entry.inner_text()
        assert "What is true instead" in text
        for part in claim["found"]["parts"]:
            assert f"{part['name']} {'accepted' if part['accepted'] else 'rejected'}: {part['line']}" in text
        # The browser draws the formulas itself.
        box = entry.locator("math").first.bounding_box()
        assert box["width"] > 20
        assert box["height"] > 8
        slow = page.locator("[data-claim=a6-heads-move]")
        slow.locator("button").click()
        assert "regard verify --slow --id a6-heads-move" in slow.inner_text()

    def test_a_square_leads_to_its_claim(self, page, look):
        place = look.point(page, ".rg-claims", 100, 13)
        look.settle(page)
        page.mouse.click(*place)
        page.wait_for_selector(".rg-body")
        expect(page.locator(".rg-body")).to_have_count(1)


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("view", ["mechanism", "convolution", "claims"])
def test_it_fits_a_phone(open_file, view, mode):
    page = open_file(
        regard.show(view, **({"claims": "positions"} if view == "claims" else {})), width=360, height=740, mode=mode
    )
    if view == "claims":
        for entry in page.locator(".rg-claim > button").all():
            entry.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    expect(page.locator(".regard")).to_have_attribute("data-theme", mode)


# What a notebook does, inside a shadow tree, which styles of the page do not reach.
NOTEBOOK = """
async ({ esm, payload, buffer }) => {
  const bytes = new DataView(Uint8Array.from(atob(buffer), (c) => c.charCodeAt(0)).buffer);
  const model = { get: (name) => ({ payload, buffer: bytes })[name], set() {}, save_changes() {}, on() {}, off() {} };
  const module = await import(URL.createObjectURL(new Blob([esm], { type: "text/javascript" })));
  const el = document.createElement("div");
  document.body.appendChild(document.createElement("div")).attachShadow({ mode: "open" }).append(el);
  window.clean = module.default.render({ model, el });
}
"""


@pytest.mark.parametrize(
    ("view", "holder"), [("mechanism", ".rg-mechanism"), ("convolution", ".rg-planes"), ("claims", ".rg-claims")]
)
def test_it_is_shown_in_a_notebook(new_page, look, view, holder):
    page = new_page()
    page.goto("about:blank")
    widget = regard.show(view, **({"claims": "hw4-beta-zero"} if view == "claims" else {})).widget
    buffer = base64.b64encode(widget.buffer).decode()
    page.evaluate(NOTEBOOK, {"esm": str(widget._esm), "payload": widget.payload, "buffer": buffer})
    look.settle(page)
    assert page.locator(holder).evaluate("(one) => getComputedStyle(one).display") == "grid"
    before = look.pixels(page, ".regard")
    if view == "claims":
        page.get_by_role("button", name="those that fail").click()
    else:
        page.locator("input[type=range]").first.fill("0")
        look.point(page, ".regard", 0.9, 0.9)
    assert look.pixels(page, ".regard") != before
    page.evaluate("() => window.clean()")
    expect(page.locator(".regard")).to_have_count(0)


@pytest.mark.parametrize(("width", "side_by_side"), [(900, 2), (1200, 3)])
def test_pictures_of_the_mechanism_leave_no_empty_corner(open_file, width, side_by_side):
    page = open_file(regard.show("mechanism"), width=width)
    boxes = page.locator(".rg-mechanism > section").evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect()).map(({ top, width }) => [Math.round(top), width])"
    )
    whole = page.locator(".rg-mechanism").evaluate("(one) => one.getBoundingClientRect().width")
    tops = [top for top, _ in boxes]
    beside = {top for top in tops if tops.count(top) > 1}
    assert [tops.count(top) for top in beside] == [side_by_side]
    assert all(width == pytest.approx(whole, abs=1) for top, width in boxes if top not in beside)


def test_the_nine_heads_have_room_at_every_width(open_file):
    page = open_file(regard.show("convolution"))
    for width in (360, 600, 760, 900, 1000, 1200, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        caption = page.locator(".rg-nine h3").bounding_box()
        assert caption["width"] >= 225
        assert caption["height"] <= 48  # two lines at the most
