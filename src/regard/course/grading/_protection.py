"""Restrictions of a student's process: limits of the system, and a permanent hook on Python's audit events.

The process contains no secrets (hidden checks and correct results stay outside) and cannot forge marks (its results are
compared elsewhere). These limits keep it from reading other people's files, from using the network, and from harming
the machine. This file needs only torch, since it runs in the same process as student code.
"""

import contextlib
import ctypes
import os
import resource
import signal
import sys
import sysconfig
from pathlib import Path
from typing import Any

NOBODY = 65534
_DENIED_PREFIXES = (
    "ctypes.", "ftplib.", "gc.", "http.client.", "imaplib.", "nntplib.", "poplib.", "shutil.", "smtplib.", "socket.",
    "sqlite3.", "telnetlib.", "tempfile.", "urllib.", "webbrowser.", "winreg.", "_winapi.", "fcntl.", "mmap.",
)  # fmt: skip
_DENIED = {
    "builtins.breakpoint", "builtins.input", "code.__new__", "cpython.run_command", "cpython.run_file",
    "cpython.run_module", "os.add_dll_directory", "os.chflags", "os.chmod", "os.chown", "os.exec", "os.fork",
    "os.forkpty", "os.fwalk", "os.getxattr", "os.kill", "os.killpg", "os.link", "os.lockf", "os.mkdir", "os.posix_spawn",
    "os.putenv", "os.remove", "os.rename", "os.rmdir", "os.setxattr", "os.spawn", "os.startfile", "os.symlink",
    "os.system", "os.truncate", "os.unsetenv", "os.utime", "os.walk", "pdb.Pdb", "pickle.find_class", "pty.spawn",
    "resource.prlimit", "resource.setrlimit", "setopencodehook", "signal.pthread_kill", "subprocess.Popen",
    "sys.addaudithook", "sys.monitoring.register_callback", "sys.setprofile", "sys.settrace", "syslog.openlog",
    "syslog.setlogmask", "syslog.syslog",
}  # fmt: skip
# Packages with ready-made attention, and packages that could bypass the rules.
DENIED_MODULES = frozenset({
    "_curses", "_dbm", "_gdbm", "_posixsubprocess", "_sqlite3", "cffi", "curses", "dbm", "flash_attn", "jax", "keras",
    "multiprocessing", "readline", "rlcompleter", "scipy", "sklearn", "sqlite3", "subprocess", "tensorflow", "timm",
    "transformers", "vit_pytorch", "xformers", "x_transformers",
})  # fmt: skip
# Where torch has ready-made functions as Python formulas, which nothing switches off.
_FORMULAS = ("/torch/_refs", "/torch/_decomp", "/torch/nn/functional")
_DENIED_PARTS = ("/regard", "/notebooks", *_FORMULAS, "/proc/", "/sys/")
_ABOUT_FORMULAS = (
    "an answer may not load torch's own formulas of ready-made functions, which torch.func, torch.compile, torch.optim and "
    "forward mode need; torch.autograd.grad works"
)


def readable_roots() -> tuple[str, ...]:
    """The folders of Python and its packages, which imports in an answer may read."""
    paths = {*sysconfig.get_paths().values(), sys.base_prefix, *filter(None, sys.path)}
    return tuple(sorted(os.path.realpath(path).rstrip("/") + "/" for path in paths if Path(path).is_dir()))


def hide_from_others() -> None:
    """Prevent other processes from reading this one's memory, even with the same user id (Linux)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def limit(seconds: float, memory: int) -> None:
    """Limit processor seconds and additional bytes of memory; allow no new processes and files; if root, change the user."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
        libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the parent
        if os.geteuid() == 0:
            libc.unshare(0x40000000 | 0x08000000)  # CLONE_NEWNET, CLONE_NEWIPC: no network
        else:
            libc.unshare(0x10000000 | 0x40000000)  # CLONE_NEWUSER first, if the system allows it to ordinary users
    now = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    )
    whole = max(1, int(seconds + 0.999))
    for kind, most in (
        (resource.RLIMIT_AS, now + memory if now else resource.RLIM_INFINITY),
        (resource.RLIMIT_CPU, whole),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (most, most))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def forbid(roots: tuple[str, ...]) -> None:
    """Refuse what no answer needs: files, processes, network, foreign memory, tracing. This cannot be undone."""
    realpath, fspath, isinstance_, str_, any_ = os.path.realpath, os.fsdecode, isinstance, str, any
    prefixes, denied, modules, parts = _DENIED_PREFIXES, _DENIED, DENIED_MODULES, _DENIED_PARTS
    of_torch, formulas = _FORMULAS, _ABOUT_FORMULAS
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def may_read(path: Any) -> bool:
        if isinstance_(path, int):
            return False
        real = realpath(fspath(path))
        return (real + "/").startswith(roots) and not any_(part in real for part in parts)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in denied or event.startswith(prefixes):
            raise PermissionError(f"an answer may not use {event}")
        if event == "open":
            path, _, flags = arguments
            if (flags or 0) & writing or not may_read(path):
                raise PermissionError(
                    formulas if any_(part in str_(path) for part in of_torch) else "an answer may not open files"
                )
        elif event in ("os.listdir", "os.scandir", "os.chdir"):
            if not may_read(arguments[0] or "."):
                raise PermissionError("an answer may not look at folders")
        elif event == "import" and (
            str_(arguments[0]).split(".")[0] in modules or "flex_attention" in str_(arguments[0])
        ):
            raise PermissionError(f"an answer may not import {arguments[0]}")

    sys.addaudithook(hook)
