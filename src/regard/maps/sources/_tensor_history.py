"""Follows tensors from scores to the product with values, in attention that a model writes out.

Attention that is written out is a chain of torch functions: query · key (*scores*), softmax (*weights*), weights · value. The
functions between them differ from model to model. So each tensor on the way has a :class:`TensorOrigin`, which says what it is
and what was done to it, and each function that a tensor enters gives its result an origin, or ends the chain.

The result of a softmax is followed through everything that leaves it a map (casts, masks, reshapes, dropout), until a
product uses it. What enters the product is the map; with dropout, the map is what entered dropout.

Scores can also become weights without a softmax. Scores divided by their sum are recognized because their rows sum to
one. Exponentials whose rows are divided by anything (softmax plus one) and sigmoids of scores are weights as well.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from regard.maps._living_tensors import LivingTensors, are_among
from regard.maps.sources._before_dropout import before_dropout, entered_dropout
from regard.maps.sources._random_masks import (
    LIKE_DROPOUT,
    RANDOM_MASK,
    RandomTensors,
    after_mask,
    hides,
    is_like_dropout,
    scaled_up,
    undone,
)
from regard.maps.sources._tensor_facts import (
    CASTS,
    CHOICES,
    DIVISIONS,
    EXPONENTIALS,
    JOINS,
    MULTIPLICATIONS,
    RESHAPES,
    SIGMOIDS,
    SPLITS,
    WRITES,
    by_rows,
    is_learned,
    is_normalized,
    is_outer,
    is_turned_copy,
    is_whole_view,
    represents,
    tensors_of,
    without_out,
)
from regard.maps.sources._tensor_origins import ExpectedUse, RandomMask, RecordedAverage, TensorOrigin, WeightedSum

_SAME = CASTS | {"__get__"}  # functions that do not count as a use of a tensor
_MASKED = ("weights", "exponentials", "scores")  # kinds of tensors that a model may mask
_ALIKE = CASTS | {"view_as", "reshape_as", "expand_as"}  # their further arguments only give a dtype or a shape


class TensorHistory:
    """What is known of each living tensor that is followed.

    Args:
        running: returns the name of the module that is running.

    Attributes:
        origins: the origin of each tensor.
        random: tensors that depend on random numbers.
        uses: softmaxes and other results after which a product with values is expected.
        also: a tensor whose views have its origin, even if no function was seen that made them.
        followed: whether any tensor ever had an origin, except outer products.
    """

    def __init__(self, running: Callable[[], str | None]) -> None:
        self._running = running
        self.origins = LivingTensors[TensorOrigin]()
        self.random = RandomTensors()
        self.uses: list[ExpectedUse] = []
        self.followed = False
        self.also: Tensor | None = None

    def __bool__(self) -> bool:
        return bool(self.origins)

    def concerns(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool:
        """Whether one of these arguments, or a tensor in a list among them, is followed."""
        return self.also is not None or are_among(args, kwargs, self.origins, self.random.known)

    def get(self, x: Any) -> TensorOrigin | None:
        """The origin of a tensor; None if it is not followed."""
        entry = self.origins.get(id(x))
        if entry is not None and entry[0]() is x:
            return entry[1]
        if self.also is None or x is self.also or not is_whole_view(x, self.also):
            return None
        return None if (origin := self.get(self.also)) is None else origin.changed(shape=tuple(x.shape))

    def set(self, x: Tensor, origin: TensorOrigin) -> None:
        self.followed = self.followed or origin.form != "outer" or origin.kind != "scores"
        self.origins.note(x, origin)

    def forget(self, x: Tensor) -> None:
        self.origins.pop(id(x), None)

    def close(self) -> None:
        """Forget everything."""
        self.also = None
        self.origins.clear()
        self.random.clear()
        self.uses.clear()

    def touch(self, args: tuple[Any, ...]) -> None:
        """Note that these arguments, or tensors in lists among them, were used."""
        for x in args if self.uses else ():
            for given in x if isinstance(x, list | tuple) else (x,):
                origin = self.get(given)
                if origin is not None and origin.use is not None:
                    origin.use.touched = True

    def random_mask(self, args: tuple[Any, ...], before: Tensor | None, out: Any) -> bool:
        """Whether this operation applies a random mask to weights or scores, which is dropout written out. Then note it.

        Args:
            before: a copy of the weights, if the operation changes them in place.
        """
        weights = next((x for x in args if (found := self.get(x)) and found.kind in _MASKED), None)
        origin = self.get(weights)
        if weights is None or origin is None:
            self.random.add(out, args)
            return False
        if not isinstance(out, Tensor) or out.shape != weights.shape:
            return False
        entered = weights.detach() if before is None else before
        if origin.kind == "scores":
            alone = all(self.random.is_alone(x) for x in args if isinstance(x, Tensor) and x in self.random)
            return self.hide(origin, entered, out, alone)
        masked = undone(entered, out, origin.kind == "weights")
        if masked is None:
            return False
        source = masked[0] if origin.source is None else origin.source
        self.set(out, origin.dropped(source, kept=origin.mask.kept * masked[1], written=True))
        return True

    def hide(self, origin: TensorOrigin, entered: Tensor, out: Tensor, alone: bool) -> bool:
        """Whether scores were masked by a purely random mask. Then the map is without it.

        If the mask also depends on other things, or is noise that masks nothing, it stays in the map, and a note says so.

        Args:
            entered, out: the scores before and after the mask.
            alone: whether the mask depends on nothing but random numbers.
        """
        hidden = hides(entered, out)
        if hidden and alone:
            self.set(out, origin.dropped(origin.before_dropout(entered), hidden=True))
            return True
        if hidden or alone:
            origin.mask = replace(origin.mask, note=RANDOM_MASK)
        return False

    def softmax(self, function: str, scores: Any, weights: Any, axis: Any = None, source: Tensor | None = None) -> None:
        """Note a softmax: its result is weights.

        Args:
            axis: the axis of the softmax; None if it is not known.
            source: the softmax without a random mask of its scores, if there was one.
        """
        if not isinstance(weights, Tensor) or weights.ndim < 2:
            return
        before = self.get(scores)
        scored = before is not None and before.kind == "scores"
        shape = tuple(weights.shape)
        note = RANDOM_MASK if function == "gumbel_softmax" else None if before is None else before.mask.note
        about: dict[str, Any] = {"source": source, "mask": RandomMask(hidden=source is not None, note=note)}
        if function.endswith("log_softmax"):
            self.set(weights, TensorOrigin("logarithms", scored, shape, **about))
        else:
            by_keys = not isinstance(axis, int) or axis in (-1, len(shape) - 1)
            # A softmax over classes gives probabilities, which most models return: expect no product.
            classes = before is not None and before.form == "classes" and by_keys
            use = None if classes else self._expect(scored, shape, by_keys)
            self.set(weights, TensorOrigin("weights", scored, shape, use=use, **about))

    def _expect(self, scored: bool, shape: tuple[int, ...], by_keys: bool = True) -> ExpectedUse | None:
        """Expect a product with values: after a softmax of scores, or over the last of four axes or more, as in attention."""
        where = self._running() if scored or (len(shape) >= 4 and by_keys) else None
        if where is None:
            return None
        self.uses.append(ExpectedUse(where, shape))
        return self.uses[-1]

    def dropout(self, origin: TensorOrigin, before: Tensor, after: Any, rate: float) -> None:
        """Note dropout. ``before``: what entered it, or a copy if dropout works in place."""
        if isinstance(after, Tensor):
            kept = origin.mask.kept * (1 - rate)
            self.set(after, origin.dropped(origin.before_dropout(before), kept=kept))

    def scores(self, args: tuple[Any, ...], out: Any, numerator: WeightedSum | None = None) -> None:
        """Note a product that completes no attention: it may be scores, unless one factor is a parameter."""
        if not isinstance(out, Tensor) or out.ndim < 3 or any(isinstance(x, nn.Parameter) for x in args):
            return
        learned = any(map(is_learned, tensors_of(args)))
        origin = TensorOrigin("scores", True, tuple(out.shape), learned=learned, numerator=numerator)
        if len(args) == 2 and isinstance(args[1], Tensor) and out.ndim == 3 and is_learned(args[1]):
            origin.form = "classes"
        origin.form = "outer" if is_outer(args) else origin.form
        if numerator is not None and numerator.origin.kind == "exponentials" and (where := self._running()) is not None:
            reason = (
                "exponentials of its scores were multiplied with values, but their rows were not divided by anything"
            )
            origin.use = ExpectedUse(where, numerator.shape, reason=reason)
            self.uses.append(origin.use)
        self.set(out, origin)

    def average(self, out: Any, found: WeightedSum, name: str) -> None:
        """Note the output of weights whose softmax was not taken of a product. It may be the first half of linear attention,
        softmax(K)ᵀ V, which is multiplied with the queries next."""
        if not isinstance(out, Tensor):
            return
        self.forget(out)
        if not found.origin.scored:
            queries, keys = found.weights.shape[-2:]
            self.set(
                out, TensorOrigin("averages", False, tuple(out.shape), average=RecordedAverage(name, queries, keys))
            )

    def linear_attention(self, args: tuple[Any, ...]) -> RecordedAverage | None:
        """The ``average`` of the origin of softmax(k)ᵀ v, if this product multiplies it with softmax(q) or q; else None."""
        operands = tensors_of(args)
        for weights, value in (operands, operands[::-1]) if len(operands) == 2 else ():
            origin, other = self.get(weights), self.get(value)
            if other is None or other.average is None or other.average.matrix is not None:
                continue
            if origin is None:  # queries without a softmax, as in lambda layers
                if not is_learned(weights) and weights.shape[-2:] == other.average[2:0:-1]:
                    return other.average
                continue
            if origin.kind != "weights" or origin.scored:
                continue
            # Pooling tokens that were pooled before looks the same, but has fewer queries each time.
            _, features, keys, _ = other.average
            queries = weights.numel() // max(1, features * math.prod(weights.shape[:-2]))
            if queries == keys or queries > features:
                if origin.use is not None:
                    origin.use.done = True
                return other.average
        return None

    def follow(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Any
    ) -> None:
        """Note the origin of ``out`` if it still represents the scores or weights among ``args``."""
        if name not in _SAME:
            self.touch(args)
        out = out[0] if name in CHOICES and isinstance(out, tuple) else out
        if name in SPLITS and isinstance(out, tuple | list):
            self._split(func, args, kwargs, out)
        elif name in WRITES:
            self._written(name, func, args, kwargs)
        elif not isinstance(out, Tensor) or out.ndim < 2 or (name in JOINS and self._joined(func, args, kwargs, out)):
            return
        elif not (name.endswith("_like") or name.startswith("new_")):  # these take only the shape and the dtype
            masked = self.random.among(args) and self.random_mask(args, None, out)
            if not masked and out.is_floating_point():
                self._follow(name, func, args, kwargs, out)

    def _follow(
        self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor
    ) -> None:
        """As :meth:`follow`, for a single result."""
        given = args[: 1 if name in _ALIKE else 4]
        if name in JOINS and given and isinstance(given[0], list | tuple):
            given = (next((part for part in given[0] if self.get(part) is not None), None), *given[1:])
        for index, x, origin in self._dropped_first(given):
            if x is out and origin.kind == "weights" and origin.source is None:
                self._merged(args, origin)
                return  # the model changed its map in place
            if origin.kind == "weights" and name in MULTIPLICATIONS and self._terms(origin, x, args, out):
                return
            if not represents(name, origin.kind, x, out, origin.scored and not origin.learned):
                continue
            before, origin = origin, scaled_up(name, origin, args[1 - index] if index < 2 <= len(args) else None)
            if origin.source is not None and origin is before:
                followed = before_dropout(name, self.get, (func, args, kwargs), index, out)
                if followed is None:
                    self.forget(out)
                    return
                origin = followed
            shape = origin.shape if name in RESHAPES or out.shape == x.shape else tuple(out.shape)
            turned = origin.turned or is_turned_copy(x, out)
            origin = origin.changed(shape=shape, numerator=None, turned=turned)
            origin = self._becomes_weights(name, origin, args[1 - index] if index < 2 <= len(args) else None, out)
            self.set(out, after_mask(name, before.kind, origin, x, out))
            self._merged(args, origin)
            return

    def _dropped_first(self, given: tuple[Any, ...]) -> list[tuple[int, Any, TensorOrigin]]:
        """The followed arguments and their indices. Of several weights those after dropout come first, to be followed twice."""
        found = [(index, x, origin) for index, x in enumerate(given) if (origin := self.get(x)) is not None]
        if len(found) > 1 and all(origin.kind == "weights" for _, _, origin in found):
            found.sort(key=lambda entry: entry[2].source is None)
        return found

    def _merged(self, args: tuple[Any, ...], origin: TensorOrigin) -> None:
        """Several maps became one, which goes on under the name of ``origin``: no product with the others is expected."""
        for other in map(self.get, args):
            if other is not None and other.use is not None and other.use is not origin.use:
                other.use.done = True

    def may_drop(self, args: tuple[Any, ...]) -> None:
        """Weights are about to be multiplied. If the other factor looks like the mask of dropout, take it for random."""
        for x, other in (args[:2], args[1::-1]) if len(args) >= 2 else ():
            origin = self.get(x)
            if origin is not None and origin.kind == "weights" and other not in self.random and is_like_dropout(other):
                origin.mask = replace(origin.mask, note=LIKE_DROPOUT)
                self.random.add(other)

    def _split(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], parts: Any) -> None:
        """Note that parts of weights are weights. What entered dropout is split as well."""
        origin = self.get(args[0]) if args else None
        if origin is None or origin.source is None:
            for part in parts if origin is not None else ():
                self._follow("split", func, args, kwargs, part)
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            sources = func(origin.source, *args[1:], **kwargs)
        for part, source in zip(parts, sources, strict=True):
            self.set(part, origin.dropped(source).changed(shape=tuple(part.shape), numerator=None))

    def _written(self, name: str, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note weights that were written into another tensor, or into a part of it; and what was written into weights."""
        target, given = args[0], args[-1]
        before, origin = self.get(target), self.get(given)
        if not isinstance(target, Tensor):
            return
        if origin is not None and target.shape == given.shape:
            self.set(target, origin)
        elif before is not None and before.kind == "weights":
            dropped = before.source is not None or (origin is not None and origin.source is not None)
            followed = before_dropout(name, self.get, (func, args, kwargs), 0, target) if dropped else before
            if followed is None:
                self.forget(target)
            else:
                self.set(target, followed)
                self._merged(args[-1:], followed)

    def _joined(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], out: Tensor) -> bool:
        """Whether weights of several heads, samples or rows were concatenated. Then note it."""
        parts: Any = args[0] if args else kwargs.get("tensors")
        origins = [self.get(part) for part in parts] if isinstance(parts, list | tuple) else []
        known = [origin for origin in origins if origin is not None and origin.kind == "weights"]
        if not known or len(known) != len(origins):
            return False
        first, source = known[0], None
        if any(origin.source is not None for origin in known):
            if not all(origin.source is not None and origin.mask.is_like(first.mask) for origin in known):
                return False
            others = {key: x for key, x in without_out(kwargs).items() if key != "tensors"}
            with torch.no_grad(), torch._C.DisableTorchFunction():
                source = func(entered_dropout(parts, self.get), *args[1:], **others)
        self._merged(tuple(parts), first)
        self.set(out, first.changed(shape=tuple(out.shape), source=source))
        return True

    def _becomes_weights(self, name: str, origin: TensorOrigin, other: Any, out: Tensor) -> TensorOrigin:
        """The origin of weights, if this operation turned scores or exponentials into weights; else ``origin``.

        Args:
            other: the other factor, or the divisor.
        """
        if name in SIGMOIDS and origin.kind == "scores" and not origin.learned:
            # Sigmoids of scores are often no attention (masks of objects, for example), so no product is expected.
            return origin.changed(kind="weights", form="sigmoid", use=None)
        if name in EXPONENTIALS and origin.kind in ("scores", "logarithms"):
            # The logarithm of a small weight is large, and in half precision its rounding is a few per cent of the weight.
            within = 8 * torch.finfo(out.dtype).eps if origin.kind == "logarithms" else 0.0
            origin = origin.changed(kind="exponentials", form="softmax", use=None)
            if not is_normalized(out, max(1e-2, within)):
                return origin
        elif origin.kind not in ("scores", "exponentials") or not by_rows(name, other, out):
            return origin
        elif not is_normalized(out) or bool((out < 0).any()):
            divided = origin.kind == "exponentials" and name in DIVISIONS and not origin.learned
            return origin.changed(kind="weights") if divided and other.shape[-1] == 1 else origin
        form = "softmax" if origin.kind == "exponentials" else "normalized"
        return origin.changed(kind="weights", form=form, use=self._expect(origin.scored, tuple(out.shape)))

    def _terms(self, origin: TensorOrigin, weights: Tensor, args: tuple[Any, ...], out: Tensor) -> bool:
        """Whether this is an elementwise product of values and weights that are expanded along the width. Then note it: the
        sum over the keys will complete an attention."""
        value = next((y for y in args[:2] if isinstance(y, Tensor) and y is not weights), None)
        if value is None or isinstance(value, nn.Parameter) or value.ndim != out.ndim or weights.ndim != out.ndim:
            return False
        expanded = [n for n, whole in zip(weights.shape, out.shape, strict=True) if n < whole]
        if expanded != [1] or not value.is_floating_point():
            return False
        self.set(out, origin.changed(kind="terms", factors=(weights, value)))
        return True
