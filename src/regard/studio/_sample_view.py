"""The attention of a run's network on a sample, as a view with the network's answer."""

import dataclasses
from typing import Any

from torch import nn

from regard.studio._errors import Refused
from regard.training import Run, Sample
from regard.views import Payload, attention_view, maps_for_page


def sample_view(run: Run, network: nn.Module, sample: Sample, about: dict[str, Any]) -> Payload:
    """The view of the network's attention. ``meta["studio"]`` holds ``about`` and the network's answer."""
    seen = run.recipe.task.attend(network, sample)
    payload = attention_view(seen)
    if payload is None:
        missed = "; ".join(map(str, maps_for_page(seen.maps).missed))
        reason = f": {missed}" if missed else ""
        raise Refused(409, f"no attention was captured in the network of {run.recipe.name}{reason}")
    return dataclasses.replace(payload, meta={**payload.meta, "studio": {**about, **seen.answer}})
