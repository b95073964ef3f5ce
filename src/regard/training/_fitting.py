"""Compare the shapes in a checkpoint with the network of a recipe before anything is allocated.

A recipe of a few bytes can describe a network of any size. The network is built on the device ``meta``, where tensors have
a shape and no memory, and building stops once it has more parts than the checkpoint has tensors for.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from regard.support.building import at_most, differing_shapes, shapes_of, shapes_only
from regard.support.reading import UnreadableError, check_regular, parse_json
from regard.training._recipe import Recipe

LARGEST_HEADER = 16 * 2**20
# A checkpoint holds the network, its average, and what the optimizer remembers of every parameter.
MOST_COPIES = 16
Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(path: Path) -> Shapes:
    """The shapes of the tensors in a safetensors file, from its header alone."""
    size = check_regular(path)
    with path.open("rb") as file:
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
    """Refuse tensors that are not those of the recipe's network, and a file that is much larger than they are."""
    shapes = tensor_shapes(path)
    parts = {name.partition(".")[0] for name in shapes}
    chosen = "average." if "average" in parts else "network."
    found = {name.removeprefix(chosen): shape for name, shape in shapes.items() if name.startswith(chosen)}
    wanted = network_shapes(recipe, most=len(found))
    if wanted is None:  # a network of the user's own that cannot be built on meta
        return
    if different := differing_shapes(found, shapes_of(wanted)):
        raise ValueError(f"{path} does not fit the network of the recipe {recipe.name!r}: {different}")
    largest = MOST_COPIES * sum(tensor.nbytes for tensor in wanted.values()) + LARGEST_HEADER
    check_regular(path, largest)


def network_shapes(recipe: Recipe, most: int) -> dict[str, torch.Tensor] | None:
    """The state of the recipe's network as tensors on ``meta``; None where it cannot be built there.

    Args:
        recipe: its network is built.
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
    """Refuse a state that is not the network's, before ``load_state_dict`` reports it in many lines."""
    if different := differing_shapes(shapes_of(state), shapes_of(network.state_dict())):
        raise ValueError(f"{where} does not fit the network: {different}")
