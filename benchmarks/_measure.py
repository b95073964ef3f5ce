"""Shared by all benchmarks: timing candidates in turn, and result files that name command, hardware and date."""

import argparse
import importlib
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"


def arguments(description: str, **defaults: Any) -> argparse.ArgumentParser:
    """The options every benchmark has: ``--device``, ``--threads``, ``--rounds``, ``--patience``, ``--limit``, ``--output``."""
    options = {"device": "cuda" if torch.cuda.is_available() else "cpu", "threads": 2, "rounds": 30, **defaults}
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", type=available, default=options["device"])
    parser.add_argument("--threads", type=positive, default=options["threads"], help="CPU threads")
    parser.add_argument(
        "--rounds", type=positive, default=options["rounds"], help="number of rounds; each times every candidate once"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds to wait for an idle machine before each row"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=math.inf,
        help="seconds after which no further row is begun, where that is offered",
    )
    parser.add_argument("--output", type=Path, help="result file; default results/<benchmark>-<device>-<date>.json")
    return parser


def positive(word: str) -> int:
    """A number that is counted with: an option that was 0 would be taken for one that was not given.

    >>> positive("3")
    3
    """
    number = int(word) if word.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, got {word!r}")
    return number


def available(word: str) -> str:
    """The name of a device that this machine has."""
    try:
        torch.empty(0, device=word)
    except (RuntimeError, AssertionError) as error:
        raise argparse.ArgumentTypeError(f"must be a device of this machine, such as 'cpu', got {word!r}") from error
    return word


class Limit:
    """So many seconds from now on. What is not begun in time is left out, and named.

    >>> limit = Limit(0.0)
    >>> limit.allows("a row"), limit.left_out
    left out, for the time is up: a row
    (False, ['a row'])
    """

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds
        self.left_out: list[str] = []

    def allows(self, row: str) -> bool:
        if time.monotonic() < self.end:
            return True
        self.left_out.append(row)
        print(f"left out, for the time is up: {row}", flush=True)
        return False


def trial(options: argparse.Namespace) -> str:
    """How a training benchmark differs from the one in the documentation, as words for a name; "" if it does not.

    >>> trial(argparse.Namespace(smoke=True, epochs=3))
    'smoke, epochs 3'
    """
    return ", ".join(["smoke"] * options.smoke + [f"epochs {options.epochs}"] * (options.epochs is not None))


def places(benchmark: str, options: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of a training benchmark's runs, and that of its results: a trial has both for itself.

    >>> places("ablation", argparse.Namespace(folder=None, output=None, smoke=True, epochs=None))
    (PosixPath('runs/ablation-smoke'), PosixPath('runs/ablation-smoke/results'))
    """
    tried = trial(options)
    folder = options.folder or Path("runs") / dashed(benchmark, tried)
    return folder, options.output or (folder / "results" if tried else RESULTS)


def dashed(name: str, tried: str) -> str:
    """Both as one word of a path.

    >>> dashed("ablation", "smoke, epochs 3")
    'ablation-smoke-epochs-3'
    """
    return "-".join([name, *tried.replace(",", "").split()])


def side_by_side(
    candidates: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    device: str = "cpu",
    least_seconds: float = 0.01,
    patience: float = 60.0,
) -> dict[str, list[float]]:
    """Seconds per call of each candidate, one figure per round.

    In a round all candidates run one after the other, the first one changing from round to round, so that whatever else
    the machine does meets all alike; compare figures of the same round. A candidate is called as often in a row as
    fills ``least_seconds``. A round that other processes disturbed is repeated, for ``patience`` seconds in all.
    """
    names = list(candidates)
    repeats = {}
    for name in names:
        for _ in range(3):
            _seconds(candidates[name], 1, device)
        once = min(_seconds(candidates[name], 1, device) for _ in range(3))
        repeats[name] = max(1, round(least_seconds / once))
    times: dict[str, list[float]] = {name: [] for name in names}
    deadline = time.monotonic() + (patience if _clock(device) is time.perf_counter else 0.0)
    for turn in range(rounds):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        while True:
            wait_for_quiet(deadline)
            neighbors = Neighbors()
            seconds = {name: _seconds(candidates[name], repeats[name], device) / repeats[name] for name in order}
            if time.monotonic() > deadline or not neighbors.were_in_the_way():
                break
        for name in names:
            times[name].append(seconds[name])
    return times


def wait_for_quiet(deadline: float) -> None:
    while time.monotonic() < deadline:
        neighbors = Neighbors()
        time.sleep(0.1)
        if not neighbors.were_in_the_way():
            return


class Neighbors:
    """Whether other processes took cores that this one was using, since this object was made."""

    def __init__(self) -> None:
        self.others, self.start = self._others(), time.monotonic()

    def were_in_the_way(self) -> bool:
        wall = time.monotonic() - self.start
        free = (os.cpu_count() or 1) - torch.get_num_threads()
        return self._others() - self.others > (free + 0.1 * torch.get_num_threads()) * wall + 0.01  # in steps of 0.01 s

    @staticmethod
    def _others() -> float:
        """Seconds of processor time that all other processes have used so far, where the system tells."""
        try:
            user, nice, system, _, _, *rest = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        except OSError:
            return 0.0
        ticks = sum(map(int, (user, nice, system, *rest)))
        return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def _seconds(call: Callable[[], Any], repeats: int, device: str) -> float:
    clock = _clock(device)
    on_gpu = device.startswith("cuda")
    if on_gpu:
        torch.cuda.synchronize()
    start = clock()
    for _ in range(repeats):
        call()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def _clock(device: str) -> Callable[[], float]:
    """On a single CPU thread the process's own time is the figure, whoever else shares the core."""
    return time.process_time if device == "cpu" and torch.get_num_threads() == 1 else time.perf_counter


def ratios(times: Mapping[str, Sequence[float]], ours: str) -> dict[str, float]:
    """How many times longer each other candidate takes than ``ours``: the median over the rounds of theirs / ours."""
    return {
        name: statistics.median(theirs / own for theirs, own in zip(seconds, times[ours], strict=True))
        for name, seconds in times.items()
        if name != ours
    }


def milliseconds(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: round(1000 * statistics.median(seconds), 4) for name, seconds in times.items()}


def hardware(device: str, threads: int | None = None) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    count = threads or torch.get_num_threads()
    return f"{model}, {count} thread{'' if count == 1 else 's'}"


def commit() -> str:
    """The commit that was measured; ``+`` where files differ from it."""
    try:
        found = _git("rev-parse", "--short", "HEAD")
        return found + (
            "+" if _git("status", "--porcelain", "--untracked-files=no", "--", "src", "benchmarks/*.py") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("REGARD_COMMIT", "unknown")  # a copy of the tree without its history


def _git(*command: str) -> str:
    done = subprocess.run(
        ["git", *command], cwd=Path(__file__).parent.parent, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def write(benchmark: str, options: argparse.Namespace, rows: Sequence[Mapping[str, Any]], **more: Any) -> Path:
    """The result file of a benchmark that has the options of :func:`arguments`."""
    kind = options.device.partition(":")[0]
    path = options.output or RESULTS / f"{benchmark}-{kind}-{date.today().isoformat()}.json"
    return write_rows(benchmark, path, rows, hardware(options.device, options.threads), rounds=options.rounds, **more)


def write_rows(benchmark: str, path: Path, rows: Sequence[Mapping[str, Any]], machine: str, **more: Any) -> Path:
    """One result file: what was run, when, on what, and its rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "benchmark": benchmark,
        "date": date.today().isoformat(),
        "hardware": machine,
        "torch": torch.__version__,
        "command": command(),
        "commit": commit(),
        **more,
        "rows": list(rows),
    }
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    return path


def command() -> str:
    """What was typed, without where the result went."""
    words = sys.argv[1:]
    if "--output" in words:
        at = words.index("--output")
        words = words[:at] + words[at + 2 :]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])


def print_table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    cells = [list(columns)] + [[_cell(row.get(name)) for name in columns] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def import_timm() -> ModuleType | None:
    """timm, where it is installed. It imports torchvision, of which a build without compiled operators will do."""
    if importlib.util.find_spec("timm") is None:
        return None
    try:
        return importlib.import_module("timm")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import_timm.library = library  # type: ignore[attr-defined]  # kept alive: it unregisters when collected
        for name in [name for name in sys.modules if name.partition(".")[0] in ("timm", "torchvision")]:
            del sys.modules[name]
        return importlib.import_module("timm")
