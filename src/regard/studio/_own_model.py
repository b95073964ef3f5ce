"""The user's own model in the studio: loading it, reading its input, and showing its attention."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from regard.maps import Maps, capture
from regard.studio._errors import Refused
from regard.support.checks import describe
from regard.support.text import error_in_words
from regard.training import import_code
from regard.views import Payload, show, tokens_of

Takes = Literal["text", "image", "nothing"]
GUESSES = 5
FITS = (
    "a function without arguments that returns (model, read) would fit, where read(text) or read(image) gives the model's "
    "input; a tokenizer or an image processor of transformers is such a read"
)


@dataclass(frozen=True)
class OwnModel:
    """A user's model in the studio.

    Attributes:
        name: the name under which it was opened.
        takes: the kind of its input; saved maps take none.
        suggestion: a text to start with.
        look: returns the view for a text, an image ``(3, height, width)`` as bytes, or None.
    """

    name: str
    takes: Takes
    suggestion: str | None
    look: Callable[[Any], Payload]


def open_model(source: str) -> OwnModel:
    """A model from ``"package.module:function"`` or ``"file.py:function"``, or maps that ``maps.save`` wrote.

    The function takes no argument and returns ``(model, read)``. ``read`` gives the model's input: a tensor, a tuple of
    arguments or a dict of keyword arguments. It is a tokenizer or an image processor of transformers, or a function of your
    own with one parameter named ``text`` (a string) or ``image`` (a uint8 tensor ``(3, height, width)``). It may return
    ``(input, tokens)``, with one string per token.
    """
    if source.endswith(".safetensors") or Path(source).is_dir():
        maps = Maps.load(source)
        return OwnModel(Path(source).name, "nothing", None, lambda nothing: _shown(maps))
    module, colon, function = source.rpartition(":")
    if not colon or not function.isidentifier():
        raise ValueError(
            f"--model must be package.module:function, file.py:function or a saved maps file, got {source!r}"
        )
    make = getattr(import_code(module), function, None)
    if not callable(make):
        raise ValueError(f"--model is {source!r}, but {module} has no function {function!r}")
    try:
        made = make()
    except (Exception, SystemExit) as error:
        raise ValueError(f"{source} gives no model: it raises {error_in_words(error)}; {FITS}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1])):
        raise TypeError(f"{source} returned {_kind(made)}; {FITS}")
    model, read = made
    takes = _takes(source, read)
    model.eval()
    return OwnModel(source, takes, "The quick brown fox jumps over the lazy dog.", _Looker(model, read, takes))


def _takes(source: str, read: Any) -> Takes:
    if hasattr(read, "convert_ids_to_tokens"):
        return "text"
    try:
        names = {*inspect.signature(read).parameters}
    except ValueError:  # built in
        names = set()
    if "image" in names or "images" in names:
        return "image"
    if "text" in names:
        return "text"
    raise TypeError(f"read of {source} has no parameter named text or image, but {sorted(names)}; {FITS}")


@dataclass(frozen=True)
class _Looker:
    model: nn.Module
    read: Any
    takes: Takes

    def __call__(self, given: Any) -> Payload:
        # The model is the user's own code: its errors become messages, not errors of the studio.
        try:
            inputs, tokens = self._input(given)
            with torch.no_grad(), warnings.catch_warnings(), capture(self.model) as maps:
                warnings.simplefilter("ignore", UserWarning)  # warnings of capture become messages below
                output = _call(self.model, inputs)
        except (Exception, SystemExit) as error:
            raise Refused(400, f"the model failed on this input: {error_in_words(error)}") from error
        if not len(maps):
            missed = "; ".join(map(str, maps.missed))
            raise Refused(409, f"no attention was captured{f': {missed}' if missed else ''}")
        try:
            shown = self._view(maps, given, tokens)
            return replace(shown, meta={**shown.meta, "studio": {"run": "", "step": 0, **self._answer(output, maps)}})
        except Exception as error:
            raise Refused(409, f"the attention of the model cannot be shown: {error_in_words(error)}") from error

    def _input(self, given: Any) -> tuple[Any, list[str] | None]:
        if hasattr(self.read, "convert_ids_to_tokens"):
            inputs = self.read(given, return_tensors="pt")
            return inputs, tokens_of(self.read, inputs["input_ids"])
        if "images" in inspect.signature(self.read).parameters:
            return self.read(images=given, return_tensors="pt"), None
        inputs = self.read(given)
        if isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], list):
            return inputs[0], [str(token) for token in inputs[1]]
        return inputs, None

    def _view(self, maps: Maps, given: Any, tokens: list[str] | None) -> Payload:
        if self.takes == "image":
            try:
                return show(maps, image=given).payload
            except ValueError as error:  # no map has a known grid, so patches cannot be placed on the image
                maps.notes.append(f"the attention is not shown on the image: {error}")
                return show(maps).payload
        try:
            return show(maps, tokens=tokens).payload
        except ValueError as error:
            if tokens is None:
                raise
            maps.notes.append(f"token names are not shown: {error}")
            return show(maps).payload

    def _answer(self, output: Any, maps: Maps) -> dict[str, Any]:
        """The most likely classes or next tokens, if the output is scores of these. The last of several rows scores the next
        token only if it is as wide as the vocabulary and no token looks ahead; else it is a state, or the token itself."""
        logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.ndim not in (2, 3) or not logits.is_floating_point():
            return {}
        if not logits.numel() or not bool(logits.isfinite().all()):
            return {}  # not scores; also, JSON has no NaN
        if logits.ndim == 3 and not (logits.shape[-1] in self._vocabulary_sizes() and _looks_back_only(maps)):
            return {}
        chances = logits[0].float().softmax(-1) if logits.ndim == 2 else logits[0, -1].float().softmax(-1)
        best = chances.topk(min(GUESSES, len(chances)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        name = self._class_name if logits.ndim == 2 else self._token_name
        return {"guesses": [{"label": name(index), "chance": chance} for index, chance in pairs]}

    def _vocabulary_sizes(self) -> set[int]:
        embedded = {module.num_embeddings for module in self.model.modules() if isinstance(module, nn.Embedding)}
        return embedded | {getattr(getattr(self.model, "config", None), "vocab_size", 0)}

    def _class_name(self, index: int) -> str:
        names = getattr(getattr(self.model, "config", None), "id2label", None) or {}
        return str(names.get(index, f"class {index}"))

    def _token_name(self, index: int) -> str:
        decode = getattr(self.read, "decode", None)
        return repr(decode([index]))[1:-1] if callable(decode) else f"token {index}"


def _looks_back_only(maps: Maps) -> bool:
    """Whether no token attends to a later one."""
    kept = [found.weights for found in maps.values() if found.calls and found.latest.stored is not None]
    return all(bool((weights.triu(1) == 0).all()) for weights in kept if weights.shape[-1] == weights.shape[-2])


def _shown(maps: Maps) -> Payload:
    try:
        return show(maps).payload
    except (ValueError, TypeError) as error:
        raise Refused(409, f"the saved maps cannot be shown: {error_in_words(error)}") from error


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _kind(made: Any) -> str:
    if isinstance(made, nn.Module):
        return f"a {type(made).__name__} alone"
    return describe(made) if not isinstance(made, tuple) else f"a tuple of {len(made)}"
