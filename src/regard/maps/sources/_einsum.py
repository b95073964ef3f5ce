"""Reads calls of ``einsum``: the equation, and the letters of each operand's axes."""

from typing import Any

from torch import Tensor


def read_einsum(args: tuple[Any, ...]) -> tuple[str, list[Any]]:
    """The equation and the operands of a call, in any form that torch accepts; an empty equation for other arguments.

    >>> import torch
    >>> read_einsum((torch.ones(2, 3), [0, 1], torch.ones(2), [0], [1]))[0]
    'ab,a->b'
    """
    if args and isinstance(args[0], str):
        operands = list(args[1]) if len(args) == 2 and isinstance(args[1], list | tuple) else list(args[1:])
        return args[0].replace(" ", ""), operands
    lists = [_letters(x) for x in args[1::2]]
    if len(args) < 2 or None in lists:
        return "", []
    result = _letters(args[-1]) if len(args) % 2 else None
    equation = ",".join(x for x in lists if x is not None)
    return equation if result is None else f"{equation}->{result}", list(args[: len(lists) * 2 : 2])


def _letters(numbers: Any) -> str | None:
    if not isinstance(numbers, list | tuple):
        return None
    return "".join("..." if i is Ellipsis else chr((ord("a") if i < 26 else ord("A") - 26) + i) for i in numbers)


def einsum_labels(equation: str, operands: list[Any]) -> tuple[list[str], str]:
    """The letters of two operands and of the result, with letters for an ellipsis; empty if there are not two operands.

    >>> import torch
    >>> einsum_labels("...d,...->...d", [torch.ones(2, 3, 4), torch.ones(2, 3)])
    (['YZd', 'YZ'], 'YZd')
    """
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    labels = inputs.split(",")
    if not arrow:  # without an arrow, the result has the letters that occur once, in alphabetical order
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
