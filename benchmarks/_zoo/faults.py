"""Attention that was once captured wrongly or not at all, each as a small module that states its maps."""

import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from _zoo.judge import Animal

Product = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class Attention(nn.Module):
    """Four heads of width 4: ``attend(q, k, v)`` of ``(batch, heads, tokens, width)``."""

    def __init__(self, attend: Callable[..., Tensor] = by_hand) -> None:
        super().__init__()
        self.num_heads, self.attend = 4, attend
        self.qkv, self.proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def split(self, x: Tensor) -> Tensor:
        """(3, …, heads, tokens, width)"""
        return self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).movedim(-3, 0).transpose(-2, -3)

    def weights(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(x)
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        out = self.attend(*self.split(x))
        return self.proj(out.transpose(-2, -3).flatten(-2))


def windows_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Five axes with as many windows as heads, the two exchanged."""
    return by_hand(*(y.transpose(1, 2) for y in (q, k, v))).transpose(1, 2)


def one_head_at_a_time(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.stack([by_hand(*(y[:, head].clone() for y in (q, k, v))) for head in range(q.shape[1])], 1)


def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(*(y.flatten(0, 1) for y in (q, k, v))).unflatten(0, q.shape[:2])


def heads_first(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    flat = (y.transpose(0, 1).flatten(0, 1) for y in (q, k, v))
    return by_hand(*flat).unflatten(0, (q.shape[1], q.shape[0])).transpose(0, 1)


def merged(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The first tokens and the others."""
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    (first, a), (second, b) = (
        kernel(q, key, value)[:2] for key, value in zip(k.split(3, 2), v.split(3, 2), strict=True)
    )
    share = torch.sigmoid(a - b).unsqueeze(-1)
    return share * first + (1 - share) * second


def gathered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each query has keys of its own."""
    near = _near(q.shape[2])
    return by_hand(q.unsqueeze(-2), k[:, :, near], v[:, :, near]).squeeze(-2)


def _near(tokens: int) -> Tensor:
    return (torch.arange(tokens)[:, None] + torch.arange(-1, 2)) % tokens


def channels(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (y.mT for y in (q, k, v))
    return by_hand(q, k, v).mT


def dropped_by_hand(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Dropout written as a random mask, on also in evaluation."""
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return (weights * (torch.rand_like(weights) > 0.3) / 0.7) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (F.elu(q) + 1) @ ((F.elu(k) + 1).mT @ v)


def one_hot(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.one_hot((q @ k.mT).argmax(-1), k.shape[-2]).float() @ v


def sparsemax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT
    ordered = scores.sort(-1, descending=True).values
    above = ordered.cumsum(-1) - 1
    support = (torch.arange(1, scores.shape[-1] + 1) * ordered > above).sum(-1, keepdim=True)
    return (scores - above.gather(-1, support - 1) / support).clamp_min(0) @ v


def in_a_thread(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    out: list[Tensor] = []
    thread = threading.Thread(target=lambda: out.append(F.scaled_dot_product_attention(q, k, v)))
    thread.start()
    thread.join()
    return out[0]


@torch.library.custom_op("regard_zoo::mixing", mutates_args=())
def custom(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return by_hand(q, k, v)


def products(kind: str) -> Product:
    """Attention with other functions of torch for its products."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = k * q.shape[-1] ** -0.5
        if kind == "torch.linalg.matmul":
            return torch.linalg.matmul(torch.linalg.matmul(q, k.mT).softmax(-1), v)
        if kind == "baddbmm":
            three = [y.flatten(0, 1) for y in (q, k, v)]
            zero = torch.zeros(three[0].shape[0], q.shape[2], k.shape[2])
            weights = torch.baddbmm(zero, three[0], three[1].mT).softmax(-1)
            return torch.baddbmm(three[2], weights, three[2], beta=0.5).unflatten(0, q.shape[:2])
        return torch.einsum("bhij,bhjd,h->bhid", (q @ k.mT).softmax(-1), v, torch.arange(1.0, 5))

    return attend


def _scripted() -> Any:
    @torch.jit.script
    def attend(q, k, v):  # type: ignore[no-untyped-def]
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    return attend


def _all() -> dict[str, Callable[[], tuple[nn.Module, Tensor, Callable[[], dict[str, Tensor | None]]]]]:
    def layer(attend: Any, expected: Any = None, shape: tuple[int, ...] = (2, 5, 16)) -> Any:
        def build() -> Any:
            torch.manual_seed(0)
            model, x = Attention(attend), torch.randn(*shape)
            stated = expected or (lambda model, x: {"Attention": model.weights(x)})

            def maps() -> dict[str, Tensor | None]:
                with torch.no_grad():
                    return dict(stated(model, x))

            return model.eval(), x, maps

        return build

    def near(model: Attention, x: Tensor) -> dict[str, Tensor | None]:
        q, k, _ = model.split(x)
        scores = torch.einsum("bhqd,bhqkd->bhqk", q, k[:, :, _near(x.shape[1])])
        return {"Attention": (scores * q.shape[-1] ** -0.5).softmax(-1)}

    def across(model: Attention, x: Tensor) -> dict[str, Tensor | None]:
        q, k, _ = (y.mT for y in model.split(x))
        return {"Attention": (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)}

    def missed(model: Attention, x: Tensor) -> dict[str, Tensor | None]:
        return {"Attention": None}

    def flat(model: Attention, x: Tensor) -> dict[str, Tensor | None]:
        return {"Attention": model.weights(x).flatten(0, 1)}

    return {
        "as many windows as heads": layer(windows_first, flat, (2, 4, 6, 16)),
        "heads one after the other": layer(one_head_at_a_time, None, (8, 5, 16)),
        "heads folded into the batch": layer(folded),
        "heads folded before the batch": layer(heads_first, None, (4, 5, 16)),
        "two kernels merged by their logsumexp": layer(merged),
        "keys gathered for each query": layer(gathered, near),
        "channels attend to channels": layer(channels, across, (2, 9, 16)),
        "dropout by hand": layer(dropped_by_hand),
        **{kind: layer(products(kind)) for kind in ("torch.linalg.matmul", "baddbmm", "einsum of three operands")},
        "linear attention": layer(linear, missed),
        "one-hot attention": layer(one_hot, missed),
        "sparsemax": layer(sparsemax, missed),
        "a scripted function": layer(_scripted(), missed),
        "a custom operator": layer(custom, missed),
        "another thread": layer(in_a_thread, missed),
    }


def model_types() -> list[str]:
    return list(_all())


def animal(name: str) -> Animal:
    model, x, expected = _all()[name]()
    return Animal("faults", name, model, {"x": x}, expected=expected)
