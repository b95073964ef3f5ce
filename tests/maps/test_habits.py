"""A capture of a model that an earlier one has seen needs no function mode: what it records must be the same."""

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import regard
from regard.maps import _habits, _traps
from regard.maps.sources import _direct_kernels

WAY = {"by hand": False, "without": False}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)
        self.num_heads, self.fused = 2, True

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if WAY["without"]:
            out = v
        elif self.fused and not WAY["by hand"]:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            hidden = torch.ones(q.shape[-2], q.shape[-2]).tril() == 0
            out = ((q @ k.mT) * 8**-0.5).masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return self.proj(out.transpose(1, 2).flatten(2))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(F.layer_norm(x, (16,)))
        return x


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def x():
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def seen(monkeypatch):
    """The names of the functions that the mode of a capture sees."""
    names = []
    usual = _habits.HabitualInterceptor.__torch_function__

    def noted(self, func, *args):
        names.append(func.__name__)
        return usual(self, func, *args)

    monkeypatch.setattr(_habits.HabitualInterceptor, "__torch_function__", noted)
    return names


def capture(model, x, **options):
    with regard.capture(model, **options) as maps:
        model(x)
    assert _traps._thread.sleeper is None
    assert torch._C._len_torch_function_stack() == 0
    return maps


def in_thread(model, thread):
    with regard.capture(model) as maps:
        thread.start()
        thread.join()
    assert not maps.records


def same(a, b):
    assert list(a) == list(b)
    for one, two in zip(a.records, b.records, strict=True):
        assert torch.equal(one.stored, two.stored)
        assert (one.kernel, one.layout, one.axes, one.shape, one.kind) == (
            two.kernel,
            two.layout,
            two.axes,
            two.shape,
            two.kind,
        )
    assert a.residual == b.residual
    assert not b.missed


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_second_capture_sees_no_function_and_records_the_same(model, x, seen, mode):
    with mode():
        first = capture(model, x)
        assert "linear" in seen
        seen.clear()
        same(first, capture(model, x))
        same(capture(model, x, rows=-1), capture(model, x, rows=[4]))
        with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(model):
            pass  # shows nothing new
        same(first, capture(model, x))
    assert not seen


def test_gradients_are_those_of_the_model(model, x):
    capture(model, x)
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with regard.capture(model) as maps:
        model(x).square().sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), plain, strict=True))
    assert len(maps.records) == 3


@pytest.mark.parametrize(
    "change",
    [
        lambda model: setattr(model.layers[1], "fused", False),
        lambda model: model.layers[1].register_forward_hook(lambda *args: None),
        lambda model: setattr(model.layers, "1", Attention()),
        lambda model: model.train(),
    ],
    ids=["attribute", "hook", "module", "training"],
)
def test_a_changed_model_is_seen_in_full(model, x, seen, change):
    capture(model, x)
    change(model)
    seen.clear()
    maps = capture(model, x)
    assert "linear" in seen
    assert list(maps) == [f"layers.{i}" for i in range(3)]


def test_another_way_that_nothing_shows_wakes(model, x, seen, monkeypatch):
    first = capture(model, x)
    seen.clear()
    monkeypatch.setitem(WAY, "by hand", True)
    maps = capture(model, x)
    assert seen
    assert not maps.missed
    assert {record.kind for record in maps.records} == {"softmax"}
    for name in first:
        torch.testing.assert_close(maps[name].weights, first[name].weights)
    monkeypatch.setitem(WAY, "by hand", False)
    seen.clear()
    same(first, capture(model, x))  # what was known is forgotten
    assert seen


def test_modules_that_run_without_a_map_are_reported_asleep_too(model, x, seen, monkeypatch):
    capture(model, x)
    seen.clear()
    monkeypatch.setitem(WAY, "without", True)
    with pytest.warns(UserWarning, match="no map|no attention|missed"), regard.capture(model) as maps:
        model(x)
    assert not seen
    assert [missed.name for missed in maps.missed] == [f"layers.{i}" for i in range(3)]
    assert not any(module._forward_pre_hooks for module in model.modules())
    with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(model) as maps:
        model.layers[1].qkv(x)  # of a module that attends, only a part runs
    assert not maps.missed


def test_modules_that_gave_no_map_keep_it_awake(model, x, seen):
    model.other = Attention()  # never called
    capture(model, x)
    seen.clear()
    capture(model, x)
    assert seen


def test_another_capture_inside_wakes_the_outer_one(model, x):
    first = capture(model, x)
    with regard.capture(model) as outer:
        with regard.capture(model) as inner:
            model(x)
        model(x)
    same(first, inner)
    assert [len(outer[name].calls) for name in outer] == [2, 2, 2]


def test_modes_of_others_stay_in_their_order(model, x, monkeypatch):
    class Counting(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            counted.append(func.__name__)
            return func(*args, **(kwargs or {}))

    counted = []
    capture(model, x)
    monkeypatch.setitem(WAY, "by hand", True)
    with regard.capture(model) as maps:
        with Counting():
            model(x)  # wakes the capture
        first = len(counted)
        model(x)
    assert len(counted) == first
    assert [len(maps[name].calls) for name in maps] == [2, 2, 2]


def test_other_threads_and_errors(model, x):
    capture(model, x)
    thread = threading.Thread(target=model, args=(x,))
    with pytest.warns(UserWarning, match="did not run in this thread"):
        in_thread(model, thread)
    capture(model, x)
    with pytest.raises(RuntimeError), regard.capture(model):
        model(x[..., :3])
    assert _traps._thread.sleeper is None
    before = len(capture(model, x).records)
    assert before == 3


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"enable_gqa": True}])
def test_the_kernel_itself_gives_what_the_function_gives(options):
    q, k = torch.randn(2, 4, 6, 8), torch.randn(2, 2 if options.get("enable_gqa") else 4, 6, 8)
    out, run = _direct_kernels.run_directly((q, k, k), options)
    assert torch.equal(out, F.scaled_dot_product_attention(q, k, k, **options))
    scores = q @ k.repeat_interleave(4 // k.shape[1], 1).mT * options.get("scale", 8**-0.5)
    if options.get("is_causal"):
        scores = scores.masked_fill(torch.ones(6, 6).tril() == 0, -torch.inf)
    torch.testing.assert_close(run.logsumexp, scores.logsumexp(-1))


def test_unusual_calls_are_left_to_the_witness():
    q = torch.randn(2, 4, 6, 8)
    unusual = [
        ((q, q, q), {"dropout_p": 0.1}),
        ((q, q, q, torch.ones(6, 6, dtype=torch.bool)), {}),
        ((q[0], q[0], q[0]), {}),
        ((q[..., :7], q[..., :7], q[..., :7]), {}),
        ((q, q, q[..., :4]), {}),
        ((q[:, :, :0], q, q), {}),
    ]
    assert all(_direct_kernels.run_directly(args, kwargs) is None for args, kwargs in unusual)
    with torch.autocast("cpu", torch.bfloat16):
        assert _direct_kernels.run_directly((q, q, q), {}) is None
