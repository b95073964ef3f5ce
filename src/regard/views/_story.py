"""The page "Watch a network learn where to look": views of the user's run and of shipped networks."""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regard.maps import Maps
from regard.views import _convolution, _head_positions, _image_maps
from regard.views._payload import Payload
from regard.views._sheets import lacks_large, maps_for_page
from regard.views._shipped import shipped_run

if TYPE_CHECKING:
    from regard.training import Run, Sample, SampleAttention
else:
    Run = Sample = SampleAttention = Any

EXAMPLE = "cifar10-small"
TITLE = "Watch a network learn where to look"
MOMENTS = 120  # frames of a trajectory; more would not be visible in a few seconds
IMAGES = 6
MOST_WEIGHTS = 4_000_000  # weights of one part's maps, a byte each before compression
MOST_PARAMETERS = 400_000  # parameters of a text network that runs in the browser while the user types
THREE_LINES = "with regard.capture(model) as maps:\n    {call}\nregard.show(maps{options})"


@dataclass(frozen=True)
class Part:
    """A part of the page.

    Attributes:
        payload: the view's data.
        own: whether it shows the user's run; otherwise it shows a network that comes with the package.
    """

    payload: Payload
    own: bool


class _Source:
    """A run, with its network and a few samples read once."""

    def __init__(self, run: Run) -> None:
        self.run, self.name = run, run.recipe.name
        self.task: Any = run.recipe.task

    @cached_property
    def network(self) -> nn.Module:
        return self.run.network().eval()

    @cached_property
    def samples(self) -> list[Sample]:
        """Images of different labels, as far as the first samples have them; for other tasks the first sample."""
        split = self.task.shown_split
        if self.task.image_shape is None:
            return [self.task.sample(split, 0)]
        found: dict[str | None, Sample] = {}
        for index in range(min(60, self.task.count(split))):
            sample = self.task.sample(split, index)
            found.setdefault(sample.label, sample)
            if len(found) == IMAGES:
                break
        return list(found.values())

    @cached_property
    def seen(self) -> list[SampleAttention]:
        return [self.task.attend(self.network, sample) for sample in self.samples]


class _Shipped(_Source):
    """The run that comes with the package. Its images are in the same folder, because its data set may not be available."""

    @cached_property
    def samples(self) -> list[Sample]:
        from PIL import Image

        found = []
        for name in ("cat", "ship", "horse", "frog", "automobile", "bird"):
            (path,) = (shipped_run(EXAMPLE) / "images").glob(f"{name}-*.png")
            pixels = _image_maps.as_pixels(Image.open(path)).permute(2, 0, 1).contiguous()
            found.append(replace(self.task.read_image(pixels), label=name))
        return found


def story(run: Run | None = None) -> Payload:
    """The data of the page: from ``run`` if it has data for a section, otherwise from the networks in the package.

    >>> from regard.views import story
    >>> sorted(story().meta["parts"])
    ['case', 'convolution', 'heads', 'images', 'induction', 'maps0', 'yours']
    """
    own = None if run is None else _Source(run)
    example = _shipped(EXAMPLE)
    parts = {"heads": _own_or(_heads, own, example)}
    images = None if own is None else _images(own)
    for name, shown in (images or {}).items():
        parts[name] = Part(shown, True)
    for name, shown in (_images(example) or {}).items():
        parts[name if images is None else f"example-{name}"] = Part(shown, False)
    for name in ("case-transformer", "induction"):
        parts[name.partition("-")[0]] = _own_or(_text_network, own, _shipped(name))
    pixels = parts["images"].payload.arrays["images"]
    assert isinstance(pixels, Tensor)
    parts["convolution"] = Part(_convolution.payload(image=pixels[0]), parts["images"].own)
    parts["yours"] = _own_or(_three_lines, own, example)
    about = {"title": TITLE, "run": None if own is None else own.name, "example": EXAMPLE}
    return together("story", about, parts)


@cache
def _shipped(name: str) -> _Source:
    from regard.training import load_run

    return (_Shipped if name == EXAMPLE else _Source)(load_run(shipped_run(name)))


def together(view: str, about: Mapping[str, Any], parts: Mapping[str, Part]) -> Payload:
    """Several payloads as one: array ``x`` of part ``p`` is called ``p/x``."""
    described = {
        name: {"view": part.payload.view, "meta": part.payload.meta, "own": part.own} for name, part in parts.items()
    }
    arrays = {f"{name}/{array}": value for name, part in parts.items() for array, value in part.payload.arrays.items()}
    return Payload(view, {**about, "parts": described}, arrays)


def _own_or(make: Any, own: _Source | None, example: _Source) -> Part:
    """``make`` of the user's run, or of the example if the run has no such data."""
    shown = None if own is None else make(own, example)
    return Part(make(example, example), False) if shown is None else Part(shown, True)


def _heads(source: _Source, example: _Source) -> Payload | None:
    """Where its heads look over training, with one step per visible frame."""
    found: Payload | None = None
    with suppress(ValueError):  # no positional heads, or no checkpoints to fit
        found = _head_positions.payload(source.run)
    if found is None or len(found.meta["steps"]) < 2:
        return None
    count = len(found.meta["steps"])
    kept = sorted({round(i * (count - 1) / (MOMENTS - 1)) for i in range(MOMENTS)}) if count > MOMENTS else range(count)
    steps = [found.meta["steps"][at] for at in kept]
    arrays = {name: value[list(kept)] for name, value in found.arrays.items() if isinstance(value, Tensor)}
    return Payload("heads", {**found.meta, "steps": steps}, arrays)


def _images(source: _Source) -> dict[str, Payload] | None:
    """Images with the network's guesses, and the maps of each image (one set of maps if all images have the same)."""
    if source.task.image_shape is None or not source.samples:
        return None
    kept = [_some_layers(seen.maps) for seen in source.seen]
    same = len(kept) > 1 and all(_equal(kept[0], other) for other in kept[1:])
    try:
        laid = [
            _image_maps.payload(maps, grid=seen.grid)
            for maps, seen in zip(kept[:1] if same else kept, source.seen, strict=False)
        ]
    except ValueError:  # no maps, or none that lie on the image
        return None
    pairs = zip(source.samples, source.seen, strict=True)
    labels = [{"label": sample.label, "guesses": seen.answer.get("guesses", [])[:3]} for sample, seen in pairs]
    pixels = torch.stack([_image_maps.as_pixels(seen.image) for seen in source.seen])
    meta = {"name": source.name, "samples": labels, "same": same}
    maps = {f"maps{number}": shown for number, shown in enumerate(laid)}
    return {"images": Payload("images", meta, {"images": pixels}), **maps}


def _some_layers(maps: Maps) -> Maps:
    """The first layers that fit; else the smallest one, if a page can show it."""
    kept = maps_for_page(maps, MOST_WEIGHTS)
    if len(maps) and not len(kept):
        least = min(maps.values(), key=lambda found: math.prod(found.shape[1:]))
        kept = maps_for_page(Maps([least]))
    return Maps(kept.values())


def _equal(left: Maps, right: Maps) -> bool:
    return all(torch.equal(left[name].weights, right[name].weights) for name in left)


def _text_network(source: _Source, example: _Source) -> Payload | None:
    """A transformer that a browser can run: its weights in float16, and its vocabulary."""
    from regard.training import TransformerSettings

    settings: Any = source.run.recipe.network
    task = source.task
    fits = isinstance(settings, TransformerSettings) and (settings.norm, settings.positions) == ("pre", "sinusoidal")
    if not fits or type(task) is not type(example.task):
        return None
    weights = {name: value.half() for name, value in source.network.state_dict().items()}
    parameters = sum(value.numel() for value in weights.values())
    if parameters > MOST_PARAMETERS:
        return None
    summary = source.run.summary or {}
    about = {
        "name": source.name,
        "dim": settings.dim,
        "heads": settings.heads,
        "encoder": settings.encoder_depth,
        "decoder": settings.decoder_depth,
        "tokens": list(task.vocabulary.tokens),
        "suggestion": task.suggestion,
        "longest": getattr(task, "longest", None) or getattr(task, "length", None),
        "parameters": parameters,
        "accuracy": summary.get("validation_accuracy"),
        "seconds": summary.get("process_seconds", summary.get("train_seconds")),
        "command": summary.get("command"),
    }
    return Payload("network", about, weights)


def _three_lines(source: _Source, example: _Source) -> Payload | None:
    """The view that the lines of code on the page produce, made by running them."""
    batch, seen = source.samples[0].batch, source.seen[0]
    if not len(seen.maps) or lacks_large(maps_for_page(seen.maps)):
        return None
    names: dict[str, Any] = {"model": source.network}
    if seen.image is not None and hasattr(batch, "images"):
        grid = "" if seen.grid is None else f", grid={tuple(seen.grid)}"
        names["x"], code = batch.images, THREE_LINES.format(call="model(x)", options=f", image=x{grid}")
    elif seen.tokens is not None and hasattr(batch, "tokens"):
        call = "model(None, x)" if hasattr(source.network, "decoder") else "model(x)"
        names |= {"x": batch.tokens, "words": seen.tokens}
        code = THREE_LINES.format(call=call, options=", tokens=words")
    elif seen.tokens is not None and seen.decoder_input is not None and hasattr(source.task, "vocabulary"):
        heard = [source.task.vocabulary.numbers[token] for token in seen.decoder_input]
        names |= {
            "source": batch.source,
            "target": torch.tensor([heard]),
            "read": seen.tokens[0],
            "said": seen.tokens[1],
        }
        code = THREE_LINES.format(call="model(source, target)", options=", tokens=(read, said)")
    else:
        return None
    with torch.no_grad():
        body, last = code.rsplit("\n", 1)
        exec(f"import regard\n{body}", names)  # the page claims that these lines produced the view
        shown = eval(last, names).payload
    return Payload(shown.view, {**shown.meta, "code": code, "model": source.name}, shown.arrays)
