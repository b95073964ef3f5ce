"""Nothing is missing in silence: what looks like attention, ran and gave no map is listed with a reason."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard


@torch.jit.script
def scripted(q, k, v):
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def sparsemax(scores):
    ordered = scores.sort(-1, descending=True).values
    count = torch.arange(1, scores.shape[-1] + 1)
    above = ordered.cumsum(-1) - 1
    support = (count * ordered > above).sum(-1, keepdim=True)
    return (scores - above.gather(-1, support - 1) / support).clamp_min(0)


def delta_rule(q, k, v):
    state, out = torch.zeros(*q.shape[:2], q.shape[-1], v.shape[-1]), []
    for t in range(q.shape[2]):
        row = k[:, :, t, :, None]
        state = state + row * (v[:, :, t] - (row * state).sum(-2))[:, :, None]
        out.append((q[:, :, t, :, None] * state).sum(-2))
    return torch.stack(out, 2)


@torch.library.custom_op("regard_tests::mixing", mutates_args=())
def mixing(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(q @ k.mT, -1) @ v


SILENT = {
    "linear attention": lambda q, k, v: (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v),
    "the delta rule": delta_rule,
    "a scripted function": scripted,
    "sparsemax": lambda q, k, v: sparsemax(q @ k.mT) @ v,
    "one-hot attention": lambda q, k, v: F.one_hot((q @ k.mT).argmax(-1), k.shape[-2]).float() @ v,
    "a custom operator": mixing,
    "code outside of torch, as a Triton kernel is": lambda q, k, v: torch.from_numpy(
        (q @ k.mT).softmax(-1).numpy() @ v.numpy()
    ),
    "a traced function": torch.jit.trace(lambda q, k, v: (q @ k.mT).softmax(-1) @ v, tuple(torch.randn(3, 2, 2, 5, 4))),
}


class SelfAttention(nn.Module):
    def __init__(self, product):
        super().__init__()
        self.qkv, self.proj, self.product = nn.Linear(8, 24), nn.Linear(8, 8), product

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return self.proj(self.product(q, k, v).transpose(1, 2).flatten(2))


class Hybrid(nn.Module):
    """A layer that is seen, one that may not be, and one that does not run."""

    def __init__(self, product):
        super().__init__()
        self.seen = SelfAttention(F.scaled_dot_product_attention)
        self.mixer, self.unused = SelfAttention(product), SelfAttention(product)

    def forward(self, x):
        return self.mixer(self.seen(x))


@pytest.mark.parametrize("name", SILENT)
def test_what_looks_like_attention_and_gave_no_map_is_missed(name):
    model = Hybrid(SILENT[name])
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.randn(2, 5, 8))
    assert list(maps) == ["seen"]
    assert [missed.name for missed in maps.missed] == ["mixer"]
    if name == "a custom operator":
        assert "regard_tests" in maps.missed[0].reason


@pytest.mark.parametrize("way", ["thread", "executor"])
def test_modules_that_ran_in_another_thread_are_missed(way):
    class Threaded(Hybrid):
        def forward(self, x):
            x = self.seen(x)
            if way == "executor":
                return pool.submit(self.mixer, x).result()
            thread = threading.Thread(target=self.mixer, args=(x,))
            thread.start()
            return thread.join()

    model = Threaded(F.scaled_dot_product_attention)
    del model.unused
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # its thread is there before the block
        with torch.no_grad(), regard.capture(model) as maps:
            model(torch.randn(2, 5, 8))
    assert list(maps) == ["seen"]
    assert [missed.name for missed in maps.missed] == ["mixer"]
    assert "thread" in maps.missed[0].reason


def test_a_capture_of_some_maps_reports_only_those():
    model = Hybrid(delta_rule)
    with torch.no_grad(), regard.capture(model, only="seen") as maps:
        model(torch.randn(2, 5, 8))
    assert list(maps) == ["seen"]
    assert not maps.missed


def test_attention_of_an_exported_program_is_seen():
    layer = SelfAttention(lambda q, k, v: (q @ k.mT).softmax(-1) @ v)
    x = torch.randn(2, 5, 8)
    model = nn.ModuleDict({"graph": torch.export.export(layer, (x,)).module()})
    with torch.no_grad(), regard.capture(layer) as expected:
        layer(x)
    with torch.no_grad(), regard.capture(model) as maps:
        model["graph"](x)
    torch.testing.assert_close(maps["graph"].weights, expected[0].weights)


@pytest.mark.parametrize("product", [delta_rule, scripted, mixing])
def test_projections_of_queries_and_keys_look_like_attention(product):
    class Mixer(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            return product(*(f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f in (self.q, self.k, self.v)))

    model = nn.ModuleList([Mixer()])
    with torch.no_grad(), pytest.warns(UserWarning, match="no map"), regard.capture(model) as maps:
        model[0](torch.randn(2, 5, 8))
    assert [missed.name for missed in maps.missed] == ["0"]


def test_modules_that_run_with_other_parameters_are_missed():
    model = Hybrid(delta_rule)
    others = {name: x.detach().clone() for name, x in model.named_parameters()}
    with torch.no_grad(), regard.capture(model) as maps:
        torch.func.functional_call(model, others, torch.randn(2, 5, 8))
    assert list(maps) == ["seen"]
    assert [missed.name for missed in maps.missed] == ["mixer"]


def test_threads_of_a_model_are_missed_whatever_runs_in_them():
    class Threaded(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

        def work(self, x):
            return (self.first(x) @ self.second(x).mT).softmax(-1) @ x

        def forward(self, x):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(self.work, x).result()

    model = Threaded()
    with torch.no_grad(), pytest.warns(UserWarning, match="thread"), regard.capture(model) as maps:
        model(torch.randn(2, 5, 8))
    assert [missed.name for missed in maps.missed] == ["Threaded"]


def test_a_second_model_never_appears_under_the_names_of_the_first():
    class Generator(nn.Module):
        def __init__(self):
            super().__init__()
            self.attn = SelfAttention(F.scaled_dot_product_attention)
            self.assistant = [SelfAttention(F.scaled_dot_product_attention)]  # no part of this model

        def forward(self, x):
            return self.attn(x)

        def generate(self, x):
            return self(self.assistant[0](x))

    model = Generator()
    with torch.no_grad(), regard.capture(model) as maps:
        model.generate(torch.randn(2, 5, 8))
    assert list(maps) == ["attn"]
    assert len(maps["attn"].calls) == 1
    assert [missed.name for missed in maps.missed] == ["(outside the model)"]


# Products; q, k, v are (batch, heads, tokens, width).
FOLLOWED = {
    "torch.linalg.matmul": lambda q, k, v: torch.linalg.matmul(torch.linalg.matmul(q, k.mT).softmax(-1), v),
    "baddbmm": lambda q, k, v: torch.baddbmm(
        v.flatten(0, 1),
        torch.baddbmm(torch.ones(6, 5, 5), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=1.0).softmax(-1),
        v.flatten(0, 1),
        beta=0.5,
        alpha=2.0,
    ).unflatten(0, (2, 3)),
    "three operands": lambda q, k, v: torch.einsum(
        "bhij,bhjd,h->bhid", (q @ k.mT).softmax(-1), v, torch.arange(1.0, 4)
    ),
    "operators of aten": lambda q, k, v: torch.ops.aten.bmm.default(
        torch.ops.aten._softmax.default((q @ k.mT).flatten(0, 1), -1, False), v.flatten(0, 1)
    ).unflatten(0, (2, 3)),
    "a kernel of aten": lambda q, k, v: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=1.0)[
        0
    ],
    "weights in another tensor": lambda q, k, v: torch.empty(2, 3, 5, 5).copy_((q @ k.mT).softmax(-1)) @ v,
    "weights of single heads": lambda q, k, v: (
        torch.stack([(q[:, i] @ k[:, i].mT).softmax(-1) for i in range(3)], 1) @ v
    ),
    "softmin": lambda q, k, v: F.softmin(-(q @ k.mT), -1) @ v,
    "tensordot": lambda q, k, v: torch.tensordot((q @ k.mT).softmax(-1), v[0, 0], dims=([3], [0])),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_every_product_is_followed(name):
    class Product(nn.Module):
        num_heads = 3

        def forward(self, q, k, v):
            return FOLLOWED[name](q, k, v)

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4) for _ in range(3))
    model = Product()
    with torch.no_grad(), regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps["Product"].weights, (q @ k.mT).softmax(-1))
    assert maps["Product"].agrees
    assert not maps.missed


def test_addmm_is_followed():
    class Product(nn.Module):
        def forward(self, q, k, v):
            return torch.addmm(v, (q @ k.mT).softmax(-1), v)

    q, k, v = (torch.randn(5, 4) for _ in range(3))
    model = Product()
    with torch.no_grad(), regard.capture(model) as maps:
        model(q, k, v)
    torch.testing.assert_close(maps["Product"].weights[0, 0], (q @ k.mT).softmax(-1))
    assert maps["Product"].agrees


def test_a_module_that_did_not_run_is_not_missed_by_a_capture_around_another():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.crossattention = regard.MultiHeadAttention(8, 2), regard.MultiHeadAttention(8, 2)

        def forward(self, x):
            return self.attention(x)

    model, x = Unused(), torch.randn(1, 3, 8)
    with regard.capture(model) as outer, regard.capture(model) as inner:
        model(x)
    assert not outer.missed
    assert not inner.missed
