"""``replace_heads``: fitted Gaussians in the place of heads, in the running model: the bridge from looking to converting."""

import warnings
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis._heads import changing, check_heads
from regard.analysis._locality import Head, Locality
from regard.analysis._measure import Batch, answers
from regard.analysis._relevance import call
from regard.functional import gaussian_attention
from regard.maps._layout import Layout, given_layout
from regard.maps._seen import Seen, exact, group
from regard.support.checks import describe


@dataclass(frozen=True)
class ReplacementCost:
    """What replacing heads costs: accuracy before and after, and the share of samples with the same answer."""

    before: float
    after: float
    agreement: float
    samples: int
    heads: int

    def __str__(self) -> str:
        return (
            f"{self.heads} heads replaced: accuracy {self.before:.4f} → {self.after:.4f} "
            f"({self.after - self.before:+.4f}), same answer for {self.agreement:.4f} of {self.samples} samples"
        )


class ReplacedHeads:
    """What :func:`replace_heads` returns: a context manager, and a stand-in for the model that can be called."""

    def __init__(self, model: nn.Module, heads: list[Head], layouts: dict[str, Layout]) -> None:
        self.model = model
        self.heads = heads
        self._layouts = layouts
        self._by_name: dict[str, list[Head]] = defaultdict(list)
        for head in heads:
            self._by_name[head.name].append(head)
        self._stacks: list[ExitStack] = []

    def __enter__(self) -> "ReplacedHeads":
        stack = ExitStack()
        self._stacks.append(stack)
        sink = stack.enter_context(changing(self.model, self._change))
        stack.callback(self._say, sink.seen, sink.lost)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack = self._stacks.pop()
        if kind is not None:
            stack.pop_all().__exit__(kind, error, traceback)
        else:
            stack.close()

    def __call__(self, x: Any) -> Any:
        """The model's output with the heads replaced, for a tensor, a mapping or a sequence of inputs."""
        with self:
            return call(self.model, x)

    def measure(self, batches: Iterable[Batch]) -> ReplacementCost:
        """Accuracy with and without the replacement, over pairs of inputs and class numbers."""
        kept = list(batches)
        before, right = answers(self.model, kept)
        with self:
            after, _ = answers(self.model, kept)
        return ReplacementCost(
            before=float((before == right).double().mean()),
            after=float((after == right).double().mean()),
            agreement=float((before == after).double().mean()),
            samples=len(right),
            heads=len(self.heads),
        )

    def _change(self, seen: Seen, output: Tensor) -> Tensor | None:
        heads = self._by_name.get(seen.name)
        if not heads or seen.value is None:
            return None
        layout = self._layouts[seen.name]
        check_heads(seen.name, [head.head for head in heads], seen.shape[1])
        chosen = torch.tensor([head.head for head in heads], device=output.device)
        value = group(seen.value, chosen, seen.shape[1])
        value = value.expand(-1, len(heads), -1, -1) if value.shape[1] == 1 else value
        old = output[:, chosen]
        if seen.windows is not None:
            new = seen.windows.cut(_attend(heads, seen.windows.merge(value), layout), old)
        else:
            if value.shape[2] != layout.tokens or output.shape[2] != layout.tokens:
                raise ValueError(
                    f"{seen.name!r} attends from {output.shape[2]} to {value.shape[2]} tokens, but its heads were fitted "
                    f"on {layout.tokens} (grid {layout.grid}, prefix {layout.prefix})"
                )
            # What a class token reads is no matter of positions: its row stays.
            new = torch.cat([old[:, :, : layout.prefix], _attend(heads, value, layout)], 2)
        return output.index_copy(1, chosen, new.to(output.dtype))

    def _say(self, seen: dict[str, int], lost: list[str]) -> None:
        silent = [name for name in self._by_name if name not in seen]
        if silent and seen:
            warnings.warn(
                f"heads of {', '.join(silent)} were not replaced: no such attention was computed "
                f"(there was {', '.join(sorted(seen))}{''.join('; ' + reason for reason in lost)})",
                stacklevel=4,
            )


def _attend(heads: list[Head], value: Tensor, layout: Layout) -> Tensor:
    """The Gaussian heads' output at the grid's queries: the fitted share to each prefix token, the rest to the grid."""
    work = exact(value)
    on_grid, before = work[:, :, layout.prefix :], work[:, :, : layout.prefix]
    if heads[0].causal:
        weights = torch.stack([head.weights(layout.grid) for head in heads]).to(work)
        out = weights @ on_grid
    else:
        center = work.new_tensor([head.center for head in heads])
        sharpness = work.new_tensor([head.sharpness for head in heads])
        out = gaussian_attention(on_grid, center, sharpness, layout.grid)
    if layout.prefix:
        share = work.new_tensor([head.prefix for head in heads])  # (heads, prefix)
        out = out * (1 - share.sum(-1))[:, None, None] + share[:, None, :] @ before
    return out


def replace_heads(
    model: nn.Module,
    heads: Locality | Iterable[Head],
    *,
    grid: tuple[int, ...] | None = None,
    prefix: int | None = None,
) -> ReplacedHeads:
    r"""Let fitted Gaussians stand for heads while the model runs: ``O_h = G_h V_h`` in the place of ``A_h V_h``.

    Queries of the grid are replaced; a class token's own row stays, and the share that a head gave to prefix tokens on
    average, it still gives them. Works in every model that ``regard.capture`` understands; the model is not changed.

    Args:
        heads: what ``regard.locality`` found, or some of it: ``found.best(12)``, ``found.where(overlap=0.9)``.
        grid, prefix: how the tokens lie, for heads that do not come with it.

    Use it as a context manager, as a stand-in that is called with the input, or ``.measure(batches)`` its cost::

        found = regard.locality(maps).where(fit=0.9)
        print(regard.replace_heads(model, found).measure(batches))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    if not isinstance(heads, Iterable):
        raise TypeError(f"heads must be what regard.locality found, or some of it, got {describe(heads)}")
    chosen = list(heads)
    wrong = [head for head in chosen if not isinstance(head, Head)]
    if wrong:
        raise TypeError(f"heads must be what regard.locality found, got {describe(wrong[0])} in it")
    layouts = dict(heads.layouts) if isinstance(heads, Locality) else {}
    for head in chosen:
        if grid is not None:
            count = len(head.prefix) if prefix is None else prefix
            layouts[head.name] = given_layout(Layout(tuple(grid), count).tokens, grid, count, head.name)
        if head.name not in layouts:
            raise ValueError(f"how the tokens of {head.name!r} lie is not known: pass grid= (and prefix=)")
        if len(head.prefix) != layouts[head.name].prefix:
            raise ValueError(
                f"{head.name!r} was fitted with {len(head.prefix)} prefix tokens, not {layouts[head.name].prefix}"
            )
    return ReplacedHeads(model, chosen, layouts)
