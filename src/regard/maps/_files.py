"""Records as files: one safetensors file with a JSON description, or a folder of streamed maps. Nothing is unpickled."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord, Missed

_DTYPES = (None, "float16", "bfloat16", "float32", "uint8")
_FORMAT = {"format": "regard maps", "version": 1}

Read = tuple[list[AttentionRecord], list[Missed], list[str]]


def write_records(
    path: Path, records: list[AttentionRecord], missed: list[Missed], notes: list[str], dtype: str | None
) -> Path:
    """One safetensors file; returns its path, which ends in ``.safetensors``."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    save_file = _safetensors().torch.save_file
    path = _with_suffix(path)
    tensors: dict[str, Tensor] = {}
    for number, record in enumerate(records):
        if record.stored is None:
            raise ValueError(f"{record.name!r} was folded by reduce= and has no weights to save: save .reduced")
        tensors[str(number)], scale = _encode(record.stored.detach().cpu(), dtype)
        if scale is not None:
            tensors[f"{number}.scale"] = scale
    calls = [record.to_json() for record in records]
    about = {**_FORMAT, "calls": calls, "missed": list(map(asdict, missed)), "notes": notes}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"regard": json.dumps(about)})
    return path


def write_index(folder: Path, files: list[tuple[AttentionRecord, str]]) -> None:
    """Describe the streamed maps of a folder in its ``maps.json``, so that they can be read later."""
    calls = [
        {**record.to_json(), "file": file, "dtype": str(record.stored.dtype).removeprefix("torch.")}
        for record, file in files
        if record.stored is not None
    ]
    (folder / "maps.json").write_text(json.dumps({**_FORMAT, "calls": calls}, indent=1))


def read_records(path: Path) -> Read:
    """The records, what was missed, and notes, of what :func:`write_records` or :func:`write_index` wrote."""
    if path.is_dir():
        return _read_folder(path), [], []
    path = path if path.exists() else _with_suffix(path)
    if not path.exists():
        raise FileNotFoundError(f"there are no maps at {path}")
    with _safetensors().safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        if "regard" not in metadata:
            raise ValueError(f"{path} is a safetensors file, but maps.save did not write it")
        about = json.loads(metadata["regard"])
        keys = set(file.keys())
        records = []
        for number, call in enumerate(about["calls"]):
            scale = file.get_tensor(f"{number}.scale") if f"{number}.scale" in keys else None
            records.append(AttentionRecord.from_json(call, _decode(file.get_tensor(str(number)), scale)))
    missed = [Missed(**{**m, "shape": None if m["shape"] is None else tuple(m["shape"])}) for m in about["missed"]]
    return records, missed, about["notes"]


def _read_folder(folder: Path) -> list[AttentionRecord]:
    index = folder / "maps.json"
    if not index.exists():
        raise FileNotFoundError(f"{folder} has no maps.json: capture(stream=…) did not write it")
    records = []
    for call in json.loads(index.read_text())["calls"]:
        dtype, size = getattr(torch, call["dtype"]), math.prod(call["shape"])
        flat = torch.from_file(str(folder / call["file"]), shared=False, size=size, dtype=dtype)
        records.append(AttentionRecord.from_json(call, flat.reshape(call["shape"])))
    return records


def _with_suffix(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def _encode(weights: Tensor, dtype: str | None) -> tuple[Tensor, Tensor | None]:
    """uint8 counts in steps of 1/255 of each head's largest weight: off by half a step at most."""
    if dtype != "uint8":
        return (weights if dtype is None else weights.to(getattr(torch, dtype))).contiguous(), None
    scale = weights.float().amax((-2, -1), keepdim=True) if weights.numel() else weights.new_zeros(1).float()
    steps = weights.float() * (255 / scale.clamp_min(1e-30))
    return steps.round().to(torch.uint8).contiguous(), scale / 255


def _decode(kept: Tensor, scale: Tensor | None) -> Tensor:
    return kept if scale is None else kept.float() * scale


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving and loading maps needs safetensors: pip install 'regard[train]'") from error
    return safetensors
