"""Weights and a product, as the model wrote them: the map is what entered the product."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.maps._names import Place
from regard.maps._seen import (
    Seen,
    Selection,
    canonical,
    exact,
    heads_of,
    largest_magnitude,
    product_error,
    uncanonical,
)
from regard.maps.sources._traces import Product


def seen(place: Place, product: Product, out: Tensor) -> Seen:
    heads = heads_of(place.module)
    plain = product.arrange(out)
    # Heads that share values are sometimes folded into the queries for the product: the map has the shape before.
    shape = product.shape if len(product.shape) == 4 else tuple(product.weights.shape)
    weights = canonical(product.weights.detach().reshape(shape), heads)
    output = canonical(plain.reshape(*shape[:-1], plain.shape[-1]), heads)
    value = product.value
    if value.ndim > 4:
        value = value.expand(*plain.shape[:-3], *value.shape[-3:])
    elif value.ndim == 3 and len(shape) == 4 and value.shape[0] % max(1, shape[0]) == 0:
        value = value.unflatten(0, (shape[0], -1))  # batch and heads were folded into one axis
    elif value.ndim < plain.ndim:
        value = value.expand(*plain.shape[:-2], *value.shape[-2:])
    value = canonical(value, heads)
    dropped = None
    if product.dropped is not None:
        dropped = canonical(product.dropped.detach().reshape(shape), heads)
    kept = product.trace.kept

    def build(rows: Selection, chosen: Selection) -> tuple[Tensor, None]:
        # A copy: the model may go on to change its own in place.
        return exact(weights[:, chosen][:, :, rows]).clone(), None

    def check(found: Tensor, rows: Selection, chosen: Selection) -> Tensor:
        if dropped is None:
            return product_error(found, value, output, rows, chosen)
        used = exact(dropped[:, chosen][:, :, rows])
        error = product_error(used, value, output, rows, chosen)
        # What dropout left must be the map, scaled up.
        left = torch.where(used == 0, used, used * kept - found).abs()
        return error if left.numel() == 0 else torch.maximum(error, left.amax())

    return Seen(
        name=place.name,
        module=place.module,
        kind=product.trace.form,
        shape=(*output.shape[:3], weights.shape[-1]),
        build=build,
        check=check,
        against="product",
        output=output,
        value=value,
        total=None if product.trace.form == "softmax" else largest_magnitude(exact(weights).sum(-1)),
        tentative=not product.trace.scored,
        restore=lambda new: product.restore(
            uncanonical(new, (*shape[:-1], plain.shape[-1]), heads).reshape(plain.shape)
        ),
    )


def dropout_arguments(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, float, bool, bool]:
    """Input, rate, whether it is on, and whether it works in place, from any of dropout's spellings."""
    names = ("input", "p", "training", "inplace")
    given: dict[str, Any] = dict(zip(names, args, strict=False))
    given.update({"training" if key == "train" else key: value for key, value in kwargs.items()})
    inplace = bool(given.get("inplace", False)) or func.__name__.endswith("_")
    return given.get("input"), float(given.get("p", 0.5)), bool(given.get("training", True)), inplace
