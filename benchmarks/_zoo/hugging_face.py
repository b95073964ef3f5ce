"""Every model type of transformers, as a small model with random weights, and inputs by the names of its arguments."""

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from _zoo.by_rule import PROFILES, small_configuration
from _zoo.judge import Animal

LARGEST = 60_000_000  # parameters
_ENDINGS = ("Model", "ForConditionalGeneration", "Encoder", "ForCausalLM", "ForSemanticSegmentation", "Decoder")


def model_types() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return list(CONFIG_MAPPING_NAMES)


def animal(kind: str) -> Animal:
    """A model of this type that runs. An error says why there is none."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    configuration = CONFIG_MAPPING[kind]
    classes = _classes(configuration)
    if not classes:
        raise LookupError(f"{configuration.__name__} is a part of other models")
    why: list[Exception] = []
    for profile in PROFILES:
        for model_class in classes:
            try:
                config = small_configuration(configuration, profile)
                model = _built(model_class, config)
                inputs = _fitting(model, config, why)
            except TimeoutError:
                raise
            except Exception as error:
                why.append(error)
                continue
            if inputs is not None:
                return Animal("transformers", kind, model, inputs)
    raise why[0]


def _fitting(model: nn.Module, config: Any, why: list[Exception]) -> dict[str, Any] | None:
    """The first inputs with which the model runs."""
    for inputs in _inputs(model, config):
        try:
            torch.manual_seed(1)
            with torch.no_grad():
                model(**inputs)
        except TimeoutError:
            raise
        except Exception as error:
            why.append(error)
            continue
        return inputs
    return None


def _classes(configuration: type) -> list[Any]:
    """Model classes of a configuration, the plainest first."""
    from transformers import PreTrainedModel

    path = configuration.__module__.replace(".configuration_", ".modeling_")
    module = importlib.import_module(path)
    found = [
        x
        for name, x in vars(module).items()
        if inspect.isclass(x) and issubclass(x, PreTrainedModel) and getattr(x, "config_class", None) is configuration
        and not name.endswith("PreTrainedModel")
    ]  # fmt: skip

    def rank(x: Any) -> tuple[int, int]:
        ending = next((i for i, end in enumerate(_ENDINGS) if x.__name__.endswith(end)), len(_ENDINGS))
        return ending, len(x.__name__)

    return sorted(found, key=rank)[:2]


def _built(model_class: Any, config: Any) -> nn.Module:
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > LARGEST:
        raise MemoryError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = model_class(config).eval()
    for parameter in model.parameters():  # scores of trained size, so that maps are not uniform
        if parameter.ndim >= 2 and parameter.numel() and float(parameter.detach().std()) < 0.05:
            nn.init.normal_(parameter, std=0.2)
    return model


def _inputs(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that may fit, by the names of the arguments of ``forward``."""
    names = list(inspect.signature(model.forward).parameters)
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or 32
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    ids = torch.randint(3, 70, (2, 10), generator=torch.Generator().manual_seed(2))
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", 32)
    mels = getattr(config, "num_mel_bins", None) or getattr(config, "feature_size", None) or 16
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    pictures = [
        {"pixel_values": torch.randn(2, channels, *size)},
        {"pixel_values": torch.randn(2, channels, 64, 64)},
        {"pixel_values": torch.randn(2, channels, 224, 224)},
        {"pixel_values": torch.randn(2, getattr(config, "num_frames", 2) or 2, channels, *size)},
    ]
    sounds = [
        {"input_values": torch.randn(2, 4000)},
        {"input_features": torch.randn(2, mels, 128)},
        {"input_features": torch.randn(2, 128, mels)},
        {"input_features": torch.randn(2, mels, 2 * (getattr(config, "max_source_positions", 32) or 32))},
        {"input_values": torch.randn(2, 1, 4000)},
        {"input_values": torch.randn(2, 64, mels)},
    ]
    embedded = [{"inputs_embeds": torch.randn(2, 10, width)}, {"hidden_states": torch.randn(2, 10, width)}]
    decoded = {"decoder_input_ids": ids[:, :6]}
    # A vision tower of packed patches: as many rows as patches, and the grid of each image.
    packed = _packed(config)
    for given in (text, *pictures, *sounds, *packed, *embedded):
        for more in ({}, decoded, *(pictures[:1] if given is text else [text])):
            both = {**more, **given} if given is text else {**given, **more}
            fitting = {name: x for name, x in both.items() if name in names}
            if fitting and set(given) & set(fitting) and set(more) <= set(fitting):
                yield fitting


def _packed(config: Any) -> list[dict[str, Any]]:
    patch, channels = (
        getattr(config, "patch_size", None),
        getattr(config, "in_channels", getattr(config, "num_channels", 3)),
    )
    if not isinstance(patch, int) or not isinstance(channels, int):
        return []
    frames = getattr(config, "temporal_patch_size", 1)
    grid = torch.tensor([[1, 8, 8], [1, 8, 4]])
    rows = torch.randn(96, channels * frames * patch * patch)
    return [
        {"hidden_states": rows, "grid_thw": grid},
        {"pixel_values": rows, "image_grid_thw": grid},
        {"pixel_values": rows, "grid_thw": grid},
    ]
