"""Locality over training: the same images through every checkpoint of a folder."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis._locality import Locality, locality
from regard.analysis._measure import evaluating
from regard.analysis._relevance import call
from regard.maps._capture import capture
from regard.support.checks import describe
from regard.support.tables import text_table

_PREFIXES = ("", "network.", "model.", "module.", "_orig_mod.")


@dataclass(frozen=True)
class Trajectory:
    """What locality found at each checkpoint, in order.

    Attributes:
        checkpoints: the files.
        localities: one for each.
    """

    checkpoints: list[Path]
    localities: list[Locality]

    def __iter__(self) -> Iterator[tuple[Path, Locality]]:
        return iter(zip(self.checkpoints, self.localities, strict=True))

    def __len__(self) -> int:
        return len(self.checkpoints)

    def of(self, name: str, head: int) -> dict[str, Tensor]:
        """One head over time: center, sharpness, fit and overlap, first axis checkpoints."""
        heads = [found[name, head] for found in self.localities]
        fields = ("center", "sharpness", "fit", "overlap", "distance")
        return {field: torch.tensor([getattr(one, field) for one in heads]) for field in fields}

    def __repr__(self) -> str:
        rows: list[tuple[str, ...]] = [("checkpoint", "heads", "mean fit", "mean overlap", "mean distance")]
        for path, found in self:
            count = max(1, len(found))
            means = [sum(getattr(h, field) for h in found) / count for field in ("fit", "overlap", "distance")]
            rows.append((str(Path(*path.parts[-2:])), str(len(found)), *(f"{mean:.3f}" for mean in means)))
        return "\n".join(text_table(rows))


def trajectory(
    model: nn.Module,
    folder: str | Path,
    x: Any,
    *,
    pattern: str = "**/*.safetensors",
    grid: tuple[int, ...] | None = None,
    prefix: int | None = None,
    only: str | None = None,
    load: Callable[[Path], Mapping[str, Tensor]] | None = None,
) -> Trajectory:
    """Fit every head at every checkpoint: how heads become (or stop being) like convolutions while they learn.

    Args:
        model: of the checkpoints' architecture; its own weights are put back at the end.
        folder: with checkpoints, in the order of the numbers in their paths.
        x: the input that all of them see: a tensor, a mapping or a sequence.
        pattern: which files in the folder are checkpoints.
        grid, prefix, only: as in ``regard.locality`` and ``regard.capture``.
        load: gives the model's state for a file, default safetensors (a prefix such as ``model.`` is taken off).
    """
    root = Path(folder)
    if not root.is_dir():
        raise ValueError(f"folder must be a directory of checkpoints, got {describe(folder)}")
    files = sorted(root.glob(pattern), key=lambda path: _natural(str(path.relative_to(root))))
    if not files:
        raise ValueError(f"there are no checkpoints {pattern!r} in {root}")
    own = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    found: list[Locality] = []
    used: list[Path] = []
    try:
        for path in files:
            state = (load or _load)(path)
            fitting = _matching(state, own)
            if fitting is None:
                if load is not None or len(files) == 1:
                    raise ValueError(f"{path} does not hold the state of {type(model).__name__}")
                continue  # an optimizer's state beside the model's
            model.load_state_dict(fitting)
            with torch.no_grad(), evaluating(model), capture(model, only=only) as maps:
                call(model, x)
            found.append(locality(maps, grid, prefix))
            used.append(path)
    finally:
        model.load_state_dict(own)
    if not used:
        raise ValueError(f"none of {len(files)} files in {root} holds the state of {type(model).__name__}")
    return Trajectory(used, found)


def _natural(text: str) -> list[Any]:
    """Numbers compare as numbers: step-9 before step-10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text)]


def _load(path: Path) -> Mapping[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError("reading checkpoints needs safetensors: pip install 'regard[train]'") from error
    return load_file(path)  # type: ignore[no-any-return]


def _matching(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The entries of ``state`` that are the model's, under one of the usual prefixes; None where they are not there."""
    for prefix in _PREFIXES:
        found = {name: state[prefix + name] for name in own if prefix + name in state}
        if len(found) == len(own) and all(found[name].shape == own[name].shape for name in own):
            return found
    return None
