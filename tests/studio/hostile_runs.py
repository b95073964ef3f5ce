"""Folders of runs that try to stop the studio: each is a copy of a good run with one thing wrong."""

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save

Change = Callable[[Path], None]

# What may stand where JSON is due.
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "torn": b'{"kind": "Rec',
    "list": b"[]\n",
    "null": b"null\n",
    "number": b"3\n",
    "string": b'"text"\n',
    "list of mappings": b'[{"step": 1, "version": 1}]\n',
    "deep list": b"[" * 100_000 + b"\n",
    "deep mapping": b'{"a":' * 900 + b"1" + b"}" * 900 + b"\n",
    "deep enough": b'{"a":' * 300 + b"1" + b"}" * 300 + b"\n",
    "not a number": b'{"version": NaN, "step": NaN, "steps": NaN, "validation_accuracy": NaN}\n',
    "beyond floats": b'{"version": 1, "step": 1e999, "steps": 1e999, "validation_accuracy": -1e999}\n',
    "many digits": b'{"step": 1N, "steps": 1N, "validation_accuracy": 1N}\n'.replace(b"N", b"0" * 400),
    "too many digits": b'{"steps": ' + b"9" * 5000 + b"}\n",
    "half a pair": b'{"kind": "\\ud800", "name": "\\udc00", "layers": ["\\ud800"], "\\ud800": 1}\n',
    "latin": b'{"name": "\xe9\xff"}\n',
    "utf-16": '{"name": "x"}\n'.encode("utf-16"),
    "zeros": bytes(1000),
    "wrong types": b'{"step": "x", "steps": [], "validation_accuracy": {}, "version": 1, "layers": 3, "grid": "x"}\n',
}  # fmt: skip
FILES = ("recipe.json", "summary.json", "metrics.jsonl", "heads.jsonl", "checkpoints/{step}/state.json")
TENSORS = "checkpoints/{step}/state.safetensors"


def _path(run: Path, file: str) -> Path:
    step = max(path.name for path in (run / "checkpoints").iterdir())
    return run / file.format(step=step)


def _written(file: str, content: bytes) -> Change:
    return lambda run: _path(run, file).write_bytes(content) and None


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    there = Path.cwd()
    with socket.socket(socket.AF_UNIX) as made:  # its path may have 107 characters at most
        os.chdir(path.parent)
        try:
            made.bind(path.name)
        finally:
            os.chdir(there)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a pipe": _pipe,
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: path.mkdir(),
    "a socket": _socket,
    "a link to nothing": lambda path: path.symlink_to("nothing"),
    "a huge file": lambda path: _sparse(path, 2**42),
}


def _sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def _special(file: str, make: Callable[[Path], None]) -> Change:
    def change(run: Path) -> None:
        path = _path(run, file)
        path.unlink()
        make(path)

    return change


def _recipe(**fields: Any) -> Change:
    """Change fields of the recipe; ``network__depth`` is a field of a part of it."""

    def change(run: Path) -> None:
        recipe = json.loads((run / "recipe.json").read_text())
        for name, value in fields.items():
            *parts, last = name.split("__")
            where = recipe
            for part in parts:
                where = where[part]
            where[last] = value
        (run / "recipe.json").write_text(json.dumps(recipe))

    return change


RECIPES: dict[str, dict[str, Any]] = {
    "a million blocks": {"network__depth": 10**6},
    "a billion blocks": {"network__depth": 10**9},
    "many blocks": {"network__depth": 10**4},
    "images of any size": {"task__image_size": 2**63 - 1},
    "wide": {"network__dim": 9 * 10**9},
    "wide inside": {"network__hidden": 10**15},
    "many heads": {"network__heads": 10**9, "network__dim": 10**9},
    "no blocks": {"network__depth": 0},
    "negative": {"network__depth": -1},
    "half a block": {"network__depth": 1.5},
    "patches of nothing": {"network__patch_size": 0},
    "patches of everything": {"network__patch_size": 10**9},
    "merged a million times": {"network__merge": list(range(10**5))},
    "depth in words": {"network__depth": "many"},
    "head width": {"network__head_dim": 10**12},
    "unknown attention": {"network__attention": "../../etc/passwd"},
    "attention as a list": {"network__attention": ["gaussian"]},
    "other network": {"network": {"kind": "ResNet18Settings", "width": 10**6}},
    "network that is a task": {"network": {"kind": "ImageTask"}},
    "network that is a list": {"network": [1, 2]},
    "task that is a list": {"task": []},
    "task that is null": {"task": None},
    "recipe in the recipe": {"task": {"kind": "Recipe", "name": "x", "task": None, "network": None}},
    "kind as a list": {"kind": ["Recipe"]},
    "kind as a mapping": {"task": {"kind": {"a": 1}}},
    "data elsewhere": {"task__data": "../../../../etc/passwd"},
    "data as a number": {"task__data": 7},
    "validation beyond all": {"task__validation": 10**12},
    "validation in words": {"task__validation": "half"},
    "smoothing": {"task__label_smoothing": "x"},
    "limit": {"task__limit": -5},
    "text of any length": {"task": {"kind": "MaskedLanguage", "length": 10**15}},
    "sentences of any length": {"task": {"kind": "CaseConversion", "longest": 10**15, "held_out": 10**15}},
    "name as a list": {"name": ["x"]},
    "name as a mapping": {"name": {"a": 1}},
    "long name": {"name": "n" * 10**6},
    "half a pair in the name": {"name": "\ud800"},
    "epochs": {"epochs": 0},
    "unknown field": {"color": "red"},
    "precision": {"precision": ["fp32"]},
    "seed": {"seed": "x"},
}


def _tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Change:
    """Replace the tensors of the last checkpoint, with right sizes and digests."""

    def apply(run: Path) -> None:
        path = _path(run, TENSORS)
        _sealed(run, save(change(load_file(path))))

    return apply


def _filled(value: float) -> Change:
    return _tensors(
        lambda all: {key: torch.full_like(x, value) if x.is_floating_point() else x for key, x in all.items()}
    )


def _replaced(make: Callable[[Path], None]) -> Change:
    def change(run: Path) -> None:
        shutil.rmtree(run / "checkpoints")
        make(run / "checkpoints")

    return change


def _sealed(run: Path, content: bytes | None, **state: Any) -> None:
    if content is not None:
        _path(run, TENSORS).write_bytes(content)
    about = _path(run, "checkpoints/{step}/state.json")
    whole = json.loads(about.read_text())["state"]
    if content is not None:
        whole["tensors"] = {"bytes": len(content), "digest": hashlib.blake2b(content, digest_size=16).hexdigest()}
    whole |= state
    digest = hashlib.blake2b(json.dumps(whole).encode(), digest_size=16).hexdigest()
    about.write_text(json.dumps({"digest": digest, "state": whole}))


def _header(length: int, text: bytes = b"{}") -> bytes:
    return length.to_bytes(8, "little") + text


def _giant(run: Path) -> None:
    """A checkpoint that says that it is a terabyte, in a sparse file of that size."""
    path = _path(run, TENSORS)
    size = 2**40
    header = json.loads(path.read_bytes()[8 : 8 + int.from_bytes(path.read_bytes()[:8], "little")])
    end = max(part["data_offsets"][1] for name, part in header.items() if name != "__metadata__")
    header["optimizer.giant"] = {"dtype": "U8", "shape": [size - end], "data_offsets": [end, size]}
    text = json.dumps(header).encode()
    path.write_bytes(_header(len(text), text))
    os.truncate(path, 8 + len(text) + size)
    _sealed(run, None, tensors={"bytes": 8 + len(text) + size, "digest": "00" * 16})


CHECKPOINTS: dict[str, Change] = {
    "weights that are no numbers": _filled(float("nan")),
    "infinite weights": _filled(float("inf")),
    "huge weights": _filled(3e38),
    "no tensors": _tensors(lambda all: {}),
    "some tensors": _tensors(lambda all: dict(list(all.items())[::2])),
    "unknown tensors": _tensors(lambda all: {**all, "network.backdoor": torch.ones(3)}),
    "turned tensors": _tensors(lambda all: {name: x.reshape(x.shape[::-1]) for name, x in all.items()}),
    "whole numbers": _tensors(lambda all: {name: x.to(torch.int64) for name, x in all.items()}),
    "half precision": _tensors(lambda all: {name: x.half() if x.is_floating_point() else x for name, x in all.items()}),
    "a header without an end": lambda run: _sealed(run, _header(2**63 - 1)),
    "a header of its own": lambda run: _sealed(run, _header(2)),
    "a header that is a list": lambda run: _sealed(run, _header(2, b"[]")),
    "a header in disorder": lambda run: _sealed(run, _header(9, b'{"a":[1]}')),
    "a terabyte": _giant,
    "a score in words": lambda run: _sealed(run, None, score="best"),
    "a score that is a list": lambda run: _sealed(run, None, score=[1]),
    "tensors that are a list": lambda run: _sealed(run, None, tensors=[1]),
    "bytes in words": lambda run: _sealed(run, None, tensors={"bytes": "x", "digest": 3}),
    "a superscript step": lambda run: (run / "checkpoints" / "step-²²").mkdir(),
    "a step of many digits": lambda run: (run / "checkpoints" / ("step-" + "9" * 200)).mkdir(),
    "a step that is a file": lambda run: (run / "checkpoints" / "step-99999999").write_bytes(b"x") and None,
    "a step that is a pipe": lambda run: _pipe(run / "checkpoints" / "step-99999999"),
    "a step that leads to itself": lambda run: (run / "checkpoints" / "step-99999999").symlink_to("step-99999999"),
    "an empty step": lambda run: (run / "checkpoints" / "step-99999999").mkdir(),
    "checkpoints that are a pipe": _replaced(_pipe),
    "checkpoints that lead to themselves": _replaced(lambda path: path.symlink_to("checkpoints")),
}  # fmt: skip

FIRST = {"version": 1, "grid": [14, 14], "grids": None, "layers": ["blocks.0.attention"]}
MOMENT = {"step": 0, "center": [[[0.0, 0.0]]], "sharpness": [[1.0]]}
HEADS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a grid without end": ({**FIRST, "grid": [10**9, 10**9]}, MOMENT),
    "a grid of words": ({**FIRST, "grid": ["a", "b"]}, MOMENT),
    "a grid of grids": ({**FIRST, "grids": [[[1]]]}, MOMENT),
    "many layers": ({**FIRST, "layers": ["x"] * 10_000}, MOMENT),
    "no layers": ({**FIRST, "layers": []}, MOMENT),
    "ragged centers": (FIRST, {**MOMENT, "center": [[[0.0, 0.0], [1.0]]]}),
    "centers in words": (FIRST, {**MOMENT, "center": [["x"]]}),
    "centers far away": (FIRST, {**MOMENT, "center": [[[1e300, -1e300]]]}),
    "one axis too many": (FIRST, {**MOMENT, "center": [[[0.0, 0.0, 0.0, 0.0]]]}),
    "flat centers": (FIRST, {**MOMENT, "center": [0.0]}),
    "a step in words": (FIRST, {**MOMENT, "step": "first"}),
    "other sharpness": (FIRST, {**MOMENT, "sharpness": [[1.0, 2.0, 3.0]]}),
}


def cases() -> Iterator[tuple[str, Change]]:
    """Every hostile change of a good run, with a name."""
    for file in FILES:
        for name, content in CONTENTS.items():
            yield f"{file}: {name}", _written(file, content)
    for file in (*FILES, TENSORS):
        for name, make in SPECIAL.items():
            yield f"{file}: {name}", _special(file, make)
    for name, fields in RECIPES.items():
        yield f"recipe: {name}", _recipe(**fields)
    for name, change in CHECKPOINTS.items():
        yield f"checkpoint: {name}", change
    for name, lines in HEADS.items():
        yield (
            f"heads: {name}",
            _written(
                "heads.jsonl", "".join(json.dumps(line) + "\n" for line in (lines[0], lines[1], lines[1])).encode()
            ),
        )


def hostile_folder(good: Path, root: Path) -> dict[str, Path]:
    """A folder with a copy of the good run for each case, and some with odd names; the paths by case."""
    made = {}
    for number, (name, change) in enumerate(cases()):
        # A few in each folder: looking up a run reads the names of all runs of a studio.
        made[name] = Path(shutil.copytree(good, root / f"{number // 8:02d}" / f"{number:03d}"))
        change(made[name])
    for name in (
        os.fsdecode(b"\xff\xfe latin"),
        "new\nline",
        "x" * 240,
        "example",
        "<script>",
        "a'\"&b",
        "‮rtl",
        "%2e%2e",
    ):
        made[f"folder: {name!r}"] = Path(shutil.copytree(good, root / "names" / name))
    return made
