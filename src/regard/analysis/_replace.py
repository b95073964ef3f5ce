"""``replace_heads``: replace heads by fitted Gaussians while the model runs."""

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.analysis._accuracy import Batch, call, check_batches, predictions
from regard.analysis._changed_heads import ChangedHeads, changing, check_heads, none_seen
from regard.analysis._edited_weights import TokenPlaces
from regard.analysis._locality import Head, Locality
from regard.analysis._statistics import coordinates
from regard.functional import gaussian_attention
from regard.maps import AttentionRecord, Layout, Selection, exact, given_layout, shared_heads
from regard.support.checks import check_count, check_grid, describe, is_iterable


@dataclass(frozen=True)
class ReplacementCost:
    """The cost of replacing heads: accuracy before and after, and the share of samples with the same prediction."""

    before: float
    after: float
    agreement: float
    samples: int
    heads: int

    def __str__(self) -> str:
        return (
            f"{self.heads} heads replaced: accuracy {self.before:.4f} → {self.after:.4f} "
            f"({self.after - self.before:+.4f}), same prediction for {self.agreement:.4f} of {self.samples} samples"
        )


class ReplacedHeads:
    """What :func:`replace_heads` returns: a context manager, which can also be called instead of the model."""

    def __init__(self, model: nn.Module, heads: list[Head], layouts: dict[str, Layout], any_length: bool) -> None:
        self.model = model
        self.heads = heads
        self._layouts = layouts
        self._any_length = any_length
        self._by_name: dict[str, list[Head]] = defaultdict(list)
        for head in heads:
            self._by_name[head.name].append(head)
        self._blocks: list[AbstractContextManager[None]] = []

    def __enter__(self) -> "ReplacedHeads":
        block = self._replacing()
        block.__enter__()
        self._blocks.append(block)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks.pop().__exit__(kind, error, traceback)

    @contextmanager
    def _replacing(self) -> Iterator[None]:
        with changing(self.model, self._change, of_maps=True) as changed:
            yield
        self._warn(changed)

    def __call__(self, x: Any) -> Any:
        """The model's output with the heads replaced, for a tensor, a mapping or a sequence of inputs."""
        with self:
            return call(self.model, x)

    def measure(self, batches: Iterable[Batch]) -> ReplacementCost:
        """Accuracy with and without the replacement, over pairs of inputs and class numbers."""
        kept = check_batches(batches)
        before, right = predictions(self.model, kept)
        with self:
            after, _ = predictions(self.model, kept)
        return ReplacementCost(
            before=float((before == right).double().mean()),
            after=float((after == right).double().mean()),
            agreement=float((before == after).double().mean()),
            samples=len(right),
            heads=len(self.heads),
        )

    def _change(self, record: AttentionRecord, output: Tensor) -> Tensor | None:
        heads, value = self._by_name.get(record.name), record.running.value
        if not heads or value is None:
            return None
        check_heads(record.name, [head.head for head in heads], record.shape[1])
        chosen = torch.tensor([head.head for head in heads], device=output.device)
        value = shared_heads(value, chosen, record.shape[1])
        value = value.expand(-1, len(heads), -1, -1) if value.shape[1] == 1 else value
        old = output[:, chosen]
        if record.windows is not None:
            layout = Layout(record.windows.grid, 0)
            new = record.windows.cut(_attend(heads, record.windows.merge(value), layout), old)
        else:
            new = self._rows(record, heads, value, old)
        return output.index_copy(1, chosen, new.to(output.dtype))

    def _rows(self, record: AttentionRecord, heads: list[Head], value: Tensor, old: Tensor) -> Tensor:
        """The heads' outputs at the call's queries, which may be the last of a sequence whose keys are in a cache."""
        places = TokenPlaces.of(record)
        first, present = int(places.key[0, 0]), int((places.key[0] >= 0).sum())  # a static cache has empty slots
        value = value[:, :, :present]
        layout = self._layout(record, present)
        asked = places.query[0] - first
        if len(asked) != present and len(layout.grid) > 1:
            raise ValueError(f"{record.name!r} attends from {len(asked)} to {present} tokens: a grid needs all queries")
        # The class token has no position: its row stays.
        keep = _keys_of_tokens(record, present, any(head.causal for head in heads))
        masked = None if keep is None else _masked_weights(heads, layout, keep[:, layout.prefix :])
        whole = _attend(heads, value, layout, masked)
        on_grid = asked >= layout.prefix
        record.running.edited = _Replaced(record, heads, layout, asked, on_grid, masked)
        new = old.clone()
        new[:, :, on_grid.to(old.device)] = whole[:, :, (asked[on_grid] - layout.prefix).to(old.device)].to(old.dtype)
        return new

    def _layout(self, record: AttentionRecord, tokens: int) -> Layout:
        """The layout of the tokens in this call: that of the fit, that of the model, or a longer line."""
        fitted, stated = self._layouts[record.name], record.layout
        if tokens == fitted.tokens:
            return fitted
        if self._any_length and stated is not None and (stated.tokens, stated.prefix) == (tokens, fitted.prefix):
            return stated
        if self._any_length and len(fitted.grid) == 1 and tokens > fitted.prefix:
            return Layout((tokens - fitted.prefix,), fitted.prefix)
        raise ValueError(
            f"{record.name!r} attends over {tokens} tokens, but its heads were fitted on {fitted.tokens} (grid {fitted.grid}, "
            f"prefix {fitted.prefix}), and the layout of {tokens} tokens is not known: pass grid="
        )

    def _warn(self, changed: ChangedHeads) -> None:
        lost = {name: text for name, text in changed.lost_by_name if name in self._by_name}
        absent = [name for name in self._by_name if name in lost or name not in changed.seen]
        if absent:
            there = ", ".join(sorted(changed.seen))
            why = f"no such attention was computed (there was {there})" if there else none_seen(self.model)
            said = "; ".join(lost.values()) or why
            warnings.warn(f"heads of {', '.join(absent)} were not replaced: {said}", stacklevel=5)


_ROWS = 256  # rows of a map that are computed at a time


@torch.no_grad()
def _keys_of_tokens(record: AttentionRecord, present: int, causal: bool) -> Tensor | None:
    """Which of the first ``present`` keys are no padding, ``(batch, present)``; None if all are. No query of a sample attends
    to its padding, in any head, except that padding before a causal text may attend evenly to all keys."""
    if record.kind == "gaussian":  # without masks, and its weights underflow far away
        return None

    def seen(rows: Tensor) -> Tensor:
        weights = (record.running.unedited or record.running.weights)(rows.to(record.running.device), slice(None))[0]
        attends = weights[..., :present] != 0
        if causal and record.shape[2] == present:
            later = (torch.arange(present) > rows[:, None]).to(attends.device)
            attends = attends & ~(attends & later).any(-1, keepdim=True)
        return attends.any(2).any(1).expand(record.shape[0], -1)

    every = torch.arange(record.shape[2])
    found = seen(every[[0, -1]].unique())  # usually these see all keys
    for rows in every.split(_ROWS) if not bool(found.all()) else ():
        found = found | seen(rows)
    # With a cache the keys behind a sliding window are no padding: these are the same in all samples.
    same = record.shape[2] < present and bool((found == found[:1]).all())
    found = found | ~found.any(-1, keepdim=True)  # a sample that is padding alone
    return None if same or bool(found.all()) else found


def _masked_weights(heads: list[Head], layout: Layout, keep: Tensor) -> Float[Tensor, "batch heads tokens tokens"]:
    """The Gaussians over the keys that are kept, ``(batch, tokens)``; zeros where a causal query has none before it."""
    places = coordinates(layout.grid, keep.device, torch.float64)
    offset = places - places[:, None]
    before = offset[..., 0] <= 0
    found = []
    for head in heads:
        scores = -head.sharpness * (offset - offset.new_tensor(head.center)).square().sum(-1)
        hidden = ~keep[:, None, :] | ~before if head.causal else ~keep[:, None, :]
        found.append(scores.masked_fill(hidden, -math.inf).softmax(-1).nan_to_num(0.0))
    return torch.stack(found, 1)


def _attend(heads: list[Head], value: Tensor, layout: Layout, masked: Tensor | None = None) -> Tensor:
    """The Gaussian heads' output at the grid's queries: the fitted share to each prefix token, the rest to the grid."""
    work = exact(value)
    on_grid, before = work[:, :, layout.prefix :], work[:, :, : layout.prefix]
    if masked is not None:
        out = masked.to(work) @ on_grid
    elif any(head.causal for head in heads):
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


@dataclass(frozen=True, eq=False)
class _Replaced:
    """The weights of an attention with replaced heads, for a capture or an edit inside the block.

    Attributes:
        heads: the Gaussians, and ``layout``, how the keys lie.
        asked: the number of each query among the keys; ``on_grid`` says which of them were replaced.
        masked: the Gaussians of each sample, if some of the keys are padding.
    """

    record: AttentionRecord
    heads: list[Head]
    layout: Layout
    asked: Tensor
    on_grid: Tensor
    masked: Tensor | None = None

    def __call__(self, rows: Selection, which: Selection) -> Tensor:
        weights = self.record.running.weights(rows, which)[0]
        found = weights.expand(self.record.shape[0], -1, -1, -1).clone()
        rows, which = (x if isinstance(x, slice) else x.cpu() for x in (rows, which))
        asked, on_grid = self.asked[rows], self.on_grid[rows]
        numbers = torch.arange(self.record.shape[1])[which].tolist()
        prefix = self.layout.prefix
        for place, head in enumerate(self.heads):
            if head.head in numbers:
                share = torch.tensor(head.prefix, dtype=torch.float64)
                whole = head.weights(self.layout.grid)[None] if self.masked is None else self.masked[:, place].cpu()
                gaussian = whole[:, asked[on_grid] - prefix] * (1 - share.sum())
                row = torch.cat([share.expand(*gaussian.shape[:2], -1), gaussian], -1).to(found)
                empty = found.shape[3] - row.shape[-1]  # slots of a static cache
                found[:, numbers.index(head.head), on_grid.to(found.device)] = F.pad(row, (0, empty))
        return found


def replace_heads(
    model: nn.Module,
    heads: Locality | Iterable[Head],
    *,
    grid: tuple[int, ...] | None = None,
    prefix: int | None = None,
) -> ReplacedHeads:
    r"""Replace heads by fitted Gaussians while the model runs: ``O_h = G_h V_h`` instead of ``A_h V_h``.

    The rows of the grid's queries are replaced. The row of a class token stays, and each head still gives prefix tokens
    their mean share. This works in every model that ``regard.capture`` recognizes, for inputs of any length, and in
    ``generate``: a Gaussian has a weight for every offset. Padding has none: the Gaussian is then one over the other keys.
    The model itself is not changed. A capture or an edit inside the
    block sees the replaced maps, but of windowed attention those of the model, because a Gaussian has no windows.

    Args:
        heads: the result of ``regard.locality``, or a part of it: ``found.best(12)``, ``found.where(overlap=0.9)``.
        grid, prefix: the layout of the tokens, for heads without one; inputs must then have this size.

    Use it as a context manager, call it with the input, or measure its cost::

        found = regard.locality(maps).where(fit=0.9)
        print(regard.replace_heads(model, found).measure(batches))
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    if not is_iterable(heads):
        raise TypeError(f"heads must be the result of regard.locality, or a part of it, got {describe(heads)}")
    if grid is not None:
        grid = check_grid(grid)
    if prefix is not None:
        check_count("prefix", prefix)
    chosen = list(heads)
    wrong = [head for head in chosen if not isinstance(head, Head)]
    if wrong:
        raise TypeError(
            f"heads must be the result of regard.locality, got {describe(wrong[0])} in {describe(heads):.100}"
        )
    layouts = dict(heads.layouts) if isinstance(heads, Locality) else {}
    for head in chosen:
        if grid is not None:
            count = len(head.prefix) if prefix is None else prefix
            layouts[head.name] = given_layout(Layout(tuple(grid), count).tokens, grid, count, head.name)
        if head.name not in layouts:
            raise ValueError(f"the layout of the tokens of {head.name!r} is not known: pass grid= (and prefix=)")
        if len(head.prefix) != layouts[head.name].prefix:
            raise ValueError(
                f"{head.name!r} was fitted with {len(head.prefix)} prefix tokens, not {layouts[head.name].prefix}"
            )
    return ReplacedHeads(model, chosen, layouts, any_length=grid is None)
