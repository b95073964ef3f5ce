"""Saves records as one safetensors file with a JSON description, and loads them. Nothing is unpickled."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps._contributions import ValueNorms
from regard.maps._folders import WRONG, first_line, read_folder
from regard.maps._maps_json import MapsContent, content_from_json, content_to_json
from regard.maps._record import AttentionRecord
from regard.maps._record_json import record_from_json, record_to_json
from regard.support.reading import UnreadableError, check_regular, parse_json

_DTYPES = (None, "float16", "bfloat16", "float32", "uint8")


def write_records(path: Path, content: MapsContent, dtype: str | None) -> Path:
    """One safetensors file; returns its path, which ends in ``.safetensors``."""
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    save_file = _safetensors().torch.save_file
    path = _with_suffix(path)
    tensors: dict[str, Tensor] = {}
    for number, record in enumerate(content.records):
        if record.stored is None and record.overview is None:
            raise ValueError(f"{record.name!r} was folded by reduce= and has no weights to save: save .reduced")
        if record.stored is not None:
            tensors[str(number)], scale, least = _encode(record.stored.detach().cpu(), dtype)
            if scale is not None:
                tensors[f"{number}.scale"] = scale
            if least is not None:
                tensors[f"{number}.least"] = least
        if record.overview is not None:
            parts = record.overview.tensors
            tensors |= {f"{number}.overview.{name}": x.cpu().contiguous() for name, x in parts.items()}
        if record.norms is not None:
            tensors |= {f"{number}.norms.{name}": x.cpu().contiguous() for name, x in record.norms.tensors.items()}
    about = content_to_json([record_to_json(record) for record in content.records], content)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"regard": json.dumps(about)})
    return path


def read_records(path: Path) -> MapsContent:
    """Read what :func:`write_records` wrote, or a folder of streamed maps (see :mod:`regard.maps._folders`)."""
    if path.is_dir():
        return read_folder(path)
    path = path if path.exists() else _with_suffix(path)
    if not path.exists():
        raise FileNotFoundError(f"there are no maps at {path}")
    check_regular(path)
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if "regard" not in metadata:
                raise UnreadableError(f"{path} is a safetensors file, but maps.save did not write it")
            about, keys = parse_json(metadata["regard"], finite=False), set(file.keys())
            records = []
            for number, call in enumerate(about["calls"]):
                records.append(_read_call(file, keys, number, call))
        return content_from_json(about, records)
    except UnreadableError:
        raise
    except (safetensors.SafetensorError, *WRONG) as error:
        raise UnreadableError(f"{path} does not hold maps that can be read: {first_line(error)}") from error


def _read_call(file: Any, keys: set[str], number: int, call: dict[str, Any]) -> AttentionRecord:
    """One record of a safetensors file: weights, an overview, or both."""
    scale, least = (
        file.get_tensor(f"{number}.{name}") if f"{number}.{name}" in keys else None for name in ("scale", "least")
    )
    overview, norms = (
        {key.removeprefix(start): file.get_tensor(key) for key in keys if key.startswith(start)}
        for start in (f"{number}.overview.", f"{number}.norms.")
    )
    kept = str(number) in keys or not overview
    record = record_from_json(call, _decode(file.get_tensor(str(number)), scale, least) if kept else None, overview)
    record.norms = ValueNorms.of(norms, record) if norms else None
    return record


def _with_suffix(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path.with_name(path.name + ".safetensors")


def _encode(weights: Tensor, dtype: str | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Weights in this dtype, and the scale and the offset of uint8.

    A step of uint8 is 1/255 of the head's largest weight, so the error is at most half a step. If some weights are negative, as
    in differential attention, the steps begin at the head's least weight.
    """
    if dtype != "uint8":
        return (weights if dtype is None else weights.to(getattr(torch, dtype))).contiguous(), None, None
    if not weights.numel():
        return weights.to(torch.uint8), weights.new_zeros(1).float(), None
    weights = weights.float()
    scale = weights.amax((-2, -1), keepdim=True)
    least = weights.amin((-2, -1), keepdim=True).clamp_max(0.0) if bool((weights < 0).any()) else None
    if least is not None:
        weights, scale = weights - least, scale - least
    steps = weights * (255 / scale.clamp_min(1e-30))
    return steps.round().to(torch.uint8).contiguous(), scale / 255, least


def _decode(kept: Tensor, scale: Tensor | None, least: Tensor | None) -> Tensor:
    found = kept if scale is None else kept.float() * scale
    return found if least is None else found + least


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving and loading maps needs safetensors: pip install 'regard[train]'") from error
    return safetensors
