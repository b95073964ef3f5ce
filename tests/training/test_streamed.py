"""Training on images that stay on the disk: the same run as from memory, resumed anywhere."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch

import regard
from regard.cli import main
from regard.data import StreamedSet
from regard.data.own_images import open_images
from regard.support.checks import UnusableInputError
from regard.training._fitting import have_images_changed


@pytest.fixture(scope="module")
def photos(tmp_path_factory, streamed):
    return streamed.write_photos(tmp_path_factory.mktemp("photos"))


@pytest.fixture
def trained(photos, streamed, tmp_path, monkeypatch):
    """Train on the photos, in memory or streamed."""
    monkeypatch.setenv("REGARD_DATA", str(tmp_path / "data"))
    recipe = streamed.streamed_recipe(photos)

    def run(name, settings=None, **options):
        for key, value in (settings or {}).items():
            monkeypatch.setenv(key, value)
        open_images.cache_clear()
        done = regard.train(recipe, folder=tmp_path / name, accelerator="cpu", tensorboard=False, **options)
        assert isinstance(recipe.task.data_set.train, StreamedSet) is bool(settings)
        return done

    yield run
    open_images.cache_clear()


def same(one, other):
    assert [line for line in one.metrics if "loss" in line] == [line for line in other.metrics if "loss" in line]
    mine, theirs = one.checkpoint().tensors, other.checkpoint().tensors
    return mine.keys() == theirs.keys() and all(torch.equal(mine[key], theirs[key]) for key in mine)


@pytest.mark.parametrize("kind", ["mapped", "decoded"])
def test_streamed_training_is_that_from_memory_and_resumes_within_an_epoch(trained, streamed, kind):
    """Bit for bit; an epoch has 5 steps, and the run goes on from step 7."""
    memory = trained("memory")
    undisturbed = trained("streamed", streamed.STREAMED[kind], save_every=7)
    assert same(memory, undisturbed)
    undisturbed_end = undisturbed.checkpoint()
    shutil.rmtree(undisturbed.checkpoints.path(10))
    resumed = trained("streamed", streamed.STREAMED[kind], save_every=7, resume=True)
    assert [line["step"] for line in resumed.metrics if "loss" in line] == list(range(1, 11))
    assert all(torch.equal(resumed.checkpoint().tensors[key], value) for key, value in undisturbed_end.tensors.items())


def test_a_file_that_is_damaged_during_training_is_named(trained, streamed, photos, tmp_path):
    """Nothing is made up for it; what was trained before is in the last checkpoint."""
    copy = shutil.copytree(photos, tmp_path / "copy")
    bad = sorted((copy / "train" / "dog").iterdir())[3]
    recipe = streamed.streamed_recipe(copy)

    def damage(event):
        if type(event).__name__ == "Evaluated":
            content = bytearray(bad.read_bytes())
            content[60:120] = bytes(60)  # both its ends stay
            bad.write_bytes(content)

    trained("first", streamed.STREAMED["decoded"])
    with pytest.raises(regard.data.UnsuitableDataError, match=rf"train/dog/{bad.name}"):
        regard.train(recipe, folder=tmp_path / "x", accelerator="cpu", tensorboard=False, listeners=[damage])
    assert regard.load_run(tmp_path / "x").checkpoints.steps() == [5]


def test_a_run_whose_classes_were_renamed_is_refused(streamed, photos, tmp_path):
    """They are numbered by name: the network's answers would get other names."""
    copy = shutil.copytree(photos, tmp_path / "copy")
    recipe = dataclasses.replace(streamed.streamed_recipe(copy), epochs=1)
    options = {"folder": tmp_path / "run", "accelerator": "cpu", "tensorboard": False}
    regard.train(recipe, **options)
    for part in ("train", "test"):
        (copy / part / "cat").rename(copy / part / "lynx")
    open_images.cache_clear()
    renamed = "was trained on the classes 'cat', 'dog', but its images now have the classes 'dog', 'lynx'"
    with pytest.raises(UnusableInputError, match=renamed):
        regard.load_run(tmp_path / "run").network()
    with pytest.raises(UnusableInputError, match=renamed):
        regard.train(recipe, resume=True, **options)
    shutil.rmtree(copy)
    open_images.cache_clear()
    for command in ("evaluate", "convert"):
        assert main([command, str(tmp_path / "run")]) == 2


@pytest.mark.parametrize("settings", [{}, {"REGARD_DATA_MEMORY": "0", "REGARD_DATA_CACHE": "off"}])
def test_a_run_is_resumed_with_the_same_images_elsewhere_and_with_no_others(
    streamed, photos, tmp_path, monkeypatch, settings
):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    copy = shutil.copytree(photos, tmp_path / "copy")
    options = {"folder": tmp_path / "run", "accelerator": "cpu", "tensorboard": False}
    run = regard.train(streamed.streamed_recipe(copy), save_every=7, **options)
    whole = run.checkpoint().tensors
    shutil.rmtree(run.checkpoints.path(10))
    moved = streamed.streamed_recipe(copy.rename(tmp_path / "moved"))
    open_images.cache_clear()
    run = regard.train(moved, resume=True, **options)
    assert all(torch.equal(run.checkpoint().tensors[key], value) for key, value in whole.items())
    assert regard.load_run(run.folder).recipe == moved, "the run knows where its images are now"

    shutil.rmtree(run.checkpoints.path(10))
    other = streamed.streamed_recipe(shutil.copytree(moved.task.data, tmp_path / "other"))
    for recipe in (moved, other):  # at the same path, and elsewhere
        first, second = sorted(Path(recipe.task.data, "train", "dog").iterdir())[:2]
        shutil.copy(first, second)
        open_images.cache_clear()
        with pytest.raises(UnusableInputError, match=r"trained on other images.*then and now: 52 and 52"):
            regard.train(recipe, resume=True, **options)


def test_a_run_is_not_resumed_with_renamed_images_since_others_would_be_held_out(streamed, photos, tmp_path):
    def held_out(recipe):
        return {image.numpy().tobytes() for image in recipe.task.data_set.validation.images}

    run = regard.train(streamed.streamed_recipe(photos), folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
    state = run.checkpoint().state
    renamed = streamed.streamed_recipe(shutil.copytree(photos, tmp_path / "renamed"))
    for path in sorted((tmp_path / "renamed").glob("*/*/*.png")):
        path.rename(path.with_name(f"photo-{path.name}"))
    assert held_out(renamed) != held_out(run.recipe)
    with pytest.raises(UnusableInputError, match=r"trained on other images.*, or they were renamed"):
        regard.train(renamed, resume=True, folder=run.folder, accelerator="cpu", tensorboard=False)
    assert have_images_changed(renamed, state)
    del state["data"]["images"]["ranks"]  # as in older checkpoints
    assert not have_images_changed(renamed, state)


def test_there_may_be_no_test_image_to_measure_on(streamed, tmp_path):
    folder = streamed.write_photos(tmp_path / "photos")
    for path in sorted(folder.glob("*/*/*.png")):
        if path.parent.parent.name == "test" or int(path.stem) > 1:
            path.unlink()
    shutil.rmtree(folder / "test")
    recipe = dataclasses.replace(streamed.streamed_recipe(folder), epochs=1, batch_size=2)
    run = regard.train(recipe, folder=tmp_path / "run", accelerator="cpu", tensorboard=False)
    with pytest.raises(UnusableInputError, match="no images to measure the network on"):
        regard.training.evaluate_run(run)


def test_a_task_of_a_users_own_identifies_its_images_as_it_likes(monkeypatch):
    recipe = regard.recipes.get("demo").smoke()
    state = {"data": {"images": {"version": 3}}}
    for version in (3, 4):
        monkeypatch.setattr(type(recipe.task), "data_facts", lambda task, now=version: {"images": {"version": now}})
        assert have_images_changed(recipe, state) == (version == 4)
