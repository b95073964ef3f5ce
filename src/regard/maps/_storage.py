"""``Storage``: where maps are kept, in memory up to a budget, or in memory-mapped files."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from regard.maps._folders import write_index
from regard.maps._maps_json import MapsContent
from regard.support.text import format_size


@dataclass
class Allotted:
    """Space that was reserved for one map: a memory-mapped file to fill, or a part of the budget (``tensor`` is None)."""

    storage: "Storage"
    size: int
    tensor: Tensor | None = None

    def keep(self, tensor: Tensor) -> Tensor:
        """Correct the reserved size to that of this map. A map that is the same for the whole batch is smaller."""
        self.storage.used += tensor.nbytes - self.size
        return tensor


class Storage:
    """Space for maps: ``budget`` bytes of memory (None: no limit), or files in ``folder``."""

    def __init__(self, budget: int | None, folder: Path | None) -> None:
        self.budget = budget
        self.folder = folder
        self.used = 0
        self._files: dict[int, str] = {}
        self._count = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            # Files are mapped into memory: writing others in their place would change maps that are in use.
            if any(any(folder.glob(kind)) for kind in ("*.map", "*.keys", "maps.json")):
                raise ValueError(f"stream={str(folder)!r} already contains maps: pass an empty folder")

    def allot(self, shape: tuple[int, ...], dtype: torch.dtype, working: int = 0) -> Allotted | str:
        """Reserve space for a map of this shape. Returns the reason if there is not enough.

        Args:
            working: bytes that are needed in addition while it is built.
        """
        size = math.prod(shape) * dtype.itemsize
        if self.folder is not None:
            return Allotted(self, 0, self._in_file(self.folder, "map", shape, dtype) if size else None)
        reason = self.take(size, working)
        return Allotted(self, size) if reason is None else reason

    @property
    def left(self) -> int | None:
        """Bytes of the budget that are not used; None without a limit."""
        return None if self.budget is None else max(0, self.budget - self.used)

    def has_room(self, size: int) -> bool:
        """Whether the budget has room for so many bytes more."""
        return self.budget is None or self.used + size <= self.budget

    def why_full(self, size: int, working: int = 0, what: str = "this map") -> str | None:
        """The reason why the budget has no room for ``size`` bytes and ``working`` more while it is computed; None if it has."""
        if self.budget is None or self.has_room(size + working):
            return None
        budget, used, needed, more = (format_size(n, binary=True) for n in (self.budget, self.used, size, working))
        besides = f", and {more} while it is computed" if working else ""
        return f"the budget of {budget} has no room for {what}: {used} are in use, and it needs {needed}{besides}"

    def take(self, size: int, working: int = 0, what: str = "this map") -> str | None:
        """Count ``size`` bytes as used, or return the reason why there is no room for them (see :meth:`why_full`)."""
        reason = self.why_full(size, working, what)
        self.used += size if reason is None else 0
        return reason

    def place(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor in a file of the folder; the tensor itself without a folder."""
        if self.folder is None or not tensor.numel():
            return tensor
        return self._in_file(self.folder, "keys", tensor.shape, tensor.dtype).copy_(tensor)

    def _in_file(self, folder: Path, ending: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor in a new file of the folder."""
        path = folder / f"{self._count:06d}.{ending}"
        self._count += 1
        flat = torch.from_file(str(path), shared=True, size=math.prod(shape), dtype=dtype)
        self._files[flat.data_ptr()] = path.name
        return flat.view(shape)

    def replace(self, before: Tensor, new: Tensor) -> Tensor:
        """``new`` in place of a map that is no longer needed: in a file of the folder, if there is one."""
        self.release(before)
        if self.folder is None:
            self.used += new.nbytes
            return new
        room = self.allot(tuple(new.shape), new.dtype)
        return new if isinstance(room, str) or room.tensor is None else room.tensor.copy_(new)

    def release(self, tensor: Tensor) -> None:
        """Free the space of a map."""
        if self.folder is None:
            self.used -= tensor.nbytes
        elif name := self._files.pop(tensor.data_ptr(), None):
            (self.folder / name).unlink()

    def finish(self, content: MapsContent) -> None:
        """Write the index of a folder, so that its maps can be read later, with all that is said about them."""
        if self.folder is not None:
            write_index(self.folder, content, lambda x: self._files.get(x.data_ptr()))
