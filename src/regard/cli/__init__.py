"""The command line: ``regard COMMAND …``. Each command is one module, imported when it is used."""

import codecs
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from regard.support.input_errors import is_input_error
from regard.support.processes import end_with_parent

COMMANDS = {
    "demo": "train on the included images, evaluate, convert, verify; write runs/demo with a report",
    "train": "train a network from a recipe (--list shows all recipes)",
    "evaluate": "measure a run's network on the test set",
    "verify": "check claims about attention, and show the evidence",
    "convert": "convert convolution to attention, or attention to convolution",
    "report": "show what a run's network attends to, as a page or a figure",
    "studio": "inspect runs and their networks in the browser",
    "bench": "run the benchmarks on this machine",
    "data": "list and download data sets",
}


def commands() -> dict[str, str]:
    """The commands that are installed, each with its description."""
    return {name: what for name, what in COMMANDS.items() if importlib.util.find_spec(f"regard.cli._{name}")}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code. An error that the user can fix is a message, not a stack trace.

    >>> from regard.cli import main
    >>> main(["--version"])
    regard 0.1.0
    0
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    _replace_what_cannot_be_shown()
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    name, *rest = arguments
    if name in ("-V", "--version"):
        from regard import __version__

        print(f"regard {__version__}")
        return 0
    if name not in commands():
        import difflib

        close = difflib.get_close_matches(name, commands(), n=1)
        hint = f"did you mean {close[0]}?" if close else f"the commands are {', '.join(commands())}"
        print(f"regard has no command {name!r}: {hint}", file=sys.stderr)
        return 2
    # OpenMP reads this when torch is loaded. Threads that spin while waiting are a little faster on an idle machine, but
    # many times slower if other programs use its cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_with_parent()  # set if this is one of several training processes
    try:
        module = importlib.import_module(f"regard.cli._{name}")
        _refuse_empty(rest)
        _import_own(rest)
        code: int = module.run(rest)
        sys.stdout.flush()  # an error of writing is one here, not at the end of the process
        return code
    except BrokenPipeError:  # whoever reads the output, such as head, has seen enough
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # for what is still to be flushed
        return 1
    except KeyboardInterrupt as stopped:
        print(str(stopped) or "stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if os.environ.get("REGARD_TRACEBACK") or not _is_users(error):
            raise
        print(f"regard {name}: {_in_words(error)}", file=sys.stderr)
        # 1 if the work failed: damaged files, a full disk, no network, a diverged run
        return 2 if is_input_error(error) else 1


def _replace_what_cannot_be_shown() -> None:
    """Print a question mark for a character that the terminal, or the file that the output goes to, cannot hold: Windows
    redirects in an encoding that lacks β and ≤. Names of files that are no UTF-8 pass where they can. What a process without
    standard output or error would print is lost."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115  # for the whole process
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and (out.errors == "strict" or codecs.lookup(out.encoding).name != "utf-8"):
        out.reconfigure(errors="replace")


def _refuse_empty(rest: list[str]) -> None:
    """Refuse empty arguments: a shell variable without a value leaves one, and as a path it would be the current folder."""
    for before, word in zip(["", *rest], rest, strict=False):
        if word == "" or (word.startswith("--") and word.endswith("=")):
            from regard.support.checks import UnusableInputError

            name = word.rstrip("=") or (before if before.startswith("-") else "an argument")
            raise UnusableInputError(f"{name} is empty (''): pass a value, or leave it out")


def _import_own(rest: list[str]) -> None:
    """Import the modules or .py files of ``--import SOURCE`` and remove the options from the arguments."""
    while found := [at for at, word in enumerate(rest) if word.partition("=")[0] == "--import"]:
        from regard.support.checks import UnusableInputError
        from regard.training import import_code

        at = found[0]
        words = 1 if "=" in rest[at] else 2
        source = rest[at].partition("=")[2] if words == 1 else "".join(rest[at + 1 : at + 2])
        if not source or source.startswith("-"):
            raise UnusableInputError("--import needs the name of a module or the path of a .py file")
        import_code(source)
        del rest[at : at + words]


def _is_users(error: Exception) -> bool:
    """Whether the user can fix the error. Errors in regard itself keep their stack trace."""
    if isinstance(error, ValueError | OSError | ImportError) or _is_memory(error):
        return True
    return type(error).__module__.startswith("regard.")


def _is_memory(error: Exception) -> bool:
    """Whether the machine had too little memory for the sizes that were chosen. On a CPU torch says so in words only."""
    words = ("can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or any(each in str(error) for each in words))
    )


def _in_words(error: Exception) -> str:
    """The message; for a missing package, how to install it; for a file, its name before what the system says."""
    if isinstance(error, ModuleNotFoundError) and error.name and not error.name.startswith("regard"):
        return f"this command needs {error.name.partition('.')[0]}: pip install 'regard[all]'"
    if _is_memory(error):
        reason = f" ({error})" if str(error) else ""  # Python's own MemoryError says nothing
        return f"this machine has too little memory for these sizes: choose smaller ones{reason}"
    if isinstance(error, OSError) and error.strerror and type(error).__str__ is OSError.__str__:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def _help() -> str:
    width = max(map(len, commands()))
    lines = [f"  {name:<{width}}  {what}" for name, what in commands().items()]
    return "\n".join(
        [
            "usage: regard COMMAND …      (regard COMMAND --help describes a command)",
            "",
            *lines,
            "",
            "--import my_package.module (or a .py file) loads your own tasks and networks, for any command.",
            "REGARD_TRACEBACK=1 shows the stack trace of an error.",
            "exit codes: 0 done; 1 the work or a check failed; 2 an argument cannot be used; 130 stopped by Ctrl-C (training: "
            "also by SIGTERM)",
        ]
    )
