"""Print a SHA-256 of the trained weights of three short runs. Equal lines before and after a change mean equal numbers.

    python scripts/fingerprints/training.py

The three runs are ``demo --smoke``, ``case-transformer --smoke``, and ``demo --smoke`` again, interrupted by SIGINT and
resumed. Everything runs on one thread of the CPU, in a temporary folder, through the command line and the public API.
"""

import contextlib
import hashlib
import io
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from regard.cli import main

CALLS_BEFORE_INTERRUPT = 100  # calls of any module: in the middle of a smoke run, whose eight steps make about 300


def lines() -> Iterator[str]:
    """One line per run: its name and the digest of its last network."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            for name in ("demo", "case-transformer"):
                folder = Path(temporary) / name
                _train(name, folder)
                yield f"training/{name}  {_digest(folder)}"
            folder = Path(temporary) / "resumed"
            step = _train_interrupted("demo", folder)
            resumed = _digest(folder)
            if resumed != _digest(Path(temporary) / "demo"):
                raise RuntimeError(f"the run interrupted at step {step} and resumed differs from the uninterrupted one")
            yield f"training/demo-resumed  {resumed}"
    finally:
        torch.set_num_threads(threads)


def _train(name: str, folder: Path, *options: str) -> int:
    words = ["train", name, "--smoke", "--folder", str(folder), "--accelerator", "cpu", "--no-tensorboard", *options]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = main(words)
    if code not in (0, 130):  # 130: interrupted
        raise RuntimeError(f"regard {' '.join(words)} exited with {code}: {errors.getvalue()}")
    return code


def _train_interrupted(name: str, folder: Path) -> int:
    """Train, interrupt at some step, and resume. Returns the step of the interruption."""
    calls = 0

    def interrupt(module: nn.Module, inputs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == CALLS_BEFORE_INTERRUPT:
            os.kill(os.getpid(), signal.SIGINT)

    hook = nn.modules.module.register_module_forward_pre_hook(interrupt)
    try:
        code = _train(name, folder)
    finally:
        hook.remove()
    run = regard.load_run(folder)
    if code != 130 or run.summary is not None:
        raise RuntimeError(f"the run of {name} finished before it could be interrupted")
    step = run.checkpoints.steps()[-1]
    _train(name, folder, "--resume", "true")
    return step


def _digest(folder: Path) -> str:
    """SHA-256 over the names, types, shapes and bytes of the tensors of a run's last network."""
    digest = hashlib.sha256()
    for name, tensor in sorted(regard.load_run(folder).network().state_dict().items()):
        plain = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return digest.hexdigest()


if __name__ == "__main__":
    for line in lines():
        print(line, flush=True)
