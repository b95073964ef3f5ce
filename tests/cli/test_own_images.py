"""``train``, ``evaluate``, ``report`` and ``convert`` on images of one's own."""

import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.cli import main
from regard.cli._report import read_image
from regard.data import StreamedSet
from regard.data.own_images import open_images
from regard.studio._image_files import decode, fit

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


@pytest.mark.parametrize("where", ["memory", "mapped", "decoded"])
def test_every_command_works_on_such_a_run(photos, tmp_path, monkeypatch, capsys, where):
    """In memory, from the memory-mapped cache, and decoded whenever they are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    if where != "memory":
        monkeypatch.setenv("REGARD_DATA_MEMORY", "0")
    if where == "decoded":
        monkeypatch.setenv("REGARD_DATA_CACHE", "off")
    open_images.cache_clear()
    assert main(["train", "demo", *SMOKE, "--task.data", "photos", "--task.image-size", "16"]) == 0
    monkeypatch.chdir("/")  # a run knows its images from any folder
    run = regard.load_run(tmp_path / "runs" / "demo")
    assert run.recipe.task.data == str(photos)
    assert isinstance(run.recipe.task.data_set.train, StreamedSet) is (where != "memory")
    capsys.readouterr()
    open_images.cache_clear()  # as in a process of its own
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
    if where == "mapped":
        assert main(["report", str(run.folder), "--samples", "4", "--output", str(tmp_path / "report.html")]) == 0
        assert "dog" in (tmp_path / "report.html").read_text()
        assert main(["convert", str(run.folder), "--to", "convolution", "--json", str(tmp_path / "c.json")]) == 0
        assert json.loads((tmp_path / "c.json").read_text())["to"] == "convolution"
    open_images.cache_clear()


def test_the_studio_shows_the_users_images_and_classes(photos, tmp_path, monkeypatch):
    pytest.importorskip("fastapi", reason="the studio's extra is not installed")
    from starlette.testclient import TestClient

    from regard.studio import create_app

    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("REGARD_DATA_MEMORY", "0")
    open_images.cache_clear()
    words = ["--task.data", str(photos), "--task.image-size", "16", "--folder", str(tmp_path / "runs" / "mine")]
    assert main(["train", "demo", *SMOKE, *words]) == 0
    open_images.cache_clear()
    client = TestClient(create_app(tmp_path / "runs", example=None), base_url="http://127.0.0.1:8642")
    page = client.get("/api/runs/mine/images?source=test&start=3&count=2").json()
    assert (page["total"], [sample["label"] for sample in page["samples"]]) == (8, ["dog", "cat"])
    shown = np.asarray(Image.open(io.BytesIO(client.get("/api/runs/mine/images/test/4").content)))
    expected = regard.load_run(tmp_path / "runs" / "mine").recipe.task.sample("test", 4).image
    assert (shown == expected.permute(1, 2, 0).numpy()).all()
    answer = client.get("/api/runs/mine/images/test/4/attention")
    assert answer.status_code == 200
    assert b'"dog"' in answer.content
    assert b'"cat"' in answer.content
    open_images.cache_clear()


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "P"])
def test_a_report_and_the_studio_give_the_network_an_image_as_training_does(tmp_path, mode):
    """A smooth photo, whose scaled pixels every filter computes otherwise, in the report, the studio and the data set."""
    rows, columns = np.mgrid[:90, :70]
    pixels = np.stack([rows * 2, columns * 3, (rows * columns) % 251], -1).astype(np.uint8)
    for number, kind in enumerate(("cat", "dog", "cat", "dog")):
        folder = tmp_path / ("train" if number < 2 else "test") / kind
        folder.mkdir(parents=True)
        Image.fromarray(np.roll(pixels, number, 0)).convert(mode).save(folder / "photo.png")
    images = regard.data.open_data(str(tmp_path), image_size=16, validation=0).train
    for number, kind in enumerate(images.classes):
        file, wanted = tmp_path / "train" / kind / "photo.png", images.pixels(images.labels.argsort())[number]
        assert torch.equal(read_image(file, images.shape), wanted)
        assert torch.equal(fit(decode(file.read_bytes()), images.shape)[0], wanted)


def test_a_run_whose_images_are_gone_says_so(photos, tmp_path, capsys, user_errors):
    folder = tmp_path / "run"
    assert (
        main(["train", "demo", *SMOKE, "--task.data", str(photos), "--task.image-size", "16", "--folder", str(folder)])
        == 0
    )
    photos.rename(tmp_path / "elsewhere")
    from regard.data.own_images import open_images

    open_images.cache_clear()
    moved = ["--task.data", str(tmp_path / "elsewhere")]
    for words in (["evaluate"], ["report", "--samples", "0"], ["convert", "--to", "convolution"]):
        words.insert(1, str(folder))
        assert main(words) == 2
        shown = capsys.readouterr().err
        assert f"there are no images at {photos}" in shown
        assert "--task.data PATH" in shown
        assert main([*words, *moved]) == 0
        assert str(photos) in (folder / "recipe.json").read_text()  # these commands leave the run as it is
    capsys.readouterr()

    next((tmp_path / "elsewhere" / "test" / "cat").iterdir()).unlink()
    assert main(["evaluate", str(folder), *moved]) == 2
    assert "was trained on other images" in capsys.readouterr().err
    (tmp_path / "elsewhere").rename(photos)
    assert main(["evaluate", str(folder)]) == 0
    assert "have changed since the training" in capsys.readouterr().err


def test_new_paths_of_images_are_for_runs_on_images_of_ones_own(image_run, case_runs, tmp_path, capsys, user_errors):
    for run, says in ((image_run, "fashion-mini"), (case_runs[0], "characters")):
        assert main(["evaluate", str(run.folder), "--task.data", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert "only for runs on images of your own" in said
        assert f"was trained on {says}" in said
    assert main(["report", str(case_runs[0].folder), "--lengths", "4", "--task.data", str(tmp_path)]) == 2
    assert main(["convert", str(tmp_path), "--task.data", str(tmp_path)]) == 2


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
