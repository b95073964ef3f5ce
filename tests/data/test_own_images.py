"""Your own images: what is read, how it is split, what is refused, and that streaming changes nothing."""

import io
import os
import pickle
import tarfile
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import save_file

import regard.data.own_images._cache_file as cache_file
from regard.data import Augmentation, AugmentedImages, Loader, StreamedSet, UnsuitableDataError, open_data
from regard.data.own_images import open_images
from regard.data.own_images._cifar_copies import COPIES
from regard.data.own_images._collection import hold_out
from regard.data.own_images._decode import fit
from regard.support.text import format_size
from regard.training import ImageTask


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("REGARD_DATA", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("REGARD_DATA_WORKERS", "3")
    open_images.cache_clear()
    yield
    open_images.cache_clear()


def write(path, number=0, size=(8, 8), mode="RGB"):
    """An image whose pixels follow from its number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).convert(mode).save(path)
    return path


def photos(folder, counts, **options):
    """A folder ``PART/CLASS/number.png``; each image is different."""
    number = 0
    for place, count in counts.items():
        for _ in range(count):
            number += 1
            write(folder / place / f"{number}.png", number, **options)
    return folder


def npy_of(array):
    np.save(content := io.BytesIO(), array)
    return content.getvalue()


def npy_of_text():
    return npy_of(np.full((4, 3, 2, 2), "x"))


class TestFolders:
    def test_parts_and_classes_come_from_folder_names(self, tmp_path):
        own = open_data(str(photos(tmp_path, {"train/dog": 10, "train/cat": 10, "test/cat": 2, "test/dog": 3})))
        assert own.classes == ("cat", "dog")
        assert (len(own.train), len(own.validation), len(own.test())) == (18, 2, 5)
        assert sorted(own.test().labels.tolist()) == [0, 0, 1, 1, 1]
        assert own.notes == ()

    def test_three_parts(self, tmp_path):
        own = open_data(
            str(photos(tmp_path, {f"{part}/{kind}": 4 for part in ("train", "val", "test") for kind in "ab"}))
        )
        assert (len(own.train), len(own.validation), len(own.test())) == (8, 8, 8)

    def test_a_number_of_validation_images_says_nothing_about_a_folder_of_them(self, tmp_path):
        """The note said that a part of the training images is held out, while those of val/ are used."""
        photos(tmp_path, {f"{part}/{kind}": 4 for part in ("train", "val", "test") for kind in "ab"})
        own = open_data(str(tmp_path), validation=100)
        assert (len(own.train), len(own.validation), own.notes) == (8, 8, ())

    def test_pixels_are_those_of_the_files(self, tmp_path):
        own = open_data(str(photos(tmp_path, {"train/a": 3, "train/b": 3, "val/a": 2, "val/b": 2})), validation=0)
        names = {np.asarray(Image.open(path)).tobytes(): path.parent.name for path in tmp_path.glob("train/*/*.png")}
        found = [image.permute(1, 2, 0).numpy().tobytes() for image in own.train.images]
        assert sorted(found) == sorted(names)
        assert [own.classes[label] for label in own.train.labels] == [names[pixels] for pixels in found]
        values = own.train.images.double() / 255
        assert own.mean == pytest.approx(values.mean((0, 2, 3)).tolist())
        assert own.std == pytest.approx(values.std((0, 2, 3), correction=0).tolist())

    @pytest.mark.parametrize("kind", ["folder", "arrays"])
    def test_the_first_images_are_of_all_classes(self, tmp_path, kind):
        """A folder lists its images class by class: a limit then trained on one class, and no one was told."""
        counts = {"a": 40, "b": 40, "c": 12}
        if kind == "folder":
            path = photos(
                tmp_path, {f"{part}/{name}": n for part in ("train", "val", "test") for name, n in counts.items()}
            )
        else:
            labels = np.repeat(np.arange(3), list(counts.values()))
            images = np.random.default_rng(0).integers(0, 255, (len(labels), 8, 8, 3), dtype=np.uint8)
            arrays = {f"{part}_images": images + at for at, part in enumerate(("train", "val", "test"))}
            path = tmp_path / "sorted.npz"
            np.savez(path, **arrays, **{name.replace("images", "labels"): labels for name in arrays})
        own = open_data(str(path))
        for images in (own.train, own.validation, own.test()):
            assert images.labels[:3].sort().values.tolist() == [0, 1, 2]
            assert (images.labels[:23].bincount() - torch.tensor([10, 10, 3])).abs().max() <= 1
        task = ImageTask(str(path), limit=23)
        for split in ("train", "validation"):
            assert set(
                task.examples(split, torch.device("cpu")).batch(torch.arange(23), seed=0, epoch=0).labels.tolist()
            ) == {0, 1, 2}

    def test_images_that_are_mixed_already_keep_their_order(self, tmp_path):
        labels = np.arange(60) % 3
        images = np.arange(60, dtype=np.uint8).repeat(48).reshape(60, 4, 4, 3)
        np.savez(
            tmp_path / "mixed.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels
        )
        own = open_data(str(tmp_path / "mixed.npz"), validation=0)
        assert own.train.images[:, 0, 0, 0].tolist() == own.test().images[:, 0, 0, 0].tolist() == list(range(60))

    def test_new_files_do_not_move_old_ones_into_the_test_set(self, tmp_path):
        photos(tmp_path, {"a": 30, "b": 30})
        before = self._test_pixels(tmp_path)
        write(tmp_path / "a" / "0new.png", 999)
        assert len(before - self._test_pixels(tmp_path)) <= 1  # the new one may take one place

    @staticmethod
    def _test_pixels(folder):
        open_images.cache_clear()
        own = open_data(str(folder))
        assert any("no test set" in note for note in own.notes)
        return {bytes(image.flatten().tolist()) for image in own.test().images}

    @pytest.mark.parametrize(
        ("modes", "channels"), [(("L", "1", "LA"), 1), (("L", "RGB", "RGBA"), 3), (("P", "L", "L"), 3)]
    )
    def test_gray_and_color(self, tmp_path, modes, channels):
        for number in range(12):
            write(tmp_path / "ab"[number % 2] / f"{number}.png", number, mode=modes[number % 3])
        assert open_data(str(tmp_path)).shape == (channels, 8, 8)

    def test_sixteen_bits_of_gray_keep_the_upper_eight(self, tmp_path):
        for number in range(6):
            (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
            values = np.array([[0, 65535, 1000 * number, 32768]], dtype=np.uint16)
            Image.fromarray(values).save(tmp_path / "ab"[number % 2] / f"{number}.png")
        own = open_data(str(tmp_path), validation=0)
        assert own.train.images[:, 0, 0, (0, 1, 3)].unique(dim=0).tolist() == [[0, 255, 128]]

    @pytest.mark.parametrize("ending", ["jpg", "bmp", "gif", "webp", "tiff", "ppm"])
    def test_formats(self, tmp_path, ending):
        for number in range(8):
            write(tmp_path / "ab"[number % 2] / f"{number}.{ending}", number, size=(20, 12))
        assert open_data(str(tmp_path), image_size=10).shape == (3, 10, 10)

    @pytest.mark.parametrize("member", [b"", b"text", npy_of_text()], ids=["empty", "text", "an array of text"])
    def test_archives_of_other_things_are_refused(self, tmp_path, member):
        with zipfile.ZipFile(tmp_path / "images.npz", "w") as archive:
            archive.writestr("images.npy", member)
            archive.writestr("labels.npy", npy_of(np.array([0, 1, 0, 1])))
        with pytest.raises(UnsuitableDataError, match=r"images\.npz|images"):
            open_data(str(tmp_path / "images.npz"))

    def test_the_short_side_is_scaled_and_the_middle_cut_out(self, tmp_path):
        image = np.zeros((20, 60, 3), dtype=np.uint8)
        image[:, 20:40] = 200  # the middle third
        for number in range(4):
            (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
            image[0, 0] = number
            Image.fromarray(image).resize((60 + 3 * number, 20 + number)).save(
                tmp_path / "ab"[number % 2] / f"{number}.png"
            )
        with pytest.raises(
            UnsuitableDataError, match=r"different sizes, such as 60 × 20 and 69 × 23 .*--task.image-size"
        ):
            open_data(str(tmp_path))
        own = open_data(str(tmp_path), image_size=10, validation=0)
        assert (own.train.images[:, :, 2:8, 2:8] > 150).all()

    def test_photographs_are_turned_upright(self, tmp_path):
        upright = np.zeros((8, 16, 3), dtype=np.uint8)
        upright[:, :8] = 255
        for number in range(4):
            (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
            exif = Image.Exif()
            exif[0x0112] = 6  # turn right by 90 degrees to see it upright
            upright[0, 0] = number
            turned = Image.fromarray(upright).transpose(Image.Transpose.ROTATE_90)
            turned.save(tmp_path / "ab"[number % 2] / f"{number}.png", exif=exif)
        own = open_data(str(tmp_path), validation=0)
        assert own.shape == (3, 8, 16)
        assert (own.train.images[0, :, 1:, :8] == 255).all()


class TestProblems:
    def test_unreadable_files_are_named(self, tmp_path):
        photos(tmp_path, {"a": 4, "b": 4})
        (tmp_path / "a" / "x.png").write_text("not an image")
        whole = write(tmp_path / "b" / "cut.png", 7, size=(64, 64)).read_bytes()
        (tmp_path / "b" / "cut.png").write_bytes(whole[: len(whole) // 2])
        with pytest.raises(UnsuitableDataError, match=r"of the 10 images .* cannot be read: a/x.png \(not an image\)"):
            open_data(str(tmp_path), image_size=8)
        (tmp_path / "a" / "x.png").unlink()
        with pytest.raises(UnsuitableDataError, match=r"1 of the 9 images .* cannot be read: b/cut.png \(.*truncated"):
            open_data(str(tmp_path), image_size=8)

    @pytest.mark.parametrize(
        ("counts", "message"),
        [
            (
                {"images/cat": 3, "images/dog": 3},
                "only the class 'images': if the folders in it are the classes, pass .*/images",
            ),
            ({"train/only": 3}, "only the class 'only'$"),
            ({"train/a": 3, "train/b": 3, "test/c": 1}, "images of 'c' for validation or test, but none for training"),
            ({"test/a": 3, "test/b": 3}, "no folder train/"),
            ({"train/a": 2, "training/a": 2}, "several folders for one part"),
            ({"boat": 2, "train": 2}, "train has images, like a class, beside boat; .* move all classes into a folder"),
            ({"exam": 2, "test": 2}, "test has images, like a class, beside exam"),
        ],
    )
    def test_refused(self, tmp_path, counts, message):
        with pytest.raises(UnsuitableDataError, match=message):
            open_data(str(photos(tmp_path, counts))).notes  # noqa: B018

    def test_a_folder_without_classes(self, tmp_path):
        write(tmp_path / "1.png")
        with pytest.raises(UnsuitableDataError, match=r"no folders of classes: images belong in .*/CLASS/\*.png"):
            open_data(str(tmp_path))
        with pytest.raises(UnsuitableDataError, match="no such file or folder"):
            open_data(str(tmp_path / "gone"))
        with pytest.raises(UnsuitableDataError, match="neither one of the data sets"):
            open_data("cifar11")
        with pytest.raises(UnsuitableDataError, match="image_size must be at most 8,000 pixels, got 100,000"):
            open_data(str(tmp_path), image_size=100_000)

    def test_what_is_no_file_of_an_image_is_named_and_never_waited_for(self, tmp_path):
        photos(tmp_path, {"a": 4, "b": 4})
        (tmp_path / "a" / "gone.png").symlink_to(tmp_path / "nowhere.png")
        os.mkfifo(tmp_path / "a" / "pipe.png")
        (tmp_path / "b" / "huge.pbm").write_bytes(b"P4\n20000 20000\n")
        expected = (
            r"3 of the 11 images .*: a/gone.png \(No such file or directory\), a/pipe.png \(not a regular file\), "
            r"b/huge.pbm \(more than 64,000,000 pixels\)"
        )
        with pytest.raises(UnsuitableDataError, match=expected):
            open_data(str(tmp_path))

    def test_a_class_without_images(self, tmp_path):
        photos(tmp_path, {"train/a": 4, "train/b": 4, "test/a": 1})
        (tmp_path / "test" / "b").mkdir()
        assert any("no test image of class 'b'" in note for note in open_data(str(tmp_path)).notes)
        open_images.cache_clear()
        (tmp_path / "train" / "empty").mkdir()
        with pytest.raises(UnsuitableDataError, match=r"no images in .*/train/empty: add some, or remove the folder"):
            open_data(str(tmp_path))

    def test_images_that_are_all_alike(self, tmp_path):
        for number in range(6):
            write(tmp_path / "ab"[number % 2] / f"{number}.png", 1)
        with pytest.raises(UnsuitableDataError, match=r"all 4 training images in .* are equal"):
            open_data(str(photos(tmp_path, {})), validation=0).notes  # noqa: B018

    def test_notes(self, tmp_path):
        photos(tmp_path, {"train/a": 5, "train/b": 5, "test/a": 2})
        leaked = tmp_path / "test" / "a" / "leak.png"
        leaked.write_bytes((tmp_path / "train" / "a" / "1.png").read_bytes())
        (tmp_path / "train" / "b" / "again.png").write_bytes((tmp_path / "train" / "a" / "2.png").read_bytes())
        (tmp_path / "train" / "b" / "notes.txt").write_text("hello")
        write(tmp_path / "train" / "loose.png", 70)
        (tmp_path / "train" / "b" / "link").symlink_to(tmp_path)
        for added_by_systems in (
            "train/__MACOSX/b/1.png",
            "train/b/._1.png",
            "train/.cache/1.png",
            "train/a/.old/1.png",
        ):
            write(tmp_path / added_by_systems, 71)
        own = open_data(str(tmp_path))
        assert len(own.collection.labels) == 14
        notes = " | ".join(own.notes)
        assert "1 of the 3 test images are also training images" in notes
        assert "test/a/leak.png = train/a/1.png" in notes
        assert "no test image of class 'b'" in notes
        assert "also occur with another class: train/" in notes
        assert (
            "3 files that are not images of a class are left out: train/b/link, train/b/notes.txt, train/loose.png"
            in notes
        )

    def test_a_folder_that_may_not_be_read_is_not_left_out(self, tmp_path, monkeypatch):
        photos(tmp_path, {"a/one": 5, "a/two": 5, "b": 5})
        scan = os.scandir

        def guarded(path):
            if str(path).endswith("two"):
                raise PermissionError(13, "Permission denied", path)
            return scan(path)

        monkeypatch.setattr(os, "scandir", guarded)
        with pytest.raises(UnsuitableDataError, match=r"two may not be read"):
            open_data(str(tmp_path))

    def test_names_with_underscores_are_names_like_others(self, tmp_path):
        photos(tmp_path, {"a": 5, "__background__": 5})
        write(tmp_path / "a" / "__5.png", 72)
        own = open_data(str(tmp_path))
        assert own.classes == ("__background__", "a")
        assert len(own.collection.labels) == 11

    @pytest.mark.parametrize(
        ("validation", "words"), [(5000, "5,000 validation images would"), (0.6, "a share of 0.6 for validation would")]
    )
    def test_too_many_validation_images_become_a_tenth(self, tmp_path, validation, words):
        photos(tmp_path, {"train/a": 20, "train/b": 20, "test/a": 1, "test/b": 1})
        own = open_data(str(tmp_path), validation=validation)
        assert len(own.validation) == 4
        assert any(note.startswith(words) and "4 are held out" in note for note in own.notes)


@settings(max_examples=50, deadline=None)
@given(labels=st.lists(st.integers(0, 4), min_size=1, max_size=60), share=st.floats(0.01, 0.6))
def test_every_class_with_three_images_is_held_out_in_part_and_kept_in_part(labels, share):
    labels = torch.tensor(labels)
    held = hold_out(labels, torch.randperm(len(labels)), share)
    for label in labels.unique():
        members = held[labels == label]
        if len(members) < 3:
            assert not members.any()
        else:
            assert members.any()
            assert not members.all()


class TestStreaming:
    COUNTS = {"train/a": 40, "train/b": 37, "test/a": 5, "test/b": 5}  # noqa: RUF012

    @pytest.fixture(params=["mapped", "decoded"])
    def streamed(self, request, tmp_path, monkeypatch):
        """The same folder in memory and streamed: from a memory map, or decoded in every epoch."""
        photos(tmp_path / "photos", self.COUNTS)
        memory = open_data(str(tmp_path / "photos"))
        monkeypatch.setenv("REGARD_DATA_MEMORY", "1kB")
        if request.param == "decoded":
            monkeypatch.setattr(cache_file, "SPARE", 1.0)
        open_images.cache_clear()
        streamed = open_data(str(tmp_path / "photos"))
        assert isinstance(streamed.train, StreamedSet)
        return memory, streamed

    @pytest.mark.parametrize("augmentation", [Augmentation(), Augmentation(crop=2, flip="random", cutmix=1.0)])
    def test_batches_are_those_from_memory(self, streamed, augmentation):
        ours, theirs = (Loader(AugmentedImages(data.train, augmentation), 16, seed=3) for data in streamed)
        for epoch in (0, 1):
            for left, right in zip(ours.epoch(epoch), theirs.epoch(epoch), strict=True):
                assert all(torch.equal(a, b) for a, b in zip(left, right, strict=True))

    def test_any_step_of_any_process_without_the_ones_before(self, streamed):
        data = streamed[1]
        whole = list(Loader(AugmentedImages(data.train), 16, seed=1).epoch(2))
        for step in (3, 1):
            parts = [Loader(AugmentedImages(data.train), 16, seed=1, rank=rank, world_size=2) for rank in (0, 1)]
            images = torch.cat([loader.batch(2, step).images for loader in parts])
            assert torch.equal(images, whole[step].images)

    @pytest.mark.parametrize(("memory", "most"), [("1GiB", 8), ("1kB", 5), ("0", 1)])  # an image has 192 bytes
    def test_what_is_read_ahead_is_limited(self, streamed, memory, most, monkeypatch):
        monkeypatch.setenv("REGARD_DATA_MEMORY", memory)
        images = streamed[1].train
        for number in range(40):
            images.read_ahead(torch.tensor([number]))
        assert len(images.reader.waiting) == most
        for number in range(5):  # those that came first are still there, and are taken
            expected = streamed[0].train.images[number]
            assert torch.equal(images.pixels(torch.tensor([number]))[0], expected)
        assert len(images.reader.waiting) == max(most - 5, 0)

    def test_batches_that_nobody_wants_any_more_make_room(self, streamed, monkeypatch):
        monkeypatch.setenv("REGARD_DATA_MEMORY", "0")
        images = streamed[1].train
        images.read_ahead(torch.tensor([7]))
        for number in range(5):
            images.pixels(torch.tensor([number]))
        images.read_ahead(torch.tensor([8]))
        assert list(images.reader.waiting) == [images.rows[[8]].numpy().tobytes()]

    def test_sets_share_the_memory_for_what_is_read_ahead(self, streamed, monkeypatch):
        monkeypatch.setenv("REGARD_DATA_MEMORY", "0")
        train, test = streamed[1].train, streamed[1].test()
        train.read_ahead(torch.tensor([7]))
        test.read_ahead(torch.tensor([0]))
        assert len(train.reader.waiting) == 1
        assert train.reader is test.reader

    def test_the_memory_of_a_batch_is_used_again_when_nobody_holds_it(self, streamed, monkeypatch):
        monkeypatch.setenv("REGARD_DATA_MEMORY", "1MB")
        images, expected = streamed[1].train, streamed[0].train.images

        def read(*index):
            images.read_ahead(torch.tensor(index))
            return images.pixels(torch.tensor(index))

        part = read(0, 1, 2)[1:]  # shares the memory of its batch
        place = part.untyped_storage().data_ptr()
        others = [read(number, number + 1) for number in range(5)]
        assert torch.equal(part, expected[1:3])
        assert all(torch.equal(other, expected[number : number + 2]) for number, other in enumerate(others))
        del part
        again = read(9, 8)
        assert again.untyped_storage().data_ptr() == place
        assert torch.equal(again, expected[[9, 8]])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(1, 60)] * 2, *[st.integers(1, 30)] * 2),
    channels=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_scaling_is_that_of_pillow_up_to_rounding(sizes, channels, seed):
    rows, columns, height, width = sizes
    image = np.random.default_rng(seed).integers(0, 256, (rows, columns, channels), dtype=np.uint8)
    scaled = fit(image.transpose(2, 0, 1)[None], height, width)[0].permute(1, 2, 0).numpy()
    high = min(rows, max(1, round(columns * height / width)))
    wide = min(columns, max(1, round(rows * width / height)))
    top, left = (rows - high) // 2, (columns - wide) // 2
    middle = image[top : top + high, left : left + wide]
    middle = Image.fromarray(middle[:, :, 0] if channels == 1 else middle)
    theirs = np.asarray(middle.resize((width, height), Image.Resampling.BILINEAR)).reshape(scaled.shape)
    assert np.abs(scaled.astype(int) - theirs).max() <= 1


def test_a_set_that_is_opened_while_a_network_is_built_on_meta_has_its_pixels(tmp_path):
    """As every command does that looks at a run before it opens the images."""
    photos(tmp_path, {"train/a": 4, "train/b": 4, "test/a": 1, "test/b": 1})
    with torch.device("meta"):
        own = open_data(str(tmp_path), validation=0.25)
        assert (own.shape, own.classes, own.validation_count, len(own.mean)) == ((3, 8, 8), ("a", "b"), 2, 3)
        sets = (own.train, own.validation, own.test())
    assert {each.images.device.type for each in sets} == {"cpu"}


class TestCache:
    def test_the_size_is_said_first_and_the_file_is_used_again(self, tmp_path, monkeypatch, capfd):
        photos(tmp_path, {"train/a": 4, "train/b": 4, "test/a": 1, "test/b": 1})
        monkeypatch.setenv("REGARD_DATA_MEMORY", "1kB")
        open_data(str(tmp_path))
        text = capfd.readouterr().err
        assert "decoding 10 images once into" in text
        assert f"({format_size(10 * 3 * 8 * 8)};" in text
        open_images.cache_clear()
        open_data(str(tmp_path))
        assert "decoding" not in capfd.readouterr().err
        write(tmp_path / "train" / "a" / "new.png", 77)
        open_images.cache_clear()
        open_data(str(tmp_path))
        assert "decoding 11 images" in capfd.readouterr().err

    def test_a_set_with_unreadable_files_leaves_no_file(self, tmp_path, monkeypatch):
        for number in range(6):
            write(tmp_path / "photos" / "ab"[number % 2] / f"{number}.jpg", number, size=(64, 64))
        cut = tmp_path / "photos" / "b" / "1.jpg"  # its header is whole
        cut.write_bytes(cut.read_bytes()[:2000])
        monkeypatch.setenv("REGARD_DATA_MEMORY", "1kB")
        with pytest.raises(UnsuitableDataError, match=r"b/1\.jpg"):
            open_data(str(tmp_path / "photos"))
        assert [path.suffix for path in (cache_file.data_folder() / "images").iterdir()] in ([], [".lock"])

    def test_a_wrong_setting_is_named(self, tmp_path, monkeypatch):
        photos(tmp_path, {"a": 3, "b": 3})
        monkeypatch.setenv("REGARD_DATA_MEMORY", "plenty")
        with pytest.raises(UnsuitableDataError, match="REGARD_DATA_MEMORY must be"):
            open_data(str(tmp_path))


class TestDecodedInEveryEpoch:
    """No cache: what is wrong is found in the files, and the memory is stated."""

    @pytest.fixture(autouse=True)
    def no_cache(self, monkeypatch):
        monkeypatch.setenv("REGARD_DATA_MEMORY", "1kB")
        monkeypatch.setenv("REGARD_DATA_CACHE", "off")

    def test_the_memory_is_stated(self, tmp_path, capfd):
        photos(tmp_path, {"a": 3, "b": 3}, size=(40, 30))
        open_data(str(tmp_path), image_size=8)
        text = capfd.readouterr().err
        assert "REGARD_DATA_CACHE is off: images are decoded in every epoch, by 3 workers" in text
        decoders = 3 * (24 * 40 * 30 + 2 * 3 * 8 * 8) + 2**25  # for each of three workers, and the allocator's
        assert f"in at most {format_size(1000 + decoders)} of memory besides the two batches in use" in text
        assert not (cache_file.data_folder() / "images").exists()

    def test_the_same_file_in_train_and_test(self, tmp_path):
        photos(tmp_path, {"train/a": 6, "train/b": 6, "test/a": 2, "test/b": 2})
        (tmp_path / "test/a/copy.png").write_bytes((tmp_path / "train/a/1.png").read_bytes())
        [note] = open_data(str(tmp_path)).notes
        assert "1 of the 5 test images are also training images" in note
        assert "test/a/copy.png = train/a/1.png" in note

    def test_all_alike(self, tmp_path):
        for number in range(8):
            write(tmp_path / "ab"[number % 2] / f"{number}.png", 0)
        with pytest.raises(UnsuitableDataError, match=r"images in .* are equal"):
            _ = open_data(str(tmp_path)).notes

    @pytest.mark.parametrize("ending", ["jpg", "png", "gif", "webp", "bmp", "tiff"])
    def test_files_that_break_off(self, tmp_path, ending):
        for number in range(6):
            write(tmp_path / "ab"[number % 2] / f"{number}.{ending}", number, size=(64, 64))
        open_data(str(tmp_path))
        open_images.cache_clear()
        cut = tmp_path / "b" / f"1.{ending}"
        cut.write_bytes(cut.read_bytes()[:-600])
        with pytest.raises(UnsuitableDataError, match=rf"1 of the 6 images .*b/1\.{ending}"):
            open_data(str(tmp_path))

    def test_a_wrong_setting_is_named(self, tmp_path, monkeypatch):
        photos(tmp_path, {"a": 3, "b": 3})
        monkeypatch.setenv("REGARD_DATA_CACHE", "maybe")
        with pytest.raises(UnsuitableDataError, match="REGARD_DATA_CACHE must be on or off, got 'maybe'"):
            open_data(str(tmp_path))


class TestArrays:
    IMAGES = torch.randint(256, (40, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    LABELS = torch.arange(40) % 2

    def test_npz_in_any_layout(self, tmp_path):
        last = self.IMAGES.permute(0, 2, 3, 1).numpy()
        forms = [self.IMAGES.numpy(), last, last.astype(np.float32) / 255, last.astype(np.int32)]
        forms += [last.astype(np.float64), last.astype(">u2"), last.astype(">f4") / 255]
        for number, images in enumerate(forms):
            path = tmp_path / f"{number}.npz"
            np.savez(
                path, x_train=images[:30], y_train=self.LABELS[:30], x_test=images[30:], y_test=self.LABELS[30:, None]
            )
            own = open_data(str(path), validation=0)
            assert torch.equal(own.train.images, self.IMAGES[:30])
            assert torch.equal(own.test().labels, self.LABELS[30:])
            assert own.classes == ("0", "1")

    def test_labels_may_be_strings(self, tmp_path):
        np.savez(tmp_path / "a.npz", images=self.IMAGES.numpy(), labels=np.array(["dog", "cat"] * 20))
        own = open_data(str(tmp_path / "a.npz"), validation=0)
        assert own.classes == ("cat", "dog")
        assert len(own.test()) == 4

    def test_safetensors_with_class_names(self, tmp_path):
        path = tmp_path / "a.safetensors"
        named = {"train_images": self.IMAGES[:30], "train_labels": self.LABELS[:30]}
        named |= {"val_images": self.IMAGES[30:], "val_labels": self.LABELS[30:]}
        save_file(named, path, {"classes": '["no", "yes"]'})
        own = open_data(str(path), image_size=4)
        assert (own.classes, own.shape) == (("no", "yes"), (3, 4, 4))

    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"pictures": np.zeros((4, 6, 6))}, "has the arrays pictures; train_images and train_labels"),
            ({"images": np.zeros((4, 3, 6, 3), np.uint8), "labels": np.arange(4) % 2}, "axis has the channels is not clear"),
            ({"images": np.zeros((4, 6, 6, 5), np.uint8), "labels": np.arange(4) % 2}, "no axis has 1 or 3 channels"),
            ({"images": np.full((4, 6, 6), 7.5), "labels": np.arange(4) % 2}, r"numbers from 7.5"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.arange(3)}, "4 train images but 3 labels"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.array([0, 1, 2, 900])}, "the label 900"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.array([0, 1, -2, 0])}, "0 or more, got -2"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.array([0, 1, 0.5, 0])}, "must be whole numbers or strings"),
            ({"images": np.full((4, 6, 6), 256, np.uint16), "labels": np.arange(4) % 2}, "numbers from 256 to 256; whole"),
            ({"images": np.array(["a"] * 4), "labels": np.arange(4)}, "images that are not arrays of numbers"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.full(4, np.nan)}, "must be whole numbers or strings"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.arange(4) % 2, "classes": ["a", "a"]}, "a class twice: a, a"),
            ({"images": np.full((4, 6, 6), 1j), "labels": np.arange(4) % 2}, "hold complex numbers"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.eye(4)}, r"labels of shape \(4, 4\); one for"),
            ({"images": np.zeros((4, 6, 6), np.uint8), "labels": np.int64(3)}, "4 train images but 1 labels"),
            ({"images": np.zeros((0, 6, 6), np.uint8), "labels": np.zeros(0)}, "has no classes"),
        ],
    )  # fmt: skip
    def test_refused(self, tmp_path, arrays, message):
        np.savez(tmp_path / "a.npz", **arrays)
        with pytest.raises(UnsuitableDataError, match=message):
            open_data(str(tmp_path / "a.npz")).notes  # noqa: B018

    @pytest.mark.parametrize("name", ["a.npz", "a.safetensors", "a.pt"])
    def test_a_text_file(self, tmp_path, name):
        (tmp_path / name).write_text("hello")
        with pytest.raises(UnsuitableDataError, match=r"a\.npz|a\.safetensors|is not a folder of images"):
            open_data(str(tmp_path / name))

    def test_nothing_is_unpickled(self, tmp_path):
        np.savez(tmp_path / "a.npz", images=np.array([{}], dtype=object), labels=np.zeros(1))
        with pytest.raises(UnsuitableDataError, match="cannot be read as"):
            open_data(str(tmp_path / "a.npz"))


class Evil:
    def __reduce__(self):
        return pytest.fail, ("it was executed",)


class TestCifarCopies:
    IMAGES = torch.randint(256, (60, 3072), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))

    def contents(self, copy, protocol=2, **extra):
        """The files of a copy with ten images in each."""
        count = 100 if "100" in copy.folder else 10
        names = [f"class{number}" for number in range(count)]
        place = 0
        for part, files in copy.files.items():
            for file in files:
                rows = self.IMAGES[place : place + 10]
                labels = [count - 1 - number if part == "train" else number for number in range(10)]
                place += 10
                if copy.label_bytes:
                    prefix = torch.tensor(
                        [[0] * (copy.label_bytes - 1) + [label] for label in labels], dtype=torch.uint8
                    )
                    yield file, torch.cat([prefix, rows], 1).numpy().tobytes()
                else:
                    first = {b"batch_label": b"x"} if part == "train" else {}
                    named = {**first, copy.label.encode(): labels, b"data": rows.numpy(), **extra}
                    named[b"filenames"] = [b"1.png"] * 10
                    yield file, pickle.dumps(named, protocol)
        if copy.label_bytes:
            yield copy.names, "\n".join(names).encode()
        else:
            key = "fine_label_names" if count == 100 else "label_names"
            yield copy.names, pickle.dumps({"num_cases_per_batch": 10, key: names, "num_vis": 3072}, protocol)

    @pytest.mark.parametrize("copy", COPIES, ids=lambda copy: copy.folder)
    @pytest.mark.parametrize("form", ["inside", "around", "archive"])
    def test_every_form(self, tmp_path, copy, form):
        folder = tmp_path / copy.folder
        folder.mkdir()
        for name, content in self.contents(copy):
            (folder / name).write_bytes(content)
        place = folder if form == "inside" else tmp_path
        if form == "archive":
            place = tmp_path / "x"
            place.mkdir()
            with tarfile.open(place / copy.archive, "w:gz") as archive:
                archive.add(folder, copy.folder)
        own = open_data(str(place), validation=0)
        train = 10 * len(copy.files["train"])
        assert torch.equal(own.train.images.flatten(1), self.IMAGES[:train])
        assert torch.equal(own.test().images.flatten(1), self.IMAGES[train : train + 10])
        assert own.test().labels.tolist() == list(range(10))
        assert own.classes[:2] == ("class0", "class1")
        assert len(own.classes) == (100 if "100" in copy.folder else 10)

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_pickles_are_not_executed(self, tmp_path, protocol):
        for name, content in self.contents(COPIES[0], protocol, evil=Evil()):
            (tmp_path / name).write_bytes(content)
        assert len(open_data(str(tmp_path), validation=0).test()) == 10

    def test_a_damaged_copy(self, tmp_path):
        for name, content in self.contents(COPIES[1]):
            (tmp_path / name).write_bytes(content[:-1])
        with pytest.raises(UnsuitableDataError, match="not a complete copy of CIFAR"):
            open_data(str(tmp_path))


class TestSavedDatasets:
    def test_without_the_package_it_is_named(self, tmp_path, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "datasets", None)
        (tmp_path / "dataset_dict.json").write_text("{}")
        with pytest.raises(UnsuitableDataError, match=r"pip install 'regard\[hf\]'"):
            open_data(str(tmp_path))

    def test_images_and_labels(self, tmp_path):
        datasets = pytest.importorskip("datasets")

        def table(count, first, names=("cat", "dog")):
            features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
            files = [write(tmp_path / "files" / f"{first + row}.png", first + row).read_bytes() for row in range(count)]
            rows = {
                "image": [{"bytes": file, "path": None} for file in files],
                "label": [row % 2 for row in range(count)],
            }
            arrow = datasets.table.InMemoryTable.from_pydict(rows, schema=features.arrow_schema)
            return datasets.Dataset(arrow, datasets.DatasetInfo(features=features), fingerprint=f"f{first}")

        parts = datasets.DatasetDict({"train": table(12, 0), "test": table(4, 100)})
        parts.save_to_disk(str(tmp_path / "saved"))
        own = open_data(str(tmp_path / "saved"), validation=0)
        assert (own.classes, own.shape, len(own.train), len(own.test())) == (("cat", "dog"), (3, 8, 8), 12, 4)
        assert own.test().labels.tolist() == [0, 1, 0, 1]
        first = np.asarray(Image.open(tmp_path / "files" / "100.png"))
        assert (own.test().images[0].permute(1, 2, 0).numpy() == first).all()
        others = table(4, 200, ("dog", "cat"))  # the same numbers mean other classes
        paths = table(4, 200).remove_columns("image").add_column("image", ["200.png"] * 4)
        for number, test in enumerate((others, paths)):
            parts["test"] = test
            parts.save_to_disk(str(tmp_path / f"other{number}"))
            with pytest.raises(
                UnsuitableDataError, match=r"and the classes cat, dog in 'label' of train, but the split test has not"
            ):
                open_data(str(tmp_path / f"other{number}"))


def damaged_archives():
    file = io.BytesIO()
    np.savez(file, images=np.zeros((4, 2, 2, 1), np.uint8), labels=np.array([0, 1, 0, 1]))
    whole = file.getvalue()
    header = b"\x93NUMPY\x01\x00v\x00" + b"{'descr': '|u1', 'fortran_order': False, 'shape': (99999999999, 9), }".ljust(
        117
    )
    with zipfile.ZipFile(bomb := io.BytesIO(), "w") as archive:
        archive.writestr("images.npy", header + b"\n")
    open_header = b"\x93NUMPY\x01\x00v\x00" + b"(" * 117 + b"\n"  # numpy parses it as a program that does not end
    with zipfile.ZipFile(endless := io.BytesIO(), "w") as archive:
        archive.writestr("images.npy", open_header)
    return {
        "a header without end": endless.getvalue(),
        "cut": whole[:-9],
        "one byte of its directory": whole[:-30] + b"\xff" + whole[-29:],
        "one byte of its content": whole[:140] + bytes([whole[140] ^ 255]) + whole[141:],
        "one array": header,
        "no archive": b"PK\x03\x04" + bytes(50),
        "a shape without end": bomb.getvalue(),
    }


@pytest.mark.parametrize("damage", damaged_archives())
def test_a_damaged_archive_is_refused_in_words(tmp_path, damage):
    path = tmp_path / "images.npz"
    path.write_bytes(damaged_archives()[damage])
    with pytest.raises(UnsuitableDataError, match=r"images\.npz"):
        open_images(str(path), 0.1, None)


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_a_small_file_that_would_fill_the_memory_is_refused_before_it_is_unpacked(tmp_path, monkeypatch, ending):
    images, labels, path = np.zeros((400, 1, 32, 32), np.uint8), np.zeros(400, np.int64), tmp_path / f"images.{ending}"
    if ending == "npz":
        np.savez_compressed(path, images=images, labels=labels)
        assert path.stat().st_size < 4096
    else:
        save_file({"images": torch.from_numpy(images), "labels": torch.from_numpy(labels)}, path)
    monkeypatch.setattr(os, "sysconf", lambda name: 700)  # a machine of 490 kB
    with pytest.raises(UnsuitableDataError, match="more than half of this machine's memory"):
        open_images(str(path), 0.1, None)
