"""Recognizes mixtures: softmaxes whose weights are not over tokens, but over streams, experts, layers or codes.

A softmax of something else than queries times keys is a mixture, not attention, if what it averages are not tokens.
These are vectors that each token has for itself (residual streams of hyper-connections, outputs of experts or of
several layers), or vectors that all samples share (codes, prototypes, kernels). A module that is named attention is an
exception: deformable and outlook attention average samples of the image for each token.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.maps._module_names import CallSite
from regard.maps.sources._tensor_origins import WeightedSum
from regard.maps.tokens._axis_evidence import inputs_around

_NOTE = "a softmax weighs {} vectors that {}, and no tokens: this is a mixture, not attention, and has no map"


def mixture(site: CallSite, found: WeightedSum) -> str | None:
    """A note for the reader that this weighted sum is a mixture; None if it is attention."""
    weights, value = found.weights, found.value
    if found.origin.scored:
        return None
    keys = weights.shape[-1]
    if _is_shared(weights, value):
        return _NOTE.format(keys, "all samples share (codes, prototypes, kernels)")
    told = ("mixture", id(site.module), keys)
    if told not in site.remembered and not _is_own(site, weights, value):
        return None
    # Remembered, because a later call with one token looks like an average over a sequence; in a list only for this capture.
    site.remembered[told] = [True]
    return _NOTE.format(keys, "each token has for itself (streams, experts, layers)")


def _is_shared(weights: Tensor, value: Tensor) -> bool:
    """Whether the values are parameters, or the same for all samples."""
    if isinstance(value, nn.Parameter) or isinstance(value._base, nn.Parameter):
        return True
    return value.ndim == 2 < weights.ndim


def _is_own(site: CallSite, weights: Tensor, value: Tensor) -> bool:
    """Whether each token has its own values: there are as many sets of values as a module around has tokens."""
    rows, keys = weights.shape[-2:]
    lead = value.shape[:-2]
    count = math.prod(lead)
    repeated = any(n > 1 and step == 0 for n, step in zip(lead, value.stride(), strict=False))
    if rows not in (1, keys) or repeated or math.prod(weights.shape[:-2]) not in (1, count):
        return False
    for tokens, length, streams in _tokens_around(site, value.shape[-1]):
        single = length == 1 or (rows > 1 and keys == length)  # then these may be samples or heads as well
        if count == tokens and (streams == keys or not single):
            return not _repeats(value, length)
    return False


def _tokens_around(site: CallSite, width: int) -> Iterator[tuple[int, int, int | None]]:
    """For each running module: the number of its input tokens, the length of its sequences, and the streams of a token."""
    for x in inputs_around(site):
        if x.ndim == 2 and not x.is_floating_point():
            yield x.numel(), x.shape[1], None
        elif x.ndim == 3 and x.is_floating_point():
            yield x.shape[0] * x.shape[1], x.shape[1], None
        elif x.ndim == 4 and x.is_floating_point():
            yield x.shape[0] * x.shape[1], x.shape[1], x.shape[2] if x.shape[3] == width else None


def _repeats(value: Tensor, length: int) -> bool:
    """Whether all tokens of a sequence have the same values, which are then shared, and only copied for each token."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        each = value.detach().reshape(-1, length, *value.shape[-2:])
        return length > 1 and bool((each == each[:, :1]).all())
