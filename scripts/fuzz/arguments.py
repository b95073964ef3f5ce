"""Wrong arguments for public functions, layers and models: python scripts/fuzz/arguments.py [COUNT] [SEED] [FIRST]

Each case takes a call that works and replaces one or two of its arguments. The call may work; otherwise its error must be
clear: a TypeError or ValueError (KeyError or IndexError where something is looked up, OSError for paths) whose message names
one of the replaced arguments, tells what was passed for it, and says what would fit. Prints the unclear ones and returns 1 if
there are any. Cases FIRST to FIRST + COUNT of a seed are the same however they are divided into runs.

Cases run in worker processes with limits on memory and time, because a network that is 10,000 wide is built if somebody asks
for it. If a large number was passed, reaching a limit is what was asked for, and counted apart. If not, it is a finding, and
so is the death of a worker.
"""

import contextlib
import copy
import inspect
import io
import json
import math
import multiprocessing
import numbers
import random
import re
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from calls import Call, calls, wrong_values
from torch import nn

CLEAR = (TypeError, ValueError, KeyError, IndexError, OSError, NotImplementedError)
# How messages say what would fit.
FITTING = re.compile(
    r"\b(must|needs?|expected|fits?|takes|known (are|is)|one of|only|instead|use|pass|give|there (is|are)|ha(s|ve)|divisible)\b"
)
MEMORY, SECONDS = 1 << 30, 20
LARGE = 1000
PIECE = 500  # cases in one worker


class TooSlow(BaseException):
    """The time of one case is over. No ``except Exception`` of a tested function may keep it."""


def is_clear(error: BaseException, wrong: dict[str, Any], only: bool = False) -> bool:
    """Whether the error names a wrong argument (unless it is the function's only one), what was passed and what would fit."""
    said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    if not isinstance(error, CLEAR):
        return False
    if isinstance(error, OSError) and any(_is_told(value, said) for value in wrong.values()):
        return True  # a path that is not there is named itself
    named = [name for name in wrong if only or re.search(rf"(?<![a-z_]){re.escape(name)}(?![a-z_])", said)]
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
            [told for number in value.flatten()[:1].tolist() for told in (f"{number:g}", str(number), "NaN")]
            if _is_real(value)
            else []
        )
    if isinstance(value, nn.Module):
        found += ["output", *(module.__class__.__name__ for module in value.modules())]
    if isinstance(value, tuple | list | set | range | dict):
        found += [repr(part) for part in value] or ["empty"]
    if isinstance(value, bytearray | np.ndarray):
        found += [str(tuple(value)), *map(repr, value)]
    if value is None:
        found += ["without", "needed"]
    return any(text and text in said for text in found)


def _is_real(value: torch.Tensor) -> bool:
    return value.device.type == "cpu" and value.layout == torch.strided and not value.is_complex()


def _is_large(value: Any) -> bool:
    """Whether it is, or has in it, a number that asks for much."""
    if isinstance(value, tuple | list | set):
        return any(_is_large(part) for part in value)
    if isinstance(value, torch.Tensor):
        return _is_real(value) and value.numel() > 0 and value.double().abs().max().item() >= LARGE
    return isinstance(value, numbers.Real | Decimal) and not math.isnan(value) and abs(value) >= LARGE


def _is_used_up(value: Any) -> bool:
    """Whether a first use would leave nothing for a second."""
    return isinstance(value, Iterator)


def _is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "allocate memory" in str(error))


def _brief(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, torch.Tensor) else " ".join(repr(value).split())[:40]


def _replaceable(function: Any, arguments: dict[str, Any]) -> list[str]:
    """The names of all arguments, also of those that the call leaves at their defaults."""
    target = function.forward if isinstance(function, nn.Module) else function
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    more = [name for name, each in inspect.signature(target).parameters.items() if each.kind in kinds]
    return list(dict.fromkeys((*arguments, *more)))


class Cases:
    """The wrong calls of a seed, each drawn by its own number."""

    def __init__(self, seed: int) -> None:
        self.seed, self.known, self.values = seed, calls(), wrong_values()
        self.names = {}
        for name, (function, arguments) in self.known.items():  # a table that has gone stale would test nothing
            self.names[name] = _replaceable(function, arguments)
            if not any(isinstance(value, str) and value == "nowhere" for value in arguments.values()):
                function(**arguments)

    def __getitem__(self, number: int) -> tuple[str, Call, dict[str, Any]]:
        draw = random.Random(f"{self.seed} {number}")
        name = draw.choice(list(self.known))
        changed = draw.sample(self.names[name], min(len(self.names[name]), draw.choice((1, 1, 1, 2))))
        wrong = {key: draw.choice(self.values) for key in changed}
        return (
            name,
            self.known[name],
            {key: copy.copy(value) if _is_used_up(value) else value for key, value in wrong.items()},
        )

    def told(self, number: int, what: str) -> str:
        name, _, wrong = self[number]
        return f"{name}({', '.join(f'{key}={_brief(value)}' for key, value in wrong.items())}): {what}"

    def outcome(self, number: int) -> tuple[str, str]:
        """``"clear"``, ``"limit"`` where the size was asked for, or ``"unclear"`` with what happened."""
        name, (function, arguments), wrong = self[number]
        large = any(_is_large(value) for value in wrong.values())
        try:
            _within(SECONDS, lambda: function(**{**arguments, **wrong}))
        except TooSlow:
            return ("limit", "") if large else ("unclear", f"not done after {SECONDS} s")
        except Exception as error:
            if _is_out_of_memory(error) and large:
                return "limit", ""
            if not is_clear(error, wrong, only=len(self.names[name]) == 1):
                last = traceback.extract_tb(error.__traceback__)[-1]
                said = str(error).partition("\n")[0][:160]
                return "unclear", f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {said}"
        return "clear", ""


def _within(seconds: int, function: Callable[[], object]) -> None:
    try:
        signal.alarm(seconds)
        function()
    finally:
        signal.alarm(0)


def _too_slow(*_: object) -> None:
    raise TooSlow


def _work(cases: Cases, first: int, last: int, pipe: Connection) -> None:
    """In a worker: try the cases and tell of each when it is done."""
    torch.set_num_threads(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    signal.signal(signal.SIGALRM, _too_slow)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for number in range(first, last):
            pipe.send_bytes(json.dumps((number, *cases.outcome(number))).encode())


def fuzz(count: int, seed: int, first: int = 0) -> tuple[Counter[str], int]:
    """The unclear errors, each with how often it came, and how many cases reached a limit that they had asked for."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = Cases(seed)
    context = multiprocessing.get_context("fork")  # workers inherit the table, which no pickle could hold
    found, limits, number, end = Counter[str](), 0, first, first + count
    while number < end:
        ours, theirs = context.Pipe(duplex=False)
        worker = context.Process(target=_work, args=(cases, number, min(number + PIECE, end), theirs), daemon=True)
        worker.start()
        theirs.close()
        last = min(number + PIECE, end)
        while number < last:
            # A loop in native code takes no signal; it is given the time of a slow case twice.
            try:
                done, verdict, what = json.loads(ours.recv_bytes()) if ours.poll(2 * SECONDS + 20) else (None, "", "")
            except EOFError:
                done, verdict, what = None, "", ""
            if done is None:
                worker.kill()
                worker.join()
                large = any(_is_large(value) for value in cases[number][2].values())
                verdict, what = ("limit", "") if large else ("unclear", f"ended its process ({worker.exitcode})")
            limits += verdict == "limit"
            if verdict == "unclear":
                found[cases.told(number, what)] += 1
            number += 1
            if done is None:
                break
        worker.join()
    return found, limits


def main() -> int:
    count, seed, first = (int(word) for word in (*sys.argv[1:], *("20000", "0", "0")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="regard-fuzz-") as folder, contextlib.chdir(folder):  # figures are saved
        found, limits = fuzz(count, seed, first)
    for line, times in found.most_common():
        print(f"{times:5d}  {line}")
    print(
        f"{sum(found.values())} unclear errors of {count} wrong calls (seed {seed}); {limits} asked for more than "
        f"{MEMORY >> 30} GiB or {SECONDS} s"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
