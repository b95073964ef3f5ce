"""What capture promises of itself: names, order, choices and limits."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard


def test_names_are_module_paths_and_the_output_is_the_same(model, x):
    plain = model(x)
    with regard.capture(model) as maps:
        out = model(x)
    assert torch.equal(out, plain)
    assert list(maps) == ["blocks.0", "blocks.1", "blocks.2"]
    assert maps.residual < 1e-5


def test_a_module_that_attends_several_times_is_numbered_and_its_calls_are_in_order(x):
    class Twice(nn.Module):
        def attend(self, q):
            return F.scaled_dot_product_attention(q, q, q)

        def forward(self, x):
            for scale in (1.0, 2.0):  # the same line
                x = self.attend(x * scale)
            return F.scaled_dot_product_attention(x, x, x)

    model = nn.Sequential(Twice())
    with regard.capture(model) as maps:
        model(x)
        model(x)
    assert list(maps) == ["0", "0#2", "0#3"]
    assert [len(found.calls) for found in maps.values()] == [2, 2, 2]


def test_a_shared_module_keeps_its_calls_in_order(networks, x):
    block = networks(1).blocks[0]
    model = nn.Sequential(block, nn.ReLU(), block)
    with regard.capture(model) as maps:
        model(x)
    assert list(maps) == ["0"]
    first, second = (call.weights for call in maps["0"].calls)
    assert not torch.equal(first, second)
    assert torch.equal(maps["0"].weights, second)


def test_only_rows_heads_and_dtype_keep_less(model, x):
    with regard.capture(model) as full:
        model(x)
    with regard.capture(model, only="blocks.[02]", rows=[0, -1], heads=1, dtype=torch.float16) as maps:
        model(x)
    assert list(maps) == ["blocks.0", "blocks.2"]
    for name, found in maps.items():
        expected = full[name].weights[:, 1:2, [0, 4]].half()
        assert torch.equal(found.weights, expected)
        assert (found.latest.rows, found.latest.heads) == ((0, 4), (1,))
        assert found.agrees
    with regard.capture(model, rows=slice(1, 3)) as maps:
        model(x)
    assert torch.equal(maps[0].weights, full[0].weights[:, :, 1:3])


@pytest.mark.parametrize("kind", [torch.tensor, np.array], ids=["torch", "numpy"])
def test_rows_and_heads_may_be_arrays_of_numbers(model, x, kind):
    """As the statistics of a map are: ``rows=map.per_query.where[0, 0]``."""
    with regard.capture(model) as whole:
        model(x)
    with regard.capture(model, overview=2, rows=kind([4, -3]), heads=kind(1), keep_keys=True) as maps:
        model(x)
    found, weights = maps[0], whole[0].weights[:, 1:]
    torch.testing.assert_close(found.weights, weights[:, :, [4, 2]])
    assert (found.latest.rows, found.latest.heads) == ((4, 2), (1,))
    torch.testing.assert_close(found.block(kind([0, -1]), kind([3, 1])), weights[:, :, [0, -1]][..., [3, 1]])
    torch.testing.assert_close(found.block(kind(3)), weights[:, :, [3]])
    for wrong in (kind([True, False]), kind([1.0]), kind([[1]]), kind(True)):
        with pytest.raises(TypeError, match="rows must be a whole number, a slice or several whole numbers, got"):
            found.block(wrong)
        with pytest.raises(TypeError, match="heads must be a whole number"):
            regard.capture(model, heads=wrong)


def test_rows_that_do_not_exist_are_missed_with_the_reason(model, x):
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model, rows=7) as maps:
        model(x)
    assert not maps
    assert "there are only 5" in maps.missed[0].reason


@pytest.mark.parametrize("shared", [1, 2, 8])
@pytest.mark.parametrize("overview", [None, 4])
@pytest.mark.parametrize(
    "heads",
    [
        slice(3, None),
        slice(-1, None),
        slice(-3, -2),
        slice(None, None, 3),
        slice(6, 20),
        slice(-20, 2),
        slice(2, 4),
        [7, 0],
    ],
)
def test_any_slice_of_heads_that_share_keys(heads, shared, overview):
    """Slices without a stop, from the end, or beyond it: the model must not fail, whatever they are."""

    class Shared(nn.Module):
        def forward(self, query, key):
            return nn.functional.scaled_dot_product_attention(query, key, key, enable_gqa=True)

    model, query, key = Shared(), torch.randn(2, 8, 9, 4), torch.randn(2, shared, 9, 4)
    with torch.no_grad(), regard.capture(model) as whole:
        model(query, key)
    expected = whole[0].weights[:, heads]
    with torch.no_grad(), regard.capture(model, heads=heads, overview=overview, keep_keys=bool(overview)) as maps:
        model(query, key)
    found = maps[0]
    torch.testing.assert_close(found.block() if overview else found.weights, expected)
    assert found.latest.heads == tuple(torch.arange(8)[heads].tolist())
    assert found.agrees
    if overview:
        torch.testing.assert_close(found.per_key.received, expected.sum(-2))


@pytest.mark.parametrize("heads", [[], slice(9, 12)])
@pytest.mark.parametrize("overview", [None, 4])
def test_no_heads_are_missed_with_the_reason(model, x, heads, overview):
    capture = regard.capture(model, heads=heads, overview=overview)
    with torch.no_grad(), pytest.warns(UserWarning, match="no map was captured"), capture as maps:
        model(x)
    assert maps.missed[0].reason == f"heads={heads}: it chooses none of 2"


def test_many_rows_are_computed_in_parts(model, x, monkeypatch):
    with regard.capture(model) as whole:
        model(x)
    monkeypatch.setattr(regard.maps.Capture, "chunk_bytes", 1)
    for rows in (None, [3, 1, 0]):
        with regard.capture(model, rows=rows) as maps:
            model(x)
        expected = whole.stack() if rows is None else whole.stack()[..., rows, :]
        torch.testing.assert_close(maps.stack(), expected)
        assert maps.residual < 1e-5
        assert maps[0].logsumexp_residual < 1e-5


def test_reduce_folds_maps_without_keeping_them(model):
    batches = [torch.randn(2, 5, 8) for _ in range(3)]
    with regard.capture(model) as kept:
        for x in batches:
            model(x)

    def total(so_far, weights):
        return weights.sum(0) if so_far is None else so_far + weights.sum(0)

    with regard.capture(model, reduce=total, budget=0) as maps:
        for x in batches:
            model(x)
    expected = torch.cat([call.weights for call in kept["blocks.1"].calls]).sum(0)
    torch.testing.assert_close(maps["blocks.1"].reduced, expected)
    assert len(maps["blocks.1"].calls) == 3
    with pytest.raises(ValueError, match="folded by reduce"):
        maps["blocks.1"].weights  # noqa: B018
    assert maps.residual < 1e-5
    assert "folded" in str(maps)


def test_a_map_of_all_samples_is_folded_once_for_each_sample():
    """Gaussian heads have one map for the whole batch."""
    layer, x = regard.GaussianAttention(8, 2, axes=1), torch.randn(3, 5, 8)
    with regard.capture(layer) as whole, regard.capture(layer, reduce=lambda _, weights, rows: weights) as parts:
        layer(x)
    assert whole[0].latest.stored.shape[0] == 1
    torch.testing.assert_close(parts[0].reduced, whole[0].weights)


def test_the_budget_drops_maps_loudly(model, x):
    size = 2 * 2 * 5 * 5 * 4
    with pytest.warns(UserWarning, match="1 map was dropped"), regard.capture(model, budget=2 * size) as maps:
        model(x)
    assert list(maps) == ["blocks.0", "blocks.1"]
    assert maps.missed[0].name == "blocks.2"
    assert "budget of 800 B" in maps.missed[0].reason
    with regard.capture(model, budget="1.2kB") as maps:
        model(x)
    assert len(maps) == 3


def test_streamed_maps_lie_on_disk_and_can_be_read_later(model, x, tmp_path):
    with regard.capture(model) as expected:
        model(x)
        model(x[:1])
    with regard.capture(model, stream=tmp_path / "maps", budget=0) as maps:
        model(x)
        model(x[:1])
    again = regard.maps.Maps.load(tmp_path / "maps")
    for found in (maps, again):
        for name in expected:
            for one, other in zip(found[name].calls, expected[name].calls, strict=True):
                assert torch.equal(one.weights, other.weights)
                assert one.agrees
    assert len(list((tmp_path / "maps").glob("*.map"))) == 6
    with pytest.raises(ValueError, match="already contains maps"):
        regard.capture(model, stream=tmp_path / "maps")


def test_attention_outside_of_the_model_is_told_apart(model, x):
    with regard.capture(model) as maps:
        F.scaled_dot_product_attention(x, x, x)
        model(x)
    assert len(maps) == 3
    assert maps.missed[0].name == "(outside the model)"


def test_scripted_modules_and_replicas_are_announced_as_missed():
    class Scripted(nn.Module):
        def __init__(self):
            super().__init__()
            with pytest.warns(DeprecationWarning, match="torch.jit.script"):
                self.inner = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))

    model = nn.DataParallel(Scripted())
    model.device_ids = [0, 1]
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        pass
    reasons = {missed.name: missed.reason for missed in maps.missed}
    assert "TorchScript" in reasons["module.inner"]
    assert "threads" in reasons["DataParallel"]
    assert len(reasons) == 2


def test_a_model_for_several_devices_that_runs_on_one_misses_nothing(model, x):
    model = nn.DataParallel(model, device_ids=[])
    with regard.capture(model) as maps:
        model(x)
    assert len(maps) == 3
    assert not maps.missed


def test_an_empty_capture_says_why(model, x):
    with (
        pytest.warns(UserWarning, match="Network did not run inside the block, or has no attention"),
        regard.capture(model),
    ):
        pass
    with pytest.warns(UserWarning, match=r"matches none of blocks\.0"), regard.capture(model, only="layers.*"):
        model(x)


def test_a_capture_is_used_once(model, x):
    capture = regard.capture(model)
    with capture:
        model(x)
    with pytest.raises(RuntimeError, match="already used"), capture:
        pass


@pytest.mark.usefixtures("user_errors")
def test_wrong_arguments_are_refused_with_what_would_fit(model):
    for arguments, error, text in (
        ({"model": 3}, TypeError, "model must be an nn.Module"),
        ({"dtype": torch.int8}, TypeError, "dtype must be a floating-point"),
        ({"dtype": "half"}, TypeError, "dtype must be a floating-point"),
        ({"dtype": np.float16}, TypeError, "dtype must be a floating-point"),
        ({"model": np.ndarray}, TypeError, "model must be an nn.Module"),
        ({"rows": "all"}, TypeError, "rows must be a whole number"),
        ({"rows": 1.5}, TypeError, r"rows must be a whole number.*got 1\.5 \(float\)"),
        ({"only": 3}, TypeError, r"only must be a pattern.*got 3 \(int\)"),
        ({"only": [3]}, TypeError, r"only must be a pattern"),
        ({"grid": 1.5}, ValueError, r"grid must be whole numbers.*got 1\.5"),
        ({"prefix": "one"}, ValueError, "prefix must be the number of tokens"),
        ({"stream": 1.5}, TypeError, "stream must be the path of a folder"),
        ({"heads": [0.5]}, TypeError, "heads must be a whole number"),
        ({"budget": "lots"}, ValueError, "budget must be a number of bytes"),
        ({"budget": -1}, ValueError, "budget must be a number of bytes"),
        ({"reduce": 1}, TypeError, "reduce must be a function"),
    ):
        with pytest.raises(error, match=text):
            regard.capture(**{"model": model, **arguments})


def test_a_grid_that_fits_nothing_is_warned_of(model, x):
    said = r"grid=\(2, 2\) with prefix=0 fits no map: .* \[5\] tokens"
    with pytest.warns(UserWarning, match=said), regard.capture(model, grid=(2, 2), prefix=0):
        model(x)
    with regard.capture(model, grid=(2, 2)) as maps:
        model(x)
    assert (maps[0].grid, maps[0].prefix) == ((2, 2), 1)


def test_the_budget_names_the_map_and_the_working_memory_apart(model, monkeypatch):
    monkeypatch.setattr(regard.maps.Capture, "chunk_bytes", 1024)
    with pytest.warns(UserWarning, match="budget"), regard.capture(model, budget="2KiB") as maps:
        model(torch.randn(1, 20, 8))
    needed = "it needs 3.12 KiB, and 3 KiB while it is computed"
    assert maps.missed[0].reason.startswith(
        f"the budget of 2 KiB has no room for this map: 0 B are in use, and {needed}"
    )
