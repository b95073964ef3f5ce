"""Saved models: config.json has the constructor's arguments, model.safetensors the weights. Nothing is unpickled."""

import dataclasses
import functools
import importlib
import inspect
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from regard._version import __version__
from regard.support.building import at_most, differing_shapes, shapes_of, shapes_only
from regard.support.files import sorted_header, write_atomic
from regard.support.reading import parse_json, read_json

CONFIG, WEIGHTS = "config.json", "model.safetensors"
Model = TypeVar("Model", bound="Pretrained")
_MODELS: dict[str, "type[Pretrained]"] = {}


class Pretrained(nn.Module):
    """The base class of all models: a module that records its constructor's arguments (``config``) and can be saved to a
    folder and loaded from it.

    The arguments must be representable as JSON: numbers, strings, None, lists, dictionaries, and dataclasses that the
    constructor also accepts as a dictionary. Your own class that inherits from this can be saved and loaded too.

    >>> import tempfile
    >>> from regard.models import Pretrained, ResNet18
    >>> model = ResNet18(num_classes=3, width=4)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model.save_pretrained(folder)
    ...     same = Pretrained.from_pretrained(folder)
    >>> type(same).__name__, same.config["num_classes"], torch.equal(same.fc.weight, model.fc.weight)
    ('ResNet18', 3, True)
    """

    config: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _MODELS[cls.__name__] = cls
        if "__init__" in cls.__dict__:
            cls.__init__ = _remembering(cls.__init__)  # type: ignore[method-assign]

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write ``config.json`` and ``model.safetensors`` into ``folder``, which is created if needed.

        Each file is written to a temporary file and renamed, so a reader finds the old or the new file, never a partial
        one. The weights contain a copy of the configuration, so that files of two saves cannot be mixed up.
        """
        path = Path(folder)
        config = {"class": type(self).__name__, "arguments": _as_json(self.config), "regard": __version__}
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in self.state_dict().items()}
        with shapes_only():
            fresh = type(self)(**self.config)
        changed = differing_shapes(shapes_of(state), shapes_of(fresh.state_dict()))
        if changed:
            raise ValueError(
                f"this {type(self).__name__} is no longer what its constructor builds from {self.config}, so it could not "
                f"be loaded again: {changed}"
            )
        path.mkdir(parents=True, exist_ok=True)
        metadata = {"format": "pt", "regard": json.dumps(config, sort_keys=True)}
        content = sorted_header(_safetensors("torch").save(state, metadata=metadata))
        write_atomic(path / WEIGHTS, content)
        write_atomic(path / CONFIG, json.dumps(config, indent=2) + "\n")

    @classmethod
    def from_pretrained(
        cls: type[Model], folder: str | os.PathLike[str], *, device: torch.device | str = "cpu", **changes: Any
    ) -> Model:
        """Load the model in ``folder``, in evaluation mode.

        Args:
            folder: written by :meth:`save_pretrained`.
            device: where to put the weights.
            changes: constructor arguments that differ from the saved ones, such as ``dropout``.

        Called on a model class, it refuses other classes. ``Pretrained.from_pretrained`` loads any model.
        """
        path = Path(folder)
        config = _read_config(path)
        found = _MODELS.get(config["class"])
        if found is None:
            raise ValueError(
                f"{path / CONFIG} names the class {config['class']!r}, which is not known here (a class of your own "
                f"must be imported first); known are {', '.join(sorted(_MODELS))}"
            )
        if not issubclass(found, cls):
            raise ValueError(
                f"{path} holds the class {found.__name__}, not {cls.__name__}: use {found.__name__}.from_pretrained"
            )
        arguments = {**config["arguments"], **changes}
        strange = sorted(set(arguments) - set(inspect.signature(found).parameters))
        if strange:
            raise ValueError(
                f"{found.__name__} does not take {', '.join(strange)}; {path} was saved by regard "
                f"{config.get('regard', 'of unknown version')}, this is {__version__}"
            )
        # Shapes are compared before anything is allocated: a short file can describe a network of any size.
        shapes = _read_shapes(path)
        with shapes_only(), at_most(len(shapes)):
            wanted = shapes_of(_built(found, arguments, path).state_dict())
        if wrong := differing_shapes(shapes, wanted):
            raise ValueError(f"{path / WEIGHTS} does not fit the {found.__name__} of {path / CONFIG}: {wrong}")
        state = _read_weights(path, config)
        with torch.random.fork_rng(devices=[]):  # the initial weights are discarded, so leave the random state alone
            model = found(**arguments)
        dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
        if len(dtypes) == 1:
            model.to(dtypes.pop())
        model.load_state_dict(state, assign=True)
        return model.to(device).eval()  # type: ignore[return-value]


def _built(kind: "type[Pretrained]", arguments: dict[str, Any], folder: Path) -> "Pretrained":
    """Build a model from the arguments in a file. An argument of a wrong type or an impossible size is reported as an error
    in the file."""
    try:
        return kind(**arguments)
    except (TypeError, OverflowError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        raise ValueError(f"{folder / CONFIG} does not describe a {kind.__name__}: {said:.300}") from error


def _remembering(init: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(init)

    @functools.wraps(init)
    def remembering(self: Pretrained, *args: Any, **options: Any) -> None:
        if "config" not in self.__dict__:  # else a subclass called this constructor and has recorded its own
            try:
                bound = signature.bind(self, *args, **options)
            except TypeError:
                init(self, *args, **options)  # raises its own error message
                raise
            bound.apply_defaults()
            self.__dict__["config"] = dict(list(bound.arguments.items())[1:])
        init(self, *args, **options)

    return remembering


def _as_json(arguments: Mapping[str, Any]) -> dict[str, Any]:
    plain = {}
    for name, value in arguments.items():
        try:
            plain[name] = json.loads(json.dumps(value, allow_nan=False, default=_fields))
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} is {value!r}, which config.json cannot hold: {error}") from None
    return plain


def _fields(value: Any) -> dict[str, Any]:
    """Settings as a dictionary, which the constructor must also accept."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _read_config(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{folder} is not a folder: a saved model is a folder that holds {CONFIG} and {WEIGHTS}"
        )
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: a saved model is a folder that holds {CONFIG} and {WEIGHTS}")
    try:
        config = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(config, dict) or not isinstance(config.get("class"), str):
        raise ValueError(f"{path} does not name the model's class")
    if not isinstance(config.get("arguments"), dict):
        raise ValueError(f"{path} does not contain the arguments of {config['class']}")
    return config


@contextmanager
def _open_weights(folder: Path) -> Iterator[Any]:
    path = folder / WEIGHTS
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist, although {folder / CONFIG} does")
    safetensors = _safetensors()
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            yield file
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def _read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights, without reading them."""
    with _open_weights(folder) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a dictionary)


def _read_weights(folder: Path, config: Mapping[str, Any]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    with _open_weights(folder) as file:
        metadata = file.metadata() or {}
        # Copies, aligned like torch's own memory: with another alignment products may round differently. And overwriting
        # the file must not change a model that was read from it.
        state = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a dictionary)
    try:
        saved_with = parse_json(metadata["regard"]) if "regard" in metadata else config
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(saved_with, dict):
        raise ValueError(f"{path} is damaged: it does not name the model's class")
    for part in ("class", "arguments"):
        if saved_with.get(part) != config[part]:
            raise ValueError(
                f"{path} was saved with {part} {saved_with.get(part)}, but {folder / CONFIG} says {config[part]}: the "
                f"files are of two different models (pass changed arguments to from_pretrained instead)"
            )
    return state


def _safetensors(part: str = "") -> Any:
    try:
        return importlib.import_module(f"safetensors.{part}" if part else "safetensors")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "saving and loading models needs safetensors: pip install 'regard[train]'", name=error.name
        ) from None
