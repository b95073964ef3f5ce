"""One row of the zoo: a model, its maps, and what an independent witness says about them."""

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import regard
from _zoo.witness import Seen, difference, witness

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
        expected: maps by name that the model must have, for the small modules that state them.
    """

    family: str
    name: str
    model: nn.Module
    inputs: dict[str, Any]
    call: Callable[..., Any] | None = None
    expected: dict[str, Tensor] | None = None

    def run(self, inputs: dict[str, Any] | None = None) -> Any:
        torch.manual_seed(1)
        given = self.inputs if inputs is None else inputs
        with torch.no_grad():
            return self.model(**given) if self.call is None else self.call(self.model, **given)


def row(animal: Animal) -> dict[str, Any]:
    """What capture gives, compared with what the witness saw."""
    maps = _captured(animal)
    with witness(animal.model) as seen:
        animal.run()
    seen = [part for part in seen if not _is_selection(part)]
    records = [(found.name, call) for found in maps.values() for call in found.calls]
    worst, unwitnessed, unordered = _compared(records, seen)
    known = {name.partition("#")[0] for name in maps} | {missed.name.partition("#")[0] for missed in maps.missed}
    silent = sorted({part.name for part in seen if not _related(part.name, known)})
    quiet = _quiet(animal.model, known) if not maps and not maps.missed and not seen else []
    together = _alone(animal, maps)
    disagree = [name for name, found in maps.items() if not found.agrees]
    wrong = [name for name, difference in unwitnessed if difference]
    result = {
        "family": animal.family,
        "model": animal.name,
        "maps": len(records),
        "missed": sum(missed.count for missed in maps.missed),
        "witnessed": len(records) - len(unwitnessed),
        "worst difference": worst,
        "axes": dict(Counter(found.axes for found in maps.values())),
        "over": dict(Counter(found.over for found in maps.values())),
        "samples alone": together,
        "reasons": sorted({f"{missed.reason}" for missed in maps.missed})[:4],
    }
    problems = []
    if silent or quiet:
        problems.append(("silently incomplete", (silent or quiet)[:6]))
    if wrong or worst > TOLERANCE or together == "differ" or (disagree and not maps.missed):
        problems.append(("silently wrong", (wrong or disagree)[:6]))
    if _states_other_maps(animal, maps):
        problems.append(("silently wrong", _states_other_maps(animal, maps)))
    result["unwitnessed"] = [name for name, _ in unwitnessed][:6]
    result["order not found"] = unordered
    result["problems"] = problems
    result["verdict"] = problems[0][0] if problems else "complete" if not maps.missed else "complete or in missed"
    if not maps and not maps.missed and not seen:
        result["verdict"] = "no attention" if not quiet else "silently incomplete"
    return result


def _captured(animal: Animal, inputs: dict[str, Any] | None = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with regard.capture(animal.model, budget=None) as maps:
            animal.run(inputs)
    return maps


def _is_selection(seen: Seen) -> bool:
    """A single query, key and product is nothing to attend to."""
    return seen.weights.shape[-1] <= 1


def _compared(records: list[Any], seen: list[Seen]) -> tuple[float, list[tuple[str, bool]], int]:
    """The worst difference of maps that were seen, the maps that were not, and how many lie in an unknown order."""
    left, worst, unwitnessed, unordered = list(seen), 0.0, [], 0
    for name, record in records:
        if record.shape[-1] <= 1:
            continue
        path = name.partition("#")[0]
        found = [(x, d) for x in left if _near(x.name, path) and (d := difference(record.stored, x.weights)) is not None]
        if not found:
            same = [x for x in seen if _near(x.name, path)]
            unwitnessed.append((name, bool(same) and record.kind in ("sdpa", "fast path")))
            continue
        best, (distance, ordered) = min(found, key=lambda pair: pair[1][0])
        left.remove(best)
        if distance < 1e-3:
            worst, unordered = max(worst, distance), unordered + (not ordered)
        else:
            unwitnessed.append((name, True))
    # What was seen and is in no map is listed by its module, unless that module gave maps for it.
    given = Counter(name.partition("#")[0] for name, _ in records)
    counted: Counter[str] = Counter()
    for part in list(seen):
        if part not in left:
            continue
        counted[part.name] += 1
    seen[:] = [part for part in left] if left else []
    seen[:] = [part for part in seen if not (given and _covered(part, records))]
    return worst, unwitnessed, unordered


def _covered(part: Seen, records: list[Any]) -> bool:
    """Whether a map of the same module contains these weights (blocks that were joined, a product done in parts)."""
    return any(_near(part.name, name.partition("#")[0]) and record.kind == "joined" for name, record in records)


def _near(one: str, other: str) -> bool:
    return one == other or one.startswith(other + ".") or other.startswith(one + ".") or not one or "." not in other


def _related(name: str, known: set[str]) -> bool:
    return any(_near(name, other) for other in known) and name in known or any(
        name == other or name.startswith(other + ".") or other.startswith(name + ".") for other in known
    )


def _quiet(model: nn.Module, known: set[str]) -> list[str]:
    """Modules with attention in their class name, in a model of which nothing is known."""
    return [
        name
        for name, module in model.named_modules()
        if _ATTENTION.search(type(module).__name__) and len([p for p in module.parameters() if p.ndim > 1]) > 1
    ]


def _alone(animal: Animal, maps: Any) -> str:
    """Whether the maps of the first sample alone are the first of the batch: then the batch axis is what it says."""
    first = {name: x[:1] if isinstance(x, Tensor) and x.ndim and x.shape[0] == 2 else x for name, x in animal.inputs.items()}
    if all(first[name] is animal.inputs[name] for name in first):
        return "not tried"
    try:
        alone = _captured(animal, first)
    except Exception as error:
        return f"not tried ({type(error).__name__})"
    compared = 0
    for name, found in maps.items():
        other = alone.get(name)
        if found.axes == "ambiguous" or other is None or len(other.calls) != len(found.calls):
            continue
        whole, part = found.weights, other.weights
        if whole.shape[0] != 2 * part.shape[0] or whole.shape[1:] != part.shape[1:]:
            if whole.shape[1:] == part.shape[1:]:
                continue  # tokens of all samples are packed into one sequence, or the batch is repeated
            return "differ"
        if float((whole[: part.shape[0]] - part).abs().max()) > 1e-4 and not _interleaved(whole, part):
            return "differ"
        compared += 1
    return "same" if compared else "not tried"


def _interleaved(whole: Tensor, part: Tensor) -> bool:
    return float((whole[::2] - part).abs().max()) < 1e-4


def _states_other_maps(animal: Animal, maps: Any) -> list[str]:
    wrong = []
    for name, weights in (animal.expected or {}).items():
        found = maps.get(name)
        if found is None or found.shape != tuple(weights.shape):
            wrong.append(f"{name}: {None if found is None else found.shape}")
        elif float((found.weights - weights).abs().max()) > TOLERANCE:
            wrong.append(name)
    return wrong
