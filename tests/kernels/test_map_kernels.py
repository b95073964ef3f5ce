"""The kernels of maps and overviews, run by Triton's interpreter: equal to the dense map on random shapes."""

import gc
import math
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.functional import kernels
from regard.functional.kernels import _map_launch, _overview_launch
from regard.maps import AttentionRecord, Check, Computation
from regard.maps._overview import KeyStatistics, Overview, QueryStatistics
from regard.maps.repeats import _check_buffers, _map_rooms, _quick_calls
from regard.maps.sources import _function_call as function_call
from regard.maps.weights import _overview_pass, _triton_maps
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band

ALL = slice(None)
CASES = {
    "plain": {},
    "causal from the start": {"band": Band(right=0)},
    "causal to the end": {"band": Band(right=0, shift=5)},
    "window": {"band": Band(left=4, right=2, shift=5)},
    "a shift for each sequence": {"band": Band(left=6, right=0, shift=torch.tensor([3, -2]))},
    "padding": {"keep": torch.arange(18) < torch.tensor([11, 18])[:, None, None, None]},
    "absent": {
        "present": (torch.arange(13) < torch.tensor([[5], [13]]), torch.arange(18) < torch.tensor([[10], [18]]))
    },
    "softcap": {"softcap": 1.5},
    "slopes": {"slopes": torch.tensor([0.1, 0.2, 0.5, 1.0]), "band": Band(shift=5)},
}


@pytest.fixture(autouse=True)
def unproven(monkeypatch):
    monkeypatch.setattr(_triton_maps, "_proven", {})


def record_of(options, dtype=torch.float32, shared=2, width=12):
    torch.manual_seed(0)
    query, key = torch.randn(2, 13, 4, width).transpose(1, 2), torch.randn(2, shared, 18, width)
    value = torch.randn(2, shared, 18, 20)
    scores = AttentionScores(query.to(dtype), key.to(dtype), 0.6, **options)
    weights, total = scores(ALL, ALL)
    output = (weights @ value.to(dtype).float().repeat_interleave(4 // shared, 1)).to(dtype)
    running = Computation(scores, output=output, value=value.to(dtype), logsumexp=total)
    record = AttentionRecord("x", "test", scores.shape, Check("kernel"), computation=running)
    record.check.allowed = running.rounding(18)
    return record, weights


@pytest.mark.parametrize("case", CASES)
def test_weights(case):
    record, weights = record_of(CASES[case])
    found = _triton_maps.weights_by_kernel(record, ALL, torch.float32)
    torch.testing.assert_close(found, weights, atol=2e-6, rtol=1e-5)
    assert record.residual < 1e-5
    assert record.logsumexp_residual < 1e-5
    assert not record.remarks


@pytest.mark.parametrize(("case", "cells"), list(zip(CASES, [3, 7] * len(CASES), strict=False)))
def test_overview(case, cells):
    """By kernel as by tiles, of which tests/maps compares every number with the dense map."""
    record, _ = record_of(CASES[case], shared=1 if cells == 3 else 4, width=16)
    heads = ALL if cells == 3 else torch.tensor([2, 0])
    found, sums, _ = _triton_maps.overview_by_kernel(record, heads, cells)
    expected, expected_sums = _overview_pass._by_tiles(record, heads, cells)
    torch.testing.assert_close(sums, expected_sums)
    assert found.cell == expected.cell
    for name, x in expected.tensors.items():
        torch.testing.assert_close(found.tensors[name], x, atol=2e-5, rtol=2e-5, msg=name)
    _overview_pass.check(record, found, sums, heads, _overview_pass.checked_rows(record.shape[2]))
    assert record.agrees


class Packing:
    """The sums of a record's overview, and what torch and kernels make of them."""

    def __init__(self, options):
        self.record, _ = record_of(options, width=16)
        self.given = _triton_maps.usable(self.record, ALL)
        self.plan = _overview_launch.OverviewPlan(self.given, (5, 6), 4)
        self.sums = self.plan.add_up(self.given, 0)

    @property
    def kept(self):
        running, parts = self.record.running, self.plan.kept
        rows = _overview_pass.checked_rows(13)
        kept = self.plan.pack(self.given, self.sums, running.value, running.output, rows, 0)
        return {name: parts.of(kept, name) for name in parts}


@pytest.mark.parametrize(
    ("case", "more"), [("absent", {"softcap": 1.5}), ("a shift for each sequence", CASES["slopes"])]
)
def test_packed_overview(case, more):
    """By kernels alone as by torch, and with the same errors."""
    packing = Packing({**more, **CASES[case]})
    found, record, kept = packing.plan.unpacked(packing.sums), packing.record, packing.kept
    queries, keys = QueryStatistics(*found.per_query), KeyStatistics(*found.per_key)
    expected = Overview(found.mass, found.largest, (5, 6), queries, keys)
    for name, x in expected.kept().tensors.items():
        assert kept[name].dtype is x.dtype, name
        torch.testing.assert_close(kept[name], x, atol=2e-5, rtol=1e-3, msg=name)
    _overview_pass.check(record, expected, found.sums, ALL, _overview_pass.checked_rows(13))
    error, log_error, largest = kept["numbers"].tolist()
    assert abs(error - record.residual) < 2e-5
    assert abs(log_error - record.logsumexp_residual) < 2e-6
    assert largest == float(record.running.value.abs().max())


def test_packed_overviews_that_are_wrong_are_noticed():
    packing = Packing({"band": Band(right=0, shift=5)})
    running = packing.record.running
    best, output = packing.plan._sums.of(packing.sums, "best"), running.output.clone()

    def agrees():
        error, log_error, largest = packing.kept["numbers"].tolist()
        packing.plan._sums.of(packing.sums, "numbers").zero_()
        assert log_error < 1e-5
        return error <= running.rounding(18).times * largest

    assert agrees()
    best.copy_(best.flip(2))  # statistics in another order: each row still sums to one
    assert not agrees()
    best.copy_(best.flip(2))
    running.output[1, 3] += 0.5
    assert not agrees()
    running.output.copy_(output)
    running.value[1, 1, 17, 3] = math.nan
    assert not agrees()


WHOLE = {
    "no tile is seen as a whole": (Band(right=0), (83, 70), torch.float16, False),
    "causal": (Band(right=0), (200, 128), torch.float16, False),
    "causal, copied by descriptors": (Band(right=0), (200, 128), torch.float16, True),
    "a window on both sides": (Band(left=130, right=130, shift=-3), (200, 128), torch.float16, False),
    "all": (None, (200, 64), torch.float32, False),
}


@pytest.mark.parametrize(("band", "size", "dtype", "copied"), WHOLE.values(), ids=WHOLE)
def test_overview_of_whole_tiles(band, size, dtype, copied, monkeypatch):
    """More queries than a tile has, not a multiple of it: the last one begins earlier, and counts no query twice. Tiles that
    are seen as a whole, and those at an edge, are added up in launches of their own."""
    monkeypatch.setattr(_overview_launch, "_copies", lambda *_: copied)
    torch.manual_seed(1)
    queries, keys = size
    query, key = torch.randn(1, 1, queries, 16), torch.randn(1, 1, keys, 16)
    scores = AttentionScores(query.to(dtype), key.to(dtype), 0.6, band=band)
    weights, total = scores(ALL, ALL)
    running = Computation(scores, output=query, value=key, logsumexp=total)
    record = AttentionRecord("x", "test", scores.shape, Check("kernel"), computation=running)
    found = _triton_maps.overview_by_kernel(record, ALL, 2).overview
    height, width = found.cell
    cells = F.pad(weights, (0, -keys % width, 0, -queries % height)).view(1, 1, 2, height, 2, width)
    torch.testing.assert_close(found.mass, cells.sum((3, 5)), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.largest, cells.amax((3, 5)), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.per_key.received, weights.sum(-2), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.per_key.largest, weights.amax(-2), atol=1e-3, rtol=1e-3)
    seen = weights.amax(-2) > 0
    assert torch.equal(found.per_key.source[seen], weights.argmax(-2)[seen].int())
    assert torch.equal(found.per_key.source == -1, ~seen)
    best, where = weights.max(-1)
    assert torch.equal(found.per_query.where[best > 0], where[best > 0].int())
    torch.testing.assert_close(found.per_query.largest, best, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.per_query.entropy, torch.special.entr(weights).sum(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(found.per_query.first, weights[..., :4].sum(-1), atol=1e-3, rtol=1e-3)
    away = torch.arange(keys) - torch.arange(queries)[:, None] - ((band and band.shift) or 0)
    torch.testing.assert_close(found.per_query.distance, (weights * away.abs()).sum(-1), atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("case", ["causal to the end", "a shift for each sequence", "absent"])
def test_some_rows(case):
    """Rows that follow one another are computed alone, at their own places."""
    record, weights = record_of(CASES[case])
    found = _triton_maps.weights_by_kernel(record, ALL, torch.float32, slice(7, 9))
    torch.testing.assert_close(found, weights[:, :, 7:9], atol=2e-6, rtol=1e-5)
    assert record.residual < 1e-5
    assert record.logsumexp_residual < 1e-5
    assert not record.remarks


def test_half_precision():
    """bfloat16 is for a GPU: the interpreter has no such numbers."""
    record, weights = record_of(CASES["causal to the end"], torch.float16)
    found = _triton_maps.weights_by_kernel(record, ALL, torch.float16)
    assert found.dtype is torch.float16
    torch.testing.assert_close(found.float(), weights, atol=1e-2, rtol=1e-2)
    assert record.agrees


def test_what_the_kernels_cannot_do_is_left_to_torch():
    mask = torch.rand(13, 18) < 0.5
    for options in ({"keep": mask}, {"bias": torch.randn(13, 18)}, {"mask": lambda b, h, q, k: q >= k}):
        record, _ = record_of(options)
        assert _triton_maps.usable(record, ALL) is None
    record, _ = record_of({})
    record.computation.logsumexp = None
    assert _triton_maps.usable(record, ALL) is None
    assert not kernels.usable_for_maps(torch.zeros(1, 1, 2, 512))


class Model(nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, is_causal=True)


def launches(monkeypatch, name):
    seen, launch = [], getattr(kernels, name)
    monkeypatch.setattr(kernels, name, lambda *args: seen.append(1) or launch(*args))
    return seen


@pytest.mark.parametrize(("name", "options"), [("write_weights", {}), ("overview", {"overview": 4})])
def test_capture_uses_them_and_falls_back_with_the_reason(monkeypatch, name, options):
    """A kernel that fails or is wrong is replaced at once, and is not asked again."""
    x, seen, packed = torch.randn(1, 2, 20, 16), launches(monkeypatch, name), launches(monkeypatch, "packed_overview")

    def found():
        with torch.no_grad(), regard.capture(model := Model(), **options) as maps:
            model(x)
            model(x)
        record = maps[0].latest
        assert record.agrees
        return maps, (record.overview.mass if options else record.weights)

    monkeypatch.setenv("REGARD_KERNELS", "0")
    expected = found()[1]
    assert not seen
    monkeypatch.delenv("REGARD_KERNELS")
    maps, weights = found()
    assert (len(seen), len(packed)) == (
        (1, 2) if options else (2, 0)
    )  # once both are compared, overviews are packed at once
    assert not maps.notes
    assert len({record.against for record in maps.records}) == 1
    torch.testing.assert_close(weights, expected)

    def fails(*args):
        seen.append(1)
        raise RuntimeError("no such card")

    launch = getattr(kernels, name)

    def wrong(*args):
        made = launch(*args)
        (made[0] if name == "write_weights" else made.per_query[2]).mul_(1.5)
        return made

    def short_of_memory(*args):
        raise torch.OutOfMemoryError("for now")

    for broken, reason in ((fails, "RuntimeError: no such card"), (wrong, "off by")):
        monkeypatch.setattr(_triton_maps, "_proven", {})
        seen.clear()
        monkeypatch.setattr(kernels, name, broken)
        maps, weights = found()
        assert len(seen) == 1
        assert len(maps.notes) == 1
        assert "torch takes its place" in maps.notes[0]
        assert reason in maps.notes[0]
        torch.testing.assert_close(weights, expected)
        monkeypatch.setattr(kernels, name, launch)

    monkeypatch.setattr(_triton_maps, "_proven", {})
    monkeypatch.setattr(kernels, name, short_of_memory)
    maps, weights = found()
    assert not maps.notes
    torch.testing.assert_close(weights, expected)
    seen.clear()
    monkeypatch.setattr(kernels, name, lambda *args: seen.append(1) or launch(*args))
    found()
    assert seen  # memory may be there again


def test_values_that_are_not_numbers_are_noticed():
    record, _ = record_of({})
    record.computation.output[0, 0, 3, 2] = math.nan
    _triton_maps.weights_by_kernel(record, ALL, torch.float32)
    assert record.residual == math.inf


@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_kernels_are_asked_for_their_logsumexp(name, monkeypatch):
    """Without gradients torch does not ask these kernels for it, and without it a map takes the slow path."""
    overload = function_call.KERNELS_WITH_LOGSUMEXP.get(f"_scaled_dot_product_{name}_attention")
    asked = []

    class Kernel:
        """In place of the kernel, which needs a GPU."""

        overloadpacket = overload.overloadpacket

        def __call__(self, *args, **kwargs):
            asked.append(args)
            return args[0], torch.zeros(1, 2, 3)

    kernel = Kernel()
    monkeypatch.setattr(function_call, "_ON_REQUEST", {kernel})
    monkeypatch.setattr(function_call, "_WITH_LOGSUMEXP", {kernel})
    assert [argument.name for argument in overload._schema.arguments][4] == "compute_log_sumexp"
    witness, x = function_call.KernelWitness(), torch.zeros(1, 2, 3, 4)
    witness.__torch_dispatch__(kernel, (), (x, x, x, None, False, 0.0, True), {"scale": 0.5})
    assert asked == [(x, x, x, None, True, 0.0, True)]
    assert witness.logsumexp is not None


def test_more_heads_than_a_grid_has_are_left_to_torch(monkeypatch):
    record, _ = record_of({})
    assert _triton_maps.usable(record, ALL) is not None
    monkeypatch.setattr(kernels, "MOST_HEADS", 7)
    assert _triton_maps.usable(record, ALL) is None


class Layers(nn.Module):
    """Two modules that attend, with heads that share keys."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Shared() for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Shared(nn.Module):
    num_heads = 4

    def forward(self, x):
        q, k = x.unflatten(-1, (4, 8)).transpose(1, 2), x[..., :16].unflatten(-1, (2, 8)).transpose(1, 2)
        out = F.scaled_dot_product_attention(q, k, 2 * k, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)


@pytest.fixture
def started_at_once(monkeypatch):
    """Addresses of the launches that know nothing but addresses, as on a GPU: here the interpreter runs them."""
    known, starts, usual = {}, [], _map_launch.WeightsPlan.start_at_once

    class AsCompiled(dict):
        def get(self, kind):
            return (run, ()) if kind is not None else None

    def run(x, y, z, stream, *args):
        starts.append(stream)
        places, numbers = args[:11], args[11:]
        from regard.functional.kernels._map_write import map_weights

        map_weights[x, y, z](*(known[place] for place in places), *numbers, num_warps=4)

    def start(self, *args):
        known.update({x.data_ptr(): x for x in args[:5] if x is not None})
        place = _map_launch._zeros_on(self.device)
        known[place] = _map_launch._kept[-1]
        return usual(self, *args)

    def take(self):
        memory, index, check, to, place = found = room(self)
        known[to] = memory if index is None else memory[index]
        known[place] = check.buffer.tensor[check.number]
        return found

    room = _map_rooms.MapRooms.take
    monkeypatch.setattr(_map_rooms.MapRooms, "take", take)
    monkeypatch.setattr(_map_launch, "_compiled", AsCompiled())
    monkeypatch.setattr(_map_launch.WeightsPlan, "start_at_once", start)
    monkeypatch.setattr(_quick_calls, "_plans", {})
    return starts


@pytest.mark.parametrize("options", [{}, {"rows": -2}, {"rows": slice(3, 9), "dtype": torch.float16}], ids=str)
def test_calls_like_earlier_ones_are_started_at_once(started_at_once, monkeypatch, options):
    torch.manual_seed(0)
    model, xs = Layers().eval(), [torch.randn(2, 20, 32), torch.randn(2, 1, 32), 2 * torch.randn(2, 20, 32)]

    def captured():
        with torch.inference_mode(), regard.capture(model, **options) as maps:
            for x in xs:
                model(x)
        return maps

    if options:
        xs.pop(1)
    captured()  # learns the model, and proves the kernel
    maps = [captured() for _ in range(3)][-1]
    assert len(started_at_once) >= 2 * len(xs)
    monkeypatch.setattr(_quick_calls.QuickCalls, "take", lambda *_: False)
    started_at_once.clear()
    expected = captured()
    assert not started_at_once
    assert list(maps) == list(expected)
    for one, two in zip(maps.records, expected.records, strict=True):
        torch.testing.assert_close(one.stored, two.stored, atol=1e-6, rtol=1e-3)
        assert not one.stored.is_inference()
        # Scores of some hundreds: rounding them to float32 changes the weights by several 1e-5.
        assert one.residual == pytest.approx(two.residual, abs=1e-4)
        assert one.agrees
        assert one.logsumexp_residual is None  # the kernel had its own
        assert float(one.check.allowed) == float(two.check.allowed)
        same = ("name", "kind", "shape", "kernel", "rows", "heads", "layout", "axes", "moment", "against")
        assert all(getattr(one, field) == getattr(two, field) for field in same)


def test_calls_that_are_started_at_once_keep_to_the_budget(started_at_once, monkeypatch):
    model, x = Layers().eval(), torch.randn(2, 20, 32)
    size = 2 * 4 * 20 * 20 * 4

    def captured():
        with torch.no_grad(), regard.capture(model, budget=5 * size + size // 2) as maps:
            for _ in range(3):
                model(x)
        return maps

    for _ in range(3):
        with torch.no_grad(), regard.capture(model):
            model(x)
    made, empty = [], torch.empty
    started_at_once.clear()
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: made.append(sizes) or empty(*sizes, **options))
    with pytest.warns(UserWarning, match="dropped"):
        maps = captured()
    together = [shape[0] for (shape,) in made if shape[1:] == (2, 4, 20, 20)]
    assert together == [2, 2, 1]  # those of a pass are made at once
    assert len(started_at_once) == 5  # what was made for later calls was used
    monkeypatch.setattr(_quick_calls.QuickCalls, "take", lambda *_: False)
    with pytest.warns(UserWarning, match="dropped"):
        expected = captured()
    assert [str(missed) for missed in maps.missed] == [str(missed) for missed in expected.missed]
    assert [(found.name, len(found.calls)) for found in maps.values()] == [("layers.0", 3), ("layers.1", 2)]


def test_values_that_are_not_numbers_are_noticed_at_once(started_at_once):
    model, x = Shared().eval(), torch.randn(1, 20, 32)
    for _ in range(3):
        with torch.no_grad(), regard.capture(model) as maps:
            model(x)
    assert maps.residual < 1e-5
    assert started_at_once
    x[0, 5, 3] = math.nan
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(x)
    assert maps.residual == math.inf


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("rows", [slice(None), slice(9, 11)], ids=["all", "two"])
def test_a_kernel_that_computes_the_logsumexp_itself(case, rows):
    """Its weights are those of the dense map for every kind of mask, and it never reads the logsumexp that it is given."""
    record, weights = record_of(CASES[case])
    given = _triton_maps.usable(record, ALL, slice(*rows.indices(13)))
    given.logsumexp.fill_(math.nan)
    output = record.running.expected_output[:, :, rows]
    found, error, _ = kernels.write_weights(given, record.running.value, output, torch.float32, alone=True)
    torch.testing.assert_close(found, weights[:, :, rows], atol=2e-6, rtol=2e-5)
    assert error.amax() < 1e-5


def test_a_kernel_with_its_own_logsumexp_that_disagrees_is_not_used(started_at_once, monkeypatch):
    write, asked = kernels.write_weights, []

    def wrong(given, value, output, dtype, alone=False):
        found, *errors = write(given, value, output, dtype, alone)
        asked.append(alone)
        return (1.5 * found if alone else found), *errors

    monkeypatch.setattr(kernels, "write_weights", wrong)
    model, x = Layers().eval(), torch.randn(2, 20, 32)
    for _ in range(4):
        with torch.inference_mode(), regard.capture(model) as maps:
            model(x)
    assert asked.count(True) == 1  # compared once, and never again
    assert started_at_once
    assert not any(plan.alone for plan in _quick_calls._plans.values())
    assert maps.residual < 1e-4
    assert all(record.logsumexp_residual is not None for record in maps.records)


def test_torch_is_asked_for_its_kernel_once_for_all_calls_of_a_form(started_at_once, monkeypatch):
    model, x, choose, asked = Layers().eval(), torch.randn(2, 20, 32), torch._fused_sdp_choice, []
    monkeypatch.setattr(
        torch, "_fused_sdp_choice", lambda *args, **options: asked.append(1) or choose(*args, **options)
    )

    def kernel_of_pass():
        with torch.inference_mode(), regard.capture(model) as maps:
            model(x)
        return {record.kernel for record in maps.records}

    usual = [kernel_of_pass() for _ in range(4)][-1]
    asked.clear()
    assert kernel_of_pass() == usual
    assert not asked
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # another setting is another choice
        assert kernel_of_pass() != usual
    assert asked
    assert kernel_of_pass() == usual


def test_calls_that_cannot_be_started_at_once_are_asked_for_their_logsumexp(started_at_once, monkeypatch):
    model, x = Layers().eval(), torch.randn(2, 20, 32)
    for _ in range(3):
        with torch.inference_mode(), regard.capture(model) as maps:
            model(x)
    assert all(record.logsumexp_residual is None for record in maps.records)
    monkeypatch.setattr(_map_launch.WeightsPlan, "start_at_once", lambda *_: False)  # as if addresses were not aligned
    with torch.inference_mode(), regard.capture(model) as maps:
        for _ in range(3):
            model(x)
    assert maps.residual < 1e-4
    assert [record.logsumexp_residual is None for record in maps.records] == [True] + 5 * [False]


class Alternating(nn.Module):
    """Layers over all keys and over some of them, in turn."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Some(keys) for keys in (20, 12, 20, 12))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class Some(nn.Module):
    num_heads = 4

    def __init__(self, keys):
        super().__init__()
        self.keys = keys

    def forward(self, x):
        q = x.unflatten(-1, (4, 8)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q[:, :, : self.keys], q[:, :, : self.keys]).transpose(1, 2).flatten(2)


def test_maps_of_two_forms_in_turn_use_the_memory_that_was_made_for_them(started_at_once, monkeypatch):
    model, x = Alternating().eval(), torch.randn(2, 20, 32)

    def captured():
        with torch.inference_mode(), regard.capture(model) as maps:
            model(x)
        return maps

    for _ in range(3):
        captured()
    made, empty = [], torch.empty
    started_at_once.clear()
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: made.append(sizes[0]) or empty(*sizes, **options))
    maps = captured()
    assert len(started_at_once) == 4
    assert sorted(shape for shape in made if len(shape) == 5) == [(4, 2, 4, 20, 12), (4, 2, 4, 20, 20)]
    assert len({record.stored.data_ptr() for record in maps.records}) == 4
    assert maps.residual < 1e-5


@pytest.fixture
def on_device(started_at_once, monkeypatch):
    """The checks count as those of a GPU, for which a capture does not wait. The list tells how often they were read."""
    fetched, fetch = [], _check_buffers.CheckBuffers.fetch

    def noted(self):
        fetched.append(1)
        return fetch(self)

    monkeypatch.setattr(_check_buffers.CheckBuffers, "fetch", noted)
    monkeypatch.setattr(_check_buffers._Buffer, "waits", property(lambda self: self.host is None and self.used > 0))
    return fetched


def captured_twice(model, x):
    """The maps of a block in which all calls are started at once."""
    for _ in range(3):
        with torch.no_grad(), regard.capture(model) as maps:
            model(x)
    return maps


READS = {
    "residual": lambda maps: maps.residual,
    "repr": repr,
    "weights": lambda maps: maps["layers.1"].weights,
    "agrees": lambda maps: maps[0].agrees,
    "records": lambda maps: maps.records,
}


@pytest.mark.parametrize("read", READS)
def test_checks_on_a_device_are_read_with_the_first_map(on_device, recwarn, read):
    model, x = Layers().eval(), torch.randn(2, 20, 32)
    captured_twice(model, x)
    on_device.clear()
    x[0, 5, 3] = math.nan
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    assert not on_device  # leaving the block does not wait for the device
    assert list(maps) == ["layers.0", "layers.1"]
    assert not recwarn
    READS[read](maps)
    assert len(on_device) == 1
    assert [str(warning.message)[:46] for warning in recwarn] == ["2 of 2 maps do not reproduce what the model co"]
    assert recwarn[0].filename == __file__
    for other in READS.values():
        other(maps)
    assert maps.residual == math.inf
    assert not any(found.agrees for found in maps.values())
    assert len(on_device) == len(recwarn) == 1


def test_checks_on_a_device_are_those_of_a_capture_that_waits(on_device, recwarn, monkeypatch):
    model, x = Layers().eval(), torch.randn(2, 20, 32)
    later = captured_twice(model, x)
    monkeypatch.setattr(_check_buffers._Buffer, "waits", property(lambda self: False))
    at_once = captured_twice(model, x)
    assert [record.residual for record in later.records] == [record.residual for record in at_once.records]
    assert [record.check.allowed for record in later.records] == [record.check.allowed for record in at_once.records]
    assert not recwarn


def test_maps_whose_checks_were_not_read_are_let_go_at_once(on_device):
    maps = captured_twice(Layers().eval(), torch.randn(2, 20, 32))
    other = weakref.ref(maps["layers.0"])
    gc.collect()
    gc.disable()  # nothing may wait for the collector
    try:
        one = maps["layers.1"]
        del maps
        assert other() is None
        assert one.residual < 1e-5  # only this one is left to be checked
        assert one.agrees
    finally:
        gc.enable()
