"""Encode values as bytes between the grader and the process that runs a student's code. Nothing is unpickled.

A message is a JSON tree and the bytes of its tensors. Both sides import this file; it needs only torch.
"""

import json
import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import torch

LARGEST = 32 * 2**20  # bytes of a message: no exercise returns more
LARGEST_TREE = (
    2 * 2**20
)  # bytes of JSON in it, which take fifty times as much memory when parsed; tensors are sent as bytes
_DTYPES = {
    str(kind): kind
    for kind in (torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64)
}


class Unreadable(ValueError):
    """The received bytes are not a valid message."""


class Other:
    """A student's object that is not plain data; only the name of its type is sent."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"a {self.name}"


def pack(value: Any, callback: Callable[[Any], int] | None = None) -> bytes:
    """The message of a value. Functions are numbered by ``callback``; without it only their names are sent.

    >>> from regard.course.grading._codec import pack, unpack
    >>> unpack(pack({"a": (1, torch.ones(2), None, ...)}))
    {'a': (1, tensor([1., 1.]), None, Ellipsis)}
    """
    blobs: list[bytes] = []
    tree = json.dumps(_tree(value, blobs, callback, 0)).encode()
    body = struct.pack("<I", len(tree)) + tree + b"".join(blobs)
    if len(body) > LARGEST:
        raise ValueError(f"the result has {len(body):,} bytes, more than {LARGEST:,}")
    return struct.pack("<I", len(body)) + body


def unpack(message: bytes, function: Callable[[int], Any] | None = None) -> Any:
    """The value of a message, after checking all kinds, shapes and lengths."""
    try:
        (size,) = struct.unpack_from("<I", message)
        (length,) = struct.unpack_from("<I", message, 4)
        if size + 4 != len(message) or length + 8 > len(message) or length > LARGEST_TREE:
            raise Unreadable("the lengths do not fit")
        return _value(json.loads(message[8 : 8 + length]), message[8 + length :], function)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, RecursionError, struct.error) as error:
        raise Unreadable(str(error)) from None


def _tree(value: Any, blobs: list[bytes], callback: Callable[[Any], int] | None, depth: int) -> Any:
    def inside(part: Any) -> Any:
        return _tree(part, blobs, callback, depth + 1)

    if depth > 16:
        return {"other": "deeply nested value"}
    if value is None or isinstance(value, bool):
        return value
    if value is Ellipsis:
        return {"ellipsis": 1}
    if isinstance(value, int):
        return int(value) if abs(value) < 2**62 else {"float": float(value).hex()}
    if isinstance(value, float | Fraction):
        return {"float": float(value).hex()}
    if isinstance(value, str):
        return {"text": str(value)[:4000]}
    if isinstance(value, torch.Tensor):
        return _tensor(value, blobs)
    for name, kind in (("tuple", tuple), ("list", list), ("set", (set, frozenset))):
        if isinstance(value, kind):
            return {name: [inside(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[inside(key), inside(part)] for key, part in value.items()]}
    if type(value).__module__.split(".")[0] == "matplotlib" and hasattr(value, "savefig"):
        return inside(plain_figure(value))
    if type(value).__module__ == "numpy" and hasattr(value, "dtype") and value.dtype.kind in "biufc":
        return _tensor(torch.as_tensor(value), blobs)
    if callback is not None and (callable(value) or hasattr(value, "made_number")):
        return {"function": callback(value)}
    return {"other": type(value).__name__[:80]}


def _tensor(value: torch.Tensor, blobs: list[bytes]) -> Any:
    plain = value.detach()
    if plain.layout is not torch.strided:
        plain = plain.to_dense()
    if str(plain.dtype) not in _DTYPES:
        kind = torch.complex64 if plain.is_complex() else torch.float32 if plain.is_floating_point() else torch.int64
        plain = plain.to(kind)
    if plain.numel() * plain.element_size() > LARGEST:
        raise ValueError(f"a tensor of shape {tuple(plain.shape)} is larger than any answer needs to be")
    blobs.append(plain.cpu().contiguous().numpy().tobytes())
    return {"tensor": [str(plain.dtype), list(plain.shape), len(blobs[-1]), bool(value.requires_grad)]}


def plain_figure(figure: Any) -> dict[str, Any]:
    """The contents of a matplotlib figure, as numbers. A colorbar is no panel of its own."""
    return {"axes": [_drawn(panel) for panel in figure.axes if panel.get_label() != "<colorbar>"]}


def _drawn(panel: Any) -> dict[str, Any]:
    """The contents of a matplotlib panel, as numbers. Lines across the whole panel (``axhline``) are no data."""
    lines = [line for line in panel.lines if line.get_transform() is panel.transData]
    return {
        "images": [_numbers(image.get_array()) for image in panel.images[:64]],
        "lines": [torch.as_tensor(line.get_xydata()).double() for line in lines[:64]],
        "points": [_numbers(each.get_offsets()) for each in panel.collections[:64] if hasattr(each, "get_offsets")],
        "title": str(panel.get_title()),
        "xlabel": str(panel.get_xlabel()),
        "ylabel": str(panel.get_ylabel()),
    }  # fmt: skip


def _numbers(drawn: Any) -> torch.Tensor:
    """An array as matplotlib keeps it, masked or not, as a tensor: NaN where it is masked."""
    return torch.as_tensor(drawn.filled(math.nan) if hasattr(drawn, "filled") else drawn).double()


def _value(tree: Any, blobs: bytes, function: Callable[[int], Any] | None) -> Any:
    place = 0

    def read(node: Any) -> Any:
        nonlocal place
        if node is None or isinstance(node, bool | int):
            return node
        if not isinstance(node, dict) or len(node) != 1:
            raise Unreadable("a value has no kind")
        ((kind, inner),) = node.items()
        if kind == "ellipsis":
            return ...
        if kind == "float":
            return float.fromhex(inner)
        if kind == "text":
            return str(inner)
        if kind in ("tuple", "list", "set"):
            parts = [read(part) for part in inner]
            return {"tuple": tuple, "list": list, "set": set}[kind](parts)
        if kind == "dict":
            return {read(key): read(part) for key, part in inner}
        if kind == "tensor":
            dtype, shape, length, requires_grad = inner
            if not (0 <= place <= place + length <= len(blobs)) or any(size < 0 for size in shape):
                raise Unreadable("a tensor's numbers are missing")
            found = torch.frombuffer(bytearray(blobs[place : place + length] or b"\0" * 16), dtype=_DTYPES[dtype])
            place += length
            found = found[: math.prod(shape)].reshape(shape)
            return found.requires_grad_(bool(requires_grad) and found.is_floating_point())
        if kind == "function" and function is not None:
            return function(int(inner))
        if kind == "other":
            return Other(str(inner)[:80])
        raise Unreadable(f"there is no kind {kind!r}")

    return read(tree)
