"""Wrong arguments for public functions and layers: python scripts/fuzz/arguments.py [COUNT] [SEED]

Each case takes a call that works and replaces one or two of its arguments. The call may work; otherwise its error must be
clear: a TypeError or ValueError (OSError for paths) whose message names one of the replaced arguments, or that comes from
a check of ours. Prints the unclear ones and returns 1 if there are any.
"""

# ruff: noqa: E501  # tables of calls and of values

import math
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from regard import layers, models

Call = tuple[Callable[..., Any], dict[str, Any]]
HOME = str(Path(regard.__file__).parent)
CLEAR = (TypeError, ValueError, OSError, NotImplementedError)


def wrong_values() -> list[Any]:
    return [
        None, True, False, 0, 1, 2, 3, -1, -7, 10**4, 0.0, 0.5, -0.5, 1.5, math.nan, math.inf, -math.inf, "", "x", "native", b"x", [], [1, 2], (), (3,),
        (2, 3), (4, 4), (0, 4), (-1, 4), (4, 4, 4), ("a", "b"), {}, {"a": 1}, set(), object(), int, print, range(3), 1j, slice(None),
        torch.tensor(1.0), torch.tensor(3), torch.zeros(0), torch.ones(3), torch.ones(2, 3), torch.ones(1, 2, 16, 4), torch.ones(1, 3, 16, 4),
        torch.ones(2, 2, 16, 8), torch.ones(1, 2, 16, 4, dtype=torch.float64), torch.ones(1, 2, 16, 4, dtype=torch.int64),
        torch.ones(1, 2, 16, 16, dtype=torch.bool), torch.ones(16, 16, dtype=torch.bool), torch.full((1, 2, 16, 4), math.nan),
        torch.ones(2, 2), torch.ones(2, 2, 2), -torch.ones(2), torch.ones(2, dtype=torch.complex64), torch.ones(1, 2, 16, 4, device="meta"),
        nn.Linear(2, 2), nn.Linear, nn.Conv2d(3, 4, 3), ["x"], "auto", "cpu", Path("nowhere"),
    ]  # fmt: skip


def calls() -> dict[str, Call]:
    """Calls that work, by name."""
    torch.manual_seed(0)
    qkv = {name: torch.rand(1, 2, 16, 4) for name in ("query", "key", "value")}
    heads = {"center": torch.rand(2, 2), "sharpness": torch.rand(2) + 0.5}
    conv = nn.Conv2d(3, 4, 3, padding=1)
    gaussian = layers.GaussianAttention(8, 2)
    model = models.VisionTransformer((8, 8), 4, 3, dim=8, depth=1, heads=2)
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.rand(1, 3, 8, 8))
    turned = regard.conv_to_attention(conv)
    sharp = layers.GaussianAttention(8, 4, init="grid", sharpness=9.0)
    return {
        "softargmax": (regard.softargmax, {"scores": torch.rand(2, 3), "beta": 1.0, "keep": None, "dim": -1}),
        "attention": (regard.attention, {**qkv, "beta": None, "keep": None, "bias": None, "causal": False, "return_weights": False}),
        "gaussian_attention": (regard.gaussian_attention, {"value": torch.rand(1, 2, 16, 4), **heads, "grid": (4, 4), "queries": None, "border": "native", "padding": None, "plan": "auto"}),
        "plan_for": (regard.plan_for, {**heads, "grid": (4, 4)}),
        "MultiHeadAttention": (regard.MultiHeadAttention, {"dim": 8, "heads": 2}),
        "MultiHeadAttention()": (regard.MultiHeadAttention(8, 2), {"x": torch.rand(1, 16, 8), "context": None, "value": None, "keep": None, "bias": None, "causal": False}),
        "GaussianAttention": (regard.GaussianAttention, {"dim": 8, "heads": 2, "axes": 2}),
        "GaussianAttention()": (gaussian, {"x": torch.rand(1, 16, 8), "grid": (4, 4)}),
        "conv_to_attention": (regard.conv_to_attention, {"conv": conv, "tolerance": 1e-6}),
        "conv_to_attention.error_bound": (turned.error_bound, {"x": torch.rand(1, 3, 8, 8)}),
        "attention_to_conv": (regard.attention_to_conv, {"layer": sharp, "tolerance": 1e-3}),
        "convert_network": (regard.convert_network, {"model": conv, "to": "attention", "tolerance": None}),
        "capture": (lambda **options: _capture(model, **options), {"only": None, "rows": None, "heads": None, "dtype": None, "budget": "1MiB", "values": False}),
        "rollout": (regard.rollout, {"maps": maps, "fusion": "mean", "discard": 0.0, "identity": 0.5, "segments": [("text", 1), ("image", (2, 2))]}),
        "edit": (lambda **options: _edit(model, **options), {"where": "*", "queries": None, "keys": 0, "heads": None, "weights": None, "renormalize": None}),
        "find_heads": (regard.find_heads, {"maps": maps, "pattern": "first", "ids": None, "keep": None, "radius": 2, "margin": 0.25}),
        "word_maps": (regard.analysis.word_maps, {"maps": maps, "grid": (2, 2), "tokens": None, "segments": [("text", 1), ("image", (2, 2))], "sample": -1}),
        "locality": (regard.locality, {"maps": maps, "grid": None, "prefix": None}),
        "cost": (regard.cost, {"model": conv, "input_shape": (1, 3, 8, 8)}),
        "show": (regard.show, {"what": maps, "image": None, "tokens": None, "grid": None, "prefix": None, "sample": 0}),
        "show with text": (regard.show, {"what": maps, "other": None, "tokenizer": None, "ids": None, "segments": None, "words": False, "names": None}),
        "VisionTransformer": (models.VisionTransformer, {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 1, "heads": 2}),
        "ImageEncoder": (models.ImageEncoder, {"image_size": 8, "patch_size": 2, "num_classes": 3, "dim": 8, "depth": 1, "heads": 2}),
        "TextEncoder": (models.TextEncoder, {"vocab_size": 9, "length": 8, "dim": 8, "depth": 1, "heads": 2}),
        "Transformer": (models.Transformer, {"vocab_size": 9, "dim": 8, "depth": 1, "heads": 2}),
        "load_run": (regard.load_run, {"path": "nowhere"}),
        "Recipe.train": (regard.train, {"recipe": None, "devices": 1, "log_every": 1, "save_every": None, "keep": 2, "accelerator": "cpu"}),
    }  # fmt: skip


def _capture(model: nn.Module, **options: Any) -> None:
    with torch.no_grad(), regard.capture(model, **options):
        model(torch.rand(1, 3, 8, 8))


def _edit(model: nn.Module, **options: Any) -> None:
    with torch.no_grad(), regard.edit(model, **options):
        model(torch.rand(1, 3, 8, 8))


def is_clear(error: BaseException, names: list[str]) -> bool:
    if not isinstance(error, CLEAR):
        return False
    if any(name in str(error) for name in names):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and frames[-1].filename.startswith(HOME) and len(str(error)) > 10


def _brief(value: Any) -> str:
    return f"tensor{tuple(value.shape)}" if isinstance(value, torch.Tensor) else " ".join(repr(value).split())[:40]


def fuzz(count: int, seed: int) -> Counter[str]:
    """The unclear errors, each with how often it came."""
    draw, found = random.Random(seed), Counter[str]()
    known, values = calls(), wrong_values()
    for name, (function, arguments) in known.items():  # a table that has gone stale would test nothing
        if name not in ("load_run", "Recipe.train"):
            function(**arguments)
    for _ in range(count):
        name = draw.choice(list(known))
        function, arguments = known[name]
        changed = draw.sample(list(arguments), min(len(arguments), draw.choice((1, 1, 1, 2))))
        wrong = {key: draw.choice(values) for key in changed}
        try:
            function(**{**arguments, **wrong})
        except Exception as error:
            if not is_clear(error, changed):
                last = traceback.extract_tb(error.__traceback__)[-1]
                said = str(error).partition("\n")[0][:100]
                found[f"{name}({', '.join(f'{key}={_brief(value)}' for key, value in wrong.items())}): "
                      f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {said}"] += 1  # fmt: skip
    return found


def main() -> int:
    count, seed = (int(word) for word in (*sys.argv[1:], *("20000", "0")[len(sys.argv) - 1 :]))
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fuzz(count, seed)
    for line, times in found.most_common():
        print(f"{times:5d}  {line}")
    print(f"{sum(found.values())} unclear errors of {count} wrong calls (seed {seed})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
