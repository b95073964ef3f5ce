"""A folder of streamed maps: a raw binary file for each tensor, and an index ``maps.json`` that describes them.

Nothing is unpickled. Files are memory-mapped, so that a map is read from disk when it is used.
"""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps._contributions import ValueNorms
from regard.maps._maps_json import MapsContent, content_from_json, content_to_json
from regard.maps._record import AttentionRecord
from regard.maps._record_json import record_from_json, record_to_json
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band
from regard.support.reading import UnreadableError, check_regular, file_inside, read_object

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
}
_MAPS = ("float16", "bfloat16", "float32", "float64")

# Errors that a malformed description raises where its parts are used.
WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RuntimeError)


def write_index(folder: Path, content: MapsContent, file_of: Callable[[Tensor], str | None]) -> None:
    """Describe the maps of a folder in its ``maps.json``, so that they can be read later.

    Args:
        content: what :func:`read_folder` is to return.
        file_of: the name of the file that already holds a tensor; None if none does.
    """
    calls = []
    for number, record in enumerate(content.records):
        call = record_to_json(record)
        if record.stored is not None:
            call["dtype"] = _name(record.stored)
            if record.stored.numel():  # a file has no room for nothing
                call["file"] = file_of(record.stored)
        elif record.overview is None:
            continue
        parts = {"overview": record.overview, "norms": record.norms}
        tensors = {
            f"{kind}.{name}": x
            for kind, part in parts.items()
            if part is not None and all(x.numel() for x in part.tensors.values())
            for name, x in part.tensors.items()
        }
        if record.scores is not None and record.scores.change is None and record.scores.mask is None:
            call["scores"], more = _describe(record.scores)
            tensors |= more
        call["parts"] = {}
        for name, x in tensors.items():
            file = file_of(x) if name in ("scores.query", "scores.key") else None
            if file is None:
                file = _write(folder / f"{number:06d}.{name}", x)
            call["parts"][name] = {"file": file, "dtype": _name(x), "shape": list(x.shape)}
        calls.append(call)
    (folder / "maps.json").write_text(json.dumps(content_to_json(calls, content), indent=1))


def _name(x: Tensor) -> str:
    return str(x.dtype).removeprefix("torch.")


def _write(path: Path, x: Tensor) -> str:
    torch.from_file(str(path), shared=True, size=x.numel(), dtype=x.dtype).view(x.shape).copy_(x.detach())
    return path.name


def _describe(scores: AttentionScores) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Everything from which weights can be computed: numbers for the index, and tensors by name."""
    band = scores.band
    shift = None if band is None else band.shift if isinstance(band.shift, int) else band.shift.tolist()
    about: dict[str, Any] = {"scale": scores.scale, "softcap": scores.softcap}
    about["band"] = None if band is None else [band.left, band.right, shift]
    queries, keys = scores.present or (None, None)
    named = {
        "query": scores.query,
        "key": scores.key,
        "keep": scores.keep,
        "bias": scores.bias,
        "slopes": scores.slopes,
    }
    named |= {"present_queries": queries, "present_keys": keys}
    return about, {f"scores.{name}": x for name, x in named.items() if x is not None}


def read_folder(folder: Path) -> MapsContent:
    """Read a folder whose index :func:`write_index` wrote."""
    index = folder / "maps.json"
    if not index.exists():
        raise FileNotFoundError(f"{folder} has no maps.json: capture(stream=…) did not write it")
    about = read_object(index, finite=False)
    try:
        records = [_read_call(folder, call) for call in about["calls"]]
        return content_from_json({"missed": [], "notes": [], **about}, records)  # folders of before state neither
    except UnreadableError:
        raise
    except WRONG as error:
        raise UnreadableError(f"{index} does not describe maps that can be read: {first_line(error)}") from error


def _read_call(folder: Path, call: dict[str, Any]) -> AttentionRecord:
    """One record, from its description in the index."""
    weights = None
    if "file" in call:
        weights = _mapped(folder, call["file"], call["dtype"], call["shape"], _MAPS)
    elif "dtype" in call:
        weights = _empty(folder, call["dtype"], call["shape"])
    parts = {
        name: _mapped(folder, part["file"], part["dtype"], part["shape"], tuple(_DTYPES))
        for name, part in call.get("parts", {}).items()
    }
    overview, scores, norms = (
        {name.removeprefix(start): x for name, x in parts.items() if name.startswith(start)}
        for start in ("overview.", "scores.", "norms.")
    )
    record = record_from_json(call, weights, overview)
    record.norms = ValueNorms.of(norms, record) if norms else None
    if call.get("scores") is not None:
        record.scores = _scores(call["scores"], scores, record)
    return record


def _scores(about: dict[str, Any], tensors: dict[str, Tensor], record: AttentionRecord) -> AttentionScores:
    """Queries, keys, and everything that changes their scores. An error if they do not fit the map."""
    query, key = tensors["query"], tensors["key"]
    batch, heads, queries, keys = record.shape
    shared = key.shape[1] if key.ndim == 4 else 0
    fits = query.shape[:3] == (batch, heads, queries) and key.shape == (batch, shared, keys, query.shape[-1])
    if not fits or not shared or heads % shared or not (query.is_floating_point() and key.is_floating_point()):
        raise ValueError(f"{record.name!r:.100} has queries and keys that do not fit its shape {record.shape}")
    for name in ("keep", "bias"):
        x = tensors.get(name)
        if x is not None and torch.broadcast_shapes(x.shape, record.shape) != record.shape:
            raise ValueError(
                f"{record.name!r:.100} has {name} of shape {tuple(x.shape)}, but its map is {record.shape}"
            )
    if "keep" in tensors and tensors["keep"].dtype is not torch.bool:
        raise ValueError(f"{record.name!r:.100} has keep in {tensors['keep'].dtype}, but it says which keys are kept")
    slopes = tensors.get("slopes")
    if slopes is not None and slopes.shape not in ((heads,), (batch, heads)):
        raise ValueError(f"{record.name!r:.100} has slopes of shape {tuple(slopes.shape)}, but {heads} heads")
    present = tensors.get("present_queries"), tensors.get("present_keys")
    sizes = [None if x is None else (x.dtype, *x.shape) for x in present]
    if sizes not in ([None, None], [(torch.bool, batch, queries), (torch.bool, batch, keys)]):
        raise ValueError(f"{record.name!r:.100} has tokens that exist of sizes {sizes!r:.200}, which do not fit")
    scale, softcap = float(about["scale"]), float(about["softcap"])
    band = None if about["band"] is None else _band(about["band"], batch)
    both = None if present[0] is None or present[1] is None else (present[0], present[1])
    return AttentionScores(query, key, scale, tensors.get("keep"), tensors.get("bias"), band, both, softcap, slopes)


def _band(about: Any, batch: int) -> Band:
    """A band from the index; an error if it is none."""
    left, right, shift = about
    if any(limit is not None and type(limit) is not int for limit in (left, right)):
        raise ValueError(f"a band has the limits {left!r:.40} and {right!r:.40}, which are no numbers of keys")
    if type(shift) is int:
        return Band(left, right, shift)
    if not isinstance(shift, list) or len(shift) != batch or any(type(n) is not int for n in shift):
        raise ValueError(f"a band begins at {shift!r:.100}, which are no positions of {batch} sequences")
    return Band(left, right, torch.tensor(shift))


def _mapped(folder: Path, name: Any, dtype: Any, shape: Any, dtypes: tuple[str, ...]) -> Tensor:
    """A streamed tensor, memory-mapped. Its dtype and shape must fit the size of the file: reading mapped memory beyond the
    end of a file would kill the process."""
    path = file_inside(folder, name)
    if dtype not in dtypes:
        raise UnreadableError(f"{path} is said to hold {dtype!r:.40}, but maps are {', '.join(dtypes)}")
    if not isinstance(shape, list) or any(type(size) is not int or size < 1 for size in shape):
        raise UnreadableError(f"{path} is said to have the shape {shape!r:.100}, which is no shape of a map")
    count, size = math.prod(shape), check_regular(path)
    if count * _DTYPES[dtype].itemsize != size:
        raise UnreadableError(f"{path} has {size:,} bytes, but a {dtype} map of shape {shape} has another size")
    return torch.from_file(str(path), shared=False, size=count, dtype=_DTYPES[dtype]).reshape(shape)


def _empty(folder: Path, dtype: Any, shape: Any) -> Tensor:
    """A map without rows, as ``rows=slice(1, None)`` makes of a single query."""
    if dtype not in _MAPS or not isinstance(shape, list) or any(type(n) is not int or n < 0 for n in shape):
        raise UnreadableError(f"{folder} is said to have a map of {dtype!r:.40} and shape {shape!r:.100}")
    if 0 not in shape:
        raise UnreadableError(f"{folder} is said to have a map of shape {shape!r:.100}, but names no file of it")
    return torch.empty(shape, dtype=_DTYPES[dtype])


def first_line(error: Exception) -> str:
    """The class and the first line of an error, for a message."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said:.200}"
