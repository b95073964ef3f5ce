"""What a run has to show: where its heads look, and what its network attends to in the first sample held out."""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regard.analysis import Locality, locality
from regard.maps import Maps
from regard.views import _token_maps
from regard.views._head_positions import fitted_payload, trajectory_payload
from regard.views._image_maps import image_payload
from regard.views._payload import Payload

if TYPE_CHECKING:
    from regard.training import Run
else:
    Run = Any

SAMPLES = 8  # that heads are fitted on, where they have no center of their own


def run_payloads(run: Run) -> dict[str, Payload]:
    """The views of a run, by name: ``"heads"`` and ``"image"`` or ``"tokens"``, as far as its network has them."""
    shown = {}
    with suppress(ValueError):  # no positional heads
        shown["heads"] = heads_payload(run)
    attention = attention_payload(run)
    return shown if attention is None else {**shown, attention.view: attention}


def heads_payload(run: Run) -> Payload:
    """Where the heads of a run looked, or the Gaussians that fit its maps if they have no centers of their own."""
    curve = [(line["step"], line["validation_accuracy"]) for line in run.evaluations]
    if run.heads is None:
        return fitted_payload(*fitted(run), run.recipe.name, curve)
    return trajectory_payload(run.heads, run.recipe.name, curve)


def attention_payload(run: Run) -> Payload | None:
    """What the network attends to in the first sample; None where it does not attend to anything."""
    from regard.training import CaseConversion, ImageTask, MaskedLanguage

    task = run.recipe.task
    if not isinstance(task, ImageTask | MaskedLanguage | CaseConversion):
        return None
    examples: Any = _examples(task)
    batch = examples.batch(torch.tensor([0], device=examples.index_device), seed=0, epoch=0)
    network = run.network()
    if isinstance(task, ImageTask):
        maps = _maps(network, batch.images)
        return image_payload(maps, examples.set.images[0])
    if isinstance(task, MaskedLanguage):
        maps = _maps(network, batch.tokens, keep=batch.keep)
        words = task.vocabulary.tokens
        return _token_maps.payload(maps, tokens=[words[i] for i in batch.tokens[0].tolist()]) if len(maps) else None
    return case_payload(network, batch, task.vocabulary.tokens)


@torch.no_grad()
def case_payload(network: nn.Module, batch: Any, words: list[str] | tuple[str, ...]) -> Payload | None:
    """A sentence read and what the model writes by itself, with all that it looks at meanwhile."""
    from regard.training._sequences import answers

    length = int(batch.source_keep[0].sum())  # without its padding
    first = type(batch)(*(column[:1] for column in batch))
    first = first._replace(source=first.source[:, :length], source_keep=first.source_keep[:, :length])
    said = answers(network, first)[:, : int(first.target_keep.sum())]
    told = torch.cat((first.target_input[:, :1], said[:, :-1]), 1)
    maps = _maps(network, first.source, told, source_keep=first.source_keep)
    if not len(maps):
        return None
    # A decoder that attends to what it was told is labeled with that; one that only looks back, with what it says.
    only_back = all(found.shape[3] == first.source.shape[1] and "encoder" not in name for name, found in maps.items())
    written = said if only_back else told
    lists = [[words[i] for i in numbers[0].tolist()] for numbers in (first.source, written)]
    return _token_maps.payload(maps, tokens=(lists[0], lists[1]))


def fitted(run: Run) -> tuple[list[Locality], list[int]]:
    """Gaussians that fit the heads of a network without centers, at every checkpoint that was kept."""
    from regard.training import ImageTask, MaskedLanguage

    task = run.recipe.task
    if not isinstance(task, ImageTask | MaskedLanguage):
        raise ValueError(f"{run.folder} has no heads with a place: its network does not attend over a grid")
    examples: Any = _examples(task)
    index = torch.arange(min(SAMPLES, len(examples)), device=examples.index_device)
    batch = examples.batch(index, seed=0, epoch=0)
    steps = run.checkpoints.steps()
    if not steps:
        raise FileNotFoundError(f"{run.folder} has no checkpoint")
    found = []
    for step in steps:
        network = run.network(step)
        if isinstance(task, ImageTask):
            maps, grid = _maps(network, batch.images), None
        else:
            maps, grid = _maps(network, batch.tokens, keep=batch.keep), (batch.tokens.shape[1],)
        local = Maps(each for each in maps.values() if _is_on_grid(each, grid))
        if not len(local):
            raise ValueError(f"{run.folder} has no heads with a place: its network does not attend over a grid")
        found.append(locality(local, grid))
    return found, steps


def _is_on_grid(found: Any, grid: tuple[int, ...] | None) -> bool:
    try:
        layout = found.layout(grid)
    except ValueError:
        return False
    return found.shape[2] == found.shape[3] and len(layout.grid) in (1, 2)


def _examples(task: Any) -> Any:
    """As they are, without augmentation; of what was held out, or of training where nothing was."""
    from regard.data import AugmentedImages

    device = torch.device("cpu")
    examples = task.examples("validation", device) or task.examples("train", device)
    return AugmentedImages(examples.set) if isinstance(examples, AugmentedImages) else examples


def _maps(network: nn.Module, *inputs: Any, **options: Any) -> Maps:
    from regard.training._pictures import attention_of

    return attention_of(network, *inputs, **options)
