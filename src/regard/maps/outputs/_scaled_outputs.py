"""Follows products and divisions of the outputs of attention.

If a model multiplies each row of an output by a factor that it computed from the logsumexp of the scores (a learned
sink, a share of the softmax), the factor belongs to the map. Sums of scaled outputs may be one map (see
:mod:`regard.maps.outputs._combinations`).
"""

import weakref
from collections.abc import Callable
from typing import Any

from torch import Tensor

from regard.maps._listener import RecordListener
from regard.maps._living_tensors import LivingTensors
from regard.maps._logsumexps import FromLogsumexp
from regard.maps.outputs._combinations import (
    Followed,
    Memory,
    Terms,
    aligned,
    is_negative,
    row_factors,
    times,
)
from regard.maps.sources import (
    DIVISIONS,
    MULTIPLICATIONS,
    PRODUCTS,
    WeightedSum,
    einsum_labels,
    read_einsum,
    shares_memory,
)

STEPS = 24  # products and sums after an attention that are followed: its output is used soon
_PRODUCTS = DIVISIONS | MULTIPLICATIONS | PRODUCTS


class ScaledOutputs:
    """The part of an output tracker that follows products.

    Args:
        apply: calls a method of the listener while nothing is intercepted.

    Attributes:
        derived: tensors that the model computed from the logsumexp of scores.
    """

    def __init__(self, listener: RecordListener, apply: Callable[..., Any]) -> None:
        self.listener, self._apply = listener, apply
        self.derived = FromLogsumexp()
        self._outputs: list[Followed] = []
        self._sums = LivingTensors[Terms]()  # the tensors that are known to be linear combinations of outputs
        self._steps = 0  # products and sums that are still followed
        # The result of stacking outputs, these outputs, and the new axis, over which the model may average.
        self._stack: tuple[weakref.ref[Tensor], list[Followed], int] | None = None

    def take_step(self) -> bool:
        """Count a product or a sum as a step after the latest attention. Returns whether it may still concern an output."""
        self._steps -= 1
        return self._steps > 0 and bool(self._outputs)

    def _merge(self, outputs: list[Followed], out: Tensor) -> None:
        """From now on these outputs are one, the first of them, which is ``out``."""
        self._outputs = [output for output in self._outputs if output not in outputs[1:]]
        self._forget(outputs)
        self._sums.note(out, {outputs[0]: 1.0})

    def _forget(self, outputs: list[Followed]) -> None:
        """Forget all combinations that contain one of these outputs."""
        for key, (_, terms) in list(self._sums.items()):
            if any(output in terms for output in outputs):
                self._sums.pop(key, None)

    def scaled(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> bool:
        """A product or a division ran: note it if it scales the rows of an output.

        Returns whether it averaged several outputs, and their maps were merged.
        """
        if self.derived.known:
            self.derived.follow(function, args, kwargs, out)
        if not self.take_step() or not isinstance(out, Tensor):
            return False
        args = (*args, *(kwargs[key] for key in ("input", "other") if key in kwargs))
        divided = function in DIVISIONS
        if function == "einsum":
            found, merged = self._einsum(args, out)
        else:
            merged = False
            found = len(args) >= 2 and (divided or function in MULTIPLICATIONS) and self._product(divided, args, out)
        lost = not found and function in _PRODUCTS and self._outputs[-1].with_logsumexp
        if lost and self.derived.is_beside_another(args, out):
            self._outputs[-1].lost = True
        return merged

    def _product(self, divided: bool, args: tuple[Any, ...], out: Tensor) -> bool:
        """Whether an elementwise product or division scales the rows of an output."""
        for index in range(1 if divided else 2):
            if terms := self._sums.of(args[index]):
                factor = args[1 - index]
                return self._scaled(terms, args[index], factor, out, divided=divided, derived=factor in self.derived)
        return False

    def _einsum(self, args: tuple[Any, ...], out: Tensor) -> tuple[bool, bool]:
        """Whether this einsum scales the rows of an output or averages several outputs; and whether it averages."""
        equation, operands = read_einsum(args)
        labels, result = einsum_labels(equation, operands)
        for i in range(len(labels)):
            whole, factor, of_whole = operands[i], operands[1 - i], labels[i]
            terms, stack = self._sums.of(whole), self._stack
            stacked = stack is not None and stack[0]() is whole
            found = aligned(factor, labels[1 - i], of_whole) if terms or stacked else None
            if found is None or len(of_whole) != whole.ndim:
                continue
            if terms is not None and set(result) == set(of_whole):
                same = result == of_whole or (out.shape != whole.shape and same_rows(whole, out))
                derived = factor in self.derived
                return self._scaled(terms, whole, found, out if same else None, derived=derived), False
            if stack is not None and result == of_whole.replace(of_whole[stack[2]], "") and whole.ndim == 5:
                done = self._average(found.movedim(stack[2], 0), whole.movedim(stack[2], 0), stack[1], out)
                return done, done
        return False, False

    def _average(self, shares: Tensor, whole: Tensor, parts: list[Followed], out: Tensor) -> bool:
        """Whether the stacked outputs in ``whole`` are parts of one softmax with these shares. Then their maps are merged."""
        if shares.shape[0] != len(parts) or len({id(part.values) for part in parts}) != len(parts):
            return False
        rows = [row_factors({part: 1.0}, share, x) for part, share, x in zip(parts, shares, whole, strict=True)]
        if None in rows:
            return False
        self._stack = None
        self._combined({part: row[part] for part, row in zip(parts, rows, strict=True) if row}, out, subtraction=False)
        return parts[-1] not in self._outputs

    def _scaled(
        self,
        terms: Terms,
        whole: Tensor,
        factor: Any,
        out: Tensor | None,
        *,
        divided: bool = False,
        derived: bool,
    ) -> bool:
        """Whether a combination of outputs was multiplied by one number for each row. Then note it.

        Args:
            terms: the combination.
            whole: its tensor.
            out: the result; None if its axes are in another order.
            divided: whether ``factor`` is a divisor.
            derived: whether the factor was computed from a logsumexp.
        """
        rows = row_factors(terms, factor, whole, divided)
        if rows is None:
            return False
        output, of_output = next(iter(rows.items()))
        if len(terms) == 1 and output.with_logsumexp and derived and isinstance(of_output, Tensor) and of_output.ndim:
            # A learned sink, or a share of the softmax: the factor becomes part of this map.
            self._apply(self.listener.rescaled, output.name, of_output.squeeze(-1))
            output.taken = out is not None
        else:
            terms = times(terms, rows)
        if out is not None:
            self._combined(terms, out, subtraction=False)
        return True

    def _combined(self, terms: Terms, out: Tensor, subtraction: bool) -> None:
        """``out`` is a combination of outputs: merge their maps if it is a sum of parts of one softmax, or a difference."""
        self._sums.note(out, terms)
        if len(terms) == 2 and all(part.chosen is not None for part in terms):
            (first, one), (second, factor) = terms.items()
            same = first.name == second.name and len(first.chosen or ()) == len(second.chosen or ())
            if same and not isinstance(one, Tensor) and one == 1.0 and (subtraction or is_negative(factor)):
                self._apply(self.listener.heads_subtracted, first.name, first.chosen, second.chosen, -factor)
            return
        if len(terms) == 2 and all(part.beside for part in terms):
            (first, _), (second, factor) = terms.items()
            if first.name != second.name and (subtraction or is_negative(factor)):
                self._apply(self.listener.subtracted, first.name, second.name, -factor)
            return
        parts = [output for output in self._outputs if output in terms]
        if len(parts) < 2 or len(parts) != len(terms):
            return
        names, factors = tuple(part.name for part in parts), tuple(terms[part] for part in parts)
        same = all(part.values is parts[0].values for part in parts)
        done = bool(self._apply(self.listener.added, names, factors, same))
        if not done and same and len(parts) == 2 and (subtraction or is_negative(factors[1])):
            if isinstance(factors[0], Tensor) or factors[0] != 1.0:
                return
            self._apply(self.listener.subtracted, *names, -factors[1])
            done = True
        if done:
            first = parts[0]
            first.heads, first.taken = None, True
            first.with_logsumexp = any(part.with_logsumexp for part in parts)
            first.values = first.values if same else Memory(None)
            self._merge(parts, out)

    def averaged(self, found: WeightedSum, out: Any) -> bool:
        """Whether this weighted sum averages several outputs, and their maps were merged."""
        stack, factors = self._stack, found.origin.factors
        if stack is None or factors is None or factors[1] is not stack[0]() or stack[2] != 0:
            return False
        shares, parts = factors[0], stack[1]
        self._stack = None
        if shares.shape[0] != len(parts) or len({id(part.values) for part in parts}) != len(parts):
            return False
        names = tuple(part.name for part in parts)
        done = bool(self._apply(self.listener.added, names, tuple(shares.detach()), False))
        if done:
            self._outputs = [output for output in self._outputs if output not in parts]
            self._forget(parts)
        return done


def same_rows(whole: Tensor, out: Tensor) -> bool:
    """Whether ``out``, a copy or a view of ``whole``, has the same rows; they may be permuted if the shape shows it."""
    if out.shape == whole.shape:
        return whole.ndim < 3 or out.stride() == whole.stride() or not shares_memory(whole, out)
    turned = out.ndim == 4 and out.shape == (*(whole.shape[i] for i in (0, 2, 1) if whole.ndim == 4), *whole.shape[3:])
    return turned and whole.shape[1] != whole.shape[2]
