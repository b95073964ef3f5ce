"""Compare the shapes in a checkpoint with the network of a recipe before anything is allocated.

A recipe of a few bytes can describe a network of any size. The network is built on the device ``meta``, where tensors have
a shape and no memory, and building stops once it has more parts than the checkpoint has tensors for.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.support.building import at_most, differing_shapes, shapes_of, shapes_only
from regard.support.checks import UnusableInputError
from regard.support.reading import UnreadableError, check_regular, open_regular, parse_json
from regard.support.text import listed
from regard.training._recipe import Recipe

LARGEST_HEADER = 16 * 2**20
# A checkpoint holds the network, its average, and the optimizer's state of every parameter.
MOST_COPIES = 16
Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(path: Path) -> Shapes:
    """The shapes of the tensors in a safetensors file, read from its header."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(LARGEST_HEADER, size - 8):
            raise UnreadableError(f"{path} is not a safetensors file: its header would have {length:,} bytes")
        text = file.read(length)
    try:
        header = parse_json(text)
        return {str(name): tuple(map(int, part["shape"])) for name, part in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnreadableError(f"{path} is not a safetensors file: {error}") from error


def check_fit(recipe: Recipe, path: Path) -> None:
    """Refuse tensors that do not fit the recipe's network, and a file that is much larger than its tensors."""
    shapes = tensor_shapes(path)
    parts = {name.partition(".")[0] for name in shapes}
    chosen = "average." if "average" in parts else "network."
    found = {name.removeprefix(chosen): shape for name, shape in shapes.items() if name.startswith(chosen)}
    wanted = network_shapes(recipe, most=len(found))
    if wanted is None:  # the user's own network cannot be built on meta
        return
    if different := differing_shapes(found, shapes_of(wanted)):
        raise ValueError(f"{path} does not fit the network of the recipe {recipe.name!r}: {different}")
    largest = MOST_COPIES * sum(tensor.nbytes for tensor in wanted.values()) + LARGEST_HEADER
    check_regular(path, largest)


def check_data(recipe: Recipe, state: Mapping[str, Any], folder: Path) -> None:
    """Refuse images whose classes differ from those of the checkpoint: predictions would get wrong names."""
    facts = state.get("data")  # a checkpoint of an earlier version has none
    then, now = (each.get("classes") if isinstance(each, dict) else None for each in (facts, recipe.task.data_facts()))
    if then is not None and then != now:
        lists = (each if isinstance(each, list) else [each] for each in (then, now))  # a checkpoint may hold anything
        names = [listed([f"{name!r:.60}" for name in each if name is not None], most=10) or "none" for each in lists]
        raise UnusableInputError(
            f"the run in {folder} was trained on the classes {names[0]}, but its images now have the classes {names[1]}: "
            f"restore the names of their folders, or train again"
        )


def has_comparable_images(recipe: Recipe, state: Mapping[str, Any]) -> bool:
    """Whether the checkpoint and the recipe's task both identify images by content, in the same way (see ``Task.data_facts``)."""
    then, now = _images(state.get("data")), _images(recipe.task.data_facts())
    return then is not None and now is not None and then.get("of") == now.get("of")


def have_images_changed(recipe: Recipe, state: Mapping[str, Any]) -> bool:
    """Whether the images, or the names by which some are held out, are certainly not those of the checkpoint."""
    if not has_comparable_images(recipe, state):
        return False
    then, now = _images(state.get("data")) or {}, _images(recipe.task.data_facts()) or {}
    return any(now.get(name) != fact for name, fact in then.items())  # older checkpoints have no ranks


def check_images(recipe: Recipe, state: Mapping[str, Any], folder: Path) -> None:
    """Refuse to resume with other images than those of the checkpoint."""
    if have_images_changed(recipe, state):
        then, now = _images(state.get("data")) or {}, _images(recipe.task.data_facts()) or {}
        counts = " and ".join(f"{each.get('count')}" for each in (then, now))
        raise UnusableInputError(
            f"the run in {folder} was trained on other images than those at {getattr(recipe.task, 'data', '(no path)')}, or they "
            f"were renamed (number of images then and now: {counts}): restore them, or train again in another folder"
        )


def _images(facts: Any) -> dict[str, Any] | None:
    found = facts.get("images") if isinstance(facts, dict) else None
    return found if isinstance(found, dict) else None


def network_shapes(recipe: Recipe, most: int) -> dict[str, torch.Tensor] | None:
    """The state of the recipe's network as tensors on ``meta``; None if it cannot be built there.

    Args:
        recipe: the recipe whose network is built.
        most: number of tensors at which building stops.
    """
    try:
        with shapes_only(), at_most(most):
            return dict(recipe.network.build(recipe.task).state_dict())
    except NotImplementedError:  # an operator without a meta version
        return None
    except (TypeError, OverflowError, RuntimeError) as error:  # sizes beyond any tensor, or of a wrong type
        said = str(error).partition("\n")[0]
        raise ValueError(f"the network of the recipe {recipe.name!r:.100} cannot be built: {said:.300}") from error


def check_state(network: nn.Module, state: Mapping[str, torch.Tensor], where: str) -> None:
    """Refuse a state that does not fit the network, with a shorter message than that of ``load_state_dict``."""
    if different := differing_shapes(shapes_of(state), shapes_of(network.state_dict())):
        raise ValueError(f"{where} does not fit the network: {different}")
