"""Compare an answer with the correct result, and explain a difference in words that help a learner."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from numbers import Real
from typing import Any

import torch
from torch import Tensor

Number = int | float


class Advice(AssertionError):
    """An explanation that is the same for every seed, so that hidden checks may show it, too."""


class NotThere(Advice):
    """There is no answer yet."""


class Draw:
    """Random numbers for a check: the same ones for the same seed.

    >>> import regard.course
    >>> draw = regard.course.Draw(7)
    >>> draw(2, 3).shape, draw.size(3, 5) in (3, 4, 5)
    (torch.Size([2, 3]), True)
    """

    def __init__(self, seed: Any) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise TypeError(f"seed must be a whole number, got {seed!r}; the notebook's first cells define SEED")
        self.random = torch.Generator().manual_seed(seed)

    def __call__(self, *shape: int) -> Tensor:
        """Normal numbers, float32."""
        return torch.randn(shape, generator=self.random)

    def size(self, smallest: int, largest: int) -> int:
        """A whole number from ``smallest`` to ``largest``."""
        return int(torch.randint(smallest, largest + 1, (), generator=self.random))

    def coin(self, *shape: int) -> Tensor:
        """True or False."""
        return torch.rand(shape, generator=self.random) < 0.5

    def choice(self, options: Sequence[Any]) -> Any:
        """One of several."""
        return options[self.size(0, len(options) - 1)]

    def order(self, count: int) -> Tensor:
        """0 … count − 1, shuffled."""
        return torch.randperm(count, generator=self.random)


def expect(
    got: Any,
    right: Tensor | Number,
    mistakes: Mapping[str, Tensor | Number] | None = None,
    *,
    of: str = "your result",
    tolerance: float = 1e-4,
) -> None:
    """Raise an AssertionError that explains what is wrong, unless ``got`` equals ``right``.

    Args:
        got: the answer.
        right: the correct result.
        mistakes: the results of known mistakes, by advice. If the answer equals one of them, the advice is the message.
        of: the name of the answer in messages.
        tolerance: the largest difference, relative to the largest number in ``right`` (or 1), that counts as equal.

    >>> import regard.course
    >>> right = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> regard.course.expect(right.mT, right)
    Traceback (most recent call last):
    AssertionError: your result: the transpose of what it should be, rows and columns are swapped
    >>> regard.course.expect(right.exp(), right, {"take the logarithm at the end": right.exp()})
    Traceback (most recent call last):
    regard.course._expect.Advice: take the logarithm at the end
    """
    if isinstance(right, Tensor):
        _refuse_other_kinds(got, tuple(right.shape), of)
    else:
        _refuse_blank(got, of)
        got = _one_number(got, of)
        _refuse_complex(got, of)
    answer, truth = _plain(got), _plain(right)
    if answer.shape == truth.shape and _same(answer, truth, tolerance):
        return
    for advice, wrong in (mistakes or {}).items():
        if _plain(wrong).shape == answer.shape and _same(answer, _plain(wrong), tolerance, equal_nan=True):
            raise Advice(advice)
    raise AssertionError(f"{of}: {_difference(answer, truth, tolerance)}")


def expect_tensor(got: Any, *shape: int, of: str = "your result") -> Tensor:
    """Return the answer as float32 if it is a tensor of this shape. Anything else raises an error.

    >>> import regard.course
    >>> regard.course.expect_tensor([[1.0]], 1, 1)
    Traceback (most recent call last):
    AssertionError: your result: must be a tensor of shape (1, 1), not a list
    """
    _refuse_other_kinds(got, shape, of)
    if got.shape != shape:
        raise AssertionError(f"{of}: shape {tuple(got.shape)}, but it should be {shape}")
    return got.float()


def expect_parts(got: Any, *parts: str) -> tuple[Any, ...]:
    """Return the parts of an answer that consists of several; numbers may come as one tensor. Anything else raises an error
    that names them.

    >>> import regard.course
    >>> query, key = regard.course.expect_parts(3, "query", "key")
    Traceback (most recent call last):
    AssertionError: return 2 things: query, key
    """
    if isinstance(got, Tensor) and got.ndim == 1:
        got = tuple(got)
    if not isinstance(got, tuple) or len(got) != len(parts):
        raise AssertionError(f"return {len(parts)} things: {', '.join(parts)}")
    return got


def expect_numbers(got: Any, count: int, *, of: str = "your answer") -> Tensor:
    """Return this many numbers, given in a tuple, a list or a tensor, as a tensor. Anything else raises an error.

    >>> import regard.course
    >>> regard.course.expect_numbers((1, 2.5), 2)
    tensor([1.0000, 2.5000])
    """
    if got is None or got is Ellipsis or (isinstance(got, Sequence) and any(part is Ellipsis for part in got)):
        raise NotThere(f"{of}: nothing there yet; replace every ... in the cell above by your own numbers")
    try:
        if isinstance(got, list | tuple):  # torch converts neither fractions nor arrays beside other numbers
            got = [_one_number(part, of) if isinstance(part, Fraction) or is_array(part) else part for part in got]
        given = torch.as_tensor(got)
    except (TypeError, ValueError, RuntimeError):
        raise AssertionError(f"{of}: give {count} numbers, such as {tuple(range(1, count + 1))}") from None
    _refuse_complex(given, of)
    found = given.detach().float().flatten()
    if found.numel() != count:
        raise AssertionError(f"{of}: give {count} numbers, not {found.numel()}")
    return found


def expect_choice(got: Any, right: set[str] | None, offered: Mapping[str, str]) -> None:
    """Raise an error with a hint, unless the chosen names are the correct ones.

    Args:
        got: a set (or another collection) of names.
        right: the correct names; None checks only that the answer consists of offered names.
        offered: all names, each with a hint for a wrong choice.

    >>> import regard.course
    >>> regard.course.expect_choice({"a", "b"}, {"a"}, {"a": "it is", "b": "b has no beard"})
    Traceback (most recent call last):
    regard.course._expect.Advice: think again about 'b': b has no beard
    """
    if got is None or got is Ellipsis:
        raise NotThere("there is no answer yet: replace the ... by a set of names, such as {'a', 'b'}")
    if isinstance(got, str) or not hasattr(got, "__iter__"):
        raise AssertionError(f"give a set of names, such as {{{sorted(offered)[0]!r}}}, not {got!r}")
    try:
        chosen = set(got)
    except TypeError:  # a list inside of a list
        raise AssertionError(f"give a set of names, such as {{{sorted(offered)[0]!r}}}, not {got!r}") from None
    unknown = sorted(map(repr, chosen - set(offered)))
    if unknown:
        raise AssertionError(f"not one of the names offered ({', '.join(sorted(offered))}): {', '.join(unknown)}")
    for name in sorted(chosen ^ right) if right is not None else ():
        raise Advice(f"think again about {name!r}: {offered[name]}")


def pictures_of(figure: Any, count: int) -> list[Tensor]:
    """The first picture (``imshow``) in each panel of a figure; checks the number of panels."""
    found = [panel["images"] for panel in _panels(figure, count)]
    if not all(found):
        raise AssertionError("a panel has no picture: draw it with imshow")
    return [pictures[0] for pictures in found]


def lines_of(figure: Any, count: int) -> list[list[Tensor]]:
    """The lines (``plot``) in each panel of a figure, as points (n, 2); checks the number of panels."""
    return [panel["lines"] for panel in _panels(figure, count)]


def _panels(figure: Any, count: int) -> list[Any]:
    if figure is None or figure is Ellipsis:
        raise NotThere("nothing there yet: return the figure")
    if type(figure).__module__.startswith("matplotlib") and hasattr(figure, "savefig"):
        from regard.course.grading import plain_figure

        figure, drawn = plain_figure(figure), figure
        _close(drawn)
    if not (isinstance(figure, dict) and isinstance(figure.get("axes"), list)):
        raise AssertionError(f"return the figure, not {_kind(figure)}")
    found = figure["axes"]
    if len(found) != count:  # a grid of panels may have more than are needed, which stay empty
        found = [panel for panel in found if panel["images"] or panel["lines"] or panel["points"]]
    if len(found) != count:
        raise AssertionError(f"the figure has {len(figure['axes'])} panels; it should have {count}")
    return found


def _close(figure: Any) -> None:
    """Close a figure after a check, so that it is not shown again."""
    from matplotlib import pyplot

    pyplot.close(figure)


def _refuse_blank(got: Any, of: str) -> None:
    if got is None or got is Ellipsis:
        raise NotThere(f"{of}: nothing there yet; replace every ... in the cell above by your own code")


def _refuse_other_kinds(got: Any, shape: tuple[int, ...], of: str) -> None:
    """Only a tensor of real numbers has a shape and can be computed with."""
    _refuse_blank(got, of)
    if not isinstance(got, Tensor):
        raise AssertionError(f"{of}: must be a tensor of shape {shape}, not {_kind(got)}")
    _refuse_complex(got, of)


def _kind(value: Any) -> str:
    if isinstance(value, tuple):  # a list has become one, too
        return "a list or tuple"
    name = getattr(value, "name", "") if type(value).__name__ == "Other" else type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeio" else f"a {name}"


def _one_number(got: Any, of: str) -> Any:
    """The answer where one number is asked for: Python's, a fraction, or the only number of a tensor or an array."""
    if is_array(got):
        got = torch.as_tensor(got)
    if isinstance(got, Tensor):
        if got.numel() != 1:
            raise AssertionError(f"{of}: must be one number, not a tensor of shape {tuple(got.shape)}")
        return got.reshape(())
    if isinstance(got, bool) or not isinstance(got, Real):
        raise AssertionError(f"{of}: must be a number, not {got!r} ({type(got).__name__})")
    return float(got) if isinstance(got, Fraction) else got


def is_array(got: Any) -> bool:
    """Whether it is an array of numbers or a number of NumPy, which need not be installed."""
    return type(got).__module__ == "numpy" and hasattr(got, "dtype") and got.dtype.kind in "biufc"


def _refuse_complex(got: Any, of: str) -> None:
    """Converting complex numbers to real ones would drop what may be wrong."""
    if isinstance(got, Tensor) and got.is_complex():
        raise AssertionError(f"{of}: must be real, not complex; if the imaginary part is zero, return .real")


def _plain(value: Any) -> Tensor:
    plain = torch.as_tensor(value).detach()
    return (plain if plain.layout is torch.strided else plain.to_dense()).double()


def _same(left: Tensor, right: Tensor, tolerance: float, *, equal_nan: bool = False) -> bool:
    scale = max(1.0, float(right.abs().nan_to_num(0, 0, 0).max())) if right.numel() else 1.0
    return torch.allclose(left, right, rtol=0.0, atol=tolerance * scale, equal_nan=equal_nan)


def _difference(answer: Tensor, right: Tensor, tolerance: float) -> str:
    if answer.shape != right.shape:
        text = f"shape {tuple(answer.shape)}, but it should be {tuple(right.shape)}"
        if answer.ndim >= 2 and answer.mT.shape == right.shape and _same(answer.mT, right, tolerance):
            text += "; this is the transpose, rows and columns are swapped"
        return text
    missing = int(answer.isnan().sum())
    if missing:
        return f"NaN at {missing} of {answer.numel()} places: something is divided by zero, or infinity by infinity"
    if answer.ndim >= 2 and answer.shape[-1] == answer.shape[-2] and _same(answer.mT, right, tolerance):
        return "the transpose of what it should be, rows and columns are swapped"
    if _same(-answer, right, tolerance):
        return "the sign is wrong"
    factor = float((answer * right).sum() / right.square().sum()) if bool(right.any()) else 0.0
    if answer.numel() > 1 and factor and _same(answer, factor * right, tolerance):
        return f"{factor:.4g} times what it should be"
    offset = float((answer - right).mean())
    if answer.numel() > 1 and _same(answer, right + offset, tolerance):
        return f"off by {offset:.4g} everywhere"
    if answer.ndim == 0:
        return f"{float(answer):.6g}, but it should be {float(right):.6g}"
    gap = (answer - right).abs()
    flat = int(gap.nan_to_num(float("inf")).flatten().argmax())
    place = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), gap.shape))
    wrong = int((gap > tolerance * max(1.0, float(right.abs().max()))).sum())
    return (
        f"wrong at {wrong} of {gap.numel()} places, most at {place}: {float(answer[place]):.4g} instead of "
        f"{float(right[place]):.4g}"
    )
