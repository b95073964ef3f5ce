"""Attention that a model writes out with a softmax and products.

The model forms such a map itself, so nothing has to be computed: the tensor must be recognized among all others.
:class:`HandwrittenAttention` runs the torch functions that such attention may consist of, and follows their tensors
(``_tensor_history.py``). When it recognizes the product with values (``_weighted_sums.py``), :func:`handwritten` makes the
record. The map is the tensor that enters this product.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from regard.maps._logsumexps import FromLogsumexp
from regard.maps._module_names import CallSite
from regard.maps._record import AttentionRecord, Check, Computation
from regard.maps.sources._before_dropout import error_of_kept
from regard.maps.sources._gathered import as_read
from regard.maps.sources._own_values import with_own_values
from regard.maps.sources._random_masks import RANDOM
from regard.maps.sources._tensor_facts import (
    DIVISIONS,
    MULTIPLICATIONS,
    PRODUCTS,
    SOFTMAXES,
    WRITES,
    is_in_place,
    sums_to_one,
    without_out,
)
from regard.maps.sources._tensor_history import TensorHistory
from regard.maps.sources._tensor_origins import WeightedSum
from regard.maps.sources._weighted_sums import (
    composes,
    divided_after,
    may_be_map,
    mixes_heads,
    origin_as_map,
    product,
    sum_of_terms,
)
from regard.maps.tokens._axes import read_axes, rows_are_features
from regard.maps.tokens._axis_evidence import evidence_for
from regard.maps.weights._attention_scores import Selection, exact, largest_magnitude, product_error

Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]

_LOGARITHMS = ("log", "log_", "log2", "log2_")
_SUMS_IN_PLACE = frozenset({"add_", "__iadd__", "sub_", "__isub__"})
_SETS = frozenset({"masked_fill_", "__setitem__", "index_put_"})  # they set some elements of a tensor
DROPOUTS = frozenset(
    {"native_dropout", "dropout", "dropout_", "feature_dropout", "dropout1d", "dropout2d", "dropout3d"}
)


@dataclass(frozen=True)
class LinearAttention:
    """softmax(Q)·(softmax(K)ᵀ V) was found. Its first product, which was recorded as ``name``, is no attention."""

    name: str
    shape: tuple[int, int]
    reason: ClassVar[str] = (
        "linear attention has no map: its softmaxes are over features, and over keys for each feature"
    )


class HandwrittenAttention:
    """Follows tensors from scores to the product with values.

    Each handler runs a torch function, and returns its output and the attention that the function completes, if any.

    Args:
        running: returns the name of the module that is running.

    Attributes:
        history: what is known of each tensor.
        handlers: by the name of the function.
    """

    def __init__(self, running: Callable[[], str | None]) -> None:
        self.history = TensorHistory(running)
        self._totals = FromLogsumexp()  # sums of exponentials of scores, whose logarithm is the logsumexp
        self.handlers: dict[str, Callable[..., tuple[Any, WeightedSum | LinearAttention | None]]] = {
            **dict.fromkeys(DROPOUTS, self._dropout),
            "sum": self._sum,
            **dict.fromkeys(("logsumexp", *_LOGARITHMS), self._followed),
            **dict.fromkeys(_SETS, self._set),
            **dict.fromkeys(RANDOM, self._random),
            **dict.fromkeys(DIVISIONS | MULTIPLICATIONS, self._scaled),
            **dict.fromkeys(SOFTMAXES, self._softmax),
            **dict.fromkeys(PRODUCTS, self._product),
        }

    def close(self) -> None:
        """Forget everything."""
        self.handlers.clear()
        self.history.close()

    def run(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, WeightedSum | LinearAttention | None]:
        """Run a function that has a handler."""
        out, found = self.handlers[func.__name__](func, args, kwargs)
        if isinstance(found, WeightedSum) and found.origin.use is not None:
            found.origin.use.done = True
        return out, found

    def _softmax(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        """Run a softmax. If keys were masked at random, also compute it without that mask: this is the map."""
        out = func(*args, **kwargs)
        place = 4 if func.__name__ == "gumbel_softmax" else 1
        axis = args[place] if len(args) > place else kwargs.get("dim", kwargs.get("axis"))
        scores = args[0] if args else kwargs.get("input")
        origin, source = self.history.get(scores), None
        if origin is not None and origin.mask.hidden and args and place == 1:
            with torch.no_grad(), torch._C.DisableTorchFunction():
                source = func(origin.source, *args[1:], **without_out(kwargs))
        self.history.softmax(func.__name__, scores, out, axis, source)
        return out, None

    def _dropout(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        """Run dropout, and note what entered it: this is the map."""
        before, rate, training, inplace = _dropout_arguments(func, args, kwargs)
        origin = self.history.get(before)
        if origin is None or not training or rate == 0:
            out = func(*args, **kwargs)
            self.history.follow("dropout", func, args, kwargs, out)
            return out, None
        kept = before.detach().clone() if inplace else before
        out = func(*args, **kwargs)
        self.history.dropout(origin, kept, out[0] if isinstance(out, tuple) else out, rate)
        return out, None

    def gives_logsumexp(self, function: str, args: Args) -> bool:
        """Whether a function computes the logsumexp of scores, or its last step: the logarithm of the sum of exponentials."""
        origin = self.history.get(args[0]) if args and function == "logsumexp" else None
        return (origin is not None and origin.kind == "scores") or (function in _LOGARITHMS and args[0] in self._totals)

    def _followed(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        out = func(*args, **kwargs)
        self.history.follow(func.__name__, func, args, kwargs, out)
        return out, None

    def _set(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        """Run a function that sets some elements in place: by a random mask, which is dropout, or by another mask."""
        masks = (*args[1:], *kwargs.values())
        random = self.history.random.among(masks) and self.history.get(args[0]) is not None
        before = args[0].detach().clone() if random else None
        if self.history.random.among(masks) and before is None:
            self.history.random.add(args[0], args)
        given = self.before(func.__name__, args)
        out = func(*args, **kwargs)
        if before is None or not self.history.random_mask(args, before, args[0]):
            self.history.follow(func.__name__, func, given, kwargs, out)
        return out, None

    def _random(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        """Run a function that draws random numbers."""
        out = func(*args, **kwargs)
        self.history.random.add(out, args[:1] if func.__name__ == "bernoulli" else args[1:2])
        return out, None

    def before(self, name: str, args: Args) -> Args:
        """The arguments of a function, before it runs. If it works in place on scores or weights, and random masks or weights
        after dropout are among them, with a copy of what it changes: the function is also applied to what entered dropout."""
        if not is_in_place(name) or name in WRITES or not args or not isinstance(args[0], Tensor):
            return args
        origin, others = self.history.get(args[0]), args[1:]
        random = name in _SUMS_IN_PLACE and origin is not None and self.history.random.among(others)
        # Factors leave what dropout kept as it was, so weights after dropout can be compared with those before at any time.
        compared = others if name in MULTIPLICATIONS | DIVISIONS else args
        if not random and all(found is None or found.source is None for found in map(self.history.get, compared)):
            return args
        copy = args[0].detach().clone()
        if origin is not None:
            self.history.set(copy, origin)
        return (copy, *args[1:])

    def recorded(self, out: Any, found: WeightedSum, name: str) -> None:
        """Note the output of an attention that was recorded under this name: it may be a part of another one."""
        self.history.average(out, found, name)
        origin = origin_as_map(found, out, name) if isinstance(out, Tensor) else None
        if origin is not None:
            self.history.set(out, origin)

    def has_random_mask(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether the mask of a call of ``scaled_dot_product_attention`` depends on random numbers."""
        return (args[3] if len(args) > 3 else kwargs.get("attn_mask")) in self.history.random

    def _product(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, WeightedSum | LinearAttention | None]:
        """Run a matrix product: of weights and values, or of queries and keys, whose result may be scores."""
        self.history.touch(args)
        linear = self.history.linear_attention(args) if self.history else None
        found = product(self.history, func.__name__, args, kwargs) if self.history and linear is None else None
        if self.history and found is None and linear is None and mixes_heads(self.history, func.__name__, args):
            return self._followed(func, args, kwargs)
        if self.history and found is None and linear is None and composes(self.history, args):
            return self._composed(func, args, kwargs)
        out = func(*args, **kwargs)
        if found is not None and found.origin.kind == "weights":
            return out, found
        self.history.scores(args, out, found)
        origin = self.history.get(out)
        if func.__name__ in ("baddbmm", "addmm") and origin is not None and self.history.random.among(args[:1]):
            with torch.no_grad(), torch._C.DisableTorchFunction():
                entered = func(torch.zeros_like(args[0]), *args[1:], **without_out(kwargs))
            self.history.hide(origin, entered, out, self.history.random.is_alone(args[0]))
        return out, None if linear is None else LinearAttention(linear.name, linear[1:3])

    def _composed(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, None]:
        """Run a product of two maps, whose rows sum to one if those of both do. Other rows may have weights of any size."""
        out, _ = self._followed(func, args, kwargs)
        origin = self.history.get(out)
        if origin is not None and not sums_to_one(origin.before_dropout(out), -1):
            self.history.set(out, origin.changed(form="composed"))
        return out, None

    def _scaled(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, WeightedSum | None]:
        """Run an elementwise product or division: dropout by a mask, or the normalization of weights or of their output."""
        if self.history and func.__name__ in MULTIPLICATIONS:
            self.history.may_drop(args)
        inplace = func.__name__ in ("mul_", "__imul__", "multiply_") and self.history.random.among(args)
        before = args[0].detach().clone() if inplace else None
        given = self.before(func.__name__, args) if self.history else args
        out = func(*args, **kwargs)
        if before is not None and self.history.random_mask(args, before, out):
            return out, None
        found = divided_after(self.history, func.__name__, args, out) if self.history else None
        if self.history and found is None:
            self.history.follow(func.__name__, func, given, kwargs, out)
        return out, found

    def _sum(self, func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, WeightedSum | None]:
        """Run a sum: of weights times values, or of the exponentials of scores."""
        self.history.touch(args)
        found = sum_of_terms(self.history, args, kwargs) if self.history else None
        origin, out = self.history.get(args[0]) if args else None, func(*args, **kwargs)
        if origin is not None and origin.kind == "exponentials":
            self._totals.add(out)
        return out, found


def handwritten(site: CallSite, found: WeightedSum, out: Tensor) -> AttentionRecord | str:
    """The record of a product of weights and values; a reason if it is linear attention, which has no map."""
    rows_of_values = found.arrange(out)
    found = _of_each_item(found, rows_of_values)
    shape, in_model = _as_before(found, rows_of_values)
    width = rows_of_values.shape[-1]
    evidence = evidence_for(site, width, (*shape[:-1], width), in_model)
    tentative = not found.origin.scored or may_be_map(found)
    own = with_own_values(found, shape, in_model, evidence)
    if own is None:
        reading = read_axes(shape, width, evidence, per_query=_differ(in_model, shape))
    else:
        found, in_model, reading = own
        rows_of_values, shape = found.arrange(out), found.shape
    if not found.origin.scored and rows_are_features(reading, shape, evidence):
        return "linear attention has no map: its softmax is over keys, for each feature"
    flat = reading.without_queries
    weights = flat.arrange(found.weights.reshape(shape))
    output = flat.arrange(rows_of_values.reshape(*shape[:-1], width))
    value = flat.arrange(in_model)
    dropped = None if found.dropped is None else flat.arrange(found.dropped.detach().reshape(shape))

    def build(rows: Selection, chosen: Selection) -> tuple[Tensor, None]:
        # A copy: the model may change its own tensor in place.
        return exact(weights[:, chosen][:, :, rows]).clone(), None

    def compare(built: Tensor, rows: Selection, chosen: Selection) -> Tensor:
        """The error with dropout: the dropped weights must be the map, scaled up, and must give the output. If they were
        mixed since, the first was compared before."""
        used = exact(dropped[:, chosen][:, :, rows])  # type: ignore[index]
        error, mask = product_error(used, value, output, rows, chosen), found.origin.mask
        return torch.maximum(
            error, error_of_kept(used, built, mask) if mask.error is None else mask.error.to(error.dtype)
        )

    def restore(new: Tensor) -> Tensor:
        return found.restore(flat.undo(new, (*shape[:-1], width)).reshape(rows_of_values.shape))

    sums_to_one = found.origin.form == "softmax"
    record = AttentionRecord(
        name=site.name,
        kind=found.origin.form,
        shape=(output.shape[0], output.shape[1], output.shape[2], weights.shape[-1]),
        check=Check("product"),
        axes=reading.axes,
        computation=Computation(
            weights=build,
            module=site.module,
            output=output,
            value=value,
            compare=None if dropped is None else compare,
            restore=restore,
            largest_sum=None
            if sums_to_one
            else largest_magnitude(torch.linalg.vector_norm(exact(weights.detach()), 1, -1)),
            tentative=tentative,
        ),
    )
    record = as_read(record, reading)
    record.running.dropout = dropped is not None
    return record


def _of_each_item(found: WeightedSum, rows_of_values: Tensor) -> WeightedSum:
    """The weighted sum with a map for each item of the output. A model may have one map for several, such as all samples."""
    lead = rows_of_values.shape[:-2]
    if found.weights.shape[:-2] == lead:
        return found
    shape = (*lead, *found.weights.shape[-2:])
    dropped = None if found.dropped is None else found.dropped.expand(shape)
    return replace(found, weights=found.weights.expand(shape), dropped=dropped, shape=shape)


def _as_before(found: WeightedSum, rows_of_values: Tensor) -> tuple[tuple[int, ...], Tensor]:
    """The shape of the map before reshapes, if it had four axes, and the values with the same leading axes.

    For the product, a model may fold samples and heads into one axis, heads that share values into the queries, and queries
    with values of their own into the leading axes.
    """
    value, now, before = found.value, tuple(found.weights.shape), found.shape
    if value.ndim < rows_of_values.ndim or value.ndim > 4:
        value = value.expand(*rows_of_values.shape[:-2], *value.shape[-2:])
    if len(before) != 4 or before == now or before[-1] != now[-1]:
        return now, value
    matrix, lead = value.shape[-2:], before[:2]
    if now[-2] == before[-2]:
        return before, value.expand(*now[:-2], *matrix).reshape(*lead, *matrix)
    if now[-2] == 1:
        return (*before[:-1], 1, before[-1]), value.expand(*now[:-2], *matrix).reshape(*before[:-1], *matrix)
    if now[-2] > before[-2] and math.prod(value.shape[:-2]) % max(1, lead[0]) == 0:
        return before, value.reshape(lead[0], -1, *matrix)
    return now, value


def _differ(value: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether the values differ along the last leading axis of a map of this shape, which may then count the queries."""
    lead = value.shape[:-2]
    return lead == shape[:-2] and (not lead or lead[-1] == 1 or value.stride(-3) != 0)


def _dropout_arguments(func: Function, args: Args, kwargs: Kwargs) -> tuple[Any, float, bool, bool]:
    """Input, rate, whether it is on, and whether it works in place, for any of torch's dropout functions."""
    given: dict[str, Any] = dict(zip(("input", "p", "training", "inplace"), args, strict=False))
    given.update({"training" if key == "train" else key: value for key, value in kwargs.items()})
    inplace = bool(given.get("inplace", False)) or func.__name__.endswith("_")
    return given.get("input"), float(given.get("p", 0.5)), bool(given.get("training", True)), inplace
