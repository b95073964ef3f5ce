"""The small programs behind the documentation: formulas, docstrings, tables and the gallery."""

import argparse
import doctest
import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import markdown
import pytest
from PIL import Image


@pytest.mark.parametrize("path", ["scripts/docs/mathml.py", "scripts/docs/docstrings.py", "scripts/results.py"])
def test_examples_in_the_scripts_hold(script, path):
    found = doctest.testmod(script(path))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture(scope="module")
def formulas(script):
    return script("scripts/docs/mathml.py")


class TestFormulas:
    @pytest.mark.parametrize(
        "latex",
        [
            r"\tfrac1h \sum_h \Bigl(\frac{\partial y_t}{\partial A_{l,h}} \odot A_{l,h}\Bigr)^{\!+}",
            r"f = \begin{cases} 1/m & \text{for the } m \text{ nearest} \\ 0 & \text{else} \end{cases}",
            r"r &= \sigma(W x) \\ z &= \tanh(h)",
            r"\mathbb E_x [L(x)] \leq \lVert x \rVert",
        ],
    )
    def test_what_docstrings_use_is_well_formed(self, formulas, latex):
        tree = ElementTree.fromstring(formulas.mathml(latex, display=True))
        assert tree.tag == "math"
        assert "\\" not in "".join(tree.itertext())

    def test_an_unknown_command_is_an_error_and_not_half_a_formula(self, formulas):
        with pytest.raises(ValueError, match="nosuchcommand"):
            formulas.mathml(r"x + \nosuchcommand{y}")

    def test_money_and_code_are_no_formulas(self, formulas):
        md = markdown.Markdown(extensions=[formulas.MathML()])
        assert "<math" not in md.convert("It costs 5$ or 6$ a day, `$x$` and \\$x$.")
        assert md.convert("Let $x_i$ and $y_i$ be *given*.").count("<math") == 2
        assert '<math display="block">' in md.convert("so\n\n$$\nx = 1\n$$\n\nholds")
        assert '<math display="block">' in md.convert("so $$x =\n1$$ holds")


class TestDocstrings:
    @pytest.fixture
    def to_markdown(self, script):
        return script("scripts/docs/docstrings.py").to_markdown

    def test_arguments_that_share_a_line_get_one_each(self, to_markdown):
        text = "Do.\n\nArgs:\n    a, b: numbers,\n        of any kind.\n    c: another.\n\nAfter a, b: text.\n"
        found = to_markdown(text, {})
        assert "    a: numbers,\n        of any kind.\n    b: numbers,\n        of any kind.\n    c: another." in found
        assert "After a, b: text." in found

    @pytest.mark.parametrize("head", [True, False])
    def test_tables_of_equals_signs_become_tables(self, to_markdown, head):
        rule = "======  =========="
        title = ["name    what it is", rule] if head else []
        text = "\n".join([rule, *title, "one     the first", "        of all", "two     the | last", rule, "", "End."])
        html = markdown.markdown(to_markdown(text, {}), extensions=["tables"])
        cells = re.findall(r"<td>(.*?)</td>", html)
        assert cells == ["one", "the first of all", "two", "the | last"]
        assert ("<th>name</th>" in html) == head
        assert "<p>End.</p>" in html

    def test_doctests_become_blocks_of_code(self, to_markdown):
        html = markdown.markdown(to_markdown("Do.\n\n>>> f(1)\n2\n\nAfter.", {}), extensions=["fenced_code"])
        assert "&gt;&gt;&gt; f(1)\n2" in html
        assert "<blockquote>" not in html
        assert "<p>After.</p>" in html


class TestApi:
    def test_names_of_a_package_are_those_python_sees(self, script):
        import importlib

        for package, names in script("scripts/docs/api.py").public_names().items():
            module = importlib.import_module(f"regard.{package}")
            assert all(hasattr(module, name) for name in names), package

    def test_a_name_in_two_packages_is_linked_to_the_fast_one(self, script):
        links = script("scripts/docs/api.py").links({"reference": ["attend", "only"], "functional": ["attend"]})
        assert links == {"attend": "regard.functional.attend", "only": "regard.reference.only"}


def test_a_table_that_is_not_known_is_refused(script):
    results = script("scripts/results.py")
    with pytest.raises(ValueError, match="no table is called 'speed'; there are gaussian"):
        results.table("speed", "")
    with pytest.raises(ValueError, match="no result file is about 'gaussian'"):
        results.table("gaussian", "", [])


def test_tables_take_up_what_was_measured_on_a_gpu_later(script):
    """Rivals, content with place and conversions have files of their own, which need not be there."""
    results = script("scripts/results.py")
    base = {"date": "2100-01-01", "hardware": "NVIDIA X", "command": "measured", "file": "new.json"}
    conversion = {"layer": "wide", "conv": 0.51, "ratio": 2.5, "taps ratio": 1.0, "device ratio": 0.9}
    conversion |= {"device taps ratio": 1.1} | {f"{kind} MiB": 7.0 for kind in ("conv", "attention", "taps")}
    rows = {
        "rivals": [
            {"grid": "64²", "ours": 0.4, "ours, memory": 3.0, "slow": None}, {"grid": "128²", "slow": 5.0, "slow, memory": 2.0}
        ],
        "placed": [{"grid": "64²", "placed": 14.5, "flash": 9.25, "ratio": 1.57}],
        "conversion": [conversion],
    }  # fmt: skip
    before = [r for r in results.load() if r.get("benchmark") not in rows or "NVIDIA" not in r["hardware"]]
    found = before + [{**base, "benchmark": name, "layout": "in rows", "rows": some} for name, some in rows.items()]
    tables = {name: results.table(name, "there/", found) for name in ("gaussian", "conversion")}
    assert all(tables[name].startswith(results.table(name, "there/", before)) for name in tables)
    assert "| 64² | 0.40 (3.00) | – (–) |\n| 128² | – (–) | 5.00 (2.00) |" in tables["gaussian"]
    assert "their images are laid out in rows" in tables["gaussian"]
    assert "| 64² | 14.50 | 9.25 | 1.57 × |" in tables["gaussian"]
    assert "| wide | 0.51 ms | 2.50× | 1.00× | 0.90× | 1.10× | 7.0 MiB" in tables["conversion"]


def test_the_gallery_is_made_by_its_script(script, root, tmp_path):
    gallery = script("scripts/gallery.py")
    shown = set(re.findall(r"images/gallery/([\w-]+)\.png", (root / "docs/gallery.md").read_text("utf-8")))
    kept = {path.stem for path in (root / "docs/images/gallery").glob("*.png")}
    light = {name for name in kept if not name.endswith("-dark")}
    assert shown | {"readme-see"} == light == set(gallery.PICTURES)
    assert kept - light == {f"{name}-dark" for name in light - set(gallery.OF_A_RUN)}  # of runs that are not kept
    assert gallery.main(["limit", "--folder", str(tmp_path)]) == 0
    for name in ("limit.png", "limit-dark.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    for name in gallery.OF_A_RUN:
        with pytest.raises(ValueError, match="pass --run FOLDER"):
            gallery.main([name, "--folder", str(tmp_path)])


def test_every_picture_is_whole(root):
    for path in (root / "docs/images").rglob("*.png"):
        with Image.open(path) as picture:
            picture.load()


class TestFront:
    def test_a_point_is_the_mean_over_the_seeds_of_the_latest_file(self, script):
        front = script("scripts/front.py")
        run = {"recipe": "cifar10-speedrun", "hardware": "NVIDIA H200", "seeds": [0, 1], "train_seconds": [8.0, 9.0]}
        older, newer = ({**run, "accuracy": accuracy} for accuracy in ([0.1, 0.1], [0.94, 0.95]))
        found = front.points([older, newer, {**newer, "recipe": "cifar10-best", "hardware": "a CPU"}])
        [(name, seconds, accuracy)] = found["attention by position, H200"]
        assert (name, seconds) == ("cifar10-speedrun (2 seeds)", 8.5)
        assert accuracy == pytest.approx(94.5)

    def test_the_files_that_are_here_are_drawn(self, script):
        front = script("scripts/front.py")
        [axes] = front.draw(front.load()).axes
        drawn = sum(len(each.get_offsets()) for each in axes.collections)
        assert drawn == sum(len(found) for found in front.points(front.load()).values()) >= 8


def test_every_seed_of_heads_and_convolutions_is_drawn(script):
    rival, results = script("scripts/rival.py"), script("scripts/results.py").load()
    found = rival.panels(results)
    assert sum(any("convolution" in what for what in rows) for rows in found.values()) >= 3, found
    assert all(len(rows) > 1 for rows in found.values()), found
    drawn = [each for axes in rival.draw(results).axes for each in axes.collections]
    assert sum(len(dots.get_offsets()) for dots in drawn) == sum(
        len(x) for rows in found.values() for x in rows.values()
    )


def test_what_the_comparison_with_convolutions_writes_is_what_its_table_reads(script, monkeypatch, tmp_path):
    """Also of another number of epochs than usual, whose rows are added to the others."""
    ablation, results = script("benchmarks/ablation.py"), script("scripts/results.py")

    def train_seeds(recipe, seeds, **options):
        run = SimpleNamespace(summary={"parameters": 2_000_000, "train_seconds": 1.0, "steps": 10})
        return SimpleNamespace(runs=dict.fromkeys(seeds, run), errors={}, accuracy=lambda: [0.25 for _ in seeds])

    monkeypatch.setattr(ablation, "train_seeds", train_seeds)
    rows = {"small": ("tower: small heads", lambda recipe: recipe)}
    options = argparse.Namespace(epochs=3, seeds=2, smoke=True, folder=tmp_path)
    row = ablation.measure("small", rows, options)
    run = {
        "benchmark": "rival (epochs 3)",
        "hardware": "NVIDIA H200",
        "date": "2030-01-01",
        "epochs": 3,
        "file": "a.json",
    }
    table = results.table("rival", "there/", [*results.load(), {**run, "rows": [row]}])
    assert "| tower, 3 epochs, held out | small heads | 2.00 M | 25.00 ± 0.00 | 2 | [file](there/a.json) |" in table
    assert "transformer, 8 epochs, held out" in table
    assert table.endswith("to 2030-01-01.")
