"""Fuzz every loader, guided by coverage: make fuzz (SECONDS=3600)

The first byte of an input chooses the loader, the rest is the file. A loader may return, or raise ValueError, OSError or
DamagedCheckpointError; anything else is a finding. Half of the inputs are made by changing a value inside JSON, which
bytes alone rarely survive (``mutation.py``). ``loaders.py --seeds FOLDER`` writes the small corpus to start from.
"""

import contextlib
import hashlib
import io
import json
import shutil
import struct
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutation import mutate

SEEDING = "--seeds" in sys.argv
if SEEDING:
    watching: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
else:
    import atheris

    watching = atheris.instrument_imports(include=["regard"])

with watching:
    import regard
    from regard.convert import load_converted, save_converted
    from regard.course.grading import Package, Submission
    from regard.course.grading._codec import pack, unpack
    from regard.data._decode_worker import answer
    from regard.data._image_sets import parse_idx
    from regard.data.own_images._arrays import read_arrays
    from regard.data.own_images._cifar_copies import COPIES, class_names, parse_binary, parse_pickled, read_copy
    from regard.maps import Maps
    from regard.models import Pretrained, ResNet18
    from regard.studio._errors import Refused
    from regard.studio._run_folders import Folder, read_piece
    from regard.studio._runs import Networks, detail, summarize
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


def split(content: bytes) -> tuple[bytes, bytes]:
    """Two files in one: four bytes with the length of the first, the first, the second."""
    (length,) = struct.unpack_from("<I", content.ljust(4, b"\0"))
    return content[4 : 4 + length % 65536], content[4 + length % 65536 :]


def joined(first: bytes, second: bytes) -> bytes:
    return struct.pack("<I", len(first)) + first + second


def sealed(folder: str, state: Any) -> Path:
    """A state with the digest that belongs to it, so that the digest is no obstacle."""
    digest = hashlib.blake2b(json.dumps(state).encode(), digest_size=16).hexdigest()
    return placed(f"{folder}/state.json", json.dumps({"digest": digest, "state": state}).encode()).parent


def checkpoint(content: bytes) -> None:
    """The file of tensors, with a state that agrees with it."""
    placed("step/state.safetensors", content)
    digest = hashlib.blake2b(content, digest_size=16).hexdigest()
    read_checkpoint(sealed("step", {"tensors": {"bytes": len(content), "digest": digest}}))


def state(content: bytes) -> None:
    """The state of a checkpoint, under its own digest."""
    placed("state/state.safetensors", b"\x02\0\0\0\0\0\0\0{}")
    read_checkpoint(sealed("state", parse_json(content, finite=False)))


def streamed(content: bytes) -> None:
    (ROOT / "maps").mkdir(exist_ok=True)
    placed("maps/000000.map", bytes(72))
    for found in Maps.load(placed("maps/maps.json", content).parent).values():
        found.shape  # noqa: B018


def model(content: bytes) -> None:
    config, tensors = split(content)
    placed("model/config.json", config)
    Pretrained.from_pretrained(placed("model/model.safetensors", tensors).parent)


def converted(content: bytes) -> None:
    """What was done, and the weights since, next to a good source."""
    about, tensors = split(content)
    placed("converted/conversion.json", about)
    load_converted(placed("converted/converted.safetensors", tensors).parent)


def trained(content: bytes) -> None:
    """A recipe next to good checkpoints, and the network that is built from both."""
    run = load_run(placed("trained/recipe.json", content).parent)
    run.network()


def studio(content: bytes) -> None:
    """A recipe and a line of metrics as the studio lists and opens them. Its own bugs are not refusals."""
    recipe, metrics = split(content)
    placed("trained/recipe.json", recipe)
    placed("trained/metrics.jsonl", metrics)
    place = Folder(ROOT / "trained", example=None).place("trained")
    summarize(place)
    with contextlib.suppress(Refused):
        detail(place, None)
        Networks().get(place, place.open(), None)


def cifar(content: bytes) -> None:
    parse_pickled(content, COPIES[0])
    class_names(content, COPIES[0])


def archive(content: bytes) -> None:
    read_copy(COPIES[0], placed(COPIES[0].archive, content), None)


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
    state,
    converted,
    trained,
    studio,
    lambda content: read_arrays(placed("images.npz", content), None),
    lambda content: read_arrays(placed("images.safetensors", content), None),
    parse_idx,
    cifar,
    lambda content: parse_binary(content, COPIES[1]),
    archive,
    unpack,
    lambda content: Submission.read(placed("answers.ipynb", content)).answer(["attention"]),
    lambda content: Package.from_json(content.decode()),
    lambda content: read_piece(placed("log.jsonl", content), 3, 64),
]


def one_input(data: bytes) -> None:
    if not data:
        return
    with contextlib.suppress(*EXPECTED):
        LOADERS[data[0] % len(LOADERS)](data[1:])


def prepare() -> None:
    """The good files that some loaders have beside them."""
    regard.train(regard.recipes.get("demo").smoke(), folder=ROOT / "trained", accelerator="cpu", tensorboard=False)
    source = ResNet18(num_classes=2, width=1).eval()
    network, report = regard.convert_network(source, "attention")
    save_converted(source, network, report, ROOT / "converted")


def seeds(folder: Path) -> None:
    """One good file for each loader, as small as it can be."""
    recipe = (ROOT / "trained" / "recipe.json").read_bytes()
    config, tensors = ((ROOT / "converted" / name).read_bytes() for name in ("config.json", "model.safetensors"))
    about, weights = (ROOT / "converted" / name for name in ("conversion.json", "converted.safetensors"))
    contents = [
        (0, b'{"a": [1, 2.5, null, "x"]}'), (1, recipe), (2, (ROOT / "trained" / "summary.json").read_bytes()),
        (3, b'{"step": 1, "loss": 2.0}\n'), (4, _heads()), *_maps(), (8, joined(config, tensors)), *_images(),
        (10, json.dumps({"tensors": {"bytes": 10, "digest": "00" * 16}, "score": 0.5, "step": 3}).encode()),
        (11, joined(about.read_bytes(), weights.read_bytes())), (12, recipe), (13, joined(recipe, b'{"step": 1}\n')),
        *_arrays(), (16, bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9])), (20, pack({"a": (1, 2.5, None, [..., "x"])})),
        (21, json.dumps({"cells": [{"cell_type": "code", "source": ["def attention(q):\n", " return q"]}]}).encode()),
        (22, Package("1", "0.1", "", [], "s", []).to_json().encode()), (23, b'{"step": 1}\n{"step": 2}\n'),
    ]  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    for number, (loader, content) in enumerate(contents):
        (folder / f"{number:02d}").write_bytes(bytes([loader]) + content)


def _heads() -> bytes:
    first = {"version": 1, "grid": [3, 3], "grids": None, "layers": ["a"]}
    moment = {"step": 0, "center": [[[0.0, 1.0]]], "sharpness": [[1.0]]}
    return "".join(json.dumps(line) + "\n" for line in (first, moment, moment)).encode()


def _maps() -> list[tuple[int, bytes]]:
    import torch

    weights = torch.eye(3)[None, None].expand(1, 2, 3, 3).contiguous()
    record = regard.maps.AttentionRecord.given(weights, "attn")
    saved = Maps([regard.maps.Map("attn", [record])]).save(ROOT / "seed.safetensors").read_bytes()
    call = {**record.to_json(), "file": "000000.map", "dtype": "float32"}
    return [(5, saved), (6, saved), (7, json.dumps({"calls": [call]}).encode())]


def _images() -> list[tuple[int, bytes]]:
    from PIL import Image

    found = []
    for kind in LIMITS["formats"]:  # type: ignore[attr-defined]
        file = io.BytesIO()
        Image.new("RGB", (3, 2), "red").save(file, kind)
        found.append((9, file.getvalue()))
    return found


def _arrays() -> list[tuple[int, bytes]]:
    import pickle

    import numpy as np
    import torch
    from safetensors.torch import save

    images, labels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1])
    file = io.BytesIO()
    np.savez(file, images=images.numpy(), labels=labels.numpy())
    batch = pickle.dumps({"data": bytes(3072), "labels": [1]}, protocol=2)
    tensors = save({"images": images, "labels": labels}, metadata={"classes": '["a", "b"]'})
    with tarfile.open(fileobj=(packed := io.BytesIO()), mode="w:gz") as archive:
        for name, content in (("data_batch_1", batch), ("batches.meta", pickle.dumps({"label_names": ["a"]}))):
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return [(14, file.getvalue()), (15, tensors), (17, batch), (18, bytes(3073)), (19, packed.getvalue())]


def main() -> None:
    try:
        prepare()
        if SEEDING:
            seeds(Path(sys.argv[sys.argv.index("--seeds") + 1]))
        else:
            atheris.Setup(sys.argv, one_input, custom_mutator=mutate)
            atheris.Fuzz()
    finally:
        shutil.rmtree(ROOT, ignore_errors=True)


if __name__ == "__main__":
    main()
