"""Relevance for one class: rollout in which each weight counts by its effect on one output of the model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.analysis._accuracy import call, logits_of
from regard.analysis._replaceable import gradients, why_fixed, why_no_gradient
from regard.maps import (
    AttentionRecord,
    Joint,
    RecordListener,
    check_one_stack,
    check_patterns,
    exact,
    heads_together,
    intercept,
    join,
    matches,
    may_match,
    merged_rows,
    shared_heads,
)
from regard.support.checks import describe, taking


def relevance(
    model: nn.Module,
    x: Any,
    target: int | Sequence[int] | Tensor | Callable[[Any], Tensor] | None = None,
    *,
    only: str | Sequence[str] | None = None,
) -> Float[Tensor, "batch outputs inputs"]:
    r"""How much each input token contributes to ``target``, at each token of the last layer.

    .. math:: R \leftarrow R + \bar A_l R, \qquad
        \bar A_l = \tfrac1h \sum_h \Bigl(\frac{\partial y_t}{\partial A_{l,h}} \odot A_{l,h}\Bigr)^{\!+}, \qquad
        \frac{\partial y}{\partial A} = \frac{\partial y}{\partial O} V^\top

    The weights are computed outside of the fused kernel, so they are not in its autograd graph. Since O = A V, the gradient
    of A is the gradient of O times Vᵀ, which every kernel gives. If a model merges squares of tokens between two layers, as
    its grids show (16×16, then 8×8), the row of a merged token starts as the mean of its square's rows.

    Args:
        model: any model that ``regard.capture`` recognizes, in eval or training mode; it is not changed.
        x: the input: a tensor, a mapping (keyword arguments) or a sequence (positional arguments).
        target: the class, one for all or one per sample; None for the model's prediction; or a function of the model's
            output that returns the number(s) to explain.
        only: patterns of names. Choose the self-attention of one stack; all its layers must see the same tokens, or merged
            squares of them.

    Returns:
        R, ``(batch, tokens of the last layer, tokens of the first)``, on the model's device. With a class token,
        ``R[:, 0, prefix:]`` is the picture; without one, ``R.mean(1)``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    check_patterns("only", only)
    probes = _Probes(only)
    with torch.inference_mode(False), torch.enable_grad(), intercept(model, probes, keeps_path=False):
        with taking("x", x, model):
            output = call(model, x)
        if probes.broken:
            raise ValueError(f"{probes.broken[0]}: leave it out with only=")
        score = _score(output, target)
        if not probes.found:
            reasons = f" ({'; '.join(probes.lost)})" if probes.lost else ""
            named = "" if only is None else f" of a name that only={only!r} has"
            raise ValueError(f"{type(model).__name__} computed no attention{named}{reasons}")
        check_one_stack((probe.record.name for probe in probes.found), "relevance", 'only="{}"')
        probes.drop_others()
        found = gradients(score, [probe.output for probe in probes.found], "turn gradient checkpointing off")
    with torch.no_grad():
        return _through(_layers(probes, found))


def _layers(probes: "_Probes", gradients: Sequence[Tensor | None]) -> list[AttentionRecord]:
    """∂y/∂A ⊙ A of each layer, as if it were its map; parts of a layer, and heads that are modules, are put together."""
    products = [probe.product(gradient) for probe, gradient in zip(probes.found, gradients, strict=True)]
    found, done = [], 0
    for start, count, joint in [*probes.joints, (len(products), 0, None)]:
        found += products[done:start]
        done = start + count
        if joint is not None:
            whole = join(products[start:done], joint)
            if whole is None:
                raise ValueError(
                    f"{products[start].name!r} is computed in parts that do not fit: leave it out with only="
                )
            found.append(whole)
    layers = []
    for group in heads_together([layer.name for layer in found]):
        whole = join([found[i] for i in group], Joint("heads")) if len(group) > 1 else found[group[0]]
        if whole is None:
            raise ValueError(
                f"the heads of {found[group[0]].name!r} attend over different tokens: leave it out with only="
            )
        layers.append(whole)
    return layers


def _through(layers: list[AttentionRecord]) -> Tensor:
    """R, from the products of all layers."""
    steps = [layer.weights.clamp_min(0).mean(1) for layer in layers]
    result = torch.eye(steps[0].shape[-1], dtype=steps[0].dtype, device=steps[0].device)
    result = result.expand(steps[0].shape[0], -1, -1)
    before = layers[0].layout
    for layer, step in zip(layers, steps, strict=True):
        rows: Tensor | None = result
        if step.shape[1] == step.shape[2] != result.shape[1]:
            rows = merged_rows(result, before, layer.layout)
        if rows is None or step.shape != (len(rows), rows.shape[1], rows.shape[1]):
            raise ValueError(
                f"{layer.name!r} attends from {step.shape[1]} to {step.shape[2]} tokens (batch {step.shape[0]}), but the "
                f"layer before it has {result.shape[1]} tokens, and they are not merged squares of them: choose "
                "self-attention with only="
            )
        result, before = rows + step @ rows, layer.layout
    return result


@dataclass(frozen=True)
class _Probe:
    """One attention: its record with its weights, its values, and its output as a tensor of the model's graph."""

    record: AttentionRecord
    value: Tensor
    output: Tensor
    heads_first: bool = False  # samples and heads are one axis, and were split as if samples came first

    def product(self, gradient: Tensor | None) -> AttentionRecord:
        """A record with ∂y/∂A ⊙ A in place of the map; zero if the target does not depend on this attention."""
        weights, windows = self.record.stored, self.record.windows
        if weights is None:
            raise ValueError(f"{self.record.name!r} has no weights")
        if gradient is None:
            product = torch.zeros_like(weights)
        else:
            value = shared_heads(exact(self.value), slice(None), weights.shape[1]).to(weights.dtype)
            product = (exact(gradient).to(weights.dtype) @ value.mT).mul_(weights)
        if self.heads_first:
            product = product.flatten(0, 1).unflatten(0, product.shape[1::-1]).transpose(0, 1)
        product = product if windows is None else windows.on_image(product)
        batch, heads, queries, keys = product.shape
        return replace(self.record, shape=(batch, heads, queries, keys), stored=product, windows=None)


class _Probes(RecordListener):
    """Records a probe of each attention of a run."""

    def __init__(self, only: str | Sequence[str] | None) -> None:
        super().__init__()
        self.only = only
        self.found: list[_Probe] = []
        self.joints: list[tuple[int, int, Joint | None]] = []  # the first and the number of the probes of one attention
        self.broken: list[str] = []

    def wants(self, name: str) -> bool:
        return may_match(name, self.only)

    def drop_others(self) -> None:
        """Forget second attentions of modules (``x#2``) that ``only`` does not name, and that are not parts of a map."""
        parts = {number for start, count, _ in self.joints for number in range(start, start + count)}
        kept = [i for i, probe in enumerate(self.found) if i in parts or matches(probe.record.name, self.only)]
        self.joints = [(kept.index(start), count, joint) for start, count, joint in self.joints]
        self.found = [self.found[i] for i in kept]

    def retract(self, name: str) -> None:
        if self.found and self.found[-1].record.name == name:
            self.found.pop()

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        start = len(self.found) - len(names)
        if tuple(probe.record.name for probe in self.found[max(0, start) :]) == tuple(names):
            self.joints.append((start, len(names), joint))
            return True
        if any(probe.record.name in names for probe in self.found):
            self.broken.append(f"{names[0]!r} is computed in parts ({', '.join(names)}), of which only some are here")
        return False

    def repeated(self, names: Sequence[str]) -> bool:
        weights = [probe.record.stored for probe in self.found[-len(names) :]]
        same = all(x is not None and weights[0] is not None and torch.equal(x, weights[0]) for x in weights)
        return same and self.joined(names, Joint("same keys"))  # the values were split along their width

    def subtracted(self, first: str, second: str, factor: Any) -> None:
        self.broken.append(f"{first!r} is a sum or a difference of several attentions ({first}, {second})")

    def heads_subtracted(self, name: str, first: Sequence[int], second: Sequence[int], factor: Any) -> None:
        self.broken.append(f"{name!r} is the difference of some of its heads and others")

    def added(self, names: Sequence[str], factors: Sequence[Any], same_keys: bool) -> bool:
        self.broken.append(f"{names[0]!r} is a sum or a difference of several attentions ({', '.join(names)})")
        return False

    def regrouped(self, name: str, known: bool) -> None:
        if not self.found or self.found[-1].record.name != name:
            return
        if not known:
            raise ValueError(
                f"{name!r}: its heads and samples are one axis of its tensors, and nothing shows which comes first: leave it "
                "out with only=, or pass one sample"
            )
        self.found[-1] = replace(self.found[-1], heads_first=True)

    def attended(self, record: AttentionRecord) -> Tensor | None:
        running = record.running
        reason = _why_not(record)
        if reason or running.output is None or running.value is None:
            self.broken.append(f"{record.name!r} {reason}")
            return None
        with torch.no_grad(), torch.autocast(running.device.type, enabled=False):
            record.stored, _ = running.weights(slice(None), slice(None))
        # In the graph also if nothing before it needs gradients (frozen weights, token numbers as input).
        output = running.output
        output = output.view_as(output) if output.requires_grad else output.detach().requires_grad_()
        record.computation = None
        self.found.append(_Probe(record, running.value.detach(), output))
        return output


def _why_not(record: AttentionRecord) -> str | None:
    """Why the gradient of this attention's output, or its meaning, is not known, if so."""
    if record.axes.over != "tokens":
        return f"attends over {record.axes.over}, not over tokens"
    if record.running.value is None:
        return "has no values whose average is its output"
    return why_fixed(record) or why_no_gradient()


def _score(output: Any, target: Any) -> Tensor:
    if callable(target) and not isinstance(target, type | nn.Module):
        try:
            score = target(output)
        except TypeError as error:
            raise TypeError(f"target must be a function of the output, but {target!r:.100} raised: {error}") from error
        if not isinstance(score, Tensor):
            raise TypeError(f"target must give a tensor, but {target!r:.100} gave {describe(score)}")
        return score.sum()
    logits = logits_of(output)
    batch, classes = logits.shape
    if target is None:
        index = logits.argmax(-1)
    else:
        try:
            index = torch.as_tensor(target, device=logits.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"target must be class numbers, got {describe(target)}") from error
        if index.is_floating_point() or index.is_complex() or index.dtype is torch.bool:
            raise TypeError(f"target must be class numbers, got {describe(target)}")
        index = index.expand(batch) if index.ndim == 0 else index
        if index.shape != (batch,) or bool(((index < 0) | (index >= classes)).any()):
            raise ValueError(
                f"target must be one class below {classes}, or one for each of {batch} samples, got {target!r}"
            )
    return logits.gather(1, index.long()[:, None]).sum()
