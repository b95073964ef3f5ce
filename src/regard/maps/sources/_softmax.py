"""Attention written by hand, recognized by its shape: a softmax whose result is multiplied with values.

Results of softmax are followed through whatever keeps them a map (casts, masks, reshaping, dropout) until a product
consumes them. What enters the product is the map; where dropout lies between, the map is what entered dropout.

Scores may become weights without a softmax. Whatever is divided by its own sum is known by its rows, which sum to one;
exponentials divided by anything row by row (a softmax plus one) and sigmoids of scores are weights whose rows need not.
Where the division comes after the product, see :mod:`regard.maps.sources._normalized`.
"""

import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._seen import unreadable
from regard.maps.sources._traces import Product, Trace, Use

SOFTMAXES = frozenset({"softmax", "_softmax", "_safe_softmax", "log_softmax"})
PRODUCTS = frozenset({"matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm", "mm"})
_RESHAPES = frozenset({"view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze", "contiguous", "clone"})
_JOINS = frozenset({"cat", "concat", "concatenate"})
MULTIPLICATIONS = frozenset({"mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"})
DIVISIONS = frozenset({"div", "div_", "divide", "true_divide", "__truediv__", "__itruediv__", "__div__"})
_EXPONENTIALS = frozenset({"exp", "exp_", "exp2", "exp2_"})
_SIGMOIDS = frozenset({"sigmoid", "sigmoid_", "special_expit"})
_CASTS = frozenset({"to", "type", "type_as", "float", "double", "half", "bfloat16"})


class Tracker:
    """
    Args:
        name: the name of the module that runs.
    """

    def __init__(self, name: Callable[[], str | None]) -> None:
        self._name = name
        self._traces: dict[int, tuple[weakref.ref[Tensor], Trace]] = {}
        self.uses: list[Use] = []

    def __bool__(self) -> bool:
        return bool(self._traces)

    def get(self, x: Any) -> Trace | None:
        entry = self._traces.get(id(x))
        return entry[1] if entry is not None and entry[0]() is x else None

    def _set(self, x: Tensor, trace: Trace) -> None:
        key, traces = id(x), self._traces
        # The tensor may outlive the watch, and what it calls back with it: no reference to more than the table.
        traces[key] = (weakref.ref(x, lambda _: traces.pop(key, None)), trace)

    def forget(self, x: Tensor) -> None:
        self._traces.pop(id(x), None)

    def close(self) -> None:
        """Let go of everything."""
        self._traces.clear()
        self.uses.clear()

    def softmax(self, function: str, scores: Any, weights: Any) -> None:
        if not isinstance(weights, Tensor) or weights.ndim < 2:
            return
        before = self.get(scores)
        scored = before is not None and before.kind == "scores"
        shape = tuple(weights.shape)
        if function == "log_softmax":
            self._set(weights, Trace("logarithms", scored, shape))
        else:
            self._set(weights, Trace("weights", scored, shape, use=self._expected(scored, shape)))

    def _expected(self, scored: bool, shape: tuple[int, ...]) -> Use | None:
        """Scores, or as many axes as only attention has: if no product follows, something was lost."""
        where = self._name() if scored or len(shape) >= 4 else None
        if where is None:
            return None
        self.uses.append(Use(where, shape))
        return self.uses[-1]

    def dropout(self, trace: Trace, before: Tensor, after: Any, rate: float) -> None:
        """``before`` is what entered, or a copy of it where dropout worked in place."""
        if isinstance(after, Tensor):
            source = before if trace.source is None else trace.source
            self._set(after, replace(trace, source=source, kept=trace.kept * (1 - rate)))

    def scores(self, args: tuple[Any, ...], out: Any, numerator: "Product | None" = None) -> None:
        """A product that completes no attention may be the scores of one, unless it is a layer's own weights."""
        if not isinstance(out, Tensor) or out.ndim < 3 or any(isinstance(x, nn.Parameter) for x in args):
            return
        trace = Trace("scores", True, tuple(out.shape), learned=any(map(_is_learned, _operands(args))))
        where = None
        if numerator is not None:
            where = self._name() if numerator.trace.kind == "exponentials" else None
            trace = replace(trace, numerator=numerator)
        if where is not None and numerator is not None:
            reason = "exponentials of its scores were multiplied with values, and no division of each row followed"
            self.uses.append(Use(where, numerator.shape, reason=reason))
            trace = replace(trace, use=self.uses[-1])
        self._set(out, trace)

    def average(self, out: Any, product: Product, name: str) -> None:
        """Weights whose softmax was not taken of a product were multiplied with values: in linear attention these are
        the keys' features, and the queries' features come next."""
        if not isinstance(out, Tensor):
            return
        self.forget(out)
        if not product.trace.scored:
            counts = product.weights.shape[-2:]
            self._set(out, Trace("averages", False, tuple(out.shape), average=(name, counts[0], counts[1])))

    def factored(self, args: tuple[Any, ...]) -> tuple[Trace, Trace] | None:
        """softmax(q) · (softmax(k)ᵀ v): the weights of the queries' features, and the average that they weigh."""
        operands = _operands(args)
        for weights, value in (operands, operands[::-1]) if len(operands) == 2 else ():
            trace, other = self.get(weights), self.get(value)
            if trace is None or trace.kind != "weights" or trace.scored or other is None or other.average is None:
                continue
            # A pooling of pooled tokens looks alike, but has fewer queries each time.
            _, features, keys = other.average
            queries = weights.numel() // max(1, features * math.prod(weights.shape[:-2]))
            if queries == keys or queries > features:
                return trace, other
        return None

    def follow(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Does the result still stand for the same scores or weights?"""
        if not isinstance(out, Tensor) or not out.is_floating_point() or out.ndim < 2:
            return
        for index, x in enumerate(args[:3]):
            if name in _JOINS and isinstance(x, list | tuple):
                x = next((part for part in x if self.get(part) is not None), None)
            trace = self.get(x)
            if trace is None or (x is out and trace.kind == "weights"):
                continue
            if trace.kind == "weights" and name in MULTIPLICATIONS and self._terms(trace, x, args, out):
                return
            if not _same_map(name, x, out):
                continue
            if (
                trace.kind == "averages"
                and name not in MULTIPLICATIONS | DIVISIONS | _CASTS
                and not shares_memory(x, out)
            ):
                continue
            if name in _JOINS and trace.kind != "scores":
                continue
            plain = name in _RESHAPES or out.shape == x.shape
            source = trace.source
            if source is not None:
                rest = list(args)
                rest[index] = source
                try:
                    with torch.no_grad(), torch._C.DisableTorchFunction():
                        source = func(*rest, **kwargs)
                except (RuntimeError, TypeError):
                    return  # what entered dropout cannot be brought along: this is no map any more
            shape = trace.shape if plain else tuple(out.shape)
            trace = replace(trace, shape=shape, source=source, numerator=None)
            trace = self._weighted(name, trace, args[1 - index] if index < 2 <= len(args) else None, out)
            self._set(out, trace)
            for other in (self.get(y) for y in args):
                if other is not None and other.use is not None and other.use is not trace.use:
                    other.use.done = True  # two maps became one, which goes on under the first one's name
            return

    def _weighted(self, name: str, trace: Trace, other: Any, out: Tensor) -> Trace:
        """Scores or exponentials that have just become weights, if they have.

        Args:
            other: what they were divided by or multiplied with, where they were.
        """
        if name in _SIGMOIDS and trace.kind == "scores" and not trace.learned:
            # As often no attention follows (masks of objects are such sigmoids): nothing is expected of it.
            return replace(trace, kind="weights", form="sigmoid", use=None)
        if name in _EXPONENTIALS and trace.kind in ("scores", "logarithms"):
            trace = replace(trace, kind="exponentials", use=None)
            if not any(sums_to_one(out, axis) for axis in (-1, -2)):
                return trace
        elif trace.kind not in ("scores", "exponentials") or not _by_rows(name, other, out):
            return trace
        elif not any(sums_to_one(out, axis) for axis in (-1, -2)) or bool((out < 0).any()):
            divided = trace.kind == "exponentials" and name in DIVISIONS and not trace.learned
            return replace(trace, kind="weights") if divided and other.shape[-1] == 1 else trace
        form = "softmax" if trace.kind == "exponentials" else "normalized"
        return replace(trace, kind="weights", form=form, use=self._expected(trace.scored, tuple(out.shape)))

    def _terms(self, trace: Trace, weights: Tensor, args: tuple[Any, ...], out: Tensor) -> bool:
        """Weights times values, stretched along the values' width, of which a sum over the keys makes attention."""
        value = next((y for y in args[:2] if isinstance(y, Tensor) and y is not weights), None)
        if value is None or isinstance(value, nn.Parameter) or value.ndim != out.ndim or weights.ndim != out.ndim:
            return False
        stretched = [n for n, whole in zip(weights.shape, out.shape, strict=True) if n < whole]
        if stretched != [1] or not value.is_floating_point():
            return False
        self._set(out, replace(trace, kind="terms", factors=(weights, value)))
        return True

    def product(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
        """The attention that this product completes, if it does; its trace says "weights". Exponentials and scores
        make a product that is not attention yet."""
        if name == "einsum":
            return self._einsum(args)
        operands = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        if name == "baddbmm" or len(operands) != 2:
            return None
        left, right = operands[::-1] if name == "__rmatmul__" else operands
        if left.ndim < 2 or right.ndim < 2:
            return None
        trace = self._attends(left, right)
        if trace is not None:
            return Product(_before(left, trace), _dropped(left, trace), right, trace.shape, trace, _same, _same)
        trace = self._attends(right, left)
        if trace is not None:  # (values)ᵀ times (weights)ᵀ
            weights = _before(right, trace).mT
            dropped = _dropped(right, trace)
            shape = (*trace.shape[:-2], trace.shape[-1], trace.shape[-2])
            dropped = None if dropped is None else dropped.mT
            return Product(weights, dropped, left.mT, shape, trace, _transpose, _transpose)
        return None

    def _attends(self, weights: Tensor, value: Tensor) -> Trace | None:
        trace = self.get(weights)
        if trace is None or isinstance(value, nn.Parameter):
            return None
        other = self.get(value)
        if trace.kind == "weights" and trace.form == "softmax":
            # softmax(q) · (kᵀ v), as in linear attention, has features where a map has keys.
            features = other is not None and (other.kind == "scores" or other.form == "sigmoid")
            return None if features and not trace.scored else trace
        if trace.kind not in ("weights", "scores", "exponentials") or trace.learned:
            return None
        # Less certain to be a map: the values must look like values.
        return None if other is not None or _is_learned(value) else trace

    def _einsum(self, args: tuple[Any, ...]) -> Product | None:
        if not args or not isinstance(args[0], str):
            return None
        operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
        labels, result = _labels(args[0], operands)
        if not labels:
            return None
        for (w, of_weights), (v, of_value) in (
            zip(operands, labels, strict=True),
            zip(operands[::-1], labels[::-1], strict=True),
        ):
            trace = self._attends(w, v)
            summed = [a for a in of_weights if a in of_value and a not in result]
            width = [a for a in of_value if a not in of_weights and a in result]
            kept = [a for a in of_weights if a in result]
            free = [a for a in kept if a not in of_value]
            if trace is None or len(summed) != 1 or len(width) != 1:
                continue
            if len(kept) + 1 != len(of_weights) or len(kept) + 1 != len(result):
                continue
            if not free and not sums_to_one(w, of_weights.index(summed[0])):
                continue
            if len(of_value) == 2 < len(of_weights) and _mixes_heads(w, of_weights.index(summed[0])):
                continue
            query = free[-1:]  # none is written where there is one query; other free axes are heads that share values
            lead = [a for a in kept if a not in query]
            order = [of_weights.index(a) for a in (*lead, *query, *summed)]
            value = v.permute([of_value.index(a) for a in (*lead, *summed, *width) if a in of_value])
            for axis, a in enumerate(lead):
                if a not in of_value:
                    value = value.unsqueeze(axis)
            target = [result.index(a) for a in (*lead, *query, *width)]
            back = [target.index(i) for i in range(len(target))]

            def as_map(x: Tensor, order: list[int] = order, single: bool = not free) -> Tensor:
                x = x.permute(order)
                return x.unsqueeze(-2) if single else x

            def from_rows(x: Tensor, order: list[int] = back, single: bool = not free) -> Tensor:
                return (x.squeeze(-2) if single else x).permute(order)

            weights, dropped = as_map(_before(w, trace)), _dropped(w, trace)
            return Product(
                weights,
                None if dropped is None else as_map(dropped),
                value,
                tuple(weights.shape),
                trace,
                lambda out, as_rows=as_map, order=target: as_rows(out, order),  # type: ignore[misc]
                from_rows,
            )
        return None


def _operands(args: tuple[Any, ...]) -> list[Tensor]:
    """The tensors that a product was given, one by one or (einsum) in a list."""
    given = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args
    return [x for x in given if isinstance(x, Tensor)]


def _is_learned(x: Tensor) -> bool:
    """A parameter, a part of one, or a matrix that is the same for all samples."""
    return x.ndim < 3 or isinstance(x, nn.Parameter) or isinstance(x._base, nn.Parameter)


def _by_rows(name: str, other: Any, out: Tensor) -> bool:
    """Whether each row (or each column) was divided by, or multiplied with, a number of its own."""
    if name == "normalize":
        return True
    if name not in DIVISIONS | MULTIPLICATIONS or not isinstance(other, Tensor) or other.ndim != out.ndim:
        return False
    return (other.shape[-1], other.shape[-2]) in ((1, out.shape[-2]), (out.shape[-1], 1))


def _labels(equation: str, operands: list[Any]) -> tuple[list[str], str]:
    """The letters of each of two operands and of the result, an ellipsis written out; nothing for other equations."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if not arrow:  # then the result has the letters that occur once, in the order of the alphabet
        once = sorted(a for a in set(inputs) - {",", "."} if inputs.count(a) == 1)
        result = "..." * ("..." in inputs) + "".join(once)
    if len(labels) != 2 or len(operands) != 2 or not all(isinstance(x, Tensor) for x in operands):
        return [], ""
    spare = [letter for letter in "ZYXWVUTSRQ" if letter not in equation]
    most = 0
    for index, (label, x) in enumerate(zip(labels, operands, strict=True)):
        if "..." in label:
            count = x.ndim - len(label.replace("...", ""))
            most = max(most, count)
            labels[index] = label.replace("...", "".join(spare[:count][::-1]))
    return labels, result.replace("...", "".join(spare[:most][::-1]))


def _same_map(name: str, x: Tensor, out: Tensor) -> bool:
    if out.shape == x.shape:
        return True
    if name in _JOINS:
        return out.ndim == x.ndim
    if name in _RESHAPES and out.numel() == x.numel():
        return True
    if out.shape[-2:] == x.shape[-2:] and out.numel() >= x.numel():  # broadcast against more heads or batch
        return True
    return shares_memory(out, x)  # any other view


def shares_memory(x: Tensor, y: Tensor) -> bool:
    """False also for tensors that have no memory of their own to speak of (sparse ones, those inside vmap)."""
    try:
        return x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def _mixes_heads(weights: Tensor, summed: int) -> bool:
    """A matrix that is the same for all samples, along an axis other than the one that sums to one: no values."""
    return not sums_to_one(weights, summed) and any(sums_to_one(weights, axis) for axis in (-1, -2))


def sums_to_one(x: Tensor, axis: int) -> bool:
    """Whether x is normalized along an axis; where there is nothing to attend to, the sum may be zero.

    >>> sums_to_one(torch.tensor([[0.3, 0.7], [0.0, 0.0]]), -1)
    True
    """
    if x.numel() == 0 or unreadable(x):
        return False
    total = x.detach().sum(axis, dtype=torch.float32)
    error = torch.minimum((total - 1).abs(), total.abs())
    return bool((error < 1e-2).all() & (total > 0.5).any())


def _before(x: Tensor, trace: Trace) -> Tensor:
    return x if trace.source is None else trace.source


def _dropped(x: Tensor, trace: Trace) -> Tensor | None:
    return None if trace.source is None else x


def _same(x: Tensor) -> Tensor:
    return x


def _transpose(x: Tensor) -> Tensor:
    return x.mT
