"""Recognizes the operation that completes an attention written by hand, weights times values summed over the keys.

It has three forms, and each function here recognizes one of them: a matrix product (:func:`product`), an elementwise product
that is summed (:func:`sum_of_terms`), or a product with exponentials whose rows are divided by their sum afterwards
(:func:`divided_after`). Each returns a :class:`WeightedSum`: which tensor is the map, which the values, and how the axes of
the output are arranged.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._shapes import why_unreadable
from regard.maps.sources._before_dropout import error_of_kept
from regard.maps.sources._einsum import einsum_labels, read_einsum
from regard.maps.sources._tensor_facts import DIVISIONS, is_learned, shares_memory, sums_to_one
from regard.maps.sources._tensor_history import TensorHistory
from regard.maps.sources._tensor_origins import ExpectedUse, RecordedAverage, TensorOrigin, WeightedSum

_MATRIX = (
    "its output was multiplied with another tensor at once: if what it averaged is a matrix and not values, the map is their "
    "product, which is not recorded"
)


def product(history: TensorHistory, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WeightedSum | None:
    """The weighted sum that a matrix product computes; None if no factor is followed.

    It is attention if the kind of its origin is "weights". With scores or exponentials, a division must follow.
    """
    if name == "einsum":
        return _einsum(history, args)
    given = (*args, *(x for key, x in kwargs.items() if key != "out"))
    operands = [x for x in given if isinstance(x, Tensor)]
    if name in ("baddbmm", "addmm"):
        return _added(history, operands, kwargs)
    if name == "tensordot" and len(operands) == 2:
        return _einsum(history, (_as_einsum(operands, args[2] if len(args) > 2 else kwargs.get("dims", 2)), *operands))
    if len(operands) != 2:
        return None
    left, right = operands[::-1] if name == "__rmatmul__" else operands
    if left.ndim < 2 or right.ndim < 2:
        return None
    if (origin := _times_matrix(history, left, right)) is not None:
        return origin.weighted_sum(left, right, _same, arrange=_same, restore=_same)
    origin = _attends(history, left, right)
    if origin is not None:
        return origin.weighted_sum(left, right, _same, arrange=_same, restore=_same, shape=origin.shape)
    origin = _attends(history, right, left)
    if origin is None:
        return None
    # The model multiplies the other way round: valuesᵀ @ weightsᵀ.
    shape = (*origin.shape[:-2], origin.shape[-1], origin.shape[-2])
    return origin.weighted_sum(right, left.mT, _transpose, arrange=_transpose, restore=_transpose, shape=shape)


def _added(history: TensorHistory, operands: list[Tensor], kwargs: dict[str, Any]) -> WeightedSum | None:
    """The weighted sum of ``baddbmm``, β · added + α · (weights @ value), from which the product is recovered."""
    alpha, beta = float(kwargs.get("alpha", 1)), float(kwargs.get("beta", 1))
    if len(operands) != 3 or not alpha:
        return None
    added, left, right = operands
    origin = _attends(history, left, right)
    if origin is None:
        return None

    def arrange(out: Tensor) -> Tensor:
        return (out - beta * added if beta else out) / alpha

    def restore(rows: Tensor) -> Tensor:
        return rows * alpha + beta * added if beta else rows * alpha

    return origin.weighted_sum(left, right, _same, arrange=arrange, restore=restore, shape=origin.shape)


def _as_einsum(operands: list[Tensor], dims: Any) -> str:
    """A call of ``tensordot`` as an equation of einsum."""
    left, right = operands
    dims = dims.tolist() if isinstance(dims, Tensor) else dims
    of_left, of_right = (range(-dims, 0), range(dims)) if isinstance(dims, int) else dims
    first = [chr(ord("a") + i) for i in range(left.ndim)]
    second = [chr(ord("a") + left.ndim + i) for i in range(right.ndim)]
    for i, j in zip(of_left, of_right, strict=True):
        second[j] = first[i]
    result = [a for a in (*first, *second) if (a in first) != (a in second)]
    return f"{''.join(first)},{''.join(second)}->{''.join(result)}"


def _attends(history: TensorHistory, weights: Tensor, value: Tensor) -> TensorOrigin | None:
    """The origin of ``weights``, if these may be weights and ``value`` may be values; else None."""
    origin = history.get(weights)
    if origin is None or isinstance(value, nn.Parameter):
        return None
    other = history.get(value)
    if other is not None and other.average is not None and other.average.matrix is not None:
        other = None
    if _are_maps(origin, other):
        return None
    if origin.kind == "weights" and origin.form == "softmax":
        # Linear attention, softmax(q) · (kᵀ v), sums over features, not over keys.
        features = other is not None and (other.kind == "scores" or other.form == "sigmoid")
        return None if features and not origin.scored else origin
    if origin.kind not in ("weights", "scores", "exponentials") or origin.learned:
        return None
    # Other weights are less certain to be a map, so the values must look like values.
    return None if other is not None or is_learned(value) else origin


def _einsum(history: TensorHistory, args: tuple[Any, ...]) -> WeightedSum | None:
    """The weighted sum of an einsum."""
    equation, operands = _with_two_operands(history, *read_einsum(args))
    labels, result = einsum_labels(equation, operands)
    if not labels:
        return None
    for (weights, of_weights), (value, of_value) in (
        zip(operands, labels, strict=True),
        zip(operands[::-1], labels[::-1], strict=True),
    ):
        origin = _attends(history, weights, value)
        if origin is None and of_weights[-1:] and of_weights[-1] not in result:
            origin = _times_matrix(history, weights, value)
        if origin is not None and (found := _arranged(weights, value, origin, of_weights, of_value, result)):
            return found
    return None


def _with_two_operands(history: TensorHistory, equation: str, operands: list[Any]) -> tuple[str, list[Any]]:
    """An einsum of three operands as one of two, by multiplying the two that are not the weights; others unchanged."""
    inputs, arrow, result = equation.partition("->")
    labels = inputs.split(",")
    if len(operands) != 3 or len(labels) != 3 or not arrow or "." in equation:
        return equation, operands
    which = next((i for i, x in enumerate(operands) if (found := history.get(x)) and found.kind == "weights"), None)
    if which is None or not all(isinstance(x, Tensor) for x in operands):
        return equation, operands
    others = [i for i in range(3) if i != which]
    letters = "".join(labels[i] for i in others)
    kept = "".join(a for a in dict.fromkeys(letters) if a in labels[which] or a in result)
    with torch.no_grad(), torch._C.DisableTorchFunction():
        value = torch.einsum(f"{labels[others[0]]},{labels[others[1]]}->{kept}", *(operands[i] for i in others))
    return f"{labels[which]},{kept}->{result}", [operands[which], value]


def _arranged(
    weights: Tensor, value: Tensor, origin: TensorOrigin, of_weights: str, of_value: str, result: str
) -> WeightedSum | None:
    """The weighted sum of an einsum with these letters; None unless it sums over one axis, the keys, and adds one, the width."""
    summed = [a for a in of_weights if a in of_value and a not in result]
    width = [a for a in of_value if a not in of_weights and a in result]
    kept = [a for a in of_weights if a in result]
    free = [a for a in kept if a not in of_value]
    if len(summed) != 1 or len(width) != 1 or not len(kept) + 1 == len(of_weights) == len(result):
        return None
    keys = of_weights.index(summed[0])
    if not free and not sums_to_one(weights, keys):
        return None
    if len(of_value) == 2 < len(of_weights) and _mixes_heads(weights, keys):
        return None
    query = _query_of(weights, of_weights, of_value, kept, summed[0])
    lead = [a for a in kept if a not in query]
    order = [of_weights.index(a) for a in (*lead, *query, *summed)]
    values = value.permute([of_value.index(a) for a in (*lead, *summed, *width) if a in of_value])
    for axis, a in enumerate(lead):
        if a not in of_value:
            values = values.unsqueeze(axis)
    target = [result.index(a) for a in (*lead, *query, *width)]
    back = [target.index(i) for i in range(len(target))]

    def arranger(axes: list[int]) -> Callable[[Tensor], Tensor]:
        return lambda x: x.permute(axes) if query else x.permute(axes).unsqueeze(-2)

    def restore(rows: Tensor) -> Tensor:
        return (rows if query else rows.squeeze(-2)).permute(back)

    return origin.weighted_sum(weights, values, arranger(order), arrange=arranger(target), restore=restore)


def _query_of(weights: Tensor, of_weights: str, of_value: str, kept: list[str], summed: str) -> list[str]:
    """The letter of the rows among the ``kept`` ones, in a list. A single query may have no axis.

    Axes that only the weights have are the queries, and heads that share values. In self-attention there are as many queries
    as keys. If the values have such an axis, too, these may differ from query to query (see ``_own_values.py``). Then the
    heads are the rows, and the first axis is rather the samples.
    """
    count = weights.shape[of_weights.index(summed)]
    free = [a for a in kept if a not in of_value]
    own = len(free) > 1 and any(a in of_value and weights.shape[of_weights.index(a)] == count for a in kept)
    free = free[own:] if free[:1] == kept[:1] else free
    return next(([a] for a in free[::-1] if weights.shape[of_weights.index(a)] == count), free[-1:])


def _mixes_heads(weights: Tensor, summed: int) -> bool:
    """Whether weights sum to one along another axis than the summed one: then the other factor mixes heads."""
    return not sums_to_one(weights, summed) and any(sums_to_one(weights, axis) for axis in (-1, -2))


def _are_maps(origin: TensorOrigin | None, other: TensorOrigin | None) -> bool:
    """Whether both are weights that were made of queries and keys. A softmax of anything else may well be values: probabilities
    of classes, which attention averages over neighbors."""
    return all(found is not None and found.kind == "weights" and found.scored for found in (origin, other))


def may_be_map(found: WeightedSum) -> bool:
    """Whether the result of this product may be a map, and its values a matrix that averages keys (``weights @ matrix``) or
    queries (``matrix @ weights``)."""
    if not found.origin.scored or found.origin.form != "softmax" or why_unreadable(found.value) is not None:
        return False
    square = found.value.shape[-1] == found.value.shape[-2]
    return square or (found.arrange is _transpose and not sums_to_one(found.weights, -1))


def origin_as_map(found: WeightedSum, out: Tensor, name: str) -> TensorOrigin | None:
    """The origin of the result of a product that was recorded under this name, if it may be a map itself; else None."""
    if not may_be_map(found):
        return None
    source, mask = None, found.origin.mask
    with torch.no_grad(), torch._C.DisableTorchFunction():
        if found.dropped is not None:
            source = found.restore(found.weights @ found.value)
            error = error_of_kept(found.dropped, found.weights, mask) if mask.error is None else mask.error
            mask = replace(mask, error=error)
    form = "softmax" if sums_to_one(out if source is None else source, -1) else "composed"
    queries, keys = found.weights.shape[-2:]
    about = RecordedAverage(name, queries, keys, found.value)
    return TensorOrigin("averages", True, tuple(out.shape), source, mask, form=form, average=about)


def _times_matrix(history: TensorHistory, x: Tensor, value: Tensor) -> TensorOrigin | None:
    """The origin of a map that was multiplied with a matrix, if ``x`` is one and ``value`` may be its values; else None.

    Only what follows can tell a matrix from values: vectors are not multiplied with other vectors at once. If these may be
    keys after all, as of a second attention, this is reported instead.
    """
    origin = history.get(x)
    about = None if origin is None else origin.average
    if origin is None or about is None or is_learned(value) or history.get(value) is not None:
        return None
    matrix = about.matrix
    if matrix is None or shares_memory(matrix, value):  # the same vectors are keys and values
        return None
    origin.average = None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        keys = matrix.ndim > 2 and matrix.shape[-1] == matrix.shape[-2] and bool((matrix < 0).any())
    if keys:
        history.uses.append(ExpectedUse(about.name, origin.shape, touched=True, reason=_MATRIX))
        return None
    return origin.changed(kind="weights", average=about)


def composes(history: TensorHistory, args: tuple[Any, ...]) -> bool:
    """Whether a product multiplies two maps, as in Nyström attention or a walk of several steps. The result is a map as well,
    and what it is multiplied with later are the values."""
    followed = [origin for x in args if (origin := history.get(x)) is not None]
    return len(followed) == 2 and _are_maps(*followed)


def mixes_heads(history: TensorHistory, name: str, args: tuple[Any, ...]) -> bool:
    """Whether a product with a parameter mixes the heads of scores or weights, as in talking heads. The result is scores or
    weights as well: queries and keys stay what they are.

    The summed axis must not be that of the keys, over which learned values would be averaged.
    """
    operands = [x for x in args if isinstance(x, Tensor)]
    if name in ("matmul", "__matmul__", "linalg_matmul") and len(operands) == 2:
        args = (_as_einsum(operands, 1), *operands)
    elif name != "einsum":
        return False
    equation, factors = read_einsum(args)
    labels, result = einsum_labels(equation, factors)
    for (x, of_x), (matrix, of_matrix) in (
        (zip(factors, labels, strict=True), zip(factors[::-1], labels[::-1], strict=True)) if labels else ()
    ):
        origin, parameter = history.get(x), matrix if matrix._base is None else matrix._base
        if origin is None or origin.kind not in ("scores", "weights") or not isinstance(parameter, nn.Parameter):
            continue
        summed = [a for a in of_x if a in of_matrix and a not in result]
        new = [a for a in of_matrix if a not in of_x]
        if len(summed) != 1 or len(new) != 1 or of_x.replace(summed[0], new[0]) != result:
            continue
        axis, inner = of_x.index(summed[0]), x.ndim - 2
        if origin.kind == "scores":
            return axis < inner
        weights = origin.before_dropout(x)
        others = (axis_of_keys for axis_of_keys in (-1, -2) if axis_of_keys % x.ndim != axis)
        return not sums_to_one(weights, axis) and (axis < inner or any(sums_to_one(weights, a) for a in others))
    return False


def sum_of_terms(history: TensorHistory, args: tuple[Any, ...], kwargs: dict[str, Any]) -> WeightedSum | None:
    """The attention that a call of ``sum`` completes: (weights * values).sum(keys), as decoders of recurrent networks have it.

    One axis of the terms is the keys, which are summed. One is the width, along which the weights were expanded. At most one
    is the queries, along which the values were expanded; without it there is a single query.
    """
    terms: Any = args[0] if args else kwargs.get("input")
    origin = history.get(terms)
    keys, keepdim = _summed_axis(args, kwargs)
    if origin is None or origin.factors is None or origin.kind != "terms" or keys is None:
        return None
    weights, value = origin.factors
    axes = range(terms.ndim)
    keys %= terms.ndim
    width = next(i for i in axes if weights.shape[i] < terms.shape[i])
    normalized = sums_to_one(origin.before_dropout(weights), keys)
    if keys == width or value.shape[keys] != terms.shape[keys] or not normalized:
        return None
    query = [i for i in axes if value.shape[i] < terms.shape[i]][-1:]  # other expanded axes are heads that share values
    lead = [i for i in axes if i not in (keys, width, *query)]
    order = (*lead, *query, keys, width)

    def as_map(x: Tensor) -> Tensor:
        x = x.permute(order).squeeze(-1)
        return x if query else x.unsqueeze(-2)

    def arrange(out: Tensor) -> Tensor:
        out = (out if keepdim else out.unsqueeze(keys)).permute(order)
        return out.squeeze(-2) if query else out

    def restore(rows: Tensor) -> Tensor:
        rows = (rows.unsqueeze(-2) if query else rows).permute([order.index(i) for i in axes])
        return rows if keepdim else rows.squeeze(keys)

    values = value.permute(order)
    values = values.squeeze(len(lead)) if query else values
    return origin.weighted_sum(weights, values, as_map, arrange=arrange, restore=restore)


def _summed_axis(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int | None, bool]:
    """The axis of a call of ``sum`` (None for all or several), and ``keepdim``."""
    axis: Any = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis"))
    axis = axis[0] if isinstance(axis, list | tuple) and len(axis) == 1 else axis
    single = isinstance(axis, int) and not isinstance(axis, bool)
    return axis if single else None, bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))


def divided_after(history: TensorHistory, name: str, args: tuple[Any, ...], out: Any) -> WeightedSum | None:
    """The attention that is completed by dividing (or multiplying) each row of a product by a number; None for other calls.

    For ``(a @ v) / a.sum(-1, keepdim=True)`` the map is ``a / a.sum(-1, keepdim=True)``.
    """
    factors = args[:1] if name in DIVISIONS else args[:2]
    index, origin = next(((i, found) for i, x in enumerate(factors) if (found := history.get(x))), (0, None))
    numerator = None if origin is None else origin.numerator
    if origin is None or numerator is None or len(args) < 2:
        return None
    scale = args[1 - index]
    if not isinstance(scale, Tensor) or not isinstance(out, Tensor) or out.shape != args[index].shape:
        return None
    if why_unreadable(out) is not None:
        return None
    with torch.no_grad(), torch._C.DisableTorchFunction():
        rows = numerator.arrange(scale.detach().expand(out.shape))
        if rows.shape[-1] > 1 and rows.stride(-1) != 0:  # more than one number per row
            return None
        rows = rows[..., :1] if name not in DIVISIONS else rows[..., :1].reciprocal()
        weights = numerator.weights.detach() * rows
        normalized = bool((weights >= 0).all()) and sums_to_one(weights, -1)
        if not normalized and numerator.origin.kind != "exponentials":
            return None
        dropped = None if numerator.dropped is None else numerator.dropped.detach() * rows
        hidden = dropped is not None and sums_to_one(dropped, -1) and not sums_to_one(weights, -1)
        if hidden:  # rows were divided by the sum of what dropout kept
            weights = weights / weights.sum(-1, keepdim=True)
    form = "softmax" if numerator.origin.kind == "exponentials" else "normalized"
    of_map = numerator.origin.changed(kind="weights", form=form, use=origin.use)
    of_map = of_map.dropped(of_map.source, hidden=True, kept=1.0) if hidden else of_map
    return replace(numerator, weights=weights, dropped=dropped, origin=of_map)


def _same(x: Tensor) -> Tensor:
    return x


def _transpose(x: Tensor) -> Tensor:
    return x.mT
