"""Fuzz every loader, guided by coverage: make fuzz (SECONDS=3600)

The first byte of an input chooses the loader, the rest is the file. A loader may return, or raise ValueError, OSError or
DamagedCheckpointError; anything else is a finding. ``loaders.py --seeds FOLDER`` writes the small corpus to start from.
"""

import contextlib
import hashlib
import json
import shutil
import struct
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SEEDING = "--seeds" in sys.argv
if SEEDING:
    watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
else:
    import atheris

    watching = atheris.instrument_imports(include=["regard"])

with watching:
    from regard.data._decode_worker import answer
    from regard.maps import Maps
    from regard.models import Pretrained, ResNet18
    from regard.support.reading import parse_json
    from regard.training import DamagedCheckpointError, Run, load_run
    from regard.training._checkpoints import read_checkpoint
    from regard.training._head_trajectory import HeadTrajectory
    from regard.training._json_lines import read_lines

ROOT = Path(tempfile.mkdtemp(prefix="regard-fuzz-"))
LIMITS = {"formats": ["PNG", "JPEG", "WEBP", "BMP", "GIF"], "most_pixels": 250_000, "most_side": 2000, "draft": 896}
EXPECTED = (ValueError, OSError, DamagedCheckpointError)


def placed(name: str, content: bytes) -> Path:
    path = ROOT / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def checkpoint(content: bytes) -> None:
    """The file of tensors, with a state that agrees with it, so that its digest is no obstacle."""
    state = {"tensors": {"bytes": len(content), "digest": hashlib.blake2b(content, digest_size=16).hexdigest()}}
    digest = hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
    placed("step/state.json", json.dumps({"digest": digest, "state": state}).encode())
    read_checkpoint(placed("step/state.safetensors", content).parent)


def streamed(content: bytes) -> None:
    (ROOT / "maps").mkdir(exist_ok=True)
    placed("maps/000000.map", bytes(72))
    for found in Maps.load(placed("maps/maps.json", content).parent).values():
        found.shape  # noqa: B018


def model(content: bytes) -> None:
    """Both files: four bytes with the length of the first, the first, the second."""
    (length,) = struct.unpack_from("<I", content.ljust(4, b"\0"))
    placed("model/config.json", content[4 : 4 + length % 4096])
    Pretrained.from_pretrained(placed("model/model.safetensors", content[4 + length % 4096 :]).parent)


LOADERS: list[Callable[[bytes], object]] = [
    parse_json,
    lambda content: load_run(placed("run/recipe.json", content).parent),
    lambda content: Run(placed("run/summary.json", content).parent).summary,
    lambda content: list(read_lines(placed("metrics.jsonl", content))),
    lambda content: HeadTrajectory.read(placed("heads.jsonl", content)),
    checkpoint,
    lambda content: Maps.load(placed("maps.safetensors", content)),
    streamed,
    model,
    lambda content: answer(content, **LIMITS),
]


def one_input(data: bytes) -> None:
    if not data:
        return
    with contextlib.suppress(*EXPECTED):
        LOADERS[data[0] % len(LOADERS)](data[1:])


def seeds(folder: Path) -> None:
    """One good file for each loader, as small as it can be."""
    import io

    import torch
    from PIL import Image

    import regard

    recipe = regard.recipes.get("demo").smoke()
    run = ROOT / "seed"
    regard.training.Run(run).folder.mkdir(parents=True)
    regard.training.Run(run).write_recipe(recipe)
    weights = torch.eye(3)[None, None].expand(1, 2, 3, 3).contiguous()
    record = regard.maps.AttentionRecord.given(weights, "attn")
    saved = Maps([regard.maps.Map("attn", [record])]).save(ROOT / "seed.safetensors").read_bytes()
    call = {**record.to_json(), "file": "000000.map", "dtype": "float32"}
    ResNet18(num_classes=2, width=1).save_pretrained(ROOT / "small")
    config, tensors = ((ROOT / "small" / name).read_bytes() for name in ("config.json", "model.safetensors"))
    first = {"version": 1, "grid": [3, 3], "grids": None, "layers": ["a"]}
    moment = {"step": 0, "center": [[[0.0, 1.0]]], "sharpness": [[1.0]]}
    lines = "".join(json.dumps(line) + "\n" for line in (first, moment, moment)).encode()
    images = []
    for kind in LIMITS["formats"]:  # type: ignore[attr-defined]
        file = io.BytesIO()
        Image.new("RGB", (3, 2), "red").save(file, kind)
        images.append(file.getvalue())
    contents = [
        (0, b'{"a": [1, 2.5, null, "x"]}'), (1, (run / "recipe.json").read_bytes()), (2, b'{"steps": 3}'),
        (3, b'{"step": 1, "loss": 2.0}\n'),
        (4, lines), (5, saved), (6, saved), (7, json.dumps({"calls": [call]}).encode()),
        (8, struct.pack("<I", len(config)) + config + tensors), *((9, image) for image in images),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for number, (loader, content) in enumerate(contents):
        (folder / f"{number:02d}").write_bytes(bytes([loader]) + content)


def main() -> None:
    try:
        if SEEDING:
            seeds(Path(sys.argv[sys.argv.index("--seeds") + 1]))
        else:
            atheris.Setup(sys.argv, one_input)
            atheris.Fuzz()
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
