"""Numbers of the library that the views' own computation, in the browser, is compared with.

``python tests/studio/view_numbers.py`` writes ``frontend/test/numbers.json`` anew.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch

import regard
from regard.convert._from_conv import ConvolutionalAttention
from regard.functional._axis import axis_matrix
from regard.functional._taps import shift_leak, tail
from regard.maps import AttentionRecord, Layout, Map, Maps
from regard.reference import convolution, worked_example

FILE = Path(__file__).parents[2] / "frontend" / "test" / "numbers.json"
BETAS = (0.0, 0.001, 0.1, 1.0, 3.0, math.inf)
# border, padding, dilation, stride
SETTINGS = (
    ("zeros", 1, 1, 1),
    ("zeros", 0, 1, 1),
    ("zeros", 2, 2, 2),
    ("reflect", 1, 1, 1),
    ("reflect", 3, 3, 2),
    ("replicate", 2, 2, 1),
    ("circular", 1, 1, 2),
    ("circular", 2, 1, 1),
    ("native", 1, 1, 1),
    ("native", 2, 2, 2),
)
SHARP = (0.25, 1.5, 6.0)  # exact in float32, which the layer keeps its sharpness in


def numbers() -> dict[str, Any]:
    """Everything, in float64, as JSON takes it (∞ as a word)."""
    torch.manual_seed(0)
    return {
        "softargmax": _softargmax(),
        "attention": _attention(),
        "axis": _axis(),
        "convolution": _convolution(),
        "rollout": _rollout(),
    }


def _softargmax() -> list[dict[str, Any]]:
    scores = [[0.3, -1.2, 2.0, 2.0], [5.0, 5.0, 5.0], [-math.inf, 1.0, 0.5], [-math.inf, -math.inf], [7.0]]
    return [
        {
            "scores": _plain(row),
            "beta": _plain(beta),
            "weights": regard.softargmax(torch.tensor(row, dtype=torch.float64), beta).tolist(),
        }
        for row in scores
        for beta in BETAS
    ]


def _attention() -> list[dict[str, Any]]:
    example = worked_example()
    query, key, value = (example.hidden @ w.mT for w in (example.w_query, example.w_key, example.w_value))
    drawn = [torch.randn(4, 2).double(), torch.randn(5, 2).double(), torch.randn(5, 3).double()]
    found = []
    for q, k, v in ([query, key, value], drawn):
        for beta in (*BETAS, 2**-0.5):
            out, weights = regard.attention(q, k, v, beta=beta, return_weights=True)
            found.append(
                {
                    "query": q.tolist(),
                    "key": k.tolist(),
                    "value": v.tolist(),
                    "beta": _plain(beta),
                    "weights": weights.tolist(),
                    "output": out.tolist(),
                }
            )
    return found


def _axis() -> dict[str, Any]:
    matrices = []
    for border, pads in (
        ("native", (0, 0)),
        ("zeros", (2, 1)),
        ("reflect", (2, 3)),
        ("replicate", (3, 3)),
        ("circular", (4, 4)),
    ):
        for alpha in (0.0, 0.2, 2.0, 40.0):
            targets = torch.tensor([[-3.0, -0.75, 0.0, 1.5, 2.5, 4.0, 6.25]], dtype=torch.float64)
            matrix = axis_matrix(
                targets,
                torch.tensor([alpha], dtype=torch.float64),
                5,
                border=border,
                padding=pads,  # type: ignore[arg-type]
            )
            matrices.append(
                {
                    "targets": targets[0].tolist(),
                    "alpha": alpha,
                    "size": 5,
                    "border": border,
                    "before": pads[0],
                    "after": pads[1],
                    "matrix": matrix[0].tolist(),
                }
            )
    bounds = [{"alpha": alpha, "tail": tail(alpha), "leak": [shift_leak([alpha] * axes) for axes in (1, 2)]}
              for alpha in (0.05, 0.5, 1.0, 4.0, 12.0, 30.0)]  # fmt: skip
    return {"matrices": matrices, "bounds": bounds}


def _convolution() -> dict[str, Any]:
    image = torch.randn(1, 1, 7, 6).double()
    kernel = torch.tensor([[-1.0, 2.0, 0.0], [0.5, 3.0, -2.0], [0.0, 1.0, 0.25]], dtype=torch.float64)
    cases = []
    for border, pad, dilation, stride in SETTINGS:
        # Heads that attend to what exists become the convolution with repeated borders.
        mode = "replicate" if border == "native" else border
        exact = convolution(image, kernel[None, None], stride=stride, padding=pad, dilation=dilation, padding_mode=mode)
        conv = torch.nn.Conv2d(1, 1, 3, stride, pad, dilation, bias=False, padding_mode=mode).double()
        conv.weight.data = kernel[None, None].clone()
        attended = []
        for alpha in SHARP:
            layer: ConvolutionalAttention = regard.conv_to_attention(conv)
            layer.alpha = alpha
            if border == "native":
                output = _native(layer, image, alpha)
            else:
                output = layer(image).detach()
            bound = layer.error_bound(image)
            if (output - exact).abs().max().item() > bound:
                raise ArithmeticError(f"{border} at {alpha} is further off than is proven")
            attended.append({"alpha": alpha, "output": output[0, 0].tolist(), "bound": bound})
        cases.append(
            {
                "border": border,
                "pad": pad,
                "dilation": dilation,
                "stride": stride,
                "output": exact[0, 0].tolist(),
                "attended": attended,
            }
        )
    return {"image": image[0, 0].tolist(), "kernel": kernel.tolist(), "cases": cases}


def _rollout() -> list[dict[str, Any]]:
    """Of layers whose tokens are merged on the way, and of some whose are not; up to each of them."""
    cases = []
    for prefix, grids in (
        (0, [(4, 4), (2, 2)]),
        (1, [(2, 4), (2, 4), (1, 2), (1, 1)]),
        (2, [(3, 1), (3, 1)]),
        (0, [(6,), (2,)]),
        (0, [(2, 2, 2), (1, 2, 1)]),
    ):
        layers = [Layout(grid, prefix) for grid in grids]
        weights = [torch.randn(1, 2, each.tokens, each.tokens).double().mul(2).softmax(-1) for each in layers]
        weights[0][:, :, 1] = 0  # nothing to attend to
        maps = Maps(
            Map(f"layer{number}", [AttentionRecord.given(each, layout=layout)])
            for number, (each, layout) in enumerate(zip(weights, layers, strict=True))
        )
        cases.append(
            {
                "prefix": prefix,
                "grids": [list(grid) for grid in grids],
                "weights": [each[0].tolist() for each in weights],
                "rollout": [regard.rollout(maps[: number + 1])[0].tolist() for number in range(len(maps))],
            }
        )
    return cases


def _native(layer: ConvolutionalAttention, image: torch.Tensor, alpha: float) -> torch.Tensor:
    """Through the Gaussian attention of the library, a head per tap, weighted and summed."""
    rows, columns = image.shape[2:]
    counts = layer.output_size((rows, columns))
    queries = tuple(torch.arange(n).double() * s for n, s in zip(counts, layer.stride, strict=True))
    heads = layer.heads
    value = image.reshape(1, 1, rows * columns, 1).expand(1, heads, -1, -1)
    out = regard.gaussian_attention(
        value, layer.center.double(), torch.full((heads,), alpha).double(), (rows, columns), queries=queries
    )
    weight = layer.weight.detach().reshape(1, heads, 1, 1)
    return (out * weight).sum(1).reshape(1, 1, *counts)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")


if __name__ == "__main__":
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps(numbers()) + "\n", encoding="utf-8")
    print(f"wrote {FILE}")
