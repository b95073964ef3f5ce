"""Maps as files: one safetensors file with a JSON description, or a folder of streamed maps. Nothing is unpickled."""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from regard.maps._layout import Layout
from regard.maps._maps import Call, Map, Maps, Missed
from regard.maps._windows import Windows

_DTYPES = (None, "float16", "bfloat16", "float32", "uint8")


def save(maps: Maps, path: Path, dtype: str | None) -> Path:
    if dtype not in _DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(repr, _DTYPES))}, got {dtype!r}")
    save_file = _safetensors().save_file
    if path.suffix != ".safetensors":
        path = path.with_name(path.name + ".safetensors")
    tensors: dict[str, Tensor] = {}
    described: list[dict[str, Any]] = []
    for name, found in maps.items():
        for call in found.calls:
            if call.stored is None:
                raise ValueError(f"{name!r} was folded by reduce= and holds no map to save; save .reduced yourself")
            key = str(len(described))
            kept, scale = _encode(call.stored.detach().cpu(), dtype)
            tensors[key] = kept
            if scale is not None:
                tensors[f"{key}.scale"] = scale
            described.append(describe_call(name, call))
    missed = [{"name": m.name, "reason": m.reason, "shape": m.shape, "count": m.count} for m in maps.missed]
    about = {"format": "regard maps", "version": 1, "calls": described, "missed": missed, "notes": maps.notes}
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, str(path), metadata={"regard": json.dumps(about)})
    return path


def load(path: Path) -> Maps:
    if path.is_dir():
        return _load_folder(path)
    if not path.exists() and path.with_name(path.name + ".safetensors").exists():
        path = path.with_name(path.name + ".safetensors")
    if not path.exists():
        raise FileNotFoundError(f"there are no maps at {path}")
    with _safetensors().safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        if "regard" not in metadata:
            raise ValueError(f"{path} is a safetensors file, but not one that maps.save wrote")
        about = json.loads(metadata["regard"])
        keys = set(file.keys())
        stored = [
            _decode(file.get_tensor(str(i)), file.get_tensor(f"{i}.scale") if f"{i}.scale" in keys else None)
            for i in range(len(about["calls"]))
        ]
    maps = _assemble(about["calls"], stored)
    maps.missed += [Missed(m["name"], m["reason"], _tuple(m["shape"]), m["count"]) for m in about["missed"]]
    maps.notes += about["notes"]
    return maps


def _load_folder(folder: Path) -> Maps:
    index = folder / "maps.json"
    if not index.exists():
        raise FileNotFoundError(f"{folder} holds no maps.json: it was not written by capture(stream=…)")
    calls = json.loads(index.read_text())["calls"]
    stored = []
    for call in calls:
        dtype, size = getattr(torch, call["dtype"]), math.prod(call["shape"])
        flat = torch.from_file(str(folder / call["file"]), shared=False, size=size, dtype=dtype)
        stored.append(flat.reshape(call["shape"]))
    return _assemble(calls, stored)


def _assemble(calls: list[dict[str, Any]], stored: list[Tensor]) -> Maps:
    found: dict[str, Map] = {}
    for about, tensor in zip(calls, stored, strict=True):
        found.setdefault(about["name"], Map(about["name"])).calls.append(_call(about, tensor))
    return Maps(found.values())


def describe_call(name: str, call: Call) -> dict[str, Any]:
    """All of a call but its tensor, as JSON."""
    windows, layouts = call.windows, (call.layout, call.query_layout)
    return {
        "name": name,
        "shape": list(call.stored.shape) if call.stored is not None else None,
        "batch": call.batch,
        "residual": None if call.error is None else call.residual,
        "logsumexp_residual": call.logsumexp_residual,
        "allowed": None if call.allowed is None else float(call.allowed),
        "against": call.against,
        "kind": call.kind,
        "kernel": call.kernel,
        "rows": call.rows,
        "heads": call.heads,
        "windows": None if windows is None else vars(windows),
        "layouts": [None if layout is None else [layout.grid, layout.prefix] for layout in layouts],
    }


def _call(about: dict[str, Any], stored: Tensor) -> Call:
    layouts = [None if x is None else Layout(tuple(x[0]), x[1]) for x in about["layouts"]]
    windows = about["windows"]
    return Call(
        stored=stored,
        batch=about["batch"],
        error=_scalar(about["residual"]),
        logsumexp_error=_scalar(about["logsumexp_residual"]),
        allowed=_scalar(about["allowed"]),
        against=about["against"],
        kind=about["kind"],
        kernel=about["kernel"],
        rows=_tuple(about["rows"]),
        heads=_tuple(about["heads"]),
        windows=None if windows is None else _windows(windows),
        layout=layouts[0],
        query_layout=layouts[1],
    )


def _windows(about: dict[str, Any]) -> Windows:
    grid, window, shift = (tuple(about[name]) for name in ("grid", "window", "shift"))
    return Windows(grid, window, shift, about["rolled_first"])


def _encode(weights: Tensor, dtype: str | None) -> tuple[Tensor, Tensor | None]:
    """uint8 counts in steps of 1/255 of each head's largest weight: off by at most half a step."""
    if dtype != "uint8":
        return (weights if dtype is None else weights.to(getattr(torch, dtype))).contiguous(), None
    scale = weights.float().amax((-2, -1), keepdim=True) if weights.numel() else weights.new_zeros(1).float()
    steps = weights.float() * (255 / scale.clamp_min(1e-30))
    return steps.round().to(torch.uint8).contiguous(), scale / 255


def _decode(kept: Tensor, scale: Tensor | None) -> Tensor:
    return kept if scale is None else kept.float() * scale


def _scalar(x: float | None) -> Tensor | None:
    return None if x is None else torch.tensor(x, dtype=torch.float64)


def _tuple(x: list[int] | None) -> tuple[int, ...] | None:
    return None if x is None else tuple(x)


def _safetensors() -> Any:
    try:
        import safetensors
        import safetensors.torch
    except ImportError as error:
        raise ImportError("saving and loading maps needs safetensors: pip install 'regard[train]'") from error

    class Both:
        save_file = staticmethod(safetensors.torch.save_file)
        safe_open = staticmethod(safetensors.safe_open)

    return Both
