"""Attention that a model writes out: weights and a product. The map is what enters the product."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps._scores import Selection, exact, largest_magnitude, product_error
from regard.maps._shapes import canonical, heads_of, uncanonical
from regard.maps.sources._tensor_history import (
    DIVISIONS,
    MULTIPLICATIONS,
    SOFTMAXES,
    TensorHistory,
    TensorOrigin,
    WeightedSum,
)
from regard.maps.sources._weighted_sums import PRODUCTS, divided_after, product, sum_of_terms

Handler = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@runtime_checkable
class Recorder(Protocol):
    """Names and records the attention that is found."""

    def running(self) -> str | None:
        """The name of the module that runs; None outside of the model."""
        ...

    def wanted(self, like: Tensor) -> CallSite | None:
        """Where this attention is computed, if it shall be recorded."""
        ...

    def record(self, site: CallSite, out: Any, source: Callable[[], AttentionRecord | str]) -> Any:
        """Record what the source returns, and return the output with which the model continues."""
        ...

    def retract(self, name: str, reason: str, shape: tuple[int, ...]) -> None:
        """Take back the latest attention of this name, which is missed for this reason."""
        ...

    def missed(self, name: str, reason: str, shape: tuple[int, ...]) -> None: ...


class HandwrittenAttention:
    """Follows tensors from scores to the product with values, and records each attention that is completed.

    Attributes:
        handlers: what to call instead of a function of torch, by the function's name.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.history = TensorHistory(recorder.running)
        self.handlers: dict[str, Handler] = {
            "dropout": self._dropout,
            "dropout_": self._dropout,
            "sum": self._sum,
            **dict.fromkeys(DIVISIONS | MULTIPLICATIONS, self._scaled),
            **dict.fromkeys(SOFTMAXES, self._softmax),
            **dict.fromkeys(PRODUCTS, self._product),
        }

    def finish(self) -> None:
        """Report each softmax that was not multiplied with values, and forget everything."""
        for use in self.history.uses:
            if not use.done:
                self.recorder.missed(use.name, use.reason, use.shape)
        self.history.close()
        self.handlers.clear()

    def _softmax(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        self.history.softmax(func.__name__, args[0] if args else kwargs.get("input"), out)
        return out

    def _dropout(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before, rate, training, inplace = _dropout_arguments(func, args, kwargs)
        origin = self.history.get(before)
        if origin is None or not training or rate == 0:
            out = func(*args, **kwargs)
            self.history.follow("dropout", func, args, kwargs, out)
            return out
        kept = before.detach().clone() if inplace else before
        out = func(*args, **kwargs)
        self.history.dropout(origin, kept, out, rate)
        return out

    def _product(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        linear = self.history.linear_attention(args) if self.history else None
        found = product(self.history, func.__name__, args, kwargs) if self.history and linear is None else None
        out = func(*args, **kwargs)
        if linear is not None:
            self._linear_attention(*linear)
        if found is None or found.origin.kind != "weights":
            self.history.scores(args, out, found)
            return out
        return self._completed(found, out)

    def _linear_attention(self, weights: TensorOrigin, keys: TensorOrigin) -> None:
        """What was recorded as attention is one half of linear attention."""
        if weights.use is not None:
            weights.use.done = True
        if keys.average is not None:
            name, features, tokens = keys.average
            reason = "linear attention has no map: its softmaxes are over features, and over keys for each feature"
            self.recorder.retract(name, reason, (features, tokens))

    def _scaled(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        if not self.history:
            return out
        found = divided_after(self.history, func.__name__, args, out)
        if found is not None:
            return self._completed(found, out)
        self.history.follow(func.__name__, func, args, kwargs, out)
        return out

    def _sum(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = sum_of_terms(self.history, args, kwargs) if self.history else None
        out = func(*args, **kwargs)
        return out if found is None else self._completed(found, out)

    def _completed(self, found: WeightedSum, out: Any) -> Any:
        if found.origin.use is not None:
            found.origin.use.done = True
        site = self.recorder.wanted(found.weights)
        if site is None:
            return out
        out = self.recorder.record(site, out, lambda: handwritten(site, found, out))
        self.history.average(out, found, site.name)
        return out


def handwritten(site: CallSite, found: WeightedSum, out: Tensor) -> AttentionRecord:
    """The record of weights and a product."""
    heads = heads_of(site.module)
    rows_of_values = found.arrange(out)
    # Heads that share values are sometimes folded into the queries for the product: the map has the shape before.
    shape = found.shape if len(found.shape) == 4 else tuple(found.weights.shape)
    width = rows_of_values.shape[-1]
    weights = canonical(found.weights.detach().reshape(shape), heads)
    output = canonical(rows_of_values.reshape(*shape[:-1], width), heads)
    value = canonical(_expanded(found.value, shape, rows_of_values), heads)
    dropped = None if found.dropped is None else canonical(found.dropped.detach().reshape(shape), heads)

    def build(rows: Selection, chosen: Selection) -> tuple[Tensor, None]:
        # A copy: the model may change its own tensor in place.
        return exact(weights[:, chosen][:, :, rows]).clone(), None

    def compare(built: Tensor, rows: Selection, chosen: Selection) -> Tensor:
        """With dropout: its result must be the map, scaled up, and must give the output."""
        used = exact(dropped[:, chosen][:, :, rows])  # type: ignore[index]
        error = product_error(used, value, output, rows, chosen)
        left = torch.where(used == 0, used, used * found.origin.kept - built).abs()
        return error if left.numel() == 0 else torch.maximum(error, left.amax())

    def restore(new: Tensor) -> Tensor:
        return found.restore(uncanonical(new, (*shape[:-1], width), heads).reshape(rows_of_values.shape))

    sums_to_one = found.origin.form == "softmax"
    return AttentionRecord(
        name=site.name,
        kind=found.origin.form,
        shape=(output.shape[0], output.shape[1], output.shape[2], weights.shape[-1]),
        check=Check("product"),
        computation=Computation(
            weights=build,
            module=site.module,
            output=output,
            value=value,
            compare=None if dropped is None else compare,
            restore=restore,
            largest_sum=None if sums_to_one else largest_magnitude(exact(weights).sum(-1)),
            tentative=not found.origin.scored,
        ),
    )


def _expanded(value: Tensor, shape: tuple[int, ...], rows_of_values: Tensor) -> Tensor:
    """The values with the leading axes of the output, from those that the product expanded."""
    if value.ndim > 4:
        return value.expand(*rows_of_values.shape[:-3], *value.shape[-3:])
    if value.ndim == 3 and len(shape) == 4 and value.shape[0] % max(1, shape[0]) == 0:
        return value.unflatten(0, (shape[0], -1))  # batch and heads were folded into one axis
    if value.ndim < rows_of_values.ndim:
        return value.expand(*rows_of_values.shape[:-2], *value.shape[-2:])
    return value


def _dropout_arguments(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, float, bool, bool]:
    """Input, rate, whether it is on, and whether it works in place, of any of torch's dropout functions."""
    given: dict[str, Any] = dict(zip(("input", "p", "training", "inplace"), args, strict=False))
    given.update({"training" if key == "train" else key: value for key, value in kwargs.items()})
    inplace = bool(given.get("inplace", False)) or func.__name__.endswith("_")
    return given.get("input"), float(given.get("p", 0.5)), bool(given.get("training", True)), inplace
