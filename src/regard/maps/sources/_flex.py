"""The source of ``flex_attention``: its ``score_mod`` and ``mask_mod`` are called with whole tensors of indices."""

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.sources._function_call import FunctionCall, kernel_record
from regard.maps.weights._attention_scores import AttentionScores
from regard.maps.weights._frozen_functions import OfTheModel


class ChangedScores(OfTheModel):
    """A ``score_mod``. It is pointwise by contract, so index tensors can take the place of single indices."""

    def __call__(self, scores: Tensor, *numbers: Tensor) -> Tensor:
        changed = self.function(scores, *numbers)
        return torch.broadcast_to(changed, scores.shape).to(scores.dtype).clone()


class KeptKeys(OfTheModel):
    """A ``mask_mod``, with index tensors, too."""

    def __call__(self, *numbers: Tensor) -> Tensor:
        kept = self.function(*numbers)
        return kept if isinstance(kept, Tensor) else torch.tensor(kept, device=numbers[0].device)


def flex(call: FunctionCall) -> AttentionRecord:
    """The record of a call of ``flex_attention``."""
    given = call.arguments()
    query, key, value, block_mask = (given[k] for k in ("query", "key", "value", "block_mask"))
    score_mod = given["score_mod"]
    scores = AttentionScores(
        query,
        _per_batch(key, query),
        query.shape[-1] ** -0.5 if given["scale"] is None else given["scale"],
        change=None if score_mod is None else ChangedScores(score_mod),
        mask=None if block_mask is None else KeptKeys(block_mask.mask_mod),
    )
    output, logsumexp = call.output[:2] if isinstance(call.output, tuple) else (call.output, None)
    if not isinstance(logsumexp, Tensor):
        logsumexp = getattr(logsumexp, "lse", None)
    value = _per_batch(value, query)
    return kernel_record(call, "flex", scores, value, output, restore=lambda new: new, logsumexp=logsumexp)


def _per_batch(x: Tensor, query: Tensor) -> Tensor:
    """Keys or values, which may be shared by the whole batch, for each sample."""
    return x if x.shape[0] == query.shape[0] else x.expand(query.shape[0], *x.shape[1:])
