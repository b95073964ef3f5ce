"""One row of the zoo: a model, its maps, and what an independent witness says about them."""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import regard
from _zoo.witness import Seen, difference, formula, witness

TOLERANCE = 2e-5
_ATTENTION = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass
class Animal:
    """A model and how to call it.

    Attributes:
        family: the library, or "faults".
        name: of the model.
        model: in evaluation mode.
        inputs: passed by name; the first axis of each tensor is the batch, of 2.
        call: how to call the model, if not by ``model(**inputs)``.
        expected: computes the maps that the model must have, by name; None for a name that must be in ``missed``.
    """

    family: str
    name: str
    model: nn.Module
    inputs: dict[str, Any]
    call: Callable[..., Any] | None = None
    expected: Callable[[], dict[str, Tensor | None]] | None = None

    def run(self, inputs: dict[str, Any] | None = None) -> Any:
        torch.manual_seed(1)
        given = self.inputs if inputs is None else inputs
        with torch.no_grad():
            return self.model(**given) if self.call is None else self.call(self.model, **given)


@dataclass
class Comparison:
    """Maps beside what the witness saw.

    Attributes:
        worst: the largest difference of maps that were seen.
        unseen: names of maps that the witness did not see.
        wrong: names of maps that differ from all that it saw in their module.
        left: what it saw that is in no map.
    """

    worst: float = 0.0
    unseen: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: list[Seen] = field(default_factory=list)


def row(animal: Animal) -> dict[str, Any]:
    """What capture gives, compared with what the witness saw."""
    maps = captured(animal)
    with formula():
        same_formula = captured(animal)
    with witness(animal.model) as seen:
        animal.run()
    found = _compare(same_formula, [part for part in seen if part.weights.shape[-1] > 1])
    known = {name.partition("#")[0] for name in maps} | {missed.name.partition("#")[0] for missed in maps.missed}
    left = found.left if animal.expected is None else []
    incomplete = sorted({part.name for part in left if not _accounted(part, maps, known)})
    if not maps and not maps.missed:
        incomplete += _quiet(animal.model)
    alone = _alone(animal, maps)
    # A module that states its maps may put anything on top of them, such as dropout.
    wrong = [*(found.wrong if animal.expected is None else ()), *(name for name, one in maps.items() if not one.agrees)]
    wrong += [] if list(maps) == list(same_formula) else ["other names with another kernel"]
    wrong += ["a sample alone has other maps"] if alone == "differ" else []
    wrong += _not_as_stated(animal, maps)
    verdict = "complete" if maps else "no attention"
    if maps.missed:
        verdict = "complete, the rest in missed" if maps else "in missed"
    if wrong or found.worst > TOLERANCE:
        verdict = "silently wrong"
    elif incomplete:
        verdict = "silently incomplete"
    return {
        "family": animal.family,
        "model": animal.name,
        "maps": len(maps),
        "missed": sum(missed.count for missed in maps.missed),
        "witnessed": len(maps) - len(set(found.unseen)),
        "worst difference": found.worst if len(maps) > len(set(found.unseen)) else None,
        "axes": dict(Counter(one.axes for one in maps.values())),
        "over": dict(Counter(one.over for one in maps.values())),
        "sample alone": alone,
        "verdict": verdict,
        "reasons": sorted({missed.reason for missed in maps.missed})[:4],
        "problems": [*wrong, *incomplete][:8],
    }


def captured(animal: Animal, inputs: dict[str, Any] | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with regard.capture(animal.model, budget=None) as maps:
            animal.run(inputs)
    return maps


def _compare(maps: Any, seen: list[Seen]) -> Comparison:
    found = Comparison(left=list(seen))
    for name, one in maps.items():
        for record in one.calls:
            if record.shape[-1] <= 1:
                continue
            near = [part for part in found.left if _near(part.name, name.partition("#")[0])]
            pairs = [(part, d) for part in near if (d := difference(record.stored, part.weights)) is not None]
            if not pairs:
                if not _in_parts(found, record.stored, [part for part in near if part.name == name.partition("#")[0]]):
                    found.unseen.append(name)
                continue
            part, distance = min(pairs, key=lambda pair: pair[1])
            if distance < 1e-3:
                found.left.remove(part)
                found.worst = max(found.worst, distance)
            elif record.kind in ("softmax", "sdpa"):
                found.wrong.append(name)
    return found


def _in_parts(found: Comparison, ours: Tensor, parts: list[Seen]) -> bool:
    """Whether the weights are those of several products of the module, which are joined: the same numbers, in any order."""
    if not parts:
        return False
    theirs = torch.cat([part.weights.flatten() for part in parts]).double()
    one, other = (x[x > 0].sort().values for x in (ours.flatten().double(), theirs))
    if one.shape != other.shape or float((one - other).abs().max()) > TOLERANCE:
        return False
    found.worst = max(found.worst, float((one - other).abs().max()))
    found.left = [part for part in found.left if part not in parts]
    return True


def _near(one: str, other: str) -> bool:
    """Whether one module is the other, or inside of it."""
    return one == other or one.startswith(other + ".") or other.startswith(one + ".") or not one or "." not in other


def _accounted(part: Seen, maps: Any, known: set[str]) -> bool:
    """Whether what was seen is in ``missed``, or in a map that is made of several products."""
    path = part.name
    if any(f"weighs {part.weights.shape[-1]} vectors" in note and path in note for note in maps.notes):
        return True  # a mixture of streams, experts or layers
    if any(path == other or path.startswith(other + ".") or other.startswith(path + ".") for other in known):
        joined = any(one.kind != "softmax" for name, one in maps.items() if _near(path, name.partition("#")[0]))
        return joined or any(_near(path, missed.name.partition("#")[0]) for missed in maps.missed)
    return False


def _quiet(model: nn.Module) -> list[str]:
    """Modules with attention in their class name, in a model of which nothing is known."""
    return [
        name
        for name, module in model.named_modules()
        if _ATTENTION.search(type(module).__name__) and len([p for p in module.parameters() if p.ndim > 1]) > 1
    ]


def _alone(animal: Animal, maps: Any) -> str:
    """Whether the maps of the first sample alone are the first of the batch: then the batch axis is what it says."""
    batch = {name: x for name, x in animal.inputs.items() if isinstance(x, Tensor) and x.ndim and x.shape[0] == 2}
    if not batch:
        return "not tried"
    first = {**animal.inputs, **{name: x[:1] for name, x in batch.items()}}
    try:
        alone = captured(animal, first)
        if not _same_first(animal.run(), animal.run(first)):
            return "not tried (the model's own outputs depend on the batch)"
    except Exception as error:  # the model's own
        return f"not tried ({type(error).__name__})"
    compared = 0
    for name, found in maps.items():
        other = alone.get(name)
        if other is None or "ambiguous" in (found.axes, other.axes) or len(other.calls) != len(found.calls):
            continue
        whole, part = found.weights, other.weights
        if whole.shape[1] != part.shape[1]:
            return "differ"
        if whole.shape != (2 * part.shape[0], *part.shape[1:]):
            continue  # samples are packed into one sequence, or cut to other lengths
        apart = min(float((rows - part).abs().max()) for rows in (whole[: part.shape[0]], whole[::2]))
        if apart > 1e-3:
            return "differ"
        compared += 1
    return "same" if compared else "not tried"


def _same_first(both: Any, alone: Any) -> bool:
    """Whether the outputs of the first sample are the same in a batch."""
    for x, y in zip(_tensors(both), _tensors(alone), strict=False):
        if x.is_floating_point() and x.shape == (2 * y.shape[0], *y.shape[1:]):
            return bool(torch.allclose(x[: y.shape[0]], y, atol=1e-3, rtol=1e-3))
    return True


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        values = [output]
    else:
        values = (
            output.values() if hasattr(output, "values") else output if isinstance(output, list | tuple) else [output]
        )
    return [x for x in values if isinstance(x, Tensor) and x.ndim]


def _not_as_stated(animal: Animal, maps: Any) -> list[str]:
    """The names of maps that are not those that the module states."""
    if animal.expected is None:
        return []
    wrong = []
    missed = {one.name for one in maps.missed}
    for name, weights in animal.expected().items():
        found = maps.get(name)
        if weights is None:
            wrong += [] if found is None and name in missed else [f"{name} is not in missed"]
        elif found is None or found.shape != tuple(weights.shape):
            wrong.append(f"{name} is {None if found is None else found.shape}, not {tuple(weights.shape)}")
        elif float((found.weights - weights).abs().max()) > TOLERANCE:
            wrong.append(name)
    return wrong
