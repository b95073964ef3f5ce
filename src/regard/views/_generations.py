"""The calls of a generation as one map: a picture shows all of its rows, or only the latest call."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from regard.maps import AttentionRecord, Map, Maps


@dataclass(frozen=True)
class ShownCalls:
    """What one picture shows of the calls of a map.

    Attributes:
        weights: ``(heads, queries, keys)``, with a batch in front if no sample was chosen.
        calls: those whose rows it has.
        steps: how many of its last rows were written one by one.
    """

    weights: Tensor
    calls: list[AttentionRecord]
    steps: int = 0


def shown_calls(found: Map, sample: int | None = None) -> ShownCalls:
    """The calls of a generation put together, or else the latest call."""
    calls = list(found.calls)
    whole = None
    if len(calls) > 1 and all(call.positions is not None and call.positions.cached for call in calls):
        whole = _by_positions(found.name, calls, sample)
    if whole is None and _is_generation(calls):
        whole = _below_each_other([_of_sample(call, sample) for call in calls])
    if whole is None:
        return ShownCalls(_of_sample(calls[-1], sample), calls[-1:])
    steps = next((i for i, call in enumerate(reversed(calls)) if call.shape[2] != 1), len(calls) - 1)
    return ShownCalls(whole, calls, min(steps, len(calls) - 1))


def _of_sample(call: AttentionRecord, sample: int | None) -> Tensor:
    return call.weights if sample is None else call.weights[sample]


def _by_positions(name: str, calls: list[AttentionRecord], sample: int | None) -> Tensor | None:
    """The rows and keys where the cache says that they lie; None if the calls do not make one sequence (of beams, whose
    rows change places, only the output of ``generate`` says how)."""
    if any(call.stored is None for call in calls):
        return None
    parts = []
    for call in calls:
        weights = _of_sample(call, sample)
        weights = weights if sample is None else weights[None]
        parts.append(replace(call, stored=weights, shape=(len(weights), *call.shape[1:])))
    try:
        whole: Tensor = Maps([Map(name, parts)]).generation()[0].weights
    except ValueError:
        return None
    return whole if sample is None else whole[0]


def _is_generation(calls: Sequence[AttentionRecord]) -> bool:
    """Whether each call continues the one before: one more query, over one more key, or over the same keys in one run of
    the model. In another run they are other keys: a query that pools an image has as many in the next image."""
    if len(calls) < 2 or any(
        call.stored is None or call.rows is not None or call.windows is not None for call in calls
    ):
        return False
    shapes = [call.stored.shape for call in calls if call.stored is not None]
    if any(shape[0] != shapes[0][0] or shape[1] != shapes[0][1] or shape[2] != 1 for shape in shapes[1:]):
        return False
    if any(call.positions is not None and call.positions.cached for call in calls) and not _start_together(calls):
        return False
    growth = {later[3] - earlier[3] for earlier, later in pairwise(shapes)}
    one_run = len({None if call.moment is None else call.moment[0] for call in calls}) == 1
    return growth == {1} or (growth == {0} and shapes[0][3] > 1 and one_run)


def _start_together(calls: Sequence[AttentionRecord]) -> bool:
    """Whether the keys of all calls start at the same token, and the rows of the batch are the same sequences."""
    places = [call.positions for call in calls]
    return all(place is not None and place.first_key == 0 and not place.beams for place in places)


def _below_each_other(parts: list[Tensor]) -> Tensor:
    """Concatenate the rows of ``(…, queries, keys)``; keys that did not exist yet have weight 0."""
    keys = max(part.shape[-1] for part in parts)
    return torch.cat([torch.nn.functional.pad(part, (0, keys - part.shape[-1])) for part in parts], -2)
