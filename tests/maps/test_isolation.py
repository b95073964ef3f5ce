"""Capture leaves the model and the process as they were, whatever happens, beside other captures and other modes."""

import subprocess
import sys
import threading
import weakref

import pytest
import torch
import torch._dynamo
import torch.nn.attention.flex_attention
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps import Capture, _monkey_patches, sources
from regard.maps._operator_watch import watching_key


def untouched():
    return (
        torch.overrides.has_torch_function,
        torch._dynamo.eval_frame._stance,
        torch.nn.attention.flex_attention.flex_attention.__code__,
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward.__code__,
        torch._C._len_torch_function_stack(),
        torch._C._dispatch_tls_is_dispatch_key_included(watching_key()),
        tuple(sys.meta_path),
    )


def test_nothing_stays_patched_not_even_after_an_exception(model, x):
    import torch._dynamo

    with regard.capture(model):
        pass_through = model(x)
    before = untouched()
    with regard.capture(model):
        assert untouched() != before
        model(x)
    assert untouched() == before
    capture = regard.capture(model)
    maps = capture.__enter__()
    model(x)
    capture.__exit__(ZeroDivisionError, ZeroDivisionError(), None)
    assert untouched() == before
    assert len(maps) == 3
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model(x), pass_through)


def test_an_error_inside_the_model_is_the_models_own(model):
    before = untouched()
    with pytest.raises(RuntimeError, match="mat1 and mat2"), regard.capture(model):
        model(torch.randn(2, 5, 9))
    assert untouched() == before


def test_captures_may_be_nested(model, x):
    with regard.capture(model) as outer:
        model(x)
        with regard.capture(model, only="blocks.1") as inner:
            model(x)
        model(x)
    assert list(inner) == ["blocks.1"]
    assert [len(found.calls) for found in outer.values()] == [3, 3, 3]
    assert torch.equal(inner[0].weights, outer["blocks.1"].calls[1].weights)


def test_captures_may_end_in_any_order(model, x):
    """As generators do that each have a capture."""
    before, layer, image = untouched(), regard.GaussianAttention(8, 4, init="grid"), torch.randn(1, 4, 4, 8)
    for module, given in 2 * [(model, x), (layer, image)]:  # the first captures learn that the model is usual
        first, second = regard.capture(module), regard.capture(module)
        one, two = first.__enter__(), second.__enter__()
        module(given)
        first.__exit__(None, None, None)
        module(given)
        second.__exit__(None, None, None)
        assert (len(one[0].calls), len(two[0].calls)) == (1, 2)
        module(given)
        assert untouched() == before


def test_finalizers_may_use_tensors_while_a_capture_ends(model, x):
    """As the garbage collector may run them at any time."""
    for _ in range(3):
        sums = []
        with regard.capture(model):
            model(x)
            interceptor = _monkey_patches._thread.interceptors[-1]
            interceptor.prepare()
            weakref.finalize(interceptor.handwritten, lambda found=sums: found.append(torch.ones(2).sum().item()))
        assert sums == [2]
        del interceptor


def test_nested_captures_on_every_path_see_the_same():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x = torch.randn(1, 4, 8)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), regard.capture(encoder) as outer, regard.capture(encoder) as inner:
            encoder(x)
        assert list(outer) == list(inner) == ["layers.0.self_attn"]
        assert torch.equal(outer[0].weights, inner[0].weights)
        assert outer[0].against == inner[0].against == ("kernel" if grad else "layer")


def test_threads_capture_at_once_and_do_not_see_each_other(networks, x):
    models = [networks(depth) for depth in (1, 2, 3)]
    barrier, found, before = threading.Barrier(4), {}, untouched()

    def run(i):
        barrier.wait()
        for _ in range(5):
            with regard.capture(models[i]) as maps:
                models[i](x + i)
                barrier.wait()
            found[i] = maps

    threads = [threading.Thread(target=run, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    barrier.wait()
    for _ in range(5):
        models[0](x)  # a thread that does not capture
        barrier.wait()
    for thread in threads:
        thread.join()
    assert [len(found[i]) for i in range(3)] == [1, 2, 3]
    assert all(len(one.calls) == 1 and one.agrees for maps in found.values() for one in maps.values())
    assert untouched() == before


def test_the_same_model_in_two_threads_overlapping_in_any_order(model, x):
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    found, before = {}, untouched()

    def first():
        with regard.capture(model) as maps:
            first_in.set()
            second_in.wait()
            model(x)
        found["first"] = maps
        first_out.set()

    thread = threading.Thread(target=first)
    thread.start()
    first_in.wait()
    with regard.capture(model) as maps:
        second_in.set()
        first_out.wait()  # the first leaves while the second is inside
        model(x)
    thread.join()
    assert len(maps) == len(found["first"]) == 3
    assert untouched() == before


@pytest.mark.parametrize("learned", [False, True])
def test_a_capture_that_ends_in_another_thread_leaves_the_captures_of_that_thread(networks, x, learned):
    """As that of a generator, which a server may resume in any thread."""
    before, begun, models = untouched(), [], (networks(1), networks(2))
    for model in models if learned else ():
        with regard.capture(model):
            model(x)
    thread = threading.Thread(target=lambda: begun.append((capture := regard.capture(models[0]), capture.__enter__())))
    thread.start()
    thread.join()
    with regard.capture(models[1]) as maps:
        with pytest.raises(RuntimeError, match="must end in the thread in which it began"):
            begun[0][0].__exit__(None, None, None)
        models[1](x)
    assert len(maps) == 2
    assert untouched() == before


def test_gradients_flow_as_before_and_maps_hold_no_graph(model, x):
    x.requires_grad_()
    expected = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
    with regard.capture(model) as maps:
        loss = model(x).square().sum()
    found = torch.autograd.grad(loss, [x, *model.parameters()])
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    assert not maps[0].weights.requires_grad


def test_recomputation_in_the_backward_pass_is_not_counted_again(model, x):
    from torch.utils.checkpoint import checkpoint

    x.requires_grad_()
    with regard.capture(model) as maps:
        checkpoint(model, x, use_reentrant=False).sum().backward()
    assert [len(found.calls) for found in maps.values()] == [1, 1, 1]


def test_calls_after_inference_mode_are_seen(networks, x):
    """Where inference mode ends, torch resets the keys by which operators are watched."""
    model = networks(2)
    with torch.no_grad(), regard.capture(model) as maps:
        with torch.inference_mode():
            model(x), model(x)
        model(x), model(x[:, 1:])
    assert [len(found.calls) for found in maps.values()] == [4, 4]


def test_inference_mode_gives_ordinary_tensors(model, x):
    with torch.inference_mode(), regard.capture(model) as maps:
        model(x)
    assert not maps[0].weights.is_inference()
    maps[0].weights.requires_grad_().sum().backward()


LETTING_GO = """
import gc, weakref, torch, regard
from torch import nn

class Remembering(nn.Module):
    def forward(self, x):
        held.append(weakref.ref(x))
        return nn.functional.scaled_dot_product_attention(x, x, x)

held, model, x = [], nn.Sequential(*(Remembering() for _ in range(4))), torch.randn(1, 2, 5, 8)
with regard.capture(model):
    model(x)
held.clear()
gc.collect()
gc.disable()  # nothing may wait for the collector
with torch.no_grad(), regard.capture(model) as maps:
    model(x)
    assert [ref() is None for ref in held[1:3]] == [True, True], held
assert held[3]() is None
gone = weakref.ref(model)
del model
assert gone() is None

class ByHand(nn.Module):
    def forward(self, x):
        scores = x @ x.mT
        growth = scores.exp()
        late = (growth @ x) / growth.sum(-1, keepdim=True)
        return scores.softmax(-1) @ x, scores.sigmoid() @ x, scores, late

for grad in (True, False):  # what the model returned is kept, and with it what was known of it
    model = ByHand()
    with torch.set_grad_enabled(grad), regard.capture(model) as maps:
        kept = model(x.clone().requires_grad_())
    gone = weakref.ref(model)
    del model
    assert len(maps) == 3 and gone() is None, (grad, maps)

model = nn.Sequential(*(Remembering() for _ in range(4)))
blocks = [regard.analysis.mask_heads(model, {"1": [0]}), regard.edit(model, "*", keys=1)]
for grad in (True, False):
    for block in blocks if grad else blocks[1:]:  # an edit is kept, and may be entered again
        held.clear()
        with torch.set_grad_enabled(grad), block:
            model(x)
        assert all(ref() is None for ref in held[1:]), (block, held)

model = regard.GaussianAttention(8, 4, full_width=True)
with regard.capture(model) as maps:
    model(torch.randn(1, 3, 3, 8))
gone = weakref.ref(model)
del model
assert len(maps) == 1 and gone() is None, maps
"""


LATE_IMPORT = """
import sys, warnings
warnings.simplefilter("ignore")
assert "torch._dynamo" not in sys.modules  # to load it would make every first capture slow

class Late(nn.Module):
    def forward(self, q):
        from torch.nn.attention.flex_attention import flex_attention
        return flex_attention(q, q, q)

model, finders = Late(), list(sys.meta_path)
with torch.no_grad(), regard.capture(model) as maps:
    model(x)
assert maps[0].kernel == "flex_attention" and maps[0].agrees, maps
assert sys.meta_path == finders
assert torch.nn.attention.flex_attention.flex_attention.__code__.co_name == "flex_attention"
"""


def test_tensors_are_let_go_at_once_and_late_imports_are_noticed():
    """In a process of its own: run-time checks of signatures hold arguments longer, and nothing is imported yet."""
    done = subprocess.run([sys.executable, "-c", LETTING_GO + LATE_IMPORT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_models_before_and_during_capture(model, networks, x, fullgraph):
    compiled = torch.compile(model, backend="eager", fullgraph=fullgraph)
    with regard.capture(compiled) as maps:  # before anything is compiled
        compiled(x)
    assert list(maps) == ["blocks.0", "blocks.1", "blocks.2"]
    assert "compiled code ran as" in maps.notes[0]
    plain = compiled(x)  # compiles now
    with torch.compiler.set_stance("fail_on_recompile"):
        with regard.capture(model) as maps:
            out = compiled(x)
        compiled(x)  # what was compiled is still in use
    torch.testing.assert_close(out, plain)
    assert maps.residual < 1e-5
    inner = networks(1)
    inner.blocks[0].compile(backend="eager")
    with regard.capture(inner) as maps:
        inner(x)
    assert list(maps) == ["blocks.0"]
    whole, more = networks(2), []
    whole.register_forward_hook(lambda module, given, out: (out @ out.mT).softmax(-1) @ out if more else None)
    whole.compile(backend="eager")
    for _ in range(2):  # the first capture learns, in its first pass, that the model is usual
        with regard.capture(whole) as maps:
            for _ in range(3):
                whole(x)
        assert [len(found.calls) for found in maps.values()] == [3, 3]
    before = untouched()
    more.append("not usual: the watch ends inside of the compiled code")
    with regard.capture(whole) as maps:
        whole(x)
    assert len(maps) == 3
    assert untouched() == before


def test_a_model_does_not_fail_for_being_watched(model, x, monkeypatch):
    def broken(*args):
        raise RuntimeError("not enough memory")

    plain = model(x)
    attended = Capture.attended

    def attended_without_memory(self, record):
        record.computation.weights = broken
        return attended(self, record)

    monkeypatch.setattr(Capture, "attended", attended_without_memory)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        assert torch.equal(model(x), plain)
    assert "could not be computed (RuntimeError: not enough memory)" in maps.missed[0].reason
    monkeypatch.setitem(sources.TORCH_FUNCTIONS, "scaled_dot_product_attention", broken)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        assert torch.equal(model(x), plain)
    assert "is not understood (RuntimeError" in maps.missed[0].reason
