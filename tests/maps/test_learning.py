"""A capture of a model that an earlier one has seen needs no function mode: what it records must be the same."""

import copy
import io
import pickle
import threading
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

import regard
from regard.maps import _operator_watch
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


def capture(model, x, **options):
    with regard.capture(model, **options) as maps:
        model(x)
    assert _operator_watch._thread.listener is None
    assert torch._C._len_torch_function_stack() == 0
    return maps


def in_thread(model, thread):
    with regard.capture(model) as maps:
        thread.start()
        thread.join()
    assert not maps.records


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_the_second_capture_sees_no_function_and_records_the_same(model, x, seen, mode, same):
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


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x, x, need_weights=False)[0]
        return x


@pytest.mark.parametrize("fast", [True, False], ids=["fast path", "in Python"])
@pytest.mark.parametrize(
    "build", [Stack, lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, 0.0, batch_first=True), 2)]
)
def test_layers_of_torch_are_learned(x, seen, build, fast, same):
    model = build().train(not fast)
    with torch.no_grad():
        first = capture(model, x)
        assert seen
        seen.clear()
        same(first, capture(model, x))
    assert not seen
    assert {record.kind for record in first.records} == {"fast path" if fast else "sdpa"}


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
        lambda model: model.layers[2].qkv.register_forward_pre_hook(lambda *args: None),
        lambda model: setattr(model.layers[1].proj, "forward", model.layers[1].proj.forward),
        lambda model: setattr(model.layers[1], "more", 1),
        lambda model: (delattr(model.layers[1], "fused"), setattr(model.layers[1], "num_heads", 2)),
        lambda model: setattr(model.layers[1], "fused", torch.tensor(True)),
        lambda model: setattr(model.layers[1], "num_heads", 4),
        lambda model: setattr(model.config, "_attn_implementation", "other"),
        lambda model: model.layers._modules.update({"0": model.layers[1], "1": model.layers[0]}),
        lambda model: setattr(model.layers[1], "__class__", type("Other", (Attention,), {})),
        lambda model: setattr(model.layers[1], "forward", model.layers[1].forward),
        lambda model: setattr(model.layers[1], "qkv", copy.deepcopy(model.layers[1].qkv)),
        lambda model: model.layers[1].register_module("more", None),
        lambda model: model.layers[1].eval().proj.train(),
    ],
    ids=[
        "attribute",
        "hook",
        "module",
        "training",
        "pre-hook",
        "forward",
        "added",
        "removed",
        "type",
        "number",
        "implementation",
        "exchanged",
        "class",
        "forward of a layer",
        "projection",
        "empty module",
        "training of one",
    ],
)
def test_a_changed_model_is_seen_in_full(model, x, seen, change):
    model.config = SimpleNamespace(_attn_implementation="sdpa")
    capture(model, x)
    seen.clear()
    capture(model, x)
    assert not seen
    change(model)
    if not hasattr(model.layers[1], "fused"):
        Attention.fused = True
    try:
        maps = capture(model, x)
    finally:
        if "fused" in vars(Attention):
            del Attention.fused
    assert "linear" in seen
    assert list(maps) == [f"layers.{i}" for i in range(3)]


def test_another_way_that_nothing_shows_is_seen(model, x, seen, monkeypatch, same):
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


def test_modules_that_run_without_a_map_are_reported_by_their_calls(model, x, seen, monkeypatch):
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


class AttentionBlock(nn.Module):
    """As in BERT: it looks like attention, and a module inside of it attends."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = Attention(), nn.Linear(16, 16)
        self.q_proj, self.k_proj = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        return self.out(self.q_proj(x) * self.k_proj(x) if WAY["without"] else self.inner(x))


def test_modules_around_those_that_attend_are_learned_and_reported_as_in_full(x, seen, monkeypatch, same):
    model, missed = nn.Sequential(AttentionBlock(), AttentionBlock()).eval(), []
    first = capture(model, x)
    seen.clear()
    same(first, capture(model, x))
    assert not seen
    assert list(first) == ["0.inner", "1.inner"]
    monkeypatch.setitem(WAY, "without", True)
    for found in (model, copy.deepcopy(model)):  # of the copy nothing is known
        with pytest.warns(UserWarning, match="no map was captured"), regard.capture(found) as maps:
            found(x)
        missed.append(maps.missed)
        assert bool(seen) == (found is not model)
    assert missed[0] == missed[1]
    assert [one.name for one in missed[0]] == ["0", "1"]


class OwnWay(Attention):
    """Copies all of its variables, which torch's own modules do not."""

    def __getstate__(self):
        return dict(vars(self))


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = [copy.deepcopy, copy.copy, lambda x: pickle.loads(pickle.dumps(x)), saved]


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("captures", range(4))
def test_maps_that_nobody_has_read_can_be_copied(model, x, copied, captures, same):
    for _ in range(captures):
        capture(model, x)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
        early = copied(maps["layers.1"])
        model(-x)
    one, another = copied(maps["layers.1"]), copied(maps)
    assert (len(early.calls), early.agrees) == (1, True)
    for found in (one, another["layers.1"], maps["layers.1"]):
        assert len(found.calls) == 2
        for number, call in enumerate(found.calls):
            assert torch.equal(call.weights, capture(model, (x, -x)[number])["layers.1"].weights)
            assert call.agrees
            assert call.residual == maps["layers.1"].calls[number].residual
    same(maps, another)


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_that_is_made_inside_takes_nothing_along(model, x, seen, copied, same):
    model.layers[2] = OwnWay()
    plain = model.eval()(x)
    first = capture(model, x)
    seen.clear()
    with regard.capture(model) as maps:
        another = copied(model)
        torch.testing.assert_close(another(x), plain)
        model(x)
        later = copied(model)
    assert not seen
    for one in (model, another, later):
        for module in one.modules():
            assert vars(module).get("_compiled_call_impl") is None
            assert not module._forward_pre_hooks
    if copied is not copy.copy:  # which shares its layers with the model
        assert [missed.name for missed in maps.missed] == ["(outside the model)"]
        same(first, capture(model, x))


def test_two_captures_of_one_model_leave_nothing_on_it(model, x, same):
    first = capture(model, x)
    began, go = threading.Event(), threading.Event()
    found = []

    def other():
        with regard.capture(model) as maps:
            began.set()
            go.wait(10)
            model(x)
        found.append(maps)

    with pytest.warns(UserWarning, match="no attention was seen"), regard.capture(model) as maps:
        pass
    thread = threading.Thread(target=other)
    thread.start()
    began.wait(10)
    with regard.capture(model) as maps:
        model(x)
        go.set()
        thread.join()
    same(first, maps)
    same(first, found[0])
    assert all("_compiled_call_impl" not in vars(module) for module in model.modules())


def test_a_capture_learns_from_the_first_pass(model, x, seen):
    with regard.capture(model) as maps:
        model(x)
        model(x)
        seen.clear()
        model(x)
        model(x)
    assert not seen
    assert torch._C._len_torch_function_stack() == 0
    assert [len(maps[name].calls) for name in maps] == [4, 4, 4]
    assert not maps.missed
    calls = maps["layers.1"].calls
    assert [call.moment[0] for call in calls] == [0, 1, 2, 3]
    assert all(torch.equal(call.stored, calls[0].stored) and call.axes == calls[0].axes for call in calls)


def test_another_way_after_the_first_pass_is_seen(model, x, monkeypatch, same):
    with regard.capture(model) as maps:
        for way in (False, False, True, False):
            monkeypatch.setitem(WAY, "by hand", way)
            model(x)
    assert [call.kind for call in maps["layers.1"].calls] == ["sdpa", "sdpa", "softmax", "sdpa"]
    assert not maps.missed
    same(capture(model, x), capture(model, x))


class Overwriting(Attention):
    """Writes into all tensors of its attention afterwards, as static caches do at the next step."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        result = self.proj(out.transpose(1, 2).flatten(2))
        for buffer in (q, k, v, out):
            buffer.fill_(7.0)
        return result


@pytest.mark.parametrize(
    "options", [{}, {"rows": -1}, {"overview": 2, "keep_keys": True}], ids=["all", "row", "overview"]
)
def test_maps_are_right_if_their_tensors_are_overwritten(x, options):
    torch.manual_seed(0)
    usual, overwriting = Attention(), Overwriting()
    overwriting.load_state_dict(usual.state_dict())
    with torch.no_grad():
        expected = capture(usual, x, **options)[0]
        for _ in range(3):
            with regard.capture(overwriting, **options) as maps:
                for _ in range(3):
                    overwriting(x)
            assert all(call.agrees and call.residual < 1e-5 for call in maps.records)
            for call in maps.records:
                if "overview" in options:
                    assert torch.equal(call.overview.mass, expected.overview)
                    assert torch.equal(call.block(torch.arange(5)), expected.block())
                else:
                    assert torch.equal(call.stored, expected.weights)


class Twice(Attention):
    """Attends once or twice in a call; the second map is subtracted from the first."""

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        if WAY["by hand"]:
            out = out - 0.5 * F.scaled_dot_product_attention(k, q, v)
        return self.proj(out.transpose(1, 2).flatten(2))


def test_a_second_attention_in_a_call_is_seen_in_full(x, monkeypatch, same):
    model = Twice()
    first = capture(model, x)
    same(first, capture(model, x))
    monkeypatch.setitem(WAY, "by hand", True)
    maps = capture(model, x)
    fresh = Twice()
    fresh.load_state_dict(model.state_dict())
    same(capture(fresh, x), maps)
    assert [len(found.calls) for found in maps.values()] == [1]  # both are one map


class Inside(Attention):
    """Attends, calls itself, and attends again."""

    def forward(self, x, again=False):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v)
        if again:
            x = self(x)
            out = F.scaled_dot_product_attention(q, k.flip(2), v) if again == "after" else out
        return self.proj(out.transpose(1, 2).flatten(2)) + x


@pytest.mark.parametrize("again", [True, "after"])
def test_a_module_that_calls_itself_is_named_as_in_full(x, again, same):
    model = nn.Sequential(Inside())
    for _ in range(2):
        capture(model, x)
    with regard.capture(model) as maps:
        model[0](x, again)
    fresh = nn.Sequential(Inside())
    fresh.load_state_dict(model.state_dict())
    with regard.capture(fresh) as expected:
        fresh[0](x, again)
    same(expected, maps)
    assert [(found.name, len(found.calls)) for found in maps.values()] == [
        (found.name, len(found.calls)) for found in expected.values()
    ]


def test_modules_that_gave_no_map_need_a_capture_that_sees_everything(model, x, seen):
    model.other = Attention()  # never called
    capture(model, x)
    seen.clear()
    capture(model, x)
    assert seen


def test_with_another_capture_inside_the_outer_one_sees_everything(model, x, same):
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
            model(x)  # from here on it sees everything
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
    assert _operator_watch._thread.listener is None
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


def test_what_runs_in_other_threads_is_said_each_time(model, x):
    class Replicated(nn.DataParallel):  # on two devices, as far as anyone can see
        def forward(self, x):
            return self.module(x)

    model = Replicated(model)
    model.device_ids = [0, 1]
    for _ in range(3):
        assert "replicas run in other threads" in str(capture(model, x).missed)
