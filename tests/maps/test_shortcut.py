"""Attention that a model finds as an attribute of torch.nn.functional asks the capture at once; everything else comes by the
operator, and is seen as well."""

import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.bias import CausalBias, causal_lower_right, causal_upper_left
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

import regard
from regard.maps import _operator_watch

ORIGINAL = F.scaled_dot_product_attention


class Attention(nn.Module):
    num_heads = 2

    def __init__(self, attend=None):
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.attend = attend

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        if self.attend is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        else:
            out = self.attend(q, k, v, is_causal=True, scale=0.3)
        return out.transpose(1, 2).flatten(2)


@pytest.fixture
def x():
    return torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))


def capture(model, x, **options):
    with torch.no_grad(), regard.capture(model, **options) as maps:
        model(x)
    assert F.scaled_dot_product_attention is ORIGINAL
    return maps


def learned(model, x):
    first = capture(model, x)
    capture(model, x)
    return first


def captured_and_counted(model, x):
    """The maps, and how many calls came back to Python from an operator."""
    count = 0

    def note(frame, event, _):
        nonlocal count
        of_operators = frame.f_globals.get("__name__") == _operator_watch.__name__
        count += event == "call" and of_operators and frame.f_code.co_name == "kernel"

    sys.setprofile(note)
    try:
        maps = capture(model, x)
    finally:
        sys.setprofile(None)
    return maps, count


def test_a_known_model_comes_back_from_no_operator(x):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(), Attention()).eval()
    first = learned(model, x)
    again, count = captured_and_counted(model, x)
    assert count == 0
    assert [torch.equal(a.stored, b.stored) for a, b in zip(first.records, again.records, strict=True)] == [True, True]
    assert list(first) == list(again) == ["0", "1"]
    assert not again.missed


def test_a_function_that_was_kept_before_comes_by_the_operator(x):
    torch.manual_seed(0)
    model = nn.Sequential(Attention(scaled_dot_product_attention), Attention()).eval()
    first = learned(model, x)
    again, count = captured_and_counted(model, x)
    assert count > 0
    assert [torch.equal(a.stored, b.stored) for a, b in zip(first.records, again.records, strict=True)] == [True, True]


def test_a_function_of_somebody_else_in_its_place_is_called(x, monkeypatch):
    torch.manual_seed(0)
    model, calls = nn.Sequential(Attention()).eval(), []

    def theirs(*args, **kwargs):
        calls.append(kwargs)
        return ORIGINAL(*args, **kwargs)

    first = learned(model, x)
    monkeypatch.setattr(F, "scaled_dot_product_attention", theirs)
    for _ in range(3):
        with torch.no_grad(), regard.capture(model) as maps:
            model(x)
        assert F.scaled_dot_product_attention is theirs
        assert torch.equal(maps[0].weights, first[0].weights)
    assert len(calls) == 3


def test_what_is_put_in_its_place_inside_of_a_block_stays(x, monkeypatch):
    model = nn.Sequential(Attention()).eval()
    learned(model, x)
    monkeypatch.setattr(F, "scaled_dot_product_attention", ORIGINAL)  # restored after the test
    with torch.no_grad(), regard.capture(model) as maps:
        inner = F.scaled_dot_product_attention

        def theirs(*args, **kwargs):
            return inner(*args, **kwargs)

        F.scaled_dot_product_attention = theirs
        model(x)
    assert F.scaled_dot_product_attention is theirs
    assert len(maps) == 1
    assert torch.equal(
        theirs(*x.view(1, 2, 5, 16).expand(3, 2, 5, 16)), ORIGINAL(*x.view(1, 2, 5, 16).expand(3, 2, 5, 16))
    )


def test_other_threads_are_not_captured_and_blocks_end_in_any_order(x):
    model, other = nn.Sequential(Attention()).eval(), nn.Sequential(Attention()).eval()
    learned(model, x)
    learned(other, x)
    inside, go_on, results = threading.Event(), threading.Event(), []

    def run():
        with torch.no_grad(), regard.capture(other) as maps:
            inside.set()
            go_on.wait(10)
            other(x)
        results.append(maps)

    expected = other(x)
    thread = threading.Thread(target=run)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    thread.start()
    inside.wait(10)
    with torch.no_grad():
        assert torch.equal(other(x), expected)  # not captured here, though another thread watches
        with regard.capture(model) as again:
            model(x)
    assert F.scaled_dot_product_attention is not ORIGINAL  # the other thread still watches
    go_on.set()
    thread.join()
    assert F.scaled_dot_product_attention is ORIGINAL
    assert [len(found) for found in (maps, again, results[0])] == [1, 1, 1]
    assert all(len(found[0].calls) == 1 for found in (maps, again, results[0]))


@pytest.mark.parametrize("kind", ["keywords", "positions", "mask", "error"])
def test_calls_of_any_form_are_passed_on(x, kind):
    class Model(nn.Module):
        num_heads = 2

        def forward(self, x):
            q = x.unflatten(-1, (2, 8)).transpose(1, 2)
            if kind == "keywords":
                out = F.scaled_dot_product_attention(query=q, key=q, value=q)
            elif kind == "positions":
                out = F.scaled_dot_product_attention(q, q, q, None, 0.0, True)
            elif kind == "mask":
                out = F.scaled_dot_product_attention(q, q, q, torch.ones(5, 5).tril() == 1)
            else:
                out = F.scaled_dot_product_attention(q, q, q, no_such_argument=1)
            return out.transpose(1, 2).flatten(2)

    model = Model()
    if kind == "error":
        with pytest.raises(TypeError, match="no_such_argument"):
            model(x)
        for _ in range(3):
            with pytest.raises(TypeError, match="no_such_argument"), regard.capture(model):
                model(x)
        assert F.scaled_dot_product_attention is ORIGINAL
        return
    expected = model(x)
    for _ in range(4):
        with regard.capture(model) as maps:
            assert torch.equal(model(x), expected)
        assert maps.residual < 1e-6
        assert len(maps) == 1


def test_code_may_be_scripted_and_traced_inside_of_a_block(x):
    model = nn.Sequential(Attention()).eval()
    learned(model, x)

    def attend(q: torch.Tensor):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
        scripted, traced = torch.jit.script(attend), torch.fx.symbolic_trace(attend)
    assert len(maps) == 1
    assert "aten::scaled_dot_product_attention" in str(scripted.graph)
    assert ORIGINAL in {node.target for node in traced.graph.nodes}
    for found in (scripted, traced):
        assert torch.equal(found(heads), attend(heads))


def softly(func, args, kwargs):
    """Attention by another formula, if this is the function for attention under the name by which it is looked up."""
    if func is not F.scaled_dot_product_attention:
        return None
    q, k, v = (x.as_subclass(torch.Tensor) for x in args[:3])
    return torch.softmax(q @ k.mT * 0.1, -1) @ v


class Softly(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        out = softly(func, args, kwargs)
        return func(*args, **(kwargs or {})) if out is None else out


class SoftTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = softly(func, args, kwargs)
        return super().__torch_function__(func, types, args, kwargs or {}) if out is None else out


def in_a_mode(model, x):
    with Softly():
        return model(x)


def test_masks_that_call_a_kernel_directly(x, monkeypatch):
    """As causal_lower_right does on a GPU: the operator of scaled_dot_product_attention never runs."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    monkeypatch.setattr(CausalBias, "_dispatch", staticmethod(lambda q, k, v, _: flash(q, k, v, is_causal=True)[0]))
    model = nn.Sequential(Attention(lambda q, k, v, **_: F.scaled_dot_product_attention(q, k, v, mask))).eval()
    mask = causal_lower_right(x.shape[1], x.shape[1])
    for _ in range(3):
        maps = capture(model, x)
        assert not maps.missed
        assert maps["0"].agrees


@pytest.mark.parametrize("handled", ["lower right", "upper left", "mode", "subclass"])
def test_code_that_handles_attention_itself_still_does(x, handled):
    """It compares the function that it is given with the attribute of torch.nn.functional, which a capture replaces."""

    def attend(q, k, v, **_):
        mask = {"lower right": causal_lower_right, "upper left": causal_upper_left}.get(handled)
        return F.scaled_dot_product_attention(q[:, :1, 2:], k[:, :1], v[:, :1], None if mask is None else mask(3, 5))

    torch.manual_seed(0)
    model = nn.Sequential(Attention(attend)).eval()
    run = in_a_mode if handled == "mode" else nn.Module.__call__
    given = x.as_subclass(SoftTensor) if handled == "subclass" else x
    with torch.no_grad():
        expected = run(model, given)
        q, k, _ = model[0].qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)[:, :, :1]
    scores = q[:, :, 2:] @ k.mT * (0.1 if handled in ("mode", "subclass") else 8**-0.5)
    if handled not in ("mode", "subclass"):
        seen = torch.ones(3, 5, dtype=torch.bool).tril(2 if handled == "lower right" else 0)
        scores = scores.masked_fill(~seen, -torch.inf)
    for _ in range(3):
        if handled in ("mode", "subclass"):
            capture(model, x)  # it learns that calls are usual
        with torch.no_grad(), regard.capture(model) as maps:
            out = run(model, given)
        assert torch.equal(out, expected)
        torch.testing.assert_close(maps["0"].weights, scores.softmax(-1))
        assert maps["0"].agrees
        assert F.scaled_dot_product_attention is ORIGINAL
