"""The importance of each head: by the gradient of a gate on the head, or by leaving the head out."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsIndex

import torch
from torch import Tensor, nn

from regard.analysis._accuracy import Batch, Loss, call, check_batches, evaluating, predictions, sample_losses
from regard.analysis._changed_heads import ChangedHeads, changing, masking
from regard.analysis._composed_maps import HeadUnits, by_name, head_units, of_maps
from regard.analysis._replaceable import gradients, why_no_gradient
from regard.maps import AttentionRecord, whole_number
from regard.support.checks import check_choice, check_module, check_positive, describe, taking
from regard.support.tables import text_table


@dataclass(frozen=True)
class Importance:
    """One number per head; larger is more important.

    Attributes:
        scores: ``(heads,)`` by the name of the attention, for the heads of its map in ``regard.capture``.
        method: "gate" or "leave_out".
    """

    scores: dict[str, Tensor]
    method: str

    def order(self) -> list[tuple[str, int]]:
        """All heads, the least important first."""
        every = [(float(x), name, h) for name, scores in self.scores.items() for h, x in enumerate(scores.tolist())]
        return [(name, head) for _, name, head in sorted(every, key=lambda item: item[0])]

    def keep(self, count: int) -> dict[str, list[int]]:
        """The ``count`` most important heads, by attention, at least one each. ``prune_heads`` takes this."""
        total = sum(map(len, self.scores.values()))
        if not len(self.scores) <= count <= total:
            raise ValueError(f"count must lie between {len(self.scores)} (one head for each) and {total}, got {count}")
        kept = {name: list(range(len(scores))) for name, scores in self.scores.items()}
        surplus = total - count
        for name, head in self.order():
            if surplus and len(kept[name]) > 1:
                kept[name].remove(head)
                surplus -= 1
        return kept

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("name", f"importance of each head ({self.method})")]
        rows += [(name, "  ".join(f"{x:.2e}" for x in scores.tolist())) for name, scores in self.scores.items()]
        return "\n".join(text_table(rows))


def importance(
    model: nn.Module,
    batches: Iterable[Batch],
    *,
    method: Literal["gate", "leave_out"] = "gate",
    loss: Loss | None = None,
) -> Importance:
    r"""How much the loss depends on each head, in any model that ``regard.capture`` recognizes.

    .. math:: I_h = \mathbb E_x \Bigl| \frac{\partial L(x)}{\partial \xi_h} \Bigr|_{\xi = 1}, \quad O_h \mapsto \xi_h O_h
        \qquad\text{or}\qquad I_h = \mathbb E_x [L(x; \xi_h = 0) - L(x)]

    Args:
        batches: pairs of inputs and labels. They are read once and kept in memory.
        method: "gate", the first formula, one pass forward and backward; "leave_out", the second, one pass per head.
        loss: ``loss(output, labels)`` gives one number per sample, default cross-entropy of the class scores.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    check_choice("method", method, ("gate", "leave_out"))
    if loss is not None and (isinstance(loss, type) or not callable(loss)):
        raise TypeError(f"loss must be a function loss(output, labels), got {describe(loss)}")
    kept = check_batches(batches)
    losses = loss or sample_losses
    with evaluating(model):
        scores = _by_gate(model, kept, losses) if method == "gate" else _by_leaving_out(model, kept, losses)
    wrong = [name for name, found in scores.items() if not bool(found.isfinite().all())]
    if wrong:  # these have no order
        raise ValueError(
            f"the importance of heads of {', '.join(wrong)} is NaN or infinite: the loss or its gradient is, for some of batches"
        )
    return Importance(scores, method)


@dataclass
class _Gates:
    """A factor of 1 for each sample and head of every attention of one run, in its order, by name."""

    found: list[tuple[str, Tensor]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def add(self, record: AttentionRecord, output: Tensor) -> Tensor | None:
        if reason := why_no_gradient():
            self.lost.append(f"{record.name!r} {reason}")
            return None
        gate = torch.ones(*output.shape[:2], 1, 1, dtype=output.dtype, device=output.device, requires_grad=True)
        self.found.append((record.name, gate))
        return output * gate

    def retract(self, name: str) -> None:
        if self.found and self.found[-1][0] == name:
            self.found.pop()


def _by_gate(model: nn.Module, batches: list[Batch], losses: Loss) -> dict[str, Tensor]:
    totals: dict[str, Tensor] = {}
    samples = 0
    otherwise = "turn gradient checkpointing off, or pass method='leave_out'"
    for x, labels in batches:
        gates = _Gates()
        with torch.inference_mode(False), torch.enable_grad(), changing(model, gates.add, gates.retract) as changed:
            with taking("batches", x, model):
                output = call(model, x)
            if gates.lost:
                raise ValueError(f"{gates.lost[0]}: {otherwise}")
            total = _summed(output, labels, loss=losses)
            if not gates.found:
                raise ValueError(f"{type(model).__name__} computed no attention")
            by_gate = gradients(total, [gate for _, gate in gates.found], otherwise)
        count = len(labels)
        samples += count
        calls: dict[str, list[Tensor]] = {}
        for (name, gate), gradient in zip(gates.found, by_gate, strict=True):
            found = torch.zeros_like(gate) if gradient is None else gradient
            calls.setdefault(name, []).append(found.double().flatten(1))
        for name, every in of_maps(calls, changed.compositions).items():
            parts = _by_sample(every, count)
            totals[name] = totals.get(name, 0) + torch.stack([part.abs().sum(0) for part in parts]).sum(0)
    return {name: total / samples for name, total in totals.items()}


def _by_sample(gradients: list[Tensor], count: int) -> list[Tensor]:
    """The gradients of the gates of one attention, call by call, as one tensor ``(samples, heads)`` if they fit."""
    found: list[Tensor] = []
    for gradient in gradients:
        # All windows of one image are one sample.
        each = gradient.unflatten(0, (count, -1)).sum(1) if gradient.shape[0] % count == 0 else gradient
        # A layer that is called several times has one gate: its gradient is the sum over the calls.
        if found and found[-1].shape == each.shape:
            found[-1] = found[-1] + each
        else:
            found.append(each)
    return found


@torch.no_grad()
def _by_leaving_out(model: nn.Module, batches: list[Batch], losses: Loss) -> dict[str, Tensor]:
    def summed_loss(batch: Batch, silent: dict[str, list[int]]) -> tuple[float, ChangedHeads]:
        x, labels = batch
        # The baseline uses the same code path, with no head silenced, so that both losses are comparable.
        with masking(model, silent) as changed:
            with taking("batches", x, model):
                output = call(model, x)
            total = float(_summed(output, labels, loss=losses))
        return total, changed

    whole: list[float] = []
    maps: list[HeadUnits] = []
    for batch in batches:
        total, changed = summed_loss(batch, {})
        whole.append(total)
        maps.append(head_units(changed.seen, changed.compositions))
    if not any(maps):
        reasons = "".join(f"; {reason}" for reason in changed.lost)
        raise ValueError(f"{type(model).__name__} computed no attention{reasons}")
    samples = sum(len(labels) for _, labels in batches)
    scores: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for units in maps for name in units):
        heads = max(len(units.get(name, ())) for units in maps)
        more = torch.zeros(heads, dtype=torch.float64)
        # A map may have other parts in another batch.
        for batch, before, units in zip(batches, whole, maps, strict=True):
            for head, unit in enumerate(units.get(name, ())):
                more[head] += summed_loss(batch, by_name([unit]))[0] - before
        scores[name] = more / samples
    return scores


def _summed(output: Any, labels: Tensor, loss: Loss) -> Tensor:
    try:
        losses = loss(output, labels)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        if loss is sample_losses:
            raise
        raise ValueError(f"loss must be a function loss(output, labels), but {loss!r:.100} raised: {error}") from error
    if not isinstance(losses, Tensor) or losses.ndim != 1:
        raise ValueError(f"loss must give one number per sample, but {loss!r:.100} gave {describe(losses)}")
    return losses.sum()


@dataclass(frozen=True)
class PruningPoint:
    """The accuracy with this number of heads left."""

    heads: int
    accuracy: float


def pruning_curve(
    model: nn.Module,
    batches: Iterable[Batch],
    order: Importance | Sequence[tuple[str, SupportsIndex]],
    *,
    points: int = 11,
) -> list[PruningPoint]:
    """Accuracy against the number of heads left. The least important are silenced first, which gives the same outputs as
    pruning them.

    Args:
        order: the result of :func:`importance`, or heads in the order in which they are silenced.
        points: how many points, from all heads to none.
    """
    check_module("model", model)
    check_positive("points", points)
    if points < 2:
        raise ValueError(f"points must be 2 or more, got {points}")
    kept = check_batches(batches)
    heads = order.order() if isinstance(order, Importance) else order
    if not isinstance(heads, list | tuple) or any(
        not isinstance(pair, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str) for pair in heads
    ):
        raise TypeError(f"order must be what importance gives, or pairs (name, head), got {describe(order)}")
    wrong = [pair for pair in heads if whole_number(pair[1]) is None]
    if wrong:
        raise TypeError(f"order must name heads by their numbers, got {wrong[0]!r:.100} among them")
    every = [(name, operator.index(head)) for name, head in heads]
    curve: list[PruningPoint] = []
    seen: list[dict[str, int]] = [{} for _ in kept]
    maps: list[HeadUnits] = [{} for _ in kept]
    for i in range(points):
        gone = round(len(every) * i / (points - 1))
        right: list[Tensor] = []
        for number, batch in enumerate(kept):
            # The heads of a map may be parts of several attentions, which the first point, with all heads, shows.
            silent = [_unit(head, maps[number]) for head in every[:gone] if _is_there(head[0], seen, number)]
            with masking(model, by_name(silent)) as changed:
                predicted, labels = predictions(model, [batch])
            right.append(predicted == labels)
            if not gone:
                seen[number], maps[number] = changed.seen, head_units(changed.seen, changed.compositions)
        curve.append(PruningPoint(len(every) - gone, float(torch.cat(right).double().mean())))
    return curve


def _unit(head: tuple[str, int], units: HeadUnits) -> list[tuple[str, int]]:
    """The heads of attentions of which a head of a map consists; any other head is one of an attention."""
    name, number = head
    return units[name][number] if 0 <= number < len(units.get(name, ())) else [head]


def _is_there(name: str, seen: list[dict[str, int]], batch: int) -> bool:
    """Whether this batch has the attention, or none has: then silencing it is an error that says so."""
    return name in seen[batch] or not any(name in names for names in seen)
