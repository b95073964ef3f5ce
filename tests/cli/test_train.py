"""``regard train``, ``evaluate``, ``report``, ``bench`` and ``demo``."""

import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image

import regard
from regard.claims import select
from regard.claims.prose import inline_html
from regard.cli import _demo, _evaluate, _train, main
from regard.training import ImageEncoderSettings, ImageTask, Recipe, _lengths, attention_maps

SMOKE = ["--smoke", "--accelerator", "cpu", "--no-tensorboard"]


class TestTrain:
    def test_the_list_has_every_recipe(self, capsys):
        assert main(["train", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in lines[2:]] == list(regard.recipes.names())  # one line each
        assert main(["train", "--list", "demo"]) == 0
        assert regard.recipes.summary("demo").replace("``", "") in capsys.readouterr().out

    def test_it_trains_and_says_where_to_go_next(self, tmp_path, capsys):
        folder = tmp_path / "a run"
        assert main(["train", "fashion-vit", *SMOKE, "--folder", str(folder)]) == 0
        assert f"next: regard evaluate '{folder}'" in capsys.readouterr().out  # as it can be pasted
        assert regard.load_run(folder).summary["steps"] == 8

    def test_any_field_can_be_set(self):
        recipe, options = _train.parse(
            regard.recipes.get("cifar10-transformer"),
            shlex.split(
                "--epochs 3 --network.dim 36 --task.augmentation.crop 2 --optimizer.center-factor 2 --clip 0.5 "
                "--task.validation 0 --no-compile --schedule.decay cosine --folder x --resume auto --seeds 5"
            ),
        )
        assert (recipe.epochs, recipe.network.dim, recipe.task.augmentation.crop) == (3, 36, 2)
        assert (recipe.optimizer.center_factor, recipe.clip, recipe.task.validation) == (2.0, 0.5, 0)
        assert (recipe.compile, recipe.schedule.decay) == (False, "cosine")
        named = regard.recipes.get("cifar10-transformer")
        assert recipe.optimizer.matrix_learning_rate == named.optimizer.matrix_learning_rate  # what was not set stays
        assert options.for_train()["resume"] == "auto"
        assert (options.folder, options.seeds) == (Path("x"), 5)

    @pytest.mark.parametrize(
        ("word", "meaning"), [("false", False), ("True", True), ("auto", "auto"), ("runs/x", "runs/x")]
    )
    def test_the_words_of_resume(self, word, meaning):
        _, options = _train.parse(regard.recipes.get("demo"), ["--resume", word])
        assert options.for_train()["resume"] == meaning

    @pytest.mark.parametrize("name", ["cifar10-speedrun", "text-mlm", "a6-gated"])
    def test_help_has_no_markup_of_docstrings(self, name, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["train", name, "--help"])
        assert stopped.value.code == 0
        shown = capsys.readouterr().out
        assert "--optimizer.learning-rate" in shown
        assert "`" not in shown

    def test_a_wrong_field_is_refused(self, capsys):
        with pytest.raises(SystemExit) as stopped:
            main(["train", "demo", "--epoch", "3"])
        assert stopped.value.code == 2
        assert "epochs" in capsys.readouterr().err

    def test_a_wrong_value_is_a_message(self, capsys, user_errors):
        assert main(["train", "nowhere"]) == 2
        assert "there is no recipe 'nowhere'" in capsys.readouterr().err
        assert main(["train", "demo", *SMOKE, "--seeds", "0"]) == 2
        assert "seeds must be 1 or more, got 0" in capsys.readouterr().err

    def test_several_seeds_and_a_result_file(self, tmp_path, capsys):
        result = tmp_path / "result.json"
        words = ["train", "demo", *SMOKE, "--folder", str(tmp_path / "runs"), "--seeds", "2", "--result", str(result)]
        assert main(words) == 0
        assert re.search(r"demo, test: \d+\.\d\d ± \d+\.\d\d %", capsys.readouterr().out)
        written = json.loads(result.read_text())
        assert written["recipe"] == "demo (smoke)"
        assert written["seeds"] == [0, 1]
        assert len(written["accuracy"]) == len(written["accuracy_flip"]) == 2
        assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["seed-0", "seed-1"]

    def test_ctrl_c_saves_and_the_command_it_names_goes_on(self, tmp_path):
        words = shlex.split("case-rnn --smoke --accelerator cpu --no-tensorboard --epochs 400 --evaluate-every 400")
        command = [sys.executable, "-m", "regard.cli", "train", *words]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        folder = tmp_path / "runs" / "case-rnn"
        with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as running:
            for _ in range(1200):
                if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").stat().st_size:
                    break
                time.sleep(0.1)
            running.send_signal(signal.SIGINT)
            _, said = running.communicate(timeout=120)
        assert running.returncode == 130
        found = re.search(
            r"stopped at step (\d+) and saved a checkpoint there. To resume: python -m regard\.cli (.*)", said
        )
        assert found, said
        step, again = int(found[1]), found[2].split()
        assert again[-4:] == ["--folder", "runs/case-rnn", "--resume", "auto"]
        assert regard.load_run(folder).checkpoints.steps()[-1] == step
        recipe, options = _train.parse(regard.recipes.get("case-rnn").smoke(), [w for w in again[2:] if w != "--smoke"])
        assert recipe == regard.load_run(folder).recipe
        assert options.for_train()["resume"] == "auto"


class TestEvaluate:
    def test_it_prints_accuracy_with_and_without_flip_averaging(self, image_run, capsys):
        assert main(["evaluate", str(image_run.folder), "--accelerator", "cpu"]) == 0
        text = capsys.readouterr().out
        assert "test accuracy (1,000 images)" in text
        assert "averaged over each image and its mirror image" in text

    def test_as_json(self, image_run, capsys):
        assert main(["evaluate", str(image_run.folder), "--json", "--which", "best", "--accelerator", "cpu"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found == json.loads((image_run.folder / "evaluation.json").read_text())

    def test_sentences_of_other_lengths(self, case_runs, image_run, capsys):
        words = ["evaluate", str(case_runs[1].folder), "--accelerator", "cpu", "--lengths", "4", "7"]
        assert main(words) == 0
        text = capsys.readouterr().out
        assert "in sentences of 4\n" in text
        assert "in sentences of 7\n" in text
        assert main(["evaluate", str(image_run.folder), "--accelerator", "cpu", "--lengths", "4"]) == 2
        assert "--lengths is for runs of case conversion" in capsys.readouterr().err

    def test_a_length_that_takes_long_is_announced(self, case_runs, capsys, monkeypatch, tmp_path):
        monkeypatch.setattr(_lengths, "TRIED", (2, 4))
        monkeypatch.setattr(_lengths, "LONG", 0.0)
        run = str(case_runs[1].folder)
        for words in (["evaluate", run, "--accelerator", "cpu"], ["report", run, "--output", str(tmp_path / "x.json")]):
            assert main([*words, "--lengths", "4", "9"]) == 0
            said = capsys.readouterr().err
            assert re.search(r"^sentences of 9 characters: this takes about \d+ seconds, or more", said, re.MULTILINE)
            assert "sentences of 4" not in said

    def test_a_length_that_cannot_be_is_refused_before_anything_is_measured(self, case_runs, capsys, monkeypatch):
        monkeypatch.setattr(_evaluate, "measure_run", None)
        assert main(["evaluate", str(case_runs[1].folder), "--lengths", "4", "0"]) == 2
        assert "--lengths must be 1 or more, got 0" in capsys.readouterr().err

    def test_the_evaluation_is_kept_where_a_long_length_is_interrupted(self, case_runs, capsys, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr(_evaluate, "measure_lengths", interrupt)
        kept = case_runs[1].folder / "evaluation.json"
        kept.unlink(missing_ok=True)
        assert main(["evaluate", str(case_runs[1].folder), "--accelerator", "cpu", "--lengths", "4"]) == 130
        assert "free running" in capsys.readouterr().out
        assert kept.exists()

    def test_what_is_no_run_is_a_message(self, tmp_path, capsys):
        assert main(["evaluate", str(tmp_path)]) == 2
        assert "is not the folder of a run" in capsys.readouterr().err


def _stands_alone(page):
    """Nothing in the page is loaded from anywhere."""
    sources = re.findall(r'(?:src|href)="([^"]*)"', page)
    return all(source.startswith("data:") for source in sources) and "http" not in re.sub(
        r"data:[^\"]*|http-equiv", "", page
    )


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(torch.randint(256, (40, 30, 3), dtype=torch.uint8).numpy()).save(path)
    return path


def _facts_of_report(folder, capsys):
    """The part of a run's report with its numbers, without the views."""
    assert main(["report", str(folder), "--samples", "0"]) == 0
    capsys.readouterr()
    page = (folder / "report.html").read_text()
    return page[page.index("The run in numbers") :].partition("Learning curves")[0]


class TestReport:
    def test_a_run_becomes_a_page_that_stands_alone(self, image_run, tmp_path):
        output = tmp_path / "report.html"
        assert main(["report", str(image_run.folder), "--output", str(output)]) == 0
        page = output.read_text()
        assert _stands_alone(page)
        for words in ("Learning curves", "Heads over training", "What it attends to", f"{10:,}"):
            assert words in page
        # Everything is drawn by the page itself; one figure says how many heads are needed.
        assert page.count("data:image/png;base64,") == 1
        assert set(re.findall(r'data-regard-payload="(\w+)"', page)) == {"story", "training", "heads", "image"}

    def test_it_has_the_test_accuracy_that_was_measured_and_its_step(self, tmp_path, capsys):
        folder = tmp_path / "run"
        assert main(["train", "demo", *SMOKE, "--folder", str(folder)]) == 0
        accuracy, pages = [], []
        for which in (["--which", "4"], []):
            pages.append(_facts_of_report(folder, capsys))
            main(["evaluate", str(folder), "--json", *which])
            accuracy.append(json.loads(capsys.readouterr().out)["accuracy"])
        pages.append(_facts_of_report(folder, capsys))
        assert "test accuracy" not in pages[0]
        assert f"{accuracy[0]:.2%} of 1,000 images at step 4" in pages[1]
        assert f"{accuracy[1]:.2%} of 1,000 images<" in pages[2]

    def test_accuracy_against_heads_is_drawn_on_request_of_a_number_of_images(self, image_run, tmp_path, capsys):
        output = tmp_path / "report.html"
        words = ["report", str(image_run.folder), "--output", str(output), "--samples"]
        assert main([*words, "10"]) == 0
        assert "on 10 validation images" in output.read_text()
        assert "Of 18 heads" in output.read_text()
        assert main([*words, "0"]) == 0
        assert "How many heads it needs" not in output.read_text()
        assert main([*words, "-1"]) == 2
        assert "--samples must be 0 or more" in capsys.readouterr().err

    @pytest.mark.parametrize("ending", ["png", "html"])
    def test_attention_maps_of_ones_own_image(self, image_run, photo, tmp_path, ending):
        output = tmp_path / f"maps.{ending}"
        words = ["report", str(image_run.folder), "--image", str(photo), "--output", str(output), "--query", "1", "5"]
        assert main(words) == 0
        if ending == "png":
            with Image.open(output) as opened:
                assert opened.width > 300
        else:
            assert "Classified as:" in output.read_text()
            assert _stands_alone(output.read_text())

    def test_folders_of_the_output_are_made(self, image_run, case_runs, photo, tmp_path):
        words, case = ["report", str(image_run.folder), "--samples", "0"], ["report", str(case_runs[0].folder)]
        for number, more in enumerate([words, [*words, "--image", str(photo)], [*case, "--lengths", "3"]]):
            output = tmp_path / "new" / str(number) / ("page.png" if "--lengths" in more else "page.html")
            assert main([*more, "--output", str(output)]) == 0
            assert output.stat().st_size > 1000

    def test_accuracy_against_length_of_several_runs(self, case_runs, tmp_path):
        output = tmp_path / "lengths.png"
        words = ["report", *(str(run.folder) for run in case_runs), "--lengths", "3", "6", "--output", str(output)]
        assert main(words) == 0
        assert output.stat().st_size > 1000
        assert main([*words[:-1], str(tmp_path / "lengths.json")]) == 0
        written = json.loads((tmp_path / "lengths.json").read_text())
        assert written["lengths"] == [3, 6]
        assert all(0 <= share <= 1 for name in written["recipes"] for share in written["characters"][name])

    def test_a_sequence_model_shows_its_alignment(self, case_runs, tmp_path):
        output = tmp_path / "case.html"
        assert main(["report", str(case_runs[1].folder), "--output", str(output)]) == 0
        page = output.read_text()
        assert set(re.findall(r'data-regard-payload="(\w+)"', page)) == {"story", "training", "tokens"}
        assert '"asks":"target","reads":"source"' in page[page.index('id="tokens-header"') :]

    def test_mistakes_are_messages(self, image_run, case_runs, photo, tmp_path, capsys):
        run = str(image_run.folder)
        text = tmp_path / "notes.txt"
        text.write_text("no image")
        wrong = {
            "is not an image": ["report", run, "--image", str(text)],
            "networks that take images": ["report", str(case_runs[0].folder), "--image", str(photo)],
            "a row and a column of the grid of tokens, (7, 7), got (9, 0)": [
                *("report", run, "--image", str(photo), "--query", "9", "0")
            ],
            "must end in .html": ["report", run, "--output", str(tmp_path / "x.pdf")],
            "several runs can be compared with --lengths": ["report", run, run],
            "--query is a token of an image": ["report", run, "--query", "9", "0"],
            "--image and --lengths are two reports": ["report", run, "--image", str(photo), "--lengths", "3"],
        }
        for words, arguments in wrong.items():
            assert main(arguments) == 2
            said = capsys.readouterr().err
            assert words in said


@pytest.fixture(scope="module")
def merged(tmp_path_factory):
    """The folder of a network that merges tokens on the way up, 14 × 14 and then 7 × 7; and the grids that TensorBoard's
    pictures of its heads were drawn on."""
    folder, grids = tmp_path_factory.mktemp("merged") / "run", []
    draw = regard.figures.heads
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regard.figures, "heads", lambda *args, **options: grids.append(args[2]) or draw(*args, **options))
        task = ImageTask("fashion-mini", validation=10, limit=16)
        network = ImageEncoderSettings(patch_size=2, dim=9, depth=2, hidden=4, merge=(1,))
        recipe = Recipe("merged", task, network, epochs=1, batch_size=16)
        regard.train(recipe, folder=folder, accelerator="cpu", tensorboard=True, progress=False)
    return folder, grids


class TestMerging:
    def test_the_command_line_says_where(self):
        recipe, _ = _train.parse(regard.recipes.get("cifar10-transformer"), ["--network.merge", "1", "3"])
        assert recipe.network.merge == (1, 3)
        assert _train.parse(recipe, ["--network.merge"])[0].network.merge == ()
        assert _train.parse(recipe, [])[0].network.merge == (1, 3)

    def test_heads_are_drawn_on_the_grid_of_their_own_layer(self, merged, tmp_path):
        folder, drawn = merged
        grids = [(14, 14), (7, 7)]
        assert drawn == [grids] * 2  # at step 0 and at the last
        output = tmp_path / "report.html"
        assert main(["report", str(folder), "--samples", "10", "--output", str(output)]) == 0
        shown = regard.views.run_views(regard.load_run(folder))["heads"].meta["layers"]
        assert [tuple(layer["grid"]) for layer in shown] == grids
        assert "Of 18 heads" in output.read_text()
        assert main(["evaluate", str(folder), "--accelerator", "cpu"]) == 0

    def test_a_query_is_the_same_place_of_the_image_in_every_layer(self, merged, photo, tmp_path, capsys):
        words = ["report", str(merged[0]), "--image", str(photo), "--output", str(tmp_path / "maps.png"), "--query"]
        assert main([*words, "13", "12"]) == 0
        assert main([*words, "14", "12"]) == 2
        assert "a row and a column of the grid of tokens, (14, 14), got (14, 12)" in capsys.readouterr().err

        maps = attention_maps(regard.load_run(merged[0]).network(), torch.randn(1, 1, 28, 28))
        figure = regard.figures.image_attention(maps, torch.zeros(1, 28, 28, dtype=torch.uint8), query=(13, 4))
        for layer, (found, place) in enumerate(zip(maps.values(), (13 * 14 + 4, 6 * 7 + 2), strict=True)):
            line = figure.axes[10 * layer : 10 * layer + 10]
            side = found.grid[0]
            [marked] = line[0].patches
            at = (place % side, place // side)
            assert marked.get_bbox().bounds == (*(each * 28 / side - 0.5 for each in at), 28 / side, 28 / side)
            for head, panel in enumerate(line[1:]):
                drawn = torch.from_numpy(panel.images[0].get_array().data).flatten()
                lift = found.weights[0, head, place].double() * side**2  # against uniform, on one scale for both layers
                torch.testing.assert_close(drawn, lift.log1p() / math.log1p(14 * 14))


class TestDemo:
    def test_the_main_job_leaves_a_report_a_person_can_open(self, tmp_path, capsys):
        folder = tmp_path / "demo"
        for _ in range(2):  # a second demo replaces the first
            assert main(["demo", "--smoke", "--folder", str(folder)]) == 0
        text = capsys.readouterr().out
        for words in ("1054, 852, -396", "Test accuracy", "layers became convolution", "claims verified"):
            assert words in text
        page = (folder / "report.html").read_text()
        assert _stands_alone(page)
        for words in ("Attention by hand", "How much of it was convolution?", "What people say about attention"):
            assert words in page
        # Claims by what they say, and not by their names.
        shown = page[page.index("What people say about attention") :]
        assert sum(inline_html(claim.statement) in shown for claim in select()) >= 1
        assert not [claim.id for claim in select() if claim.id in shown]
        assert len(page) <= 3e6
        assert (folder / "model" / "config.json").exists()

    def test_it_does_not_touch_a_folder_that_is_not_its_own(self, tmp_path, capsys):
        (tmp_path / "thesis.txt").write_text("years of work")
        assert main(["demo", "--folder", str(tmp_path)]) == 2
        assert "holds something other" in capsys.readouterr().err
        assert (tmp_path / "thesis.txt").exists()
        with pytest.raises(FileExistsError):
            _demo.prepare(tmp_path)

    def test_a_run_of_its_recipe_in_its_folder_stays(self, tmp_path):
        wanted = tmp_path / "demo"
        assert _demo.free_folder(wanted) == wanted
        wanted.mkdir()
        assert _demo.free_folder(wanted) == wanted
        (wanted / "recipe.json").write_text("{}")  # as regard train demo leaves it
        other = _demo.free_folder(wanted)
        assert other == tmp_path / "demo-2"
        _demo.prepare(other)
        assert _demo.free_folder(wanted) == other  # an earlier demo's is used again
        assert (wanted / "recipe.json").exists()


class TestBench:
    def test_it_lists_and_runs_those_of_the_checkout(self, tmp_path, monkeypatch, capsys):
        from regard.cli import _bench

        (tmp_path / "quick.py").write_text('"""How quick is it?"""\nimport sys\nprint("ran with", sys.argv[1:])\n')
        monkeypatch.setattr(_bench, "benchmarks", lambda: {"quick": tmp_path / "quick.py"})
        assert main(["bench", "list"]) == 0
        assert main(["bench", "quick", "--rounds", "3"]) == 0
        text = capsys.readouterr().out
        assert "How quick is it?" in text
        assert "ran with ['--rounds', '3']" in text

    def test_an_installed_package_has_none_and_says_so(self, monkeypatch, capsys):
        from regard.cli import _bench

        monkeypatch.setattr(_bench, "benchmarks", dict)
        assert main(["bench", "list"]) == 1
        assert "benchmarks run from a checkout" in capsys.readouterr().err
