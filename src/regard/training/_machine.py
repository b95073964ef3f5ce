"""The machine, versions and command of a run."""

import os
import platform
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import torch

from regard._version import __version__
from regard.support.text import whole_characters
from regard.training._fabric import launched_by


def hardware(device: torch.device, processes: int = 1) -> str:
    """The name of the device and the number of devices.

    >>> hardware(torch.device("cpu")).endswith("threads") or hardware(torch.device("cpu")).endswith("thread")
    True
    """
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
        return name if processes == 1 else f"{processes} × {name}"
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    threads = torch.get_num_threads() * processes
    return f"{model}, {threads} thread{'s' if threads > 1 else ''}"


def versions() -> dict[str, str]:
    """The versions of packages that a result may depend on."""
    return {"regard": __version__, "torch": torch.__version__, "python": platform.python_version()}


def commit() -> str:
    """The commit of the checkout that regard runs from, with ``+`` if files were changed; "unknown" outside of a checkout."""
    here = Path(__file__).parent
    try:
        found = _git(here, "rev-parse", "--short", "HEAD")
        return found + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no", "--", "..") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def command() -> str:
    """The command that is running, quoted for a shell. JSON cannot hold a file's name that is no UTF-8: it gets question
    marks."""
    program = Path(sys.argv[0])
    name = [program.name]
    if program.name == "__main__.py":
        name = [*_launcher(), "-m", _module_name(program.parent)]
    elif program.suffix == ".py":
        name = ["python", program.name if program.is_absolute() else program.as_posix()]
    return whole_characters(shlex.join([*name, *sys.argv[1:]]))


def _launcher() -> list[str]:
    """What runs a module: torchrun, if it has started this process as one of several."""
    nodes = launched_by() if "TORCHELASTIC_RUN_ID" in os.environ else None
    if nodes is None:
        return ["python"]
    several = ["--nnodes", str(nodes[1])] if nodes[1] > 1 else []
    return ["torchrun", *several, "--nproc-per-node", str(nodes[0])]


def resume_command(name: str, seed: int, folder: Path) -> str:
    """The command that resumes a run in a folder: the current command with --resume."""
    words = shlex.split(command())
    program, rest = words[: len(words) - len(sys.argv[1:])], words[len(words) - len(sys.argv[1:]) :]
    if program == ["regard"] or program[-2:] in (["-m", "regard"], ["-m", "regard.cli"]):
        if rest[:1] == ["demo"]:
            smoke = ["--smoke"] if "--smoke" in rest else []
            return shlex.join([*program, "train", "demo", *smoke, "--folder", str(folder), "--resume", "auto"])
        if rest[:1] == ["train"]:
            if without(rest, "--seeds") != rest and folder.name == f"seed-{seed}":
                folder = folder.parent  # the folder of all seeds
            rest = without(rest, "--resume", "--folder")
            return shlex.join([*program, *rest, "--folder", str(folder), "--resume", "auto"])
    return f"regard.train(recipe, folder={str(folder)!r}, resume='auto') with the same recipe, {name!r}"


def without(words: list[str], *options: str) -> list[str]:
    """The arguments of a command without the given options and their values.

    >>> without(["train", "demo", "--folder", "here", "--resume=auto", "--smoke"], "--folder", "--resume")
    ['train', 'demo', '--smoke']
    """
    left, rest = [], iter(words)
    for word in rest:
        if word in options:
            next(rest, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            left.append(word)
    return left


def _module_name(package: Path) -> str:
    """The dotted name of a package, from its folder: the folders above that are packages, too, are part of the name.

    >>> _module_name(Path(__file__).parent)
    'regard.training'
    """
    above = takewhile(lambda folder: (folder / "__init__.py").exists(), package.parents)
    return ".".join([*reversed([folder.name for folder in above]), package.name])


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
