"""Build ``fashion-mini``, the data set inside the package, from the official Fashion-MNIST files.

    python scripts/build_fashion_mini.py            compare the package's files with newly built ones
    python scripts/build_fashion_mini.py --write    write them

It holds the first 600 images of each class of the official training set and the first 100 of each class of the official
test set, in their official order and format (idx, gzipped). The compressed bytes are the same wherever zlib is zlib's
own; another deflate (zlib-ng, for one) may pack the same content into other bytes, so the content's sha256 is what
``regard.data`` checks.
"""

import argparse
import hashlib
import struct
import sys
import zlib
from pathlib import Path

import torch
from torch import Tensor

from regard.data import load

PER_CLASS = {"train": 600, "t10k": 100}


def first_of_each_class(labels: Tensor, count: int) -> Tensor:
    """The positions of the first ``count`` images of each class, in the file's order."""
    chosen = [(labels == label).nonzero().flatten()[:count] for label in labels.unique()]
    return torch.cat(chosen).sort().values


def idx(values: Tensor) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape)
    return header + values.to(torch.uint8).contiguous().numpy().tobytes()


def gzipped(content: bytes) -> bytes:
    """gzip with an empty header: no time, no name, no system, so that the same content gives the same bytes."""
    packer = zlib.compressobj(7, zlib.DEFLATED, -15)
    header = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\xff"
    tail = struct.pack("<II", zlib.crc32(content), len(content))
    return header + packer.compress(content) + packer.flush() + tail


def build() -> dict[str, bytes]:
    """File name -> content, before compression."""
    data = load("fashion-mnist", validation=0)
    files = {}
    for prefix, part in (("train", data.train), ("t10k", data.test())):
        chosen = first_of_each_class(part.labels, PER_CLASS[prefix])
        files[f"{prefix}-images-idx3-ubyte"] = idx(part.images[chosen, 0])
        files[f"{prefix}-labels-idx1-ubyte"] = idx(part.labels[chosen])
    return files


def moments(images: Tensor) -> tuple[float, float]:
    counts = torch.bincount(images.flatten().int(), minlength=256).double()
    values = torch.arange(256, dtype=torch.float64) / 255
    mean = (counts * values).sum() / counts.sum()
    return mean.item(), (counts * (values - mean) ** 2).sum().div(counts.sum()).sqrt().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the files instead of comparing them")
    default = Path(__file__).parents[1] / "src" / "regard" / "data" / "files" / "fashion-mini"
    parser.add_argument("--folder", type=Path, default=default)
    arguments = parser.parse_args()

    differs = []
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for name, content in build().items():
        path, packed = arguments.folder / f"{name}.gz", gzipped(content)
        print(f"{name}: sha256 {hashlib.sha256(content).hexdigest()}, {len(packed):,} bytes gzipped")
        if arguments.write:
            path.write_bytes(packed)
        elif not path.is_file() or path.read_bytes() != packed:
            differs.append(str(path))
        if name == "train-images-idx3-ubyte":
            mean, std = moments(torch.frombuffer(bytearray(content[16:]), dtype=torch.uint8))
            print(f"  mean {mean:.8f}, std {std:.8f}")
    if differs:
        print("not the same as built here: " + ", ".join(differs), file=sys.stderr)
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
