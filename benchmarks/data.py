"""Streamed images: images per second, compared with raw reads of the memory map and with Pillow in a DataLoader.

    python benchmarks/data.py                  # writes 1,000 photos of 500 × 375 pixels to a temporary folder; a minute

Two questions, each with a bar:
  later epochs   batches from the memory-mapped cache, against copying the same shuffled images out of the map (0.8 ×)
  first epoch    decoding every photo once into the cache and reading one epoch from it, against one epoch of Pillow in
                 the worker processes of torch's DataLoader (1 ×). Both have as many workers.
And the memory by which a process grows that decodes in every epoch, which may not exceed what is stated.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from _measure import arguments, positive, print_table, write

WIDTH, HEIGHT = 500, 375  # of the photos, as the median of ImageNet's
BARS = {"later epochs": 0.8, "first epoch": 1.0}


def write_photos(folder: Path, count: int) -> None:
    """Smooth noise as JPEG files, in two classes: about as many bytes for each as a photo has."""
    from PIL import Image

    generator = torch.Generator().manual_seed(0)
    for number in range(count):
        coarse = torch.rand(1, 3, 94, 125, generator=generator)
        pixels = torch.nn.functional.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear")[0]
        place = folder / ("test" if number % 50 < 2 else "train") / ("cat" if number % 2 else "dog")
        place.mkdir(parents=True, exist_ok=True)
        array = (pixels * 255).byte().permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(array).save(place / f"{number}.jpg", quality=90)


class Photos(Dataset[tuple[Tensor, int]]):
    """What a DataLoader reads: each file decoded by Pillow, the short side scaled, the middle cut out."""

    def __init__(self, folder: Path, size: int) -> None:
        self.files = sorted(folder.glob("train/*/*.jpg"))
        self.size = size

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        from PIL import Image, ImageOps

        with Image.open(self.files[number]) as opened:
            image = ImageOps.fit(opened.convert("RGB"), (self.size, self.size), Image.Resampling.BILINEAR)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(self.size, self.size, 3)
        return pixels.permute(2, 0, 1), int(self.files[number].parent.name == "dog")


def dataloader_epoch(folder: Path, options: Any) -> float:
    start = time.perf_counter()
    loader = DataLoader(Photos(folder, options.size), options.batch, shuffle=True, num_workers=options.workers)
    count = sum(len(images) for images, _ in loader)
    return count / (time.perf_counter() - start)


def first_epoch(folder: Path, options: Any) -> float:
    """With an empty cache: open, decode all, then one epoch of batches, in bytes as the DataLoader's are. Only training
    images count, though those for the test are decoded, too."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["REGARD_DATA"] = cache
        start = time.perf_counter()
        images = opened(folder, options)
        count = sum(len(batch) for batch in batches(images, options.batch, epoch=0))
        return count / (time.perf_counter() - start)


def opened(folder: Path, options: Any) -> Any:
    from regard.data import open_data
    from regard.data.own_images import open_images

    open_images.cache_clear()
    return open_data(str(folder), validation=0, image_size=options.size).train


def batches(images: Any, size: int, epoch: int) -> Iterator[Tensor]:
    """Batches of bytes in the loader's order, read ahead as the loader does."""
    from regard.data import Loader

    loader = Loader(Bytes(images), size, seed=0, drop_last=False)
    return loader.epoch(epoch)


class Bytes:
    """The pixels of a streamed set, as samples of a loader, without augmentation and normalization."""

    reads_ahead = True
    index_device = torch.device("cpu")

    def __init__(self, images: Any) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def announce(self, index: Tensor, *, seed: int, epoch: int) -> None:
        self.images.read_ahead(index)

    def batch(self, index: Tensor, *, seed: int, epoch: int) -> Tensor:
        pixels: Tensor = self.images.pixels(index)
        return pixels


def raw_torch(images: Any, size: int, epoch: int) -> Iterator[Tensor]:
    """The same images in the same order, copied out of the map by torch alone."""
    from regard.data import random_order

    mapped = images.reader.source.images
    for index in random_order(len(images), 0, epoch, "order").split(size):
        yield torch.index_select(mapped, 0, images.rows[index])


def raw_numpy(images: Any, size: int, epoch: int) -> Iterator[Any]:
    """And by NumPy alone."""
    from regard.data import random_order

    mapped = images.reader.source.images.numpy()
    for index in random_order(len(images), 0, epoch, "order").split(size):
        yield mapped[images.rows[index].numpy()]


def later_epochs(folder: Path, options: Any) -> list[dict[str, float]]:
    """Images a second of ours and of the faster raw way, a pair for each round. In turn, so that whatever else the machine
    does meets all."""
    rounds = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["REGARD_DATA"] = cache
        images = opened(folder, options)
        kinds: dict[str, Any] = {"regard": batches, "raw torch": raw_torch, "raw NumPy": raw_numpy}
        for kind in kinds.values():  # the file is in the system's cache from here on
            assert sum(len(batch) for batch in kind(images, options.batch, 0)) == len(images)
        for number in range(options.rounds):
            found = {}
            order = list(kinds.items())
            for name, kind in order[number % 3 :] + order[: number % 3]:
                start = time.perf_counter()
                count = sum(len(batch) for repeat in range(3) for batch in kind(images, options.batch, repeat))
                found[name] = count / (time.perf_counter() - start)
            rounds.append({"regard": found["regard"], "raw": max(found["raw torch"], found["raw NumPy"])})
    return rounds


MEMORY = """
import sys, torch
sys.path.insert(0, {here!r})
import data
from regard.data import open_data
from regard.data.own_images import decoding_memory
torch.set_num_threads(1)
images = open_data({folder!r}, validation=0, image_size={size}).train
images.pixels(torch.tensor([0]))  # Pillow's decoders are loaded
before = most = data.resident()
for epoch in (0, 1):
    for _ in data.batches(images, {batch}, epoch):
        most = max(most, data.resident())
print(most - before, decoding_memory(images.reader.source))
"""


def resident() -> int:
    """Bytes of memory that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def decoding_memory(folder: Path, options: Any) -> tuple[int, int]:
    """Bytes by which a process grows while it decodes two epochs, and the bytes that are stated, the two batches in use
    included. REGARD_DATA_MEMORY is set to the three batches that a loader announces, so that none of it is unused."""
    batch = options.batch * 3 * options.size**2
    memory = 3 * batch
    settings = {
        "REGARD_DATA_CACHE": "off", "REGARD_DATA_MEMORY": str(memory), "REGARD_DATA_WORKERS": str(options.workers)
    }  # fmt: skip
    script = MEMORY.format(here=str(Path(__file__).parent), folder=str(folder), size=options.size, batch=options.batch)
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, env={**os.environ, **settings}
    )
    grown, decoders = map(int, done.stdout.split()[-2:])
    return grown, memory + 2 * batch + decoders  # as it is printed before training


def main() -> None:
    parser = arguments(__doc__ or "", rounds=5)
    parser.add_argument("--images", type=positive, default=1000)
    parser.add_argument("--size", type=positive, default=256, help="side of the images in the cache, in pixels")
    parser.add_argument("--batch", type=positive, default=64)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.images <= 4 * options.batch:  # a tenth is set aside, and three batches are in memory
        parser.error(
            f"--images must be more than four batches of {options.batch}, to be streamed, got {options.images}"
        )
    torch.set_num_threads(options.threads)
    half = options.images * 3 * options.size**2 // 2  # less than all, so that they are streamed
    os.environ.update(REGARD_DATA_MEMORY=str(half), REGARD_DATA_WORKERS=str(options.workers))
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "photos"
        write_photos(folder, options.images)
        later = later_epochs(folder, options)
        first = [
            {"regard": first_epoch(folder, options), "DataLoader": dataloader_epoch(folder, options)}
            for _ in range(options.rounds)
        ]
        grown, stated = decoding_memory(folder, options)
    for name, rival, rounds in (("later epochs", "raw", later), ("first epoch", "DataLoader", first)):
        ratio = statistics.median(each["regard"] / each[rival] for each in rounds)
        row = {key: round(statistics.median(each[key] for each in rounds), 1) for key in ("regard", rival)}
        rows.append({
            "what": name, "unit": "images/s", "regard": row["regard"], "rival": rival, "rival_rate": row[rival],
            "ratio": round(ratio, 3), "bar": BARS[name], "meets": ratio >= BARS[name],
        })  # fmt: skip
    print_table(rows, ("what", "regard", "rival", "rival_rate", "ratio", "bar", "meets"))
    print(f"decoding in every epoch: the process grew by {grown / 2**20:.0f} MiB; stated {stated / 2**20:.0f} MiB")
    more = {key: getattr(options, key) for key in ("images", "size", "batch", "workers")}
    print(write("data", options, rows, **more, decoding_memory={"grown": grown, "stated": stated}))


if __name__ == "__main__":
    main()
