"""Where maps are kept: in memory up to a budget, or in files that are mapped into memory."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from regard.support.text import format_size

if TYPE_CHECKING:
    from regard.maps._maps import Maps


@dataclass
class Allotted:
    """Room for one map: a tensor to fill (a file), or the permission to keep one."""

    storage: "Storage"
    size: int
    tensor: Tensor | None = None

    def keep(self, tensor: Tensor) -> Tensor:
        """Keep this one; a map that is the same for the whole batch takes less than was set aside."""
        self.storage.used += tensor.nbytes - self.size
        return tensor

    def give_back(self) -> None:
        self.storage.used -= self.size


class Storage:
    def __init__(self, budget: int | None, folder: Path | None) -> None:
        self.budget = budget
        self.folder = folder
        self.used = 0
        self._files: dict[int, str] = {}
        self._count = 0
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.glob("*.map")):
                raise ValueError(f"stream={str(folder)!r} holds maps already: give an empty folder")

    def allot(self, shape: tuple[int, ...], dtype: torch.dtype) -> Allotted | str:
        """Room for a map of this shape, or why there is none."""
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
            budget, used, needed = (format_size(n, binary=True) for n in (self.budget, self.used, size))
            return f"the budget of {budget} is used up ({used}, this map {needed})"
        self.used += size
        return Allotted(self, size)

    def release(self, tensor: Tensor) -> None:
        """Give the room of a map back."""
        if self.folder is None:
            self.used -= tensor.nbytes
        elif name := self._files.pop(tensor.data_ptr(), None):
            (self.folder / name).unlink()

    def finish(self, maps: "Maps") -> None:
        """Write down what the files hold, so that they can be loaded later."""
        if self.folder is None:
            return
        from regard.maps._files import describe_call

        index: list[dict[str, Any]] = []
        for name, found in maps.items():
            for call in found.calls:
                if call.stored is not None and call.stored.numel():
                    file = self._files[call.stored.data_ptr()]
                    dtype = str(call.stored.dtype).removeprefix("torch.")
                    index.append({**describe_call(name, call), "file": file, "dtype": dtype})
        text = json.dumps({"format": "regard maps", "version": 1, "calls": index}, indent=1)
        (self.folder / "maps.json").write_text(text)
