"""Class-specific relevance: rollout in which each weight counts by what it does for one output of the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.maps._capture import check_patterns, matches
from regard.maps._layout import Layout, layout_of, merged_rows
from regard.maps._seen import Seen, exact, group
from regard.maps._watch import Watcher, watch
from regard.maps._windows import Windows
from regard.support.checks import describe


def relevance(
    model: nn.Module,
    x: Any,
    target: int | Sequence[int] | Tensor | Callable[[Any], Tensor] | None = None,
    *,
    only: str | Sequence[str] | None = None,
) -> Float[Tensor, "batch outputs inputs"]:
    r"""How much each input token speaks for ``target``, at each token of the last layer.

    .. math:: R \leftarrow R + \bar A_l R, \qquad
        \bar A_l = \tfrac1h \sum_h \Bigl(\frac{\partial y_t}{\partial A_{l,h}} \odot A_{l,h}\Bigr)^{\!+}, \qquad
        \frac{\partial y}{\partial A} = \frac{\partial y}{\partial O} V^\top

    The weights are recomputed beside the fused kernel and so are not in its graph; since O = A V, the gradient into A
    is the gradient into O times Vᵀ, which any kernel allows. Where squares of tokens become one between two layers,
    which their grids tell (16×16, then 8×8), that one's row of R begins as the mean of theirs.

    Args:
        model: any model that ``regard.capture`` understands, in eval or training mode; left as it is.
        x: the input: a tensor, a mapping (keyword arguments) or a sequence (positional arguments).
        target: the class, one for all or one per sample; None for the model's own answer; or a function of the model's
            output that gives the number(s) to explain.
        only: patterns of names; self-attention is needed, in every layer over the same tokens or over squares of those
            before.

    Returns:
        R, ``(batch, tokens of the last layer, tokens of the first)``, on the model's device. With a class token,
        ``R[:, 0, prefix:]`` is the picture; without one, ``R.mean(1)``.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    check_patterns("only", only)
    sink = _Gradients(only)
    with torch.inference_mode(False), torch.enable_grad(), watch(model, sink, keeps_path=False) as sink.watcher:
        output = call(model, x)
        score = _score(output, target)
        if not sink.found:
            raise ValueError(f"no attention of {type(model).__name__} was seen{sink.reasons()}")
        gradients = torch.autograd.grad(score, [one.probe for one in sink.found], allow_unused=True)
    sink.watcher = None  # it refers back
    with torch.no_grad():
        steps = [one.step(gradient) for one, gradient in zip(sink.found, gradients, strict=True)]
        result = torch.eye(steps[0].shape[-1], dtype=steps[0].dtype, device=steps[0].device)
        result = result.expand(steps[0].shape[0], -1, -1)
        before = sink.found[0].layout
        for one, step in zip(sink.found, steps, strict=True):
            rows: Tensor | None = result
            if step.shape[1] == step.shape[2] != result.shape[1]:
                rows = merged_rows(result, before, one.layout)
            if rows is None or step.shape != (len(rows), rows.shape[1], rows.shape[1]):
                raise ValueError(
                    f"{one.name!r} attends from {step.shape[1]} to {step.shape[2]} tokens (batch {step.shape[0]}), not "
                    f"over the {result.shape[1]} tokens before it, nor over squares of them: choose self-attention with "
                    "only="
                )
            result, before = rows + step @ rows, one.layout
    return result


@dataclass
class _Found:
    """One attention: its map, its values, and a tensor on the model's path that stands for its output."""

    name: str
    weights: Tensor
    value: Tensor
    probe: Tensor
    windows: Windows | None
    layout: Layout | None

    def step(self, gradient: Tensor | None) -> Tensor:
        """(∂y/∂A ⊙ A)⁺, averaged over heads; zero where this attention does not reach the target."""
        weights = self.weights
        if gradient is None:
            product = torch.zeros_like(weights)
        else:
            value = group(exact(self.value), slice(None), weights.shape[1]).to(weights.dtype)
            product = (exact(gradient).to(weights.dtype) @ value.mT).mul_(weights).clamp_min_(0)
        return (product if self.windows is None else self.windows.on_image(product)).mean(1)


class _Gradients:
    """Keeps each attention's map and values, and a tensor on the model's path whose gradient is its output's."""

    def __init__(self, only: str | Sequence[str] | None) -> None:
        self.only = only
        self.found: list[_Found] = []
        self.lost: list[str] = []
        self.watcher: Watcher | None = None

    def wants(self, name: str) -> bool:
        return matches(name, self.only)

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        self.lost.append(f"{name}: {reason}")

    def retract(self, name: str) -> None:
        if self.found and self.found[-1].name == name:
            self.found.pop()

    def attended(self, seen: Seen) -> Tensor | None:
        if seen.output is None or seen.value is None:
            self.missed(seen.name, "its heads' output cannot be observed")
            return None
        with torch.no_grad(), torch.autocast(seen.output.device.type, enabled=False):
            weights, _ = seen.build(slice(None), slice(None))
        # On the path even where nothing before it asks for gradients (frozen weights, token numbers as input).
        probe = seen.output.view_as(seen.output) if seen.output.requires_grad else seen.output.detach().requires_grad_()
        watcher = self.watcher
        layout = None if watcher is None else layout_of(seen, watcher.names.parents(seen.name), watcher.patches)
        self.found.append(_Found(seen.name, weights, seen.value.detach(), probe, seen.windows, layout))
        return probe

    def reasons(self) -> str:
        return f" ({'; '.join(self.lost)})" if self.lost else ""


def call(model: nn.Module, x: Any) -> Any:
    """The model's output for one tensor, keyword arguments or positional arguments."""
    if isinstance(x, Tensor):
        return model(x)
    if isinstance(x, Mapping):
        return model(**x)
    if isinstance(x, Sequence) and not isinstance(x, str):
        return model(*x)
    raise TypeError(f"x must be a tensor, a mapping or a sequence of inputs, got {describe(x)}")


def logits_of(output: Any) -> Tensor:
    """The class scores ``(batch, classes)`` in what a model returns."""
    found = output
    if not isinstance(output, Tensor):
        found = getattr(output, "logits", None)
        if found is None and isinstance(output, tuple | list) and output:
            found = output[0]
    if not isinstance(found, Tensor) or found.ndim != 2:
        raise ValueError(
            f"class scores (batch, classes) were not found in the model's output, {describe(found)}: "
            "pass a function of the output instead"
        )
    return found


def _score(output: Any, target: Any) -> Tensor:
    if callable(target):
        score = target(output)
        if not isinstance(score, Tensor):
            raise TypeError(f"target must give a tensor, got {describe(score)}")
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
        if index.is_floating_point() or index.dtype is torch.bool:
            raise TypeError(f"target must be class numbers, got {describe(target)}")
        index = index.expand(batch) if index.ndim == 0 else index
        if index.shape != (batch,) or bool(((index < 0) | (index >= classes)).any()):
            raise ValueError(
                f"target must be one class below {classes}, or one for each of {batch} samples, got {target!r}"
            )
    return logits.gather(1, index.long()[:, None]).sum()
