"""Draw the moving picture of the README: heads on their way from where they started to where they settle.

    python scripts/moving_picture.py                       # docs/images/heads.svg and heads-dark.svg
    python scripts/moving_picture.py --run runs/demo       # of another run

An SVG that moves by CSS: small, sharp at any size, still for those who asked for reduced motion.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from regard.training import HeadTrajectory
from regard.views import shipped_run

ROOT = Path(__file__).parents[1]
EXAMPLE = shipped_run("cifar10-small")
COLORS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#7f7f7f", "#b03a7e", "#7a6ff0")
THEMES = {
    "heads.svg": {"PAPER": "#ffffff", "INK": "#1b2026", "MUTED": "#5c6670", "LINE": "#d5dae0"},
    "heads-dark.svg": {"PAPER": "#0d1117", "INK": "#e8ebef", "MUTED": "#98a2ad", "LINE": "#3a424c"},
}
MOMENTS, SECONDS, REST = 26, 11, 0.3  # pictures between which it moves; of a round; share of it that it stands still
PANEL, GAP, TOP, FOOT = 128.0, 12.0, 26.0, 30.0
EDGE = 7.5  # tokens from the middle of a panel to its edge


STYLE = """
circle{fill-opacity:.22;stroke-width:2;vector-effect:non-scaling-stroke;animation:SECONDSs linear infinite}
text{font:600 12px system-ui,sans-serif;fill:INK}
.name{text-anchor:middle}
.says{font-weight:400;fill:MUTED}
.frame{fill:none;stroke:LINE}
.query{stroke:INK;stroke-width:1.5}
.rest{fill:LINE}
.done{fill:#0072b2;animation:SECONDSs linear infinite bar;transform-origin:left}
@keyframes bar{0%{transform:scaleX(0)}MOVED%,100%{transform:scaleX(1)}}
"""
STILL = "@media (prefers-reduced-motion:reduce){*{animation:none!important}}"


def spread(sharpness: Tensor) -> Tensor:
    """The radius that holds half of a head's weight, (steps, heads): exp(−α r²) has 1 − exp(−α r²) of it inside r."""
    if sharpness.ndim == 4:
        sharpness = sharpness.diagonal(dim1=-2, dim2=-1)
    even = sharpness if sharpness.ndim == 2 else sharpness.mean(-1)
    return (math.log(2) / even.clamp_min(1e-3)).sqrt()


def moments(steps: Sequence[int]) -> list[int]:
    """Which of the written positions are drawn: most of them early, when heads move most.

    >>> moments(range(3))
    [0, 1, 2]
    """
    last = len(steps) - 1
    return sorted({round(last * (at / (MOMENTS - 1)) ** 2) for at in range(MOMENTS)})


def panel(heads: HeadTrajectory, layer: int) -> tuple[str, str]:
    """One layer: its elements, and the style that moves them."""
    times, scale = moments(heads.steps), PANEL / 2 / EDGE
    share = [at / max(1, len(times) - 1) * 100 * (1 - REST) for at in range(len(times))]
    radius, left, middle = spread(heads.sharpness[layer]), layer * (PANEL + GAP), TOP + PANEL / 2
    box = f'x="{left:.0f}" y="{TOP:.0f}" width="{PANEL:.0f}" height="{PANEL:.0f}" rx="6"'
    parts = [
        f'<clipPath id="c{layer}"><rect {box}/></clipPath>',
        f'<text x="{left + PANEL / 2:.0f}" y="16" class="name">layer {layer + 1}</text>',
        f'<g clip-path="url(#c{layer})"><g transform="translate({left + PANEL / 2:.0f} {middle:.0f})">',
    ]
    styles = []
    for head in range(heads.center[layer].shape[1]):
        name, color = f"h{layer}-{head}", COLORS[head % len(COLORS)]
        places = []
        for at in times:
            row, column = (heads.center[layer][at, head] * scale).tolist()
            size = float(radius[at, head]) * scale
            places.append(f"transform:translate({column:.1f}px,{row:.1f}px) scale({size:.1f})")
        frames = "".join(f"{when:.1f}%{{{place}}}" for when, place in zip(share, places, strict=True))
        # Where it stands without motion is where it settles.
        styles.append(f"@keyframes {name}{{{frames}100%{{{places[-1]}}}}}#{name}{{{places[-1]};animation-name:{name}}}")
        parts.append(f'<circle id="{name}" r="1" fill="{color}" stroke="{color}"/>')
    parts.append(f'</g></g><rect {box} class="frame"/>')
    parts.append(f'<path d="M{left + PANEL / 2 - 3:.0f} {middle:.0f}h6m-3 -3v6" class="query"/>')
    return "".join(parts), "".join(styles)


def draw(heads: HeadTrajectory, theme: dict[str, str]) -> str:
    """The whole picture."""
    count = len(heads.layers)
    width, height = count * (PANEL + GAP) - GAP, TOP + PANEL + FOOT
    panels = [panel(heads, layer) for layer in range(count)]
    bar = f'x="0" y="{height - 6:.0f}" width="{width:.0f}" height="3" rx="1.5"'
    said = f"steps 0 to {heads.steps[-1]:,} · + is the query · a circle holds half of a head’s attention"
    style = STYLE.replace("\n", "")
    for word, value in {"SECONDS": str(SECONDS), "MOVED": f"{100 * (1 - REST):.0f}", **theme}.items():
        style = style.replace(word, value)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-1 0 {width + 2:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}"><title>Where heads look, over training</title>'
        f"<style>{style}{''.join(styles for _, styles in panels)}{STILL}</style>"
        f'<rect x="-1" width="100%" height="100%" fill="{theme["PAPER"]}"/>{"".join(parts for parts, _ in panels)}'
        f'<text x="0" y="{height - 12:.0f}" class="says">{said}</text>'
        f'<rect {bar} class="rest"/><rect {bar} class="done"/></svg>\n'
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--run", type=Path, default=EXAMPLE, help="the folder of a run with Gaussian heads on images")
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images", help="where they go")
    options = parser.parse_args(arguments)
    heads = HeadTrajectory.read(options.run / "heads.jsonl")
    if heads is None:
        raise SystemExit(f"{options.run} has no heads.jsonl: a run with Gaussian heads would fit")
    for name, theme in THEMES.items():
        path = options.folder / name
        path.write_text(draw(heads, theme), encoding="utf-8")
        print(f"{path} ({path.stat().st_size / 1000:.0f} kB)")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    raise SystemExit(main())
