"""The data of a view, as sent to a browser: a JSON header and one binary buffer."""

import ctypes
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from regard.support.checks import describe
from regard.support.files import finite_numbers
from regard.support.text import whole_characters

VERSION = 1
FINE = 1_000_000  # weights; on a page with fewer each has two bytes, else one
_ALIGNMENT = 8  # browsers need aligned offsets to read typed arrays in place
_DTYPES = {
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.uint16: "uint16",
    torch.int32: "int32",
    torch.float16: "float16",
    torch.float32: "float32",
}


@dataclass(frozen=True)
class Scaled:
    """Numbers with one factor per slice of the leading axes: value = stored · scale, or stored · |stored| · scale.

    Attributes:
        stored: whole numbers, or float16.
        scale: float32, over the leading axes of ``stored``.
        squared: whether ``stored`` holds square roots.
    """

    stored: Tensor
    scale: Tensor
    squared: bool = False

    @classmethod
    def rows(cls, values: Tensor) -> "Scaled":
        """Each row in steps of 1/255 of its largest entry, with an error of at most half a step. No entry is negative.

        >>> kept = Scaled.rows(torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.0, 0.01]]))
        >>> kept.stored.tolist()
        [[0, 128, 255], [0, 0, 255]]
        """
        values = values.detach().float()
        largest = _largest(values)
        steps = values * (255 / largest.clamp_min(1e-30))[..., None]
        return cls(steps.round_().to(torch.uint8), largest / 255)

    @classmethod
    def roots(cls, weights: Tensor, fine: bool) -> "Scaled":
        """Each row as square roots, in steps of 1/255 of the largest root; in steps of 1/32767 if they are to be ``fine``, or
        if weights are negative. So small weights stay visible beside one that takes nearly everything.

        A weight w in a row with the largest weight m is off by at most √(w·m)/steps + m/(4·steps²).

        >>> kept = Scaled.roots(torch.tensor([[0.99, 0.001, 0.002]]), fine=False)
        >>> [round(weight, 5) for weight in kept.values[0].tolist()]  # with fine=True, all three as they are
        [0.99, 0.00097, 0.00184]
        """
        weights = weights.detach().float()
        signed = bool(weights.numel()) and float(weights.min()) < 0
        steps, dtype = (32767, torch.int16) if fine or signed else (255, torch.uint8)
        largest = _largest(weights)
        shares = weights / largest.clamp_min(1e-30)[..., None]
        roots = shares.abs().sqrt_().copysign_(shares) if signed else shares.sqrt_()
        return cls(roots.mul_(steps).round_().to(dtype), largest / steps**2, squared=True)

    @classmethod
    def halves(cls, values: Tensor) -> "Scaled":
        """Each row as float16 shares of its largest entry: twice the bytes of :meth:`rows`, but small entries keep three
        digits beside a large one (a key that takes nearly everything).

        >>> Scaled.halves(torch.tensor([[1e5, 1.0, 20.0]])).values.round(decimals=1).tolist()
        [[100000.0, 1.0, 20.0]]
        """
        values = values.detach().float()
        largest = _largest(values)
        return cls((values / largest.clamp_min(1e-30)[..., None]).half(), largest)

    @property
    def values(self) -> Tensor:
        """The values as a browser decodes them."""
        axes = self.stored.ndim - self.scale.ndim
        stored = self.stored.float()
        if self.squared:
            stored = stored * stored.abs()
        return stored * self.scale.reshape(*self.scale.shape, *(1,) * axes)


def _largest(values: Tensor) -> Tensor:
    """The largest absolute value of each row."""
    return values.abs().amax(-1) if values.numel() else values.new_zeros(values.shape[:-1])


@dataclass(frozen=True, eq=False)
class Payload:
    """One view's data.

    Attributes:
        view: the name of the view.
        meta: everything but large arrays, as JSON. NaN and infinity become null.
        arrays: tensors or :class:`Scaled` tensors, by name.
        late: names of the arrays that a view needs only later. They come last, so that a large page shows something at once.

    >>> payload = Payload("tokens", {"n": 2}, {"map": Scaled.rows(torch.eye(2))})
    >>> json.loads(payload.header)["arrays"]["map"]
    {'dtype': 'uint8', 'shape': [2, 2], 'offset': 8, 'length': 4, 'scale': 'map.scale'}
    >>> len(payload.buffer)
    16
    """

    view: str
    meta: dict[str, Any]
    arrays: Mapping[str, Tensor | Scaled] = field(default_factory=dict)
    late: frozenset[str] = frozenset()

    @cached_property
    def _encoded(self) -> tuple[str, list[memoryview], int]:
        described: dict[str, Any] = {}
        parts: list[memoryview] = []
        place = 0
        early = None  # the number of parts before the first late one

        def add(name: str, tensor: Tensor, scaled: dict[str, Any]) -> None:
            nonlocal place
            if tensor.dtype not in _DTYPES:
                raise TypeError(f"array {name!r} must be one of {', '.join(_DTYPES.values())}, got {describe(tensor)}")
            content = _view(tensor)
            about = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "offset": place}
            described[name] = {**about, "length": len(content), **scaled}
            gap = -len(content) % _ALIGNMENT
            parts.extend((content, memoryview(bytes(gap))))
            place += len(content) + gap

        for name, value in sorted(self.arrays.items(), key=lambda item: item[0] in self.late):  # a stable order
            if name in self.late and early is None:
                early = len(parts)
            if isinstance(value, Scaled):
                add(f"{name}.scale", value.scale, {})
                add(name, value.stored, {"scale": f"{name}.scale"} | ({"squared": True} if value.squared else {}))
            else:
                add(name, value, {})
        header = {"view": self.view, "version": VERSION, "meta": finite_numbers(self.meta), "arrays": described}
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        return whole_characters(text), parts, len(parts) if early is None else early

    @property
    def header(self) -> str:
        return self._encoded[0]

    @property
    def pieces(self) -> list[memoryview]:
        """The buffer in pieces, without a copy, to save memory with large maps."""
        return self._encoded[1]

    @property
    def early(self) -> list[memoryview]:
        """The pieces of the arrays that a view needs first."""
        return self.pieces[: self._encoded[2]]

    @property
    def rest(self) -> list[memoryview]:
        """The pieces of the arrays that may come late."""
        return self.pieces[self._encoded[2] :]

    @cached_property
    def buffer(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def size(self) -> int:
        """Bytes of the buffer."""
        return sum(len(piece) for piece in self.pieces)

    @property
    def body(self) -> bytes:
        """One sequence of bytes: the length of the header (4 bytes, little endian), the header, padding to 8, the buffer.

        >>> struct.unpack("<I", Payload("tokens", {}).body[:4])
        (51,)
        """
        header = self.header.encode()
        padding = bytes(-(4 + len(header)) % _ALIGNMENT)
        return struct.pack("<I", len(header)) + header + padding + self.buffer

    def __repr__(self) -> str:
        return f"Payload({self.view!r}, {len(self.arrays)} arrays, {self.size:,} bytes)"


def _view(tensor: Tensor) -> memoryview:
    """The bytes of the elements in row-major order, without NumPy, which is not a dependency of the core.

    >>> bytes(_view(torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8).T))
    b'\\x01\\x03\\x02\\x04'
    """
    tensor = tensor.detach().cpu().contiguous()
    if not tensor.nbytes:
        return memoryview(b"")
    content = (ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())
    content.owner = tensor  # type: ignore[attr-defined]  # keeps the memory alive as long as it is viewed
    return memoryview(content).cast("B")
