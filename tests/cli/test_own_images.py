"""``train``, ``evaluate``, ``report`` and ``convert`` on images of one's own."""

import json
import re

import numpy as np
import pytest
from PIL import Image

import regard
from regard.cli import main

SMOKE = ["--smoke", "--accelerator", "cpu", "--no-tensorboard"]


@pytest.fixture
def photos(tmp_path):
    random = np.random.default_rng(0)
    for part, count in (("train", 20), ("test", 4)):
        for kind in ("cat", "dog"):
            folder = tmp_path / "photos" / part / kind
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 255, (18, 16, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


def test_every_command_works_on_such_a_run(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "demo", *SMOKE, "--task.data", "photos", "--task.image-size", "16"]) == 0
    monkeypatch.chdir("/")  # a run knows its images from any folder
    run = regard.load_run(tmp_path / "runs" / "demo")
    assert run.recipe.task.data == str(photos)
    capsys.readouterr()
    assert main(["evaluate", str(run.folder), "--accelerator", "cpu"]) == 0
    assert "(8 images)" in capsys.readouterr().out
    task = run.recipe.task
    sample = task.sample("test", 5)
    assert (sample.label, tuple(sample.image.shape)) == ("dog", (3, 16, 16))
    guesses = task.attend(run.network(), sample).answer["guesses"]
    assert {guess["label"] for guess in guesses} == {"cat", "dog"}
    image = next(photos.glob("test/cat/*.png"))
    assert main(["report", str(run.folder), "--image", str(image), "--output", str(tmp_path / "one.html")]) == 0
    assert re.search(r"(cat|dog) \(\d+%\)", (tmp_path / "one.html").read_text())
    assert main(["convert", str(run.folder / "model"), "--to", "convolution", "--json", str(tmp_path / "c.json")]) == 0
    assert json.loads((tmp_path / "c.json").read_text())["to"] == "convolution"


def test_a_run_whose_images_are_gone_says_so(photos, tmp_path, capsys, user_errors):
    folder = tmp_path / "run"
    assert (
        main(["train", "demo", *SMOKE, "--task.data", str(photos), "--task.image-size", "16", "--folder", str(folder)])
        == 0
    )
    photos.rename(tmp_path / "elsewhere")
    from regard.data.own_images import open_images

    open_images.cache_clear()
    assert main(["evaluate", str(folder)]) == 2
    assert f"there are no images at {photos}" in capsys.readouterr().err


@pytest.mark.parametrize("case", ["text", "empty", "gone", "sizes"])
def test_bad_input_is_one_sentence_and_leaves_nothing(photos, tmp_path, case, capsys, user_errors, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = {"text": "x.png", "empty": "no folders of classes", "gone": "no such file", "sizes": "different sizes"}
    if case == "text":
        (photos / "train" / "cat" / "x.png").write_text("hello")
    if case == "empty":
        (tmp_path / "empty").mkdir()
    if case == "sizes":
        Image.new("RGB", (5, 9)).save(photos / "train" / "cat" / "x.png")
    place = {"empty": "empty", "gone": "./gone"}.get(case, str(photos))
    assert main(["train", "demo", *SMOKE, "--task.data", place]) == 2
    text = capsys.readouterr().err
    assert expected[case] in text
    assert len(text.strip().splitlines()) == 1
    assert not (tmp_path / "runs").exists()
