"""Calls of public functions, layers and models that work, and values that fit hardly any of their arguments."""

# ruff: noqa: E501  # tables of calls and of values

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from regard import analysis, layers, models

Call = tuple[Callable[..., Any], dict[str, Any]]


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
    """Calls that work, by name. Arguments that are left out are replaced, too."""
    torch.manual_seed(0)
    return {**_functions(), **_layers(), **_layer_calls(), **_models(), **_analysis()}


def _functions() -> dict[str, Call]:
    qkv = {name: torch.rand(1, 2, 16, 4) for name in ("query", "key", "value")}
    heads = {"center": torch.rand(2, 2), "sharpness": torch.rand(2) + 0.5}
    profiles = [regard.functional.GaussianProfile(torch.rand(2), torch.rand(2) + 0.5) for _ in range(2)]
    return {
        "softargmax": (regard.softargmax, {"scores": torch.rand(2, 3)}),
        "attention": (regard.attention, qkv),
        "gaussian_attention": (regard.gaussian_attention, {"value": torch.rand(1, 2, 16, 4), **heads, "grid": (4, 4)}),
        "separable_attention": (regard.separable_attention, {"value": torch.rand(1, 2, 16, 4), "profiles": profiles, "grid": (4, 4)}),
        "plan_for": (regard.plan_for, {**heads, "grid": (4, 4)}),
    }  # fmt: skip


def _layers() -> dict[str, Call]:
    two = {"dim": 8, "heads": 2}
    return {
        "MultiHeadAttention": (regard.MultiHeadAttention, two),
        "GaussianAttention": (regard.GaussianAttention, two),
        "GatedPositionalAttention": (layers.GatedPositionalAttention, {"dim": 8, "heads": 4}),
        "PlacedAttention": (layers.PlacedAttention, two),
        "SeparableAttention": (layers.SeparableAttention, two),
        "RelativeAttention": (layers.RelativeAttention, {**two, "extent": (4, 4)}),
        "AdditiveAttention": (layers.AdditiveAttention, {"query_dim": 8, "key_dim": 8}),
        "AbsolutePositionalEmbedding": (layers.AbsolutePositionalEmbedding, {"dim": 8, "grid": (4, 4)}),
        "AttentionPooling": (layers.AttentionPooling, two),
        "EncoderBlock": (layers.EncoderBlock, two),
        "DecoderBlock": (layers.DecoderBlock, two),
        "FeedForward": (layers.FeedForward, {"dim": 8}),
        "GaussianHeads": (layers.GaussianHeads, {"heads": 2}),
        "LayerNorm": (layers.LayerNorm, {"dim": 8}),
        "PatchEmbedding": (layers.PatchEmbedding, {"patch_size": 4, "dim": 8}),
    }


def _layer_calls() -> dict[str, Call]:
    x, on_grid = torch.rand(1, 16, 8), {"x": torch.rand(1, 16, 8), "grid": (4, 4)}
    gaussian, relative = layers.GaussianAttention(8, 2), layers.RelativeAttention(8, 2, (4, 4))
    return {
        "MultiHeadAttention()": (regard.MultiHeadAttention(8, 2), {"x": x}),
        "GaussianAttention()": (gaussian, on_grid),
        "GaussianAttention.weights": (gaussian.weights, {"grid": (4, 4)}),
        "GatedPositionalAttention()": (layers.GatedPositionalAttention(8, 4), on_grid),
        "PlacedAttention()": (layers.PlacedAttention(8, 2), on_grid),
        "SeparableAttention()": (layers.SeparableAttention(8, 2), on_grid),
        "RelativeAttention()": (relative, on_grid),
        "AdditiveAttention()": (layers.AdditiveAttention(8, 8), {"query": torch.rand(1, 3, 8), "key": torch.rand(1, 5, 8)}),
        "EncoderBlock()": (layers.EncoderBlock(8, 2), {"x": x}),
        "FeedForward()": (layers.FeedForward(8), {"x": x}),
        "LayerNorm()": (layers.LayerNorm(8), {"x": x}),
        "PatchEmbedding()": (layers.PatchEmbedding(4, 8), {"images": torch.rand(1, 3, 8, 8)}),
    }  # fmt: skip


def _models() -> dict[str, Call]:
    tiny = {"dim": 8, "depth": 1, "heads": 2}
    image = {"image_size": 8, "num_classes": 3}
    vision = models.VisionTransformer((8, 8), 4, 3, **tiny)
    return {
        "VisionTransformer": (models.VisionTransformer, {**image, "patch_size": 4, **tiny}),
        "VisionTransformer()": (vision, {"images": torch.rand(1, 3, 8, 8)}),
        "ImageEncoder": (models.ImageEncoder, {**image, "patch_size": 2, **tiny}),
        "TextEncoder": (models.TextEncoder, {"vocab_size": 9, "length": 8, **tiny}),
        "Transformer": (models.Transformer, {"vocab_size": 9, **tiny}),
        "Seq2SeqRNN": (models.Seq2SeqRNN, {"vocab_size": 9, "dim": 8, "hidden": 8}),
        "ResNet18": (models.ResNet18, {"num_classes": 3, "width": 2}),
        "AttentionPyramid": (models.AttentionPyramid, {**image, "widths": (8, 8), "depth": 1, "heads": 4}),
    }  # fmt: skip


def _analysis() -> dict[str, Call]:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    model = models.VisionTransformer((8, 8), 4, 3, dim=8, depth=1, heads=2)
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.rand(1, 3, 8, 8))
    turned, sharp = regard.conv_to_attention(conv), layers.GaussianAttention(8, 4, init="grid", sharpness=9.0)
    back = regard.attention_to_conv(sharp)
    batches = [(torch.rand(2, 3, 8, 8), torch.tensor([0, 1]))]
    return {
        "conv_to_attention": (regard.conv_to_attention, {"conv": conv}),
        "conv_to_attention.error_bound": (turned.error_bound, {"x": torch.rand(1, 3, 8, 8)}),
        "attention_to_conv": (regard.attention_to_conv, {"layer": sharp}),
        "attention_to_conv.error_bound": (back.error_bound, {"x": torch.rand(1, 8, 8, 8)}),
        "attention_to_conv.interior": (back.interior, {"grid": (8, 8)}),
        "convert_network": (regard.convert_network, {"model": conv}),
        "capture": (lambda **options: _capture(model, **options), dict.fromkeys(("only", "rows", "heads", "dtype", "reduce", "grid", "prefix")) | {"budget": "1MiB", "values": False}),
        "rollout": (regard.rollout, {"maps": maps}),
        "edit": (lambda **options: _edit(model, **options), {"where": "*", "queries": None, "keys": 0, "heads": None, "weights": None, "renormalize": None}),
        "find_heads": (regard.find_heads, {"maps": maps, "pattern": "first"}),
        "word_maps": (analysis.word_maps, {"maps": maps, "grid": (2, 2), "segments": [("text", 1), ("image", (2, 2))]}),
        "locality": (regard.locality, {"maps": maps}),
        "entropy": (analysis.entropy, {"maps": maps}),
        "cost": (lambda model, input_shape, dtype=None: regard.cost(model, input_shape, dtype=dtype), {"model": conv, "input_shape": (1, 3, 8, 8)}),
        "relevance": (regard.relevance, {"model": model, "x": torch.rand(1, 3, 8, 8)}),
        "prune_heads": (regard.prune_heads, {"model": model, "keep": {next(iter(maps)): [0]}}),
        "importance": (analysis.importance, {"model": model, "batches": batches}),
        "show": (regard.show, {"what": maps}),
        "load_run": (regard.load_run, {"path": "nowhere"}),
        "train": (_train, {"recipe": replace(regard.recipes.get("demo"), task=_Accepting("fashion-mini")), "accelerator": "cpu"}),
    }  # fmt: skip


class _Accepted(Exception):
    """The arguments were taken."""


class _Accepting(regard.training.ImageTask):
    """A task whose first use tells that all arguments were taken."""

    def check(self) -> list[str]:
        raise _Accepted


@functools.wraps(regard.train)
def _train(*args: Any, **options: Any) -> None:
    with contextlib.suppress(_Accepted):
        regard.train(*args, **options)


def _capture(model: nn.Module, **options: Any) -> None:
    with torch.no_grad(), regard.capture(model, **options):
        model(torch.rand(1, 3, 8, 8))


def _edit(model: nn.Module, **options: Any) -> None:
    with torch.no_grad(), regard.edit(model, **options):
        model(torch.rand(1, 3, 8, 8))
