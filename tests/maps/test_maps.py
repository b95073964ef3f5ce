"""Captured maps as a mapping, as a table and as a file."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import regard
from regard.maps import AttentionRecord, Check, Layout, Map, Maps, Windows, given_layout, inferred_layout


def record(weights, error=1e-7, **more):
    check = Check("kernel", None if error is None else torch.tensor(error), torch.tensor(1e-5))
    return AttentionRecord.given(weights, kind="sdpa", check=check, **more)


def random_maps(names=("blocks.0.attn", "blocks.1.attn", "head.attn"), shape=(2, 3, 5, 5), **more):
    return Maps([Map(name, [record(torch.randn(shape).softmax(-1), **more)]) for name in names])


def test_maps_are_found_by_name_number_slice_and_pattern():
    maps = random_maps()
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn", "head.attn"]
    assert maps[-1] is maps["head.attn"]
    assert list(maps["blocks.*"]) == list(maps[:2]) == ["blocks.0.attn", "blocks.1.attn"]
    assert "head.attn" in maps
    for missing in ("neck", "neck.*"):
        with pytest.raises(KeyError, match="there are blocks"):
            maps[missing]
    with pytest.raises(IndexError):
        maps[5]


def test_chosen_maps_keep_what_holds_for_all():
    maps = random_maps()
    maps.notes.append("rows do not sum to 1")
    maps.image_tokens = regard.maps.ImageTokens(7)
    for some in (maps[:2], maps["blocks.*"]):
        assert (some.notes, some.image_tokens) == (maps.notes, maps.image_tokens)
        some.notes.append("of some only")
    assert maps.notes == ["rows do not sum to 1"]


def test_stack_needs_one_shape():
    assert random_maps().stack().shape == (3, 2, 3, 5, 5)
    mixed = Maps([*random_maps().values(), *random_maps(("other",), (2, 3, 4, 4)).values()])
    with pytest.raises(ValueError, match=r"one shape.*\(2, 3, 4, 4\)"):
        mixed.stack()
    assert mixed["blocks.*"].stack().shape[0] == 2


def test_the_table_shows_what_is_there_and_what_is_not():
    maps = random_maps()
    maps.missed.append(regard.maps.Missed("decoder", "its tensors are nested", (2, 3), 4))
    maps.notes.append("something to know")
    text = str(maps)
    for part in (
        "blocks.0.attn",
        "2×3×5×5",
        "1.0e-07",
        "decoder (2, 3): its tensors are nested (4 times)",
        "something",
    ):
        assert part in text
    assert "no attention was captured" in str(Maps())
    assert "blocks.0.attn" in repr(maps[0])


def test_the_residual_of_a_map_is_its_worst():
    found = Map("a", [record(torch.ones(1, 1, 1, 1), error=x) for x in (0.1, 0.3, 0.2)])
    found.calls.append(record(torch.ones(1, 1, 1, 1), error=None))
    assert found.residual == pytest.approx(0.3)
    assert not found.agrees
    assert math.isnan(Map("b", [record(torch.ones(1, 1, 1, 1), error=None)]).residual)
    found.calls.append(record(torch.ones(1, 1, 1, 1), error=math.nan))  # an output that is no number
    assert math.isnan(found.residual)
    assert math.isnan(Maps([found]).residual)
    assert Maps([Map("b", [record(torch.ones(1, 1, 1, 1), error=None)]), random_maps()[0]]).residual < 1


@pytest.mark.parametrize("dtype", [None, "float32", "float16", "bfloat16", "uint8"])
def test_saved_maps_come_back(tmp_path, dtype):
    maps = random_maps(layout=Layout((2, 2), 1), kernel="flash", rows=(0, 1, 2, 3, 4))
    maps["head.attn"].calls.append(record(torch.rand(1, 3, 2, 7), heads=(0, 2, 4)))
    maps.missed.append(regard.maps.Missed("decoder", "nested", (2, 3), 4))
    maps.notes.append("a note")
    path = maps.save(tmp_path / "deep" / "maps", dtype=dtype)
    assert path.name == "maps.safetensors"
    again = Maps.load(tmp_path / "deep" / "maps")
    assert (again.missed, again.notes, list(again)) == (maps.missed, maps.notes, list(maps))
    for name, found in maps.items():
        for one, other in zip(again[name].calls, found.calls, strict=True):
            step = other.weights.amax((-2, -1), keepdim=True) / 255
            allowed = {None: 0.0, "float32": 0.0, "float16": 1e-3, "bfloat16": 4e-3, "uint8": 0.51}[dtype]
            bound = allowed * (step if dtype == "uint8" else torch.ones(()))
            assert ((one.weights.float() - other.weights).abs() <= bound).all()
            for field in ("against", "kind", "kernel", "rows", "heads", "layout", "shape"):
                assert getattr(one, field) == getattr(other, field)
            assert one.residual == pytest.approx(other.residual)


IMAGE_TOKENS = [None, regard.maps.ImageTokens(7, (2, 3)), regard.maps.ImageTokens(7, None, ((2, 3), (4, 5)))]


@pytest.mark.parametrize("images", IMAGE_TOKENS)
def test_saved_maps_know_which_tokens_are_images(tmp_path, images):
    maps = random_maps()
    maps.image_tokens = images
    assert Maps.load(maps.save(tmp_path / "maps")).image_tokens == images


def test_windows_and_maps_kept_once_are_saved_as_they_are(tmp_path):
    windows = Windows((4, 4), (2, 2), (1, 1))
    shared = record(torch.rand(1, 2, 4, 4))
    shared.shape = (3, 2, 4, 4)  # one map for a batch of three
    maps = Maps(
        [
            Map("swin", [record(torch.rand(8, 2, 4, 4), windows=windows, layout=Layout((4, 4), 0))]),
            Map("gaussian", [shared]),
        ]
    )
    again = Maps.load(maps.save(tmp_path / "maps.safetensors"))
    assert torch.equal(again["swin"].weights, maps["swin"].weights)
    assert again["swin"].weights.shape == again["swin"].shape == (2, 2, 16, 16)
    assert again["gaussian"].weights.shape == again["gaussian"].shape == (3, 2, 4, 4)


def test_a_large_model_fits_into_three_megabytes(tmp_path):
    maps = random_maps(tuple(f"layer.{i}" for i in range(12)), (1, 12, 128, 128))
    size = maps.save(tmp_path / "maps", dtype="uint8").stat().st_size
    assert size <= 3_000_000


def test_other_files_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"a": torch.ones(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match=r"maps\.save did not write it"):
        Maps.load(tmp_path / "other.safetensors")
    with pytest.raises(FileNotFoundError, match="no maps at"):
        Maps.load(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match=r"no maps\.json"):
        Maps.load(tmp_path)
    with pytest.raises(ValueError, match="dtype must be one of"):
        random_maps().save(tmp_path / "maps", dtype="int4")


def test_a_folded_map_cannot_be_saved(tmp_path):
    found = random_maps()
    found[0].calls[0].stored = None
    with pytest.raises(ValueError, match="folded by reduce"):
        found.save(tmp_path / "maps")


def test_a_layout_must_fit_the_number_of_tokens():
    assert given_layout(17, (4, 4), None, "a") == Layout((4, 4), 1)
    assert given_layout(7, 7, 0, "a") == Layout((7,), 0)
    for grid, prefix in (((4, 4), 2), ((5, 5), None), ((4, 4), 0)):
        with pytest.raises(ValueError, match="must make 17, which 'a' attends over"):
            given_layout(17, grid, prefix, "a")
    with pytest.raises(ValueError, match="prefix must be"):
        given_layout(17, (4, 4), -1, "a")
    for grid in ((0, 4), (), (2.5, 2)):
        with pytest.raises(ValueError, match="grid must be whole numbers"):
            given_layout(17, grid, None, "a")


def test_what_no_module_says_is_not_guessed():
    class Says(nn.Module):
        prefix_tokens = 1
        grid = (4, 4)

    assert inferred_layout(17, [nn.Linear(1, 1), Says()], None) == Layout((4, 4), 1)
    assert inferred_layout(7, [Says()], (2, 3)) == Layout((2, 3), 1)  # the image that was seen
    assert inferred_layout(16, [Says()], None) is None
    assert inferred_layout(17, [nn.Linear(1, 1)], (4, 4)) is None
    maps = random_maps()
    with pytest.raises(ValueError, match="not known: pass grid="):
        maps[0].layout()
    with pytest.raises(ValueError, match="not known: pass grid="):
        maps[0].layout(prefix=1)


@given(
    grid=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    window=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    shift=st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
def test_windows_hold_every_token_once(grid, window, shift):
    windows = Windows(grid, window, shift)
    index = windows.index
    assert sorted(index[index >= 0].tolist()) == list(range(grid[0] * grid[1]))
    area = window[0] * window[1]
    weights = torch.rand(2 * windows.count, 3, area, area)
    full = windows.on_image(weights)
    assert full.shape == (2, 3, *(grid[0] * grid[1],) * 2)
    inside = (index >= 0)[:, None, :, None] & (index >= 0)[:, None, None, :]
    parts = weights.unflatten(0, (2, windows.count))
    torch.testing.assert_close(full.sum((-2, -1)), (parts * inside).sum((1, 3, 4)))
    values = torch.rand(2 * windows.count, 3, area, 4)
    torch.testing.assert_close(windows.cut(windows.merge(values), values), values)
    # Where nothing is padding, the image's map times the image's values is each window's product.
    if bool((index >= 0).all()):
        torch.testing.assert_close(full @ windows.merge(values), windows.merge(weights @ values))
