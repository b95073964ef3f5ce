"""Checkpoints as safetensors and JSON, safe against kills, damaged files and full disks. Nothing is unpickled.

A checkpoint is a folder ``step-00000120`` with two files:

- ``state.safetensors``: every tensor by name (``network.…``, ``average.…``, ``optimizer.…``);
- ``state.json``: ``{"digest": …, "state": {…}}``, where the state holds all other values, and the size and digest of
  the file of tensors; ``digest`` is the digest of the state itself.

It is written under another name, flushed to the disk and renamed, so a folder of that name is always complete.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard.support.checksums import checksum
from regard.support.files import reporting_full_disk, sync_folder, write_synced
from regard.support.reading import UnreadableError, check_regular, read_limited, read_object

_TENSORS, _STATE = "state.safetensors", "state.json"
_STEP = re.compile(r"step-([0-9]{8,15})")
_LARGEST_STATE = 16 * 2**20


class DamagedCheckpointError(RuntimeError):
    """The files of a checkpoint are damaged."""


class Checkpoint(NamedTuple):
    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors whose names begin with ``name.``, without that prefix."""
        return {key.partition(".")[2]: value for key, value in self.tensors.items() if key.partition(".")[0] == name}


class Checkpoints:
    """The checkpoints of a run, in one folder.

    Args:
        folder: the folder.
        keep: number of latest checkpoints to keep, besides the best one.

    >>> import tempfile
    >>> from regard.training import Checkpoints
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     checkpoints = Checkpoints(folder, keep=1)
    ...     for step, score in ((10, 0.7), (20, 0.9), (30, 0.8), (40, 0.6)):
    ...         path = checkpoints.save(step, {"network.x": torch.ones(2)}, {"score": score})
    ...     checkpoints.steps(), checkpoints.load(40).tensors
    ([20, 40], {'network.x': tensor([1., 1.])})
    """

    def __init__(self, folder: str | os.PathLike[str], keep: int = 2) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep must be a whole number of 1 or more, got {keep!r}")
        self.folder = Path(folder)
        self.keep = keep

    def path(self, step: int) -> Path:
        return self.folder / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """The steps of the existing checkpoints, oldest first."""
        if not self.folder.is_dir():
            return []
        found = (_STEP.fullmatch(path.name) for path in self.folder.iterdir())
        return sorted(int(name[1]) for name in found if name)

    def best(self) -> int | None:
        """The step of the checkpoint with the highest score (the earliest, if several have it); None if none has a score."""
        scores = [(score, -step) for step in self.steps() if (score := self.score(step)) is not None]
        return -max(scores)[1] if scores else None

    def save(self, step: int, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> Path:
        """Save a checkpoint, then remove those that are neither among the last ``keep`` nor the best.

        ``state["score"]`` is a number or None; higher is better. An existing checkpoint of that step is not replaced.
        """
        from safetensors.torch import save

        if self.path(step).exists():
            return self.path(step)
        content = save({name: _plain(tensor) for name, tensor in tensors.items()})
        described = {**state, "step": step, "tensors": {"bytes": len(content), "digest": checksum(content)}}
        text = json.dumps(described)
        aside = self.folder / f".writing-{step:08d}"
        with reporting_full_disk(self.folder, f"checkpoint of step {step}", len(content) + len(text)):
            try:
                _remove(aside)
                aside.mkdir(parents=True)
                sync_folder(self.folder.parent)  # the folder of checkpoints may be new
                write_synced(aside / _TENSORS, content)
                whole = {"digest": checksum(text.encode()), "state": described}
                write_synced(aside / _STATE, json.dumps(whole).encode())
                sync_folder(aside)
                aside.rename(self.path(step))
                sync_folder(self.folder)
            except OSError:
                _remove(aside)
                raise
        self._prune()
        return self.path(step)

    def load(
        self, step: int, device: torch.device | str = "cpu", *, check: Callable[[Path], None] | None = None
    ) -> Checkpoint:
        """Read a checkpoint and verify its digests. ``check`` may refuse the file of tensors before it is read."""
        return read_checkpoint(self.path(step), device, check=check)

    def clean(self) -> None:
        """Remove incomplete or half-removed checkpoints of a killed process."""
        if self.folder.is_dir():
            for path in self.folder.glob(".*ing-*"):
                _remove(path)
            self._prune()

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is not used again."""
        damaged = self.path(step).with_suffix(".damaged")
        _remove(damaged)
        return self.path(step).rename(damaged)

    def damaged(self) -> list[int]:
        """The steps of the checkpoints that were set aside."""
        found = (_STEP.fullmatch(path.stem) for path in self.folder.glob("step-*.damaged"))
        return sorted(int(name[1]) for name in found if name)

    def _prune(self) -> None:
        steps, best = self.steps(), self.best()
        for step in steps[: -self.keep]:
            if step != best:
                # An interrupted removal must not leave a folder that looks like a checkpoint.
                going = self.folder / f".removing-{step:08d}"
                _remove(going)
                self.path(step).rename(going)
                _remove(going)

    def score(self, step: int) -> float | None:
        """The score of a checkpoint; None if it has none or is damaged."""
        try:
            found = read_state(self.path(step)).get("score")
        except (DamagedCheckpointError, OSError):
            return None
        return float(found) if isinstance(found, int | float) and math.isfinite(found) else None


def read_state(path: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint, its digest verified."""
    try:
        whole = read_object(path / _STATE, _LARGEST_STATE, finite=False)
        state, digest = whole["state"], whole["digest"]
    except FileNotFoundError as missing:
        raise DamagedCheckpointError(f"{path}: {_STATE} is missing") from missing
    except PermissionError:
        raise
    except (OSError, ValueError, KeyError) as broken:
        raise DamagedCheckpointError(f"{path}: {_STATE} cannot be read ({broken})") from broken
    if not isinstance(state, dict) or checksum(json.dumps(state).encode()) != digest:
        raise DamagedCheckpointError(f"{path}: {_STATE} was changed: its digest differs")
    return state


def read_checkpoint(
    path: str | os.PathLike[str],
    device: torch.device | str = "cpu",
    *,
    check: Callable[[Path], None] | None = None,
) -> Checkpoint:
    """Read both files of a checkpoint and verify their digests."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = Path(path)
    state = read_state(path)
    expected = state.get("tensors")
    if not isinstance(expected, dict) or not isinstance(expected.get("bytes"), int):
        raise DamagedCheckpointError(f"{path}: {_STATE} does not describe {_TENSORS}")
    try:
        size = check_regular(path / _TENSORS)
        if size != expected["bytes"]:  # checked before the file is read
            raise DamagedCheckpointError(f"{path}: {_TENSORS} has {size} bytes instead of {expected['bytes']}")
        if check is not None:
            check(path / _TENSORS)
        content = read_limited(path / _TENSORS, size)
    except FileNotFoundError as missing:
        raise DamagedCheckpointError(f"{path}: {_TENSORS} is missing") from missing
    except UnreadableError as wrong:
        raise DamagedCheckpointError(str(wrong)) from wrong
    if checksum(content) != expected.get("digest"):
        raise DamagedCheckpointError(f"{path}: {_TENSORS} was changed: its digest differs")
    try:
        return Checkpoint({name: tensor.to(device) for name, tensor in load(content).items()}, state)
    except (SafetensorError, ValueError, KeyError) as wrong:  # the header was already wrong when it was written
        raise DamagedCheckpointError(f"{path}: {_TENSORS} cannot be read ({wrong})") from wrong


def _plain(tensor: Tensor) -> Tensor:
    """A copy on the CPU: safetensors refuses tensors that share memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _remove(path: Path) -> None:
    """Remove a folder with its contents; of anything else, also of a link to a folder, only the entry itself."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
