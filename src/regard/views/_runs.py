"""The views of a run: its training curves, where its heads look, and its network's attention on one sample."""

import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from regard.views import _head_positions, _image_maps, _token_maps
from regard.views._payload import Payload
from regard.views._sheets import maps_for_page

if TYPE_CHECKING:
    from regard.training import Run, SampleAttention
else:
    Run = SampleAttention = Any


MOST_LINES = 1000  # lines of a training curve; more cannot be distinguished
MEASURED = ("loss", "accuracy", "validation_loss", "validation_accuracy")


def training_view(run: Run) -> Payload:
    """Loss and accuracy against steps. For a long training the training curves are subsampled; evaluations on held-out
    samples are shown in full."""
    lines = run.metrics
    every = max(1, math.ceil(len(lines) / MOST_LINES))
    kept = [
        {name: line[name] for name in ("step", *MEASURED) if name in line}
        for number, line in enumerate(lines)
        if number % every == 0 or number == len(lines) - 1 or any(name.startswith("validation_") for name in line)
    ]
    return Payload("training", {"name": run.recipe.name, "lines": kept})


def run_views(run: Run) -> dict[str, Payload]:
    """The views of a run by name, as far as its network has them: ``"heads"``, and ``"image"`` or ``"tokens"``.

    The sample is the first of the validation set, or of the training set if nothing is held out.
    """
    shown = {}
    with suppress(ValueError):  # no positional heads
        if (heads := _head_positions.payload(run)) is not None:
            shown["heads"] = heads
    task = run.recipe.task
    attention = attention_view(task.attend(run.network(), task.sample(task.shown_split, 0)))
    return shown if attention is None else {**shown, attention.view: attention}


def attention_view(seen: SampleAttention) -> Payload | None:
    """The view of a network's attention on a sample; None if it has no attention that can be shown."""
    maps = maps_for_page(seen.maps)
    if not len(maps):
        return None
    if seen.image is not None:
        try:
            return _image_maps.payload(maps, image=seen.image, grid=seen.grid)
        except ValueError:  # no map lies on the image
            return None
    payload = _token_maps.payload(maps, tokens=seen.tokens)
    if seen.decoder_input is not None:
        payload.meta["tokens"]["told"] = list(seen.decoder_input)
        for layer in payload.meta["layers"]:
            # Self-attention of the decoder is over its input, which is one step behind its output.
            if layer["reads"] == "target":
                layer["reads"] = "told"
    return payload
