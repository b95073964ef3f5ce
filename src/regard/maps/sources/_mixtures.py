"""Softmaxes that weigh no tokens: mixtures of streams, experts, layers or codes.

A softmax that was not taken of queries and keys is a mixture, not attention, if what it weighs are no tokens: vectors that each
token has for itself (the residual streams of hyper-connections, the outputs of experts, those of several layers), or vectors
that all samples share (codes, prototypes, kernels). Only the name of a module can say otherwise: deformable attention, and that
of outlooks, weighs samples of the image for each token.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from regard.maps._axis_evidence import inputs_around
from regard.maps._module_names import CallSite
from regard.maps.sources._tensor_origins import WeightedSum

_NOTE = "a softmax weighs {} vectors that {}, and no tokens: this is a mixture, not attention, and has no map"


def mixture(site: CallSite, found: WeightedSum) -> str | None:
    """A note that this sum is a mixture, if it is one."""
    weights, value = found.weights, found.value
    if found.origin.scored:
        return None
    keys = weights.shape[-1]
    if _is_shared(weights, value):
        return _NOTE.format(keys, "all samples share (codes, prototypes, kernels)")
    told = ("mixture", id(site.module), keys)
    if told not in site.remembered and not _is_own(site, weights, value):
        return None
    site.remembered[told] = True  # with a single token later it looks like an average over a sequence
    return _NOTE.format(keys, "each token has for itself (streams, experts, layers)")


def _is_shared(weights: Tensor, value: Tensor) -> bool:
    """Whether the values are parameters, or the same for all samples."""
    if isinstance(value, nn.Parameter) or isinstance(value._base, nn.Parameter):
        return True
    return value.ndim == 2 < weights.ndim


def _is_own(site: CallSite, weights: Tensor, value: Tensor) -> bool:
    """Whether each token has values of its own: they have as many leading entries as a module around has tokens."""
    rows, keys = weights.shape[-2:]
    lead = value.shape[:-2]
    count = math.prod(lead)
    repeated = any(n > 1 and step == 0 for n, step in zip(lead, value.stride(), strict=False))
    if rows not in (1, keys) or repeated or math.prod(weights.shape[:-2]) not in (1, count):
        return False
    for tokens, length, streams in _tokens_around(site, value.shape[-1]):
        single = length == 1 or (rows > 1 and keys == length)  # this may be a batch, or heads, as well
        if count == tokens and (streams == keys or not single):
            return not _repeats(value, length)
    return False


def _tokens_around(site: CallSite, width: int) -> Iterator[tuple[int, int, int | None]]:
    """The numbers of tokens of the modules that run, the lengths of their sequences, and how many streams a token has."""
    for x in inputs_around(site):
        if x.ndim == 2 and not x.is_floating_point():
            yield x.numel(), x.shape[1], None
        elif x.ndim == 3 and x.is_floating_point():
            yield x.shape[0] * x.shape[1], x.shape[1], None
        elif x.ndim == 4 and x.is_floating_point():
            yield x.shape[0] * x.shape[1], x.shape[1], x.shape[2] if x.shape[3] == width else None


def _repeats(value: Tensor, length: int) -> bool:
    """Whether all tokens of a sequence have the same values: then they are shared, only repeated in memory."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        each = value.detach().reshape(-1, length, *value.shape[-2:])
        return length > 1 and bool((each == each[:, :1]).all())
