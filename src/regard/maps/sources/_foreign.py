"""Attention functions that torch's modes do not see: flex_attention, flash_attn, xformers, and our gaussian_attention.

Each is described by the scores it computes; the rest (map, check) is as for any kernel.
"""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from regard.functional import gaussian_weights
from regard.maps._names import Place
from regard.maps._seen import Scores, Seen, Selection, product_error
from regard.maps.sources._told import told
from regard.observation import Observation


def compiled_as_called(original: Callable[..., Any]) -> Callable[..., Any]:
    """``original``, compiled by whoever compiled the code that calls it, so that its kernel is the one that would have
    run: under watch compiled code runs as Python, but this call is outside."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "compile_wrapper" and code.co_filename.endswith("eval_frame.py"):
            context = frame.f_locals.get("self")
            return context(original) if callable(context) else original  # type: ignore[no-any-return]
        frame = frame.f_back
    return original


def seen(
    name: str, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, again: Callable[..., Any]
) -> Seen | str:
    """The attention that the function computed, or why it cannot be known; ``again`` calls it once more."""
    function = name.partition(":")[2]
    describe = _DESCRIPTIONS.get(function)
    if describe is None:
        return f"{function} is not understood: its keys live in a cache that it changes itself"
    return describe(place, function, args, kwargs, out, again)


def _flex(
    place: Place, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, again: Callable[..., Any]
) -> Seen | str:
    given = _bind(again, args, kwargs)
    query, key, value, block_mask = (given[k] for k in ("query", "key", "value", "block_mask"))
    score_mod, keys = given["score_mod"], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    batch_number = torch.arange(query.shape[0], device=query.device)[:, None, None, None]
    key_number = torch.arange(keys, device=query.device)

    # Both functions are pointwise by contract, so whole index tensors can stand for single indices.
    def change(scores: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        changed = score_mod(scores, batch_number, heads[:, None, None], rows[:, None], key_number)
        return torch.broadcast_to(changed, scores.shape).to(scores.dtype).clone()

    def mask(rows: Tensor, heads: Tensor) -> Tensor:
        kept = block_mask.mask_mod(batch_number, heads[:, None, None], rows[:, None], key_number)
        return kept if isinstance(kept, Tensor) else torch.tensor(kept, device=query.device)

    scores = Scores(
        query,
        _per_batch(key, query),
        scale,
        change=None if score_mod is None else change,
        mask=None if block_mask is None else mask,
    )
    output, logsumexp = (out[0], out[1]) if isinstance(out, tuple) else (out, None)
    if logsumexp is not None and not isinstance(logsumexp, Tensor):
        logsumexp = getattr(logsumexp, "lse", None)
    return _make(place, "flex", function, scores, _per_batch(value, query), output, logsumexp, None, lambda new: new)


def _flash(
    place: Place, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, again: Callable[..., Any]
) -> Seen | str:
    """(batch, tokens, heads, width), or sequences one after the other with their bounds (varlen)."""
    given = _bind(again, args, kwargs)
    for extra in ("qv", "q_descale", "k_descale", "v_descale", "block_table", "page_table", "learnable_sink"):
        if given.get(extra) is not None:
            return f"{function} was called with {extra}, which is not understood"
    query, key, value = _unpacked(given)
    output, logsumexp = (out[0], out[1]) if isinstance(out, tuple | list) else (out, None)
    keep = None
    of_queries = given.get("cu_seqlens_q", given.get("cu_seqlens"))
    if of_queries is not None:
        of_keys = given.get("cu_seqlens_k", of_queries)
        query, present, in_queries = _padded(query, of_queries)
        key, present_keys, in_keys = _padded(key, of_keys)
        value = _padded(value, of_keys)[0]
        keep = present[:, None, :, None] & present_keys[:, None, None, :]
        lengths, logsumexp = (in_queries, in_keys), None

        def arrange(x: Tensor) -> Tensor:
            return _padded(x, of_queries)[0].transpose(1, 2)

        def restore(new: Tensor) -> Tensor:
            return new.transpose(1, 2)[present]

    else:
        counts = (query.shape[1], key.shape[1])
        lengths = (query.new_full((1,), counts[0]).long(), query.new_full((1,), counts[1]).long())

        def arrange(x: Tensor) -> Tensor:
            return x.transpose(1, 2)

        def restore(new: Tensor) -> Tensor:
            return new.transpose(1, 2)

    query, key, value = (x.transpose(1, 2) for x in (query, key, value))
    left, right = given.get("window_size") or (-1, -1)
    if given.get("causal"):
        right = 0
    scores = Scores(
        query,
        key,
        given.get("softmax_scale") or query.shape[-1] ** -0.5,
        keep,
        change=_flash_change(given, lengths, key.shape[2]),
        mask=_flash_mask(lengths, key.shape[2], left, right),
    )
    clean = None
    if given.get("dropout_p"):
        with torch.no_grad():
            clean = again(**{**given, "dropout_p": 0.0})
        clean = arrange(clean[0] if isinstance(clean, tuple | list) else clean)
    return _make(place, "flash_attn", function, scores, value, arrange(output), logsumexp, clean, restore)


def _unpacked(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    if "qkv" in given:
        query, key, value = given["qkv"].unbind(-3)
    elif "kv" in given:
        query, (key, value) = given["q"], given["kv"].unbind(-3)
    else:
        query, key, value = given["q"], given["k"], given["v"]
    return query, key, value


def _padded(x: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(sequences, longest, …) from sequences one after the other; which tokens exist; the lengths."""
    lengths = (bounds[1:] - bounds[:-1]).long()
    present = torch.arange(int(lengths.max()), device=x.device) < lengths[:, None]
    out = x.new_zeros(*present.shape, *x.shape[1:])
    out[present] = x[: int(lengths.sum())]
    return out, present, lengths


def _offset(lengths: tuple[Tensor, Tensor], rows: Tensor, keys: int) -> Tensor:
    """How far each key lies behind the place that each query is aligned with: at the end, sequence by sequence."""
    last = (lengths[1] - lengths[0])[:, None, None, None]
    return torch.arange(keys, device=rows.device) - (rows[:, None] + last)


def _flash_mask(
    lengths: tuple[Tensor, Tensor], keys: int, left: int, right: int
) -> Callable[[Tensor, Tensor], Tensor] | None:
    if left < 0 and right < 0:
        return None

    def mask(rows: Tensor, heads: Tensor) -> Tensor:
        offset = _offset(lengths, rows, keys)
        kept = torch.ones_like(offset, dtype=torch.bool)
        if left >= 0:
            kept &= offset >= -left
        if right >= 0:
            kept &= offset <= right
        return kept

    return mask


def _flash_change(
    given: dict[str, Any], lengths: tuple[Tensor, Tensor], keys: int
) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
    cap, slopes = given.get("softcap") or 0.0, given.get("alibi_slopes")
    if not cap and slopes is None:
        return None

    def change(scores: Tensor, rows: Tensor, heads: Tensor) -> Tensor:
        if cap:
            scores = torch.tanh(scores / cap) * cap
        if slopes is not None:
            slope = slopes[..., heads].reshape(-1, len(heads), 1, 1).to(scores.dtype)
            scores = scores - slope * _offset(lengths, rows, keys).abs()
        return scores

    return change


def _xformers(
    place: Place, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, again: Callable[..., Any]
) -> Seen | str:
    """(batch, tokens, heads, width); three axes are one head, five are grouped heads."""
    given = _bind(again, args, kwargs)
    query, key, value = given["query"], given["key"], given["value"]
    output, logsumexp = (out[0], out[1]) if isinstance(out, tuple) else (out, None)
    shape = output.shape

    def arranged(x: Tensor) -> Tensor:
        x = x.unsqueeze(2) if x.ndim == 3 else x.flatten(2, 3) if x.ndim == 5 else x
        return x.transpose(1, 2)

    query, key, value, output = map(arranged, (query, key, value, output))
    bias = given.get("attn_bias")
    if bias is not None and not isinstance(bias, Tensor):
        full = (*query.shape[:3], key.shape[2])
        bias = bias.materialize(full, dtype=torch.float32, device=query.device)
    if bias is not None and bias.ndim == 5:
        bias = bias.flatten(1, 2)
    if bias is not None and bias.ndim == 3:
        bias = bias.unsqueeze(1)
    scores = Scores(query, key, given.get("scale") or query.shape[-1] ** -0.5, bias=bias)
    clean = None
    if given.get("p"):
        with torch.no_grad():
            clean = again(**{**given, "p": 0.0})
        clean = arranged(clean[0] if isinstance(clean, tuple) else clean)

    def restore(new: Tensor) -> Tensor:
        return new.transpose(1, 2).reshape(shape)

    return _make(place, "xformers", function, scores, value, output, logsumexp, clean, restore)


def _gaussian(
    place: Place, function: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any, again: Callable[..., Any]
) -> Seen | str:
    """Its map does not depend on the values, and is built from the axes' matrices."""
    given = _bind(again, args, kwargs)
    value, _ = given.pop("value"), given.pop("plan")
    queries = given["queries"]
    told_of = Observation(
        place.module,
        out,
        lambda: gaussian_weights(**given)[None],
        value,
        "gaussian",
        tuple(given["grid"]),
        0,
        None if queries is None else tuple(len(places) for places in queries),
    )
    return told(place, told_of)


def _make(
    place: Place,
    kind: str,
    function: str,
    scores: Scores,
    value: Tensor,
    output: Tensor,
    logsumexp: Any,
    clean: Tensor | None,
    restore: Callable[[Tensor], Tensor],
) -> Seen:
    """``clean`` is the output without dropout, where there is dropout in ``output``."""
    compared = output if clean is None else clean

    def check(weights: Tensor, rows: Selection, heads: Selection) -> Tensor:
        return product_error(weights, value, compared, rows, heads)

    return Seen(
        name=place.name,
        module=place.module,
        kind=kind,
        shape=scores.shape,
        build=scores,
        check=check,
        against="kernel" if clean is None else "kernel, run again without dropout",
        output=output,
        value=value,
        logsumexp=logsumexp if isinstance(logsumexp, Tensor) and logsumexp.shape == scores.shape[:3] else None,
        restore=restore,
        kernel=function,
    )


def _per_batch(x: Tensor, query: Tensor) -> Tensor:
    return x if x.shape[0] == query.shape[0] else x.expand(query.shape[0], *x.shape[1:])


def _bind(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments by the function's own names, which are steadier from version to version than their order."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


_DESCRIPTIONS: dict[str, Callable[..., Seen | str]] = {
    "flex_attention": _flex,
    "gaussian_attention": _gaussian,
    "flash_attn_func": _flash,
    "flash_attn_qkvpacked_func": _flash,
    "flash_attn_kvpacked_func": _flash,
    "flash_attn_varlen_func": _flash,
    "flash_attn_varlen_qkvpacked_func": _flash,
    "flash_attn_varlen_kvpacked_func": _flash,
    "memory_efficient_attention": _xformers,
    "memory_efficient_attention_forward": _xformers,
    "memory_efficient_attention_forward_requires_grad": _xformers,
}
