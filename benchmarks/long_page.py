"""The page of an overview of 131,072 tokens, 32 layers × 32 heads: its size, and how it answers in a browser.

    python benchmarks/long_page.py

The overview is random, which compresses worst. A headless Chromium without a GPU opens the page from disk. The time to the
first picture counts from the start of the navigation; then the pointer moves over each canvas with every frame, and the
frames are timed. Bars: 15 MB, the first picture within 2 s, 19 of 20 frames within 100 ms over any canvas.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import regard
import views
from _measure import arguments, positive, print_table, write

LAYERS, HEADS, TOKENS, CELLS = 32, 32, 131072, 128
CANVASES = {"map and curves": ".rg-main canvas", "atlas": ".rg-atlas canvas"}
BARS = {"page MB": 15.0, "first picture ms": 2000.0, "slowest frames ms": 100.0}


def overviews() -> regard.maps.Maps:
    """A random overview, in every layer the same: layers are compressed apart."""
    torch.manual_seed(0)
    shape = (1, HEADS, TOKENS, TOKENS)
    overview = regard.maps.Overview.empty(shape, CELLS, torch.device("cpu"))
    for x in overview.tensors.values():
        x.copy_(torch.rand(x.shape) if x.is_floating_point() else torch.randint(0, TOKENS, x.shape))
    overview.mass[:] = TOKENS // CELLS * torch.rand(overview.mass.shape).softmax(-1).tril()
    record = regard.maps.AttentionRecord("layer", "sdpa", shape, regard.maps.Check("kernel"))
    record.overview = overview.kept()
    return regard.maps.Maps([regard.maps.Map(f"layers.{layer}.attention", [record]) for layer in range(LAYERS)])


def page(rounds: int = 3, frames: int = 120) -> dict[str, Any]:
    """Size and seconds of writing; in a browser, the time to the first picture and of the slowest frames of hovering."""
    maps = overviews()
    words = [f"word{i % 50021}" for i in range(TOKENS)]
    with tempfile.TemporaryDirectory() as folder:
        start, used = time.perf_counter(), time.process_time()
        path = regard.show(maps, tokens=words).save(Path(folder) / "long.html")
        row = {
            "page MB": round(path.stat().st_size / 1e6, 2),
            "written in s": round(time.perf_counter() - start, 2),
            "CPU s": round(time.process_time() - used, 2),
        }
        return row | in_browser(path, rounds, frames)


def in_browser(path: Path, rounds: int, frames: int) -> dict[str, Any]:
    """Other processes only ever slow a browser down, so the best round counts; nothing where there is no browser."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, views.BROWSERS)), None)
    if executable is None:
        return {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=views.SWITCHES)
        found = {
            name: [views.measure(browser, path, selector, None, frames) for _ in range(rounds)]
            for name, selector in CANVASES.items()
        }
        version = browser.version
        browser.close()
    row: dict[str, Any] = {
        "first picture ms": min(each["first_picture_ms"] for all_ in found.values() for each in all_)
    }
    for name, each in found.items():
        row[f"{name}, slowest frames ms"] = min(one["slowest_frames_ms"] for one in each)
        row[f"{name}, drawn"] = max(one["drawn"] for one in each)
    return row | {"browser": version}


def main() -> None:
    parser = arguments(__doc__ or "", device="cpu", rounds=3, threads=2)
    parser.add_argument("--frames", type=positive, default=120, help="frames of hovering in each round")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load = os.getloadavg()[0]  # of other programs: the bars are for a machine of one's own
    row = page(options.rounds, options.frames)
    print_table([row], list(row))
    for name, value in row.items():
        bar = next((bar for what, bar in BARS.items() if name.endswith(what)), None)
        if bar is not None:
            print(f"{name}: {value:g}, bar {bar:g}: {'within' if value < bar else 'NOT within'}")
    size = {"layers": LAYERS, "heads": HEADS, "tokens": TOKENS}
    print("written to", write("long-page", options, [size | row], load_average=load))


if __name__ == "__main__":
    main()
