"""Wrong arguments for public functions, layers and models: python scripts/fuzz/arguments.py [COUNT] [SEED]

Each case takes a call that works and replaces one or two of its arguments. The call may work; otherwise its error must be
clear: a TypeError or ValueError (KeyError for names, OSError for paths) whose message names one of the replaced arguments,
tells what was passed for it, and says what would fit. Prints the unclear ones and returns 1 if there are any.
"""

import inspect
import random
import re
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from calls import calls, wrong_values
from torch import nn

CLEAR = (TypeError, ValueError, KeyError, OSError, NotImplementedError)
# How messages say what would fit.
FITTING = re.compile(
    r"\b(must|needs?|expected|fits?|takes|known (are|is)|one of|only|instead|use|pass|give|there (is|are)|ha(s|ve)|divisible)\b"
)


def is_clear(error: BaseException, wrong: dict[str, Any]) -> bool:
    """Whether the error names a wrong argument, what was passed and what would fit."""
    said = str(error)
    if not isinstance(error, CLEAR):
        return False
    if isinstance(error, OSError) and any(_is_told(value, said) for value in wrong.values()):
        return True  # a path that is not there is named itself
    named = [name for name in wrong if re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", said)]
    return any(_is_told(wrong[name], said) for name in named) and bool(FITTING.search(said))


def _is_told(value: Any, said: str) -> bool:
    """Whether a message says what a value is: itself, its type, its shape, a number in it, or a file that is absent."""
    found = [type(value).__name__, " ".join(repr(value).split())[:24], str(value)[:24]]
    if isinstance(value, torch.Tensor):
        found += [
            str(tuple(value.shape)),
            str(value.dtype).removeprefix("torch."),
            f"{value.ndim} axes",
            str(value.device),
        ]
        found += [str(size) for size in value.shape[-3:]]
        found += (
            [f"{number:g}".replace("nan", "NaN") for number in value.flatten()[:1].tolist()] if _is_real(value) else []
        )
    if isinstance(value, nn.Module):
        found += ["output", *(module.__class__.__name__ for module in value.modules())]
    if isinstance(value, tuple | list | set | range | dict):
        found += [repr(part) for part in value] or ["empty"]
    if value is None:
        found += ["without", "needed"]
    return any(text and text in said for text in found)


def _is_real(value: torch.Tensor) -> bool:
    return value.device.type == "cpu" and not value.is_complex()


def _brief(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, torch.Tensor) else " ".join(repr(value).split())[:40]


def _replaceable(function: Any, arguments: dict[str, Any]) -> list[str]:
    """The names of all arguments, also of those that the call leaves at their defaults."""
    target = function.forward if isinstance(function, nn.Module) else function
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    more = [name for name, each in inspect.signature(target).parameters.items() if each.kind in kinds]
    return list(dict.fromkeys((*arguments, *more)))


def fuzz(count: int, seed: int) -> Counter[str]:
    """The unclear errors, each with how often it came."""
    draw, found = random.Random(seed), Counter[str]()
    known, values = calls(), wrong_values()
    names = {}
    for name, (function, arguments) in known.items():  # a table that has gone stale would test nothing
        names[name] = _replaceable(function, arguments)
        if name != "load_run":
            function(**arguments)
    for _ in range(count):
        name = draw.choice(list(known))
        function, arguments = known[name]
        changed = draw.sample(names[name], min(len(names[name]), draw.choice((1, 1, 1, 2))))
        wrong = {key: draw.choice(values) for key in changed}
        try:
            function(**{**arguments, **wrong})
        except Exception as error:
            if not is_clear(error, wrong):
                last = traceback.extract_tb(error.__traceback__)[-1]
                said = str(error).partition("\n")[0][:160]
                found[f"{name}({', '.join(f'{key}={_brief(value)}' for key, value in wrong.items())}): "
                      f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {said}"] += 1  # fmt: skip
    return found


def main() -> int:
    count, seed = (int(word) for word in (*sys.argv[1:], *("20000", "0")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fuzz(count, seed)
    for line, times in found.most_common():
        print(f"{times:5d}  {line}")
    print(f"{sum(found.values())} unclear errors of {count} wrong calls (seed {seed})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
