"""Calls of public functions, layers and models that work, and values that fit hardly any of their arguments."""

# ruff: noqa: E501  # tables of calls and of values

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import regard
from regard import analysis, figures, functional, layers, models

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
        10**19, -(10**19), 1e30, "3", "\ud800", "a\0b", bytearray(b"xy"), [[1, 2], [3, 4]], [[1, 2], [3]], [None], [True], (1.5, 2), {1: 2}, {"a": [0]},
        {"blocks.0.attention": [7]}, frozenset({1}), Fraction(1, 3), Decimal("0.5"), np.float32(0.5), np.int64(3), np.ones((2, 3)), np.array(["a"]),
        iter([1, 2]), lambda: 1 / 0, lambda *_, **__: None, Exception("x"), Ellipsis, NotImplemented, torch.float16, torch.int64,
        torch.device("cpu"), torch.device("cuda"), torch.Size([4, 4]), nn.Parameter(torch.ones(2, 3)), nn.Identity(), nn.ModuleList(), nn.Sequential(nn.Conv2d(3, 4, 3)),
        torch.ones(1, 2, 16, 4, dtype=torch.float16), torch.ones(1, 2, 16, 4, dtype=torch.bfloat16), torch.ones(1, 16, 8), torch.ones(1, 3, 8, 8), torch.ones(2, 3, 8, 8),
        torch.zeros(1, 0, 8), torch.zeros(0, 3, 8, 8), torch.full((2, 2), math.inf), torch.full((2,), math.nan), torch.eye(3).to_sparse(), torch.tensor([[1, 2, 3]]),
        torch.tensor([[1, 2, 99]]), torch.tensor([[-1, 2]]), torch.ones(1, 3, dtype=torch.bool), torch.ones(2, 2, dtype=torch.complex64), torch.ones(1, 1, 1, 1, 1),
        torch.tensor(10**6),
    ]  # fmt: skip


def calls() -> dict[str, Call]:
    """Calls that work, by name. Arguments that are left out are replaced, too."""
    torch.manual_seed(0)
    tables = (_functions(), _layers(), _layer_calls(), _models(), _model_calls(), _analysis(), _figures(), _training())
    return {name: call for table in tables for name, call in table.items()}


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
        "gaussian_weights": (functional.gaussian_weights, {**heads, "grid": (4, 4)}),
        "separable_weights": (functional.separable_weights, {"profiles": profiles, "grid": (4, 4)}),
        "placed_attention": (functional.placed_attention, {**qkv, **heads, "grid": (4, 4)}),
        "axis_matrix": (functional.axis_matrix, {"targets": torch.rand(2, 3), "sharpness": torch.rand(2) + 0.5, "size": 4}),
        "causal_keep": (functional.causal_keep, {"queries": 3, "keys": 4}),
        "DecayProfile": (lambda rate, side="both": _profile(functional.DecayProfile(rate, side)), {"rate": torch.rand(2)}),
        "TableProfile": (lambda scores, side="both": _profile(functional.TableProfile(scores, side)), {"scores": torch.rand(2, 7)}),
        "GaussianProfile": (lambda center, sharpness: _profile(functional.GaussianProfile(center, sharpness)), {"center": torch.rand(2), "sharpness": torch.rand(2)}),
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
        "BlockLinear": (layers.BlockLinear, {"in_features": 8, "out_features": 4, "blocks": 2}),
        "ClassTokenPooling": (layers.ClassTokenPooling, {"dim": 8}),
        "RelativePositionalEmbedding": (layers.RelativePositionalEmbedding, {"width": 8, "extent": (4, 4)}),
        "KeyValueCache": (layers.KeyValueCache, {"capacity": 4}),
        "keep_from_torch": (layers.keep_from_torch, {"attn_mask": None, "key_padding_mask": torch.zeros(1, 4, dtype=torch.bool)}),
    }  # fmt: skip


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
        "DecoderBlock()": (layers.DecoderBlock(8, 2), {"x": x, "memory": torch.rand(1, 5, 8)}),
        "AttentionPooling()": (layers.AttentionPooling(8, 2), {"x": x}),
        "AveragePooling()": (layers.AveragePooling(), {"x": x}),
        "ClassTokenPooling()": (layers.ClassTokenPooling(8), {"x": x}),
        "ClassTokenPooling.prepend": (layers.ClassTokenPooling(8).prepend, {"x": x}),
        "AbsolutePositionalEmbedding()": (layers.AbsolutePositionalEmbedding(8, (4, 4)), {"x": x}),
        "AbsolutePositionalEmbedding.positions": (layers.AbsolutePositionalEmbedding(8, (4, 4)).positions, {}),
        "RelativePositionalEmbedding.pairs": (layers.RelativePositionalEmbedding(8, (4, 4)).pairs, {"grid": (4, 4)}),
        "BlockLinear()": (layers.BlockLinear(8, 4, 2), {"x": x}),
        "GaussianHeads.set": (layers.GaussianHeads(2).set, {"center": torch.rand(2, 2), "sharpness": torch.rand(2) + 0.5}),
        "MultiHeadAttention.from_torch": (lambda module: regard.MultiHeadAttention.from_torch(module), {"module": nn.MultiheadAttention(8, 2)}),
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


def _model_calls() -> dict[str, Call]:
    tiny = {"dim": 8, "depth": 1, "heads": 2}
    text, written = torch.randint(9, (1, 5)), torch.randint(9, (1, 3))
    transformer, rnn = models.Transformer(9, **tiny), models.Seq2SeqRNN(9, dim=8, hidden=8)
    images = {"images": torch.rand(1, 3, 8, 8)}
    return {
        "ImageEncoder()": (models.ImageEncoder(8, 2, 3, **tiny), images),
        "AttentionPyramid()": (models.AttentionPyramid(8, 3, widths=(8, 8), depth=1, heads=4), images),
        "ResNet18()": (models.ResNet18(3, width=2).eval(), images),
        "PlainVisionTransformer": (models.PlainVisionTransformer, {"image_size": 8, "patch_size": 4, "num_classes": 3, "dim": 8, "depth": 1}),
        "TextEncoder()": (models.TextEncoder(9, length=8, **tiny), {"tokens": text}),
        "Transformer()": (transformer, {"source": text, "target": written}),
        "Transformer.generate": (transformer.generate, {"source": text, "prompt": written, "tokens": 2}),
        "Transformer.encode": (transformer.encode, {"source": text}),
        "Seq2SeqRNN()": (rnn, {"source": text, "target": written}),
        "Seq2SeqRNN.generate": (rnn.generate, {"source": text, "prompt": written, "tokens": 2}),
        "character_gpt": (models.character_gpt, {"vocab_size": 9, "length": 8, **tiny}),
        "paper_image_encoder": (models.paper_image_encoder, {"num_classes": 3, "image_size": 4}),
        "AttentionSettings": (models.AttentionSettings, {}),
    }  # fmt: skip


def _figures() -> dict[str, Call]:
    maps = _maps()
    center, sharpness = torch.rand(2, 2), torch.rand(2) + 0.5
    calls: dict[str, Call] = {
        "figures.attention": (figures.attention, {"found": maps[-1]}),
        "figures.heads": (figures.heads, {"center": center, "sharpness": sharpness}),
        "figures.relative_positions": (figures.relative_positions, {"center": center, "sharpness": sharpness, "grid": (4, 4)}),
        "figures.absolute_positions": (figures.absolute_positions, {"table": torch.rand(4, 4, 8)}),
        "figures.alignment": (figures.alignment, {"weights": torch.rand(2, 3), "read": list("abc"), "written": list("ab")}),
        "figures.bars": (figures.bars, {"title": "a", "y": "b", "values": {"c": 1.0}}),
        "figures.curves": (figures.curves, {"title": "a", "x": "x", "y": "y", "series": {"c": ([1, 2], [3, 4])}}),
        "figures.gelu": (figures.gelu, {}),
        "figures.limit": (figures.limit, {}),
        "figures.matrices": (figures.matrices, {"title": "a", "values": {"b": torch.rand(3, 3)}}),
        "figures.head_paths": (figures.head_paths, {"title": "a", "paths": {"b": torch.rand(3, 2, 2)}}),
        "figures.pruning_curve": (figures.pruning_curve, {"points": [(1, 0.5), (2, 0.7)]}),
        "figures.learning_curves": (figures.learning_curves, {"metrics": [{"step": 1, "loss": 1.0, "accuracy": 0.5}]}),
        "figures.length_sweep": (figures.length_sweep, {"results": {"a": {8: {"characters": 0.5}}}}),
        "figures.image_attention": (figures.image_attention, {"maps": maps, "image": torch.zeros(3, 8, 8, dtype=torch.uint8)}),
    }  # fmt: skip
    return {name: (_drawn(function), arguments) for name, (function, arguments) in calls.items()}


def _training() -> dict[str, Call]:
    text = regard.data.TextData("ab cd ab cd " * 20, "character")
    images = torch.rand(2, 3, 8, 8)
    recipe = regard.recipes.get("demo")
    return {
        "verify": (regard.claims.select, {"what": "convolution"}),
        "recipes.get": (regard.recipes.get, {"name": "demo"}),
        "load_recipe": (regard.training.load_recipe, {"source": "nowhere"}),
        "Recipe": (lambda **options: replace(recipe, **options), dict.fromkeys(("epochs", "batch_size", "accumulate"), 1) | {"clip": None, "average": 0.0, "precision": "fp32", "seed": 0, "task": recipe.task, "network": recipe.network, "optimizer": recipe.optimizer, "schedule": recipe.schedule, "name": "x"}),
        "ImageTask": (regard.training.ImageTask, {}),
        "AdamWSettings": (regard.training.AdamWSettings, {}),
        "MuonSettings": (regard.training.MuonSettings, {}),
        "SGDSettings": (regard.training.SGDSettings, {}),
        "ScheduleSettings": (regard.training.ScheduleSettings, {}),
        "Augmentation": (regard.data.Augmentation, {}),
        "data.load": (regard.data.load, {"name": "fashion-mini", "download": False}),
        "data.open_data": (regard.data.open_data, {"data": "fashion-mini", "download": False}),
        "data.status": (regard.data.status, {"name": "fashion-mini"}),
        "Vocabulary": (regard.data.Vocabulary, {"tokens": list("abc")}),
        "Vocabulary.encode": (text.vocabulary.encode, {"text": "ab"}),
        "Vocabulary.decode": (text.vocabulary.decode, {"numbers": text.vocabulary.encode("ab")}),
        "NextTokens": (regard.data.NextTokens, {"tokens": torch.arange(40) % 4, "length": 4}),
        "MaskedText": (regard.data.MaskedText, {"tokens": torch.arange(40) % 4, "vocabulary": text.vocabulary, "length": 4}),
        "normalize": (regard.data.normalize, {"images": images, "mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0)}),
        "mixup": (regard.data.mixup, {"images": images, "others": images, "weight": torch.rand(2)}),
        "cutout": (regard.data.cutout, {"images": images, "corner": torch.zeros(2, 2, dtype=torch.int64), "side": 2}),
        "evaluate_run": (lambda run: regard.training.evaluate_run(run), {"run": "nowhere"}),
        "load_converted": (regard.convert.load_converted, {"folder": "nowhere"}),
        "Maps.load": (lambda path: regard.maps.Maps.load(path), {"path": "nowhere"}),
    }  # fmt: skip


def _maps() -> regard.maps.Maps:
    model = models.VisionTransformer((8, 8), 4, 3, dim=8, depth=1, heads=2)
    with torch.no_grad(), regard.capture(model) as maps:
        model(torch.rand(1, 3, 8, 8))
    return maps


def _profile(profile: Any) -> None:
    """A profile is checked when it is used."""
    functional.separable_weights([profile], (4,))


def _drawn(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def draw(*args: Any, **options: Any) -> None:
        from matplotlib import pyplot

        try:
            function(*args, **options)
        finally:
            pyplot.close("all")

    return draw


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
        "show.save": (lambda path, title=None: regard.show(maps).save(path, title=title), {"path": "page.html"}),
        "mask_heads": (lambda model, heads: _entered(analysis.mask_heads(model, heads)), {"model": model, "heads": {next(iter(maps)): [0]}}),
        "replace_heads": (regard.replace_heads, {"model": model, "heads": regard.locality(maps)}),
        "distance": (analysis.distance, {"maps": maps}),
        "accuracy": (analysis.accuracy, {"model": model, "batches": batches}),
        "pruning_curve": (analysis.pruning_curve, {"model": model, "batches": batches, "order": [(next(iter(maps)), 0)]}),
        "heads_in": (analysis.heads_in, {"model": model, "run": lambda: model(torch.rand(1, 3, 8, 8))}),
        "Maps[]": (lambda key: maps[key], {"key": 0}),
        "Map.layout": (maps[-1].layout, {}),
        "Maps.generation": (maps.generation, {}),
        "load_run": (regard.load_run, {"path": regard.studio.EXAMPLE}),
        "train": (_train, {"recipe": replace(regard.recipes.get("demo"), task=_Accepting("fashion-mini")), "accelerator": "cpu"}),
    }  # fmt: skip


def _entered(manager: contextlib.AbstractContextManager[Any]) -> None:
    with manager:
        pass


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
