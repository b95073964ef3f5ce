"""The source of ``flash_attn``: tensors are ``(batch, tokens, heads, width)``, or concatenated sequences (varlen)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.sources._function_call import FunctionCall, kernel_record
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._band import Band

_NOT_SUPPORTED = ("qv", "q_descale", "k_descale", "v_descale", "block_table", "page_table", "learnable_sink")


def flash_attn(call: FunctionCall) -> AttentionRecord | str:
    """The record of a call of ``flash_attn``; a reason if it has arguments that are not supported."""
    given = call.arguments()
    for extra in _NOT_SUPPORTED:
        if given.get(extra) is not None:
            return f"{call.name} was called with {extra}, which regard does not support"
    query, key, value = _unpacked(given)
    queries = _Sequences.of(query, given.get("cu_seqlens_q", given.get("cu_seqlens")))
    keys = _Sequences.of(key, given.get("cu_seqlens_k", given.get("cu_seqlens_q", given.get("cu_seqlens"))))
    present = None
    if queries.present is not None and keys.present is not None:
        present = queries.present, keys.present
    query, key, value = queries.heads_first(query), keys.heads_first(key), keys.heads_first(value)
    left, right = given.get("window_size") or (-1, -1)
    shift = key.shape[2] - query.shape[2] if present is None else keys.lengths - queries.lengths
    right = 0 if given.get("causal") else right
    scores = AttentionScores(
        query,
        key,
        given.get("softmax_scale") or query.shape[-1] ** -0.5,
        band=Band(None if left < 0 else left, None if right < 0 else right, shift),
        present=present,
        softcap=given.get("softcap") or 0.0,
        slopes=given.get("alibi_slopes"),
    )
    output, logsumexp = (call.output, None) if isinstance(call.output, Tensor) else call.output[:2]
    clean = None
    if given.get("dropout_p"):
        with torch.no_grad():
            again = call.function(**{**given, "dropout_p": 0.0})
        clean = queries.heads_first(again if isinstance(again, Tensor) else again[0])
    return kernel_record(
        call,
        "flash_attn",
        scores,
        value,
        queries.heads_first(output),
        restore=queries.restore,
        logsumexp=logsumexp if present is None else None,
        clean=clean,
    )


def flash_attn_with_cache(call: FunctionCall) -> str:
    """The reason why calls with a cache are not recorded."""
    return f"{call.name} is not supported: it changes the cache of its keys itself"


def _unpacked(given: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, which some functions take packed into one tensor."""
    if "qkv" in given:
        query, key, value = given["qkv"].unbind(-3)
    elif "kv" in given:
        query, (key, value) = given["q"], given["kv"].unbind(-3)
    else:
        query, key, value = given["q"], given["k"], given["v"]
    return query, key, value


@dataclass(frozen=True)
class _Sequences:
    """How the tokens of a batch are stored: as ``(batch, tokens, …)``, or as concatenated sequences of any lengths.

    Attributes:
        lengths: the lengths of the sequences; a single one if all are equal.
        present: for concatenated sequences ``(sequences, longest)``, False for padding; else None.
    """

    lengths: Tensor
    present: Tensor | None

    @classmethod
    def of(cls, x: Tensor, bounds: Tensor | None) -> "_Sequences":
        if bounds is None:
            return cls(torch.full((1,), x.shape[1], device=x.device), None)
        lengths = (bounds[1:] - bounds[:-1]).long()
        return cls(lengths, torch.arange(int(lengths.max()), device=x.device) < lengths[:, None])

    def heads_first(self, x: Tensor) -> Tensor:
        """``(sequences, heads, longest, width)``, padded with zeros."""
        if self.present is not None:
            padded = x.new_zeros(*self.present.shape, *x.shape[1:])
            padded[self.present] = x[: int(self.lengths.sum())]
            x = padded
        return x.transpose(1, 2)

    def restore(self, new: Tensor) -> Tensor:
        """The inverse of :meth:`heads_first`."""
        new = new.transpose(1, 2)
        return new if self.present is None else new[self.present]
