"""Views in a browser: the time to the first picture, and the frame rate while the pointer moves over it.

    python benchmarks/views.py

Each view is saved as one file, and a headless Chromium without a GPU opens it from disk. The time to the first picture
counts from the start of the navigation. Then the pointer moves over the picture with every frame (or the view plays), and
the frames are counted. A display shows 60 per second; the bar is 30. Bars: the first picture within 0.5 s, 19 of 20 frames
within 50 ms. A page of 20 layers × 16 heads × 1024 tokens must be made within 8 s and within 1 GB beyond the maps, and the
ledger of claims within 2 s.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import regard
from _measure import arguments, positive, print_table, write
from regard.training import HeadTrajectory
from regard.views import Show

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SWITCHES = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
BAR = 30.0
FIRST_MS, HOVER_MS, PAGE_SECONDS, PAGE_MB, LEDGER_SECONDS = 500.0, 50.0, 8.0, 1000.0, 2.0

# Makes a large page in a process of its own: seconds, and megabytes beyond the maps.
PAGE = """
import json, resource, sys, time, torch, regard
torch.set_num_threads(int(sys.argv[2]))
torch.manual_seed(0)
maps = {f"blocks.{i}.attn": torch.randn(16, 1024, 1024).mul_(2.5).softmax(-1) for i in range(20)}
regard.show({"a": torch.rand(1, 4, 4)}).html()
pages = int(open("/proc/self/statm").read().split()[1])
before = pages * resource.getpagesize() / 1e6
start, used = time.perf_counter(), time.process_time()
path = regard.show(maps).save(sys.argv[1])
seconds, processor = time.perf_counter() - start, time.process_time() - used
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
start = time.perf_counter()
import regard.claims
imports = time.perf_counter() - start
start = time.perf_counter()
regard.show("claims")
ledger = time.perf_counter() - start
print(json.dumps({
    "page_seconds": round(seconds, 2), "page_processor_seconds": round(processor, 2), "page_mb_beyond_maps": round(peak - before),
    "page_file_mb": round(path.stat().st_size / 1e6), "claims_seconds": round(ledger, 2),
    "claims_import_seconds": round(imports, 2),
}))
"""

# Runs before the page: notes when the first canvas has been painted.
FIRST = """
const look = () => {
  if (document.querySelector("canvas[data-painted]")) window.first = performance.now();
  else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""

# Moves the pointer along a spiral, a step per frame; gives the times of the frames and how often something was drawn.
HOVER = """
([selector, frames]) => new Promise((done) => {
  const canvas = document.querySelector(selector);
  const box = canvas.getBoundingClientRect();
  const drawn = () => [...document.querySelectorAll("canvas")].reduce((n, c) => n + Number(c.dataset.painted ?? 0), 0);
  const before = drawn();
  const times = [];
  const step = (now) => {
    times.push(now);
    if (times.length > frames) return done({ times, drawn: drawn() - before });
    const t = times.length / frames;
    const place = {
      clientX: box.left + box.width * (0.5 + 0.4 * t * Math.cos(40 * t)),
      clientY: box.top + box.height * (0.5 + 0.4 * t * Math.sin(40 * t)),
    };
    canvas.dispatchEvent(new PointerEvent("pointermove", { ...place, bubbles: true, pointerId: 1 }));
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
})
"""


def weights(layers: int, heads: int, tokens: int) -> dict[str, torch.Tensor]:
    """Maps with peaks and a floor, as trained models have them."""
    return {f"blocks.{i}.attn": torch.randn(heads, tokens, tokens).mul(2.5).softmax(-1) for i in range(layers)}


def heads_view() -> Show:
    """The course's size: 6 layers of 9 heads, written down 200 times."""
    moments = torch.linspace(0, 1, 200)[:, None, None]
    taps = torch.tensor([[r, c] for r in (-1.0, 0.0, 1.0) for c in (-1.0, 0.0, 1.0)])
    center = tuple(torch.randn(9, 2) * (1 - moments) + taps * (1 + 0.3 * i) * moments for i in range(6))
    sharpness = tuple(0.5 + moments[..., 0] * (1 + torch.rand(9)) for _ in range(6))
    names = tuple(f"blocks.{i}.attention" for i in range(6))
    return regard.show(HeadTrajectory(tuple(range(200)), names, (16, 16), center, sharpness))


def image_view() -> Show:
    return regard.show(weights(12, 12, 197), image=torch.rand(3, 224, 224), grid=(14, 14))


def token_view(tokens: int) -> Show:
    return regard.show(weights(12, 12, tokens), tokens=[f"word{i}" for i in range(tokens)])


def play(page: Any) -> None:
    page.get_by_label("step").fill("0")
    page.get_by_label("play").click()


def arcs(page: Any) -> None:
    page.get_by_text("Arcs").click()


CASES: dict[str, tuple[Callable[[], Show], str, Callable[[Any], None] | None]] = {
    "the scrolled page, playing": (lambda: regard.show("story"), "[data-section='1'] canvas", None),
    "heads, 6 × 9, hovering": (heads_view, ".rg-panels canvas", None),
    "heads, 6 × 9, playing": (heads_view, ".rg-panels canvas", play),
    "image, 197 tokens, 12 × 12": (image_view, ".rg-main canvas", None),
    "image, thumbnails": (image_view, ".rg-atlas canvas", None),
    "tokens, 128, 12 × 12": (lambda: token_view(128), ".rg-main canvas", None),
    "tokens, 512, 12 × 12": (lambda: token_view(512), ".rg-main canvas", None),
    "tokens, 512, thumbnails": (lambda: token_view(512), ".rg-atlas canvas", None),
    "tokens, 512, arcs": (lambda: token_view(512), ".rg-main canvas", arcs),
}


def measure(
    browser: Any, path: Path, selector: str, prepare: Callable[[Any], None] | None, frames: int
) -> dict[str, Any]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.add_init_script(FIRST)
    page.goto(path.as_uri())
    page.wait_for_function("() => window.first")
    first = page.evaluate("() => window.first")
    page.wait_for_timeout(1500)  # thumbnails of long texts are made while the page answers already
    if prepare is not None:
        prepare(page)
    page.wait_for_timeout(200)
    found = page.evaluate(HOVER, [selector, frames])
    page.close()
    spans = [later - earlier for earlier, later in zip(found["times"], found["times"][1:], strict=False)]
    return {
        "first_picture_ms": round(first, 1),
        "frames_per_second": round(1000 * len(spans) / sum(spans), 1),
        "slowest_frames_ms": round(sorted(spans)[math.floor(0.95 * len(spans))], 1),  # one in twenty takes longer
        "drawn": found["drawn"],
    }


def large_page(folder: Path, threads: int) -> dict[str, float]:
    """The best of three: other processes only ever slow it down."""
    command = [sys.executable, "-W", "ignore", "-c", PAGE, str(folder / "large.html"), str(threads)]
    rounds = [json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout) for _ in range(3)]
    return {name: min(found[name] for found in rounds) for name in rounds[0]}


def main() -> None:
    parser = arguments(__doc__ or "", device="cpu", rounds=3, threads=2)
    parser.add_argument("--frames", type=positive, default=180, help="frames of hovering in each round")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    torch.manual_seed(0)
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        raise SystemExit("this benchmark needs a Chromium on the PATH")
    rows = []
    load = os.getloadavg()[0]  # of other programs: the bars are for a machine of one's own
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        version = browser.version
        for name, (make, selector, prepare) in CASES.items():
            file = make().save(Path(folder) / "view.html")
            rounds = [measure(browser, file, selector, prepare, options.frames) for _ in range(options.rounds)]
            # Other processes only ever slow a browser down, so the best round says most about the view.
            best = max(rounds, key=lambda found: found["frames_per_second"])
            soonest = min(found["first_picture_ms"] for found in rounds)
            rows.append(
                {"view": name, "file_mb": round(file.stat().st_size / 1e6, 2), **best, "first_picture_ms": soonest}
            )
            print_table(rows[-1:], list(rows[-1]))
        browser.close()
    print()
    print_table(rows, list(rows[0]))
    slow = [row["view"] for row in rows if row["frames_per_second"] <= BAR]
    print(f"above {BAR:g} frames per second: {'all' if not slow else f'all but {slow}'}")
    late = [row["view"] for row in rows if row["first_picture_ms"] >= FIRST_MS]
    print(f"first picture within {FIRST_MS:g} ms: {'all' if not late else f'all but {late}'}")
    heavy = [row["view"] for row in rows if row["slowest_frames_ms"] >= HOVER_MS]
    print(f"19 of 20 frames within {HOVER_MS:g} ms: {'all' if not heavy else f'all but {heavy}'}")
    with tempfile.TemporaryDirectory() as folder:
        page = large_page(Path(folder), options.threads)
    print_table([page], list(page))
    bars = {
        "page_seconds": PAGE_SECONDS,
        "page_mb_beyond_maps": PAGE_MB,
        "claims_seconds": LEDGER_SECONDS,
    }
    for name, bar in bars.items():
        print(f"{name} {page[name]:g}, bar {bar:g}: {'within' if page[name] < bar else 'NOT within'}")
    print(
        "written to",
        write("views", options, rows, browser=version, frames=options.frames, page=page, load_average=load),
    )


if __name__ == "__main__":
    main()
