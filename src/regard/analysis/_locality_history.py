"""Locality during training: the same input through every checkpoint of a folder."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from regard.analysis._accuracy import call, evaluating
from regard.analysis._locality import Locality, locality
from regard.maps import capture
from regard.support.checks import describe
from regard.support.tables import text_table

_PREFIXES = ("", "network.", "model.", "module.", "_orig_mod.")


@dataclass(frozen=True)
class LocalityHistory:
    """The locality of the heads at each checkpoint, in order.

    Attributes:
        checkpoints: the files.
        localities: one result for each file.
    """

    checkpoints: list[Path]
    localities: list[Locality]

    def __iter__(self) -> Iterator[tuple[Path, Locality]]:
        return iter(zip(self.checkpoints, self.localities, strict=True))

    def __len__(self) -> int:
        return len(self.checkpoints)

    def of(self, name: str, head: int) -> dict[str, Tensor]:
        """One head over time: center, sharpness, fit, overlap and distance; the first axis is checkpoints."""
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
) -> LocalityHistory:
    """Fit every head at every checkpoint: how heads become local, or stop being local, while they learn.

    Args:
        model: a model of the checkpoints' architecture; it gets its own weights back at the end.
        folder: a folder with checkpoints, which are sorted by the numbers in their paths.
        x: the input for all of them: a tensor, a mapping or a sequence.
        pattern: which files in the folder are checkpoints.
        grid, prefix, only: as in ``regard.locality`` and ``regard.capture``.
        load: returns the model's state in a file; by default it reads safetensors and removes a prefix such as
            ``model.``.
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
                    raise ValueError(f"{path} does not contain the state of {type(model).__name__}")
                continue  # the state of an optimizer, for example
            model.load_state_dict(fitting)
            with torch.no_grad(), evaluating(model), capture(model, only=only) as maps:
                call(model, x)
            found.append(locality(maps, grid, prefix))
            used.append(path)
    finally:
        model.load_state_dict(own)
    if not used:
        raise ValueError(f"none of the {len(files)} files in {root} contains the state of {type(model).__name__}")
    return LocalityHistory(used, found)


def _natural(text: str) -> list[Any]:
    """A sort key that compares numbers by value: step-9 before step-10."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", text)]


def _load(path: Path) -> Mapping[str, Tensor]:
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise ImportError("reading checkpoints needs safetensors: pip install 'regard[train]'") from error
    return load_file(path)  # type: ignore[no-any-return]


def _matching(state: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The model's entries of ``state``, under one of the usual prefixes; None if some are missing."""
    for prefix in _PREFIXES:
        found = {name: state[prefix + name] for name in own if prefix + name in state}
        if len(found) == len(own) and all(found[name].shape == own[name].shape for name in own):
            return found
    return None
