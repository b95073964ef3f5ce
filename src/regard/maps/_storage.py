"""Where weights are kept: in memory up to a budget, or in memory-mapped files."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.maps._files import write_index
from regard.maps._record import AttentionRecord

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_size(size: str | int) -> int:
    """Bytes.

    >>> parse_size("2GiB"), parse_size("1.5 MB"), parse_size(100)
    (2147483648, 1500000, 100)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = re.fullmatch(r"\s*([0-9.]+)\s*([A-Za-z]*)\s*", size) if isinstance(size, str) else None
    if found is None or found[2].upper() not in _UNITS or found[1].count(".") > 1 or found[1] == ".":
        raise ValueError(f'budget must be a number of bytes or a size such as "2GiB" or "500MB", got {size!r}')
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass
class Allotted:
    """Room for one map: a tensor to fill (a file), or permission to keep one in memory."""

    storage: "Storage"
    size: int
    tensor: Tensor | None = None

    def keep(self, tensor: Tensor) -> Tensor:
        """Account for this tensor: a map that is the same for the whole batch needs less room than was reserved."""
        self.storage.used += tensor.nbytes - self.size
        return tensor

    def give_back(self) -> None:
        self.storage.used -= self.size


class Storage:
    """Room for maps: ``budget`` bytes of memory (None: no limit), or files in ``folder``."""

    def __init__(self, budget: int | None, folder: Path | None) -> None:
        self.budget = budget
        self.folder = folder
        self.used = 0
        self._files: dict[int, str] = {}
        self._count = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.glob("*.map")):
                raise ValueError(f"stream={str(folder)!r} already contains maps: pass an empty folder")

    def allot(self, shape: tuple[int, ...], dtype: torch.dtype) -> Allotted | str:
        """Room for a map of this shape, or the reason why there is none."""
        size = math.prod(shape) * dtype.itemsize
        if self.folder is not None:
            path = self.folder / f"{self._count:06d}.map"
            self._count += 1
            if size == 0:
                return Allotted(self, 0)
            flat = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype)
            self._files[flat.data_ptr()] = path.name
            return Allotted(self, 0, flat.reshape(shape))
        if self.budget is not None and self.used + size > self.budget:
            return (
                f"the budget of {readable(self.budget)} is used up ({readable(self.used)}, this map {readable(size)})"
            )
        self.used += size
        return Allotted(self, size)

    def release(self, tensor: Tensor) -> None:
        """Free the room of a map."""
        if self.folder is None:
            self.used -= tensor.nbytes
        elif name := self._files.pop(tensor.data_ptr(), None):
            (self.folder / name).unlink()

    def finish(self, records: list[AttentionRecord]) -> None:
        """Write the index of a folder, so that its maps can be read later."""
        if self.folder is not None:
            kept = [record for record in records if record.stored is not None and record.stored.numel()]
            write_index(self.folder, [(record, self._files[record.stored.data_ptr()]) for record in kept])  # type: ignore[union-attr]


def readable(size: int) -> str:
    """
    >>> readable(3 * 2**20)
    '3.0 MiB'
    """
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024  # type: ignore[assignment]
    return f"{size:.1f} GiB"
