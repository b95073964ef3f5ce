"""What capture promises of itself: names, order, choices, limits, and that nothing of it stays behind."""

import subprocess
import sys
import threading

import pytest
import torch
import torch._dynamo
import torch.nn.attention.flex_attention
import torch.nn.functional as F
from torch import nn

import regard
from regard.inspect import _process


class Attention(nn.Module):
    def __init__(self, dim=8, heads=2):
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


class Network(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.blocks = nn.ModuleList(Attention() for _ in range(depth))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


@pytest.fixture
def model():
    return Network()


@pytest.fixture
def x():
    return torch.randn(2, 5, 8)


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


def test_a_shared_module_keeps_its_calls_in_order(x):
    block = Attention()
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


def test_rows_that_do_not_exist_are_missed_with_the_reason(model, x):
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model, rows=7) as maps:
        model(x)
    assert not maps
    assert "there are only 5" in maps.missed[0].reason


def test_many_rows_are_computed_in_parts(model, x, monkeypatch):
    with regard.capture(model) as whole:
        model(x)
    monkeypatch.setattr("regard.inspect._capture._CHUNK", 1)
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


def test_the_budget_drops_maps_loudly(model, x):
    size = 2 * 2 * 5 * 5 * 4
    with pytest.warns(UserWarning, match="1 maps were dropped"), regard.capture(model, budget=2 * size) as maps:
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
    again = regard.inspect.Maps.load(tmp_path / "maps")
    for found in (maps, again):
        for name in expected:
            for one, other in zip(found[name].calls, expected[name].calls, strict=True):
                assert torch.equal(one.weights, other.weights)
                assert one.agrees
    assert len(list((tmp_path / "maps").glob("*.map"))) == 6
    with pytest.raises(ValueError, match="holds maps already"):
        regard.capture(model, stream=tmp_path / "maps")


def untouched():
    return (
        torch.overrides.has_torch_function,
        torch._dynamo.eval_frame._stance,
        torch.nn.attention.flex_attention.flex_attention.__code__,
        F.scaled_dot_product_attention,
        F.multi_head_attention_forward.__code__,
        torch._C._len_torch_function_stack(),
        _process._watched,
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


def test_nested_captures_on_every_path_see_the_same():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1).eval()
    x = torch.randn(1, 4, 8)
    for grad in (True, False):
        with torch.set_grad_enabled(grad), regard.capture(encoder) as outer, regard.capture(encoder) as inner:
            encoder(x)
        assert list(outer) == list(inner) == ["layers.0.self_attn"]
        assert torch.equal(outer[0].weights, inner[0].weights)
        assert outer[0].against == inner[0].against == ("kernel" if grad else "layer")


def test_threads_capture_at_once_and_do_not_see_each_other(x):
    models = [Network(depth) for depth in (1, 2, 3)]
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
    assert untouched()[:-2] == before[:-2]
    assert _process._watched == 0


def test_the_same_model_in_two_threads_overlapping_in_any_order(model, x):
    first_in, second_in, first_out = threading.Event(), threading.Event(), threading.Event()
    found = {}

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
    assert _process._watched == 0


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
                self.inner = torch.jit.script(nn.Linear(2, 2))

    model = nn.DataParallel(Scripted())
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        pass
    reasons = {missed.name: missed.reason for missed in maps.missed}
    assert "TorchScript" in reasons["module.inner"]
    assert "threads" in reasons["DataParallel"]


def test_an_empty_capture_says_why(model, x):
    with pytest.warns(UserWarning, match="did Network run"), regard.capture(model):
        pass
    with pytest.warns(UserWarning, match=r"matches none of blocks\.0"), regard.capture(model, only="layers.*"):
        model(x)


def test_a_capture_is_used_once(model, x):
    capture = regard.capture(model)
    with capture:
        model(x)
    with pytest.raises(RuntimeError, match="used already"), capture:
        pass


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_models_before_and_during_capture(model, x, fullgraph):
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
    inner = Network(1)
    inner.blocks[0].compile(backend="eager")
    with regard.capture(inner) as maps:
        inner(x)
    assert list(maps) == ["blocks.0"]


@pytest.mark.usefixtures("user_errors")
def test_wrong_arguments_are_refused_with_what_would_fit(model):
    for arguments, error, text in (
        ({"model": 3}, TypeError, "model must be an nn.Module"),
        ({"dtype": torch.int8}, TypeError, "dtype must be a floating-point"),
        ({"dtype": "half"}, TypeError, "dtype must be a floating-point"),
        ({"rows": "all"}, TypeError, "rows must be a whole number"),
        ({"heads": [0.5]}, TypeError, "heads must be a whole number"),
        ({"budget": "lots"}, ValueError, "budget must be a number of bytes"),
        ({"budget": -1}, ValueError, "budget must be a number of bytes"),
        ({"reduce": 1}, TypeError, "reduce must be a function"),
    ):
        with pytest.raises(error, match=text):
            regard.capture(**{"model": model, **arguments})


def test_a_model_does_not_fail_for_being_watched(model, x, monkeypatch):
    def broken(*args):
        raise RuntimeError("not enough memory")

    plain = model(x)
    monkeypatch.setattr("regard.inspect._seen.Scores.__call__", broken)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        assert torch.equal(model(x), plain)
    assert "could not be computed (RuntimeError: not enough memory)" in maps.missed[0].reason
    monkeypatch.setattr("regard.inspect._kernels.seen_sdpa", broken)
    with pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        assert torch.equal(model(x), plain)
    assert "is not understood (RuntimeError" in maps.missed[0].reason


def test_a_grid_that_fits_nothing_is_warned_of(model, x):
    said = r"grid=\(2, 2\) with prefix=0 fits no map: .* \[5\] tokens"
    with pytest.warns(UserWarning, match=said), regard.capture(model, grid=(2, 2), prefix=0):
        model(x)
    with regard.capture(model, grid=(2, 2)) as maps:
        model(x)
    assert (maps[0].grid, maps[0].prefix) == ((2, 2), 1)
