"""Attention rollout: the product of the maps of all layers, from the tokens of the last to those of the first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.analysis._statistics import check_all_rows
from regard.maps import (
    Layout,
    Map,
    Maps,
    check_maps,
    check_over_tokens,
    check_segments,
    heads_together,
    is_cross_attention,
    merged_rows,
    stacks_in,
)
from regard.support.checks import check_choice, check_probability, describe, is_iterable

Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True)
class _Step:
    """One layer's map."""

    name: str
    weights: Tensor
    layout: Layout | None = None
    captured: bool = True

    @property
    def shown(self) -> str:
        return repr(self.name) if self.captured else self.name

    @property
    def crosses(self) -> bool:
        return self.captured and is_cross_attention(self.name, *self.weights.shape[2:])


@dataclass(frozen=True)
class _Options:
    fusion: Fusion
    discard: float
    identity: float

    def fused(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The rows of the fused heads, which sum to 1, and the share of the skip connection of each row."""
        fused = _fuse((weights if weights.dtype is torch.float64 else weights.float()).abs(), self.fusion)
        if self.discard:
            fused = _without_smallest(fused, self.discard)
        # A row without attention passes only through the skip connection.
        total = fused.sum(-1, keepdim=True)
        share = torch.full_like(total, self.identity).masked_fill(total <= 0, 1.0)
        return fused / total.clamp_min(torch.finfo(fused.dtype).tiny), share


@overload
def rollout(
    maps: Maps | Sequence[Map] | Sequence[Tensor],
    *,
    fusion: Fusion = ...,
    discard: float = ...,
    identity: float = ...,
    segments: None = ...,
) -> Float[Tensor, "batch outputs inputs"]: ...
@overload
def rollout(
    maps: Maps | Sequence[Map] | Sequence[Tensor],
    *,
    fusion: Fusion = ...,
    discard: float = ...,
    identity: float = ...,
    segments: Sequence[tuple[str, Any]],
) -> tuple[Tensor, ...]: ...
def rollout(
    maps: Maps | Sequence[Map] | Sequence[Tensor],
    *,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    identity: float = 0.5,
    segments: Sequence[tuple[str, Any]] | None = None,
) -> Tensor | tuple[Tensor, ...]:
    r"""How much of each input token is in each output token, if values only flow along attention and skip connections.

    .. math:: R = \hat A_L \cdots \hat A_1, \qquad \hat A_l = \iota I + (1 - \iota)\, \mathrm{fuse}_h(A_l)

    with the rows of every factor normalized to sum to 1, so that R is row-stochastic, which is verified. If a model
    merges squares of tokens, as its grids show (16×16, then 8×8), a merged token starts as the mean of its square. Negative
    weights, of a difference of attentions, count by their size.

    An encoder–decoder is rolled out in its order: the encoder first, then the decoder, whose cross-attention C reads the
    encoder's result. Its inputs are those of the encoder, then those of the decoder:
    :math:`R \leftarrow \iota R + (1 - \iota)\, [\,C R_\mathrm{enc},\ 0\,]`.

    Args:
        maps: self-attention of every layer of one stack, over the same tokens or over merged squares of them, or an
            encoder and a decoder. All calls of the model's latest run count, in the order in which they were computed.
            Separate stacks (the two towers of CLIP) cannot be combined: choose one with ``maps["text_model.*"]``. Tensors
            ``(batch, heads, tokens, tokens)``, all over the same tokens, work as well.
        fusion: how to combine the heads: ``"mean"``, ``"max"`` or ``"min"``.
        discard: the fraction of the smallest weights of each row to set to zero, in [0, 1).
        identity: ι, the share of the skip connection, in [0, 1).
        segments: the parts of the input, as in ``[("text", 12), ("image", (24, 24)), ("text", 30)]``. The result is then
            one tensor for each part: ``(batch, outputs, 12)``, ``(batch, outputs, 24, 24)``, …

    The result is on the maps' device: a row for each token of the last layer, a column for each token of the first layer.
    For a model with a class token, ``R[:, 0, prefix:]`` is the usual heat map.

    >>> regard.rollout([torch.eye(3).expand(1, 2, 3, 3)] * 4)
    tensor([[[1., 0., 0.],
             [0., 1., 0.],
             [0., 0., 1.]]])
    """
    if isinstance(maps, Map) or (isinstance(maps, list | tuple) and any(isinstance(found, Map) for found in maps)):
        maps = check_maps(maps)
    if segments is not None:
        whole = rollout(maps, fusion=fusion, discard=discard, identity=identity)
        return tuple(segment.part(whole) for segment in check_segments(segments, whole.shape[-1]))
    check_choice("fusion", fusion, ("mean", "max", "min"))
    check_probability("discard", discard)
    check_probability("identity", identity)
    options = _Options(fusion, discard, identity)
    steps = _steps(maps)
    stacks = stacks_in(step.name for step in steps) if isinstance(maps, Maps) else {"": []}
    if len(stacks) > 1:
        encoder, decoder = _encoder_and_decoder(steps, stacks)
        source = _rolled(encoder, options)
        return _verified(_through_decoder(decoder, source, options))
    crossing = next((step.name for step in steps if step.captured and is_cross_attention(step.name)), None)
    if crossing is not None:
        raise ValueError(
            f"{crossing!r} is cross-attention: its keys are not tokens of the stack that it is in. Pass the maps of the "
            "encoder as well, or leave it out"
        )
    return _verified(_rolled(steps, options))


def _rolled(steps: list[_Step], options: _Options) -> Tensor:
    """The rollout of one stack, without cross-attention."""
    result: Tensor | None = None
    before: Layout | None = None
    for each in steps:
        _check_square(each)
        rows, share = options.fused(each.weights)
        eye = torch.eye(rows.shape[-1], dtype=rows.dtype, device=rows.device)
        step = share * eye + (1 - share) * rows
        if result is not None and result.shape[:2] != step.shape[:2]:
            merged = merged_rows(result, before, each.layout) if len(result) == len(step) else None
            if merged is None:
                raise ValueError(
                    f"{each.shown} has {tuple(step.shape)} (batch, tokens, tokens) but the map before it is of "
                    f"{tuple(result.shape[:2])} (batch, tokens): rollout needs the same tokens in every layer, or grids "
                    f"that show which were merged ({_shown(before)}, then {_shown(each.layout)})"
                )
            result = merged
        result = step if result is None else step @ result
        before = each.layout
    if result is None:
        raise ValueError("maps is empty: rollout needs one map at least")
    return result


def _through_decoder(steps: list[_Step], source: Tensor, options: _Options) -> Tensor:
    """``(batch, target tokens, source inputs + target inputs)``."""
    tokens, inputs = steps[0].weights.shape[2], source.shape[2]
    start = torch.eye(tokens, dtype=source.dtype, device=source.device).expand(len(source), -1, -1)
    result = torch.cat([start.new_zeros(len(source), tokens, inputs), start], 2)
    for each in steps:
        read = torch.cat([source, source.new_zeros(*source.shape[:2], tokens)], 2) if each.crosses else result
        if each.weights.shape[0] != len(result) or each.weights.shape[2:] != (tokens, read.shape[1]):
            raise ValueError(
                f"{each.name!r} has {tuple(each.weights.shape)} (batch, heads, queries, keys), but rollout needs "
                f"{tokens} queries and {read.shape[1]} keys here, in a batch of {len(result)}; after generate, pass "
                "maps.generation()"
            )
        rows, share = options.fused(each.weights)
        result = share * result + (1 - share) * (rows @ read)
    return result


def _encoder_and_decoder(steps: list[_Step], stacks: dict[str, list[str]]) -> tuple[list[_Step], list[_Step]]:
    """The steps of an encoder and of the decoder that reads it; raises an error for separate stacks."""
    crossed = {stack for stack, names in stacks.items() for step in steps if step.name in names and step.crosses}
    if len(stacks) != 2 or len(crossed) != 1:
        shown = "; ".join(f"{stack or names[0]!r}: {len(names)} maps" for stack, names in stacks.items())
        first = next(iter(stacks))
        raise ValueError(
            f"these maps belong to {len(stacks)} stacks of layers that do not attend to each other ({shown}): their product "
            f'means nothing. Choose one, as in maps["{first + ".*" if first else stacks[first][0]}"]'
        )
    decoding = set(stacks[crossed.pop()])
    return [step for step in steps if step.name not in decoding], [step for step in steps if step.name in decoding]


def _steps(maps: Any) -> list[_Step]:
    if isinstance(maps, Maps):
        check_over_tokens(maps, "rollout")
        for _, call in maps.last_run:
            check_all_rows(call, "rollout needs")
        steps = [_Step(name, call.weights, call.layout) for name, call in maps.last_run]
        return [_together([steps[i] for i in group]) for group in heads_together([step.name for step in steps])]
    if not is_iterable(maps) or isinstance(maps, Tensor | str | bytes | nn.Module | range | dict):
        raise TypeError(f"maps must be what regard.capture gives, or several tensors, got {describe(maps)}")
    steps = [_Step(f"map {i}", weights, captured=False) for i, weights in enumerate(maps)]
    for step in steps:
        if not isinstance(step.weights, Tensor) or step.weights.ndim != 4:
            raise ValueError(
                f"maps: {step.name} must be (batch, heads, tokens, tokens), got {describe(step.weights)} in a "
                f"{type(maps).__name__}"
            )
    return steps


def _together(heads: list[_Step]) -> _Step:
    """The heads of one layer, which the model computes one by one, as one map."""
    if len({(len(step.weights), *step.weights.shape[2:]) for step in heads}) > 1:
        shown = ", ".join(f"{step.name!r} {tuple(step.weights.shape)}" for step in heads)
        raise ValueError(f"heads of one layer must attend over the same tokens, got {shown}")
    return heads[0] if len(heads) == 1 else replace(heads[0], weights=torch.cat([step.weights for step in heads], 1))


def _check_square(step: _Step) -> None:
    queries, keys = step.weights.shape[2:]
    if queries != keys:
        raise ValueError(
            f"{step.shown} has {queries} queries and {keys} keys: rollout needs self-attention, "
            'with all rows; choose it, as in maps["encoder.*"], and after generate pass maps.generation()'
        )


def _shown(layout: Layout | None) -> str:
    return "unknown" if layout is None else "×".join(map(str, layout.grid))


def _fuse(weights: Tensor, fusion: Fusion) -> Tensor:
    if fusion == "mean":
        return weights.mean(1)
    return weights.amax(1) if fusion == "max" else weights.amin(1)


def _without_smallest(fused: Tensor, discard: float) -> Tensor:
    count = math.floor(fused.shape[-1] * discard + 1e-9)  # 0.29 · 100 is 28.999…
    if count == 0:
        return fused
    return fused.scatter(-1, fused.topk(count, largest=False).indices, 0.0)


def _verified(result: Tensor) -> Tensor:
    error = (result.sum(-1) - 1).abs().amax() if result.numel() else result.new_zeros(())
    if not bool(error <= 1e3 * torch.finfo(result.dtype).eps):
        raise ArithmeticError(
            f"rollout is not row-stochastic: a row sums to 1 ± {float(error):.1e}; some map contains no valid weights"
        )
    return result
