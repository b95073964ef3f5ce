"""Every model type of transformers, as a small model with random weights, and inputs by the names of its arguments."""

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from _zoo.by_rule import PROFILES, small_configuration
from _zoo.judge import Animal

LARGEST = 72_000_000  # parameters
_ABSENT = re.compile(r"must specify|have to specify|missing \d+ required|NoneType")
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
                if inputs is not None and _overflows(model, inputs):
                    model = _built(model_class, config, spread=None)
            except TimeoutError:
                raise
            except Exception as error:
                why.append(error)
                continue
            if inputs is not None:
                return Animal("transformers", kind, model, inputs)
    # That an argument is absent tells only that other inputs were meant.
    raise next((each for each in why if not _ABSENT.search(str(each))), why[0])


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
    if importlib.util.find_spec(path) is None:  # another type's models take this configuration
        return []
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


def _overflows(model: nn.Module, inputs: dict[str, Any]) -> bool:
    """Whether a module gives NaN, as deep models without normalization do with large weights."""
    found: list[bool] = []

    def look(module: nn.Module, args: Any, output: Any) -> None:
        first = output[0] if isinstance(output, tuple) and output else output
        found.append(isinstance(first, torch.Tensor) and bool(first.isnan().any()))

    handles = [module.register_forward_hook(look) for module in model.modules()]
    with torch.no_grad():
        torch.manual_seed(1)
        model(**inputs)
    for handle in handles:
        handle.remove()
    return any(found)


def _built(model_class: Any, config: Any, spread: float | None = 0.2) -> nn.Module:
    with torch.device("meta"):
        size = sum(p.numel() for p in model_class(config).parameters())
    if size > LARGEST:
        raise MemoryError(f"{size / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    model = model_class(config).eval()
    for parameter in model.parameters():  # scores of trained size, so that maps are not uniform
        if spread is not None and parameter.ndim >= 2 and parameter.numel() and float(parameter.detach().std()) < 0.05:
            nn.init.normal_(parameter, std=spread)
    return model


def _inputs(model: Any, config: Any) -> Iterator[dict[str, Any]]:
    """Inputs that may fit, by the names of the arguments of ``forward``."""
    names = list(inspect.signature(model.forward).parameters)
    vision = getattr(config, "vision_config", None) or getattr(config, "backbone_config", None) or config
    size = getattr(vision, "image_size", None) or 32
    size = tuple(size) if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", 3)
    channels = channels if isinstance(channels, int) else 3
    words = getattr(getattr(config, "text_config", None) or config, "vocab_size", None)
    ids = torch.randint(
        3,
        min(70, words) if isinstance(words, int) and words > 9 else 70,
        (2, 10),
        generator=torch.Generator().manual_seed(2),
    )
    width = getattr(config, "hidden_size", None) or getattr(config, "d_model", 32)
    counts = ("num_mel_bins", "feature_size", "input_feat_per_channel", "feature_projection_input_dim")
    mels = next((count for name in counts if (count := getattr(config, name, None))), 16)
    text = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    pictures = [
        {"pixel_values": torch.randn(2, channels, *size)},
        {"pixel_values": torch.randn(2, channels, 64, 64)},
        {"pixel_values": torch.randn(2, channels, 224, 224)},
        {"pixel_values": torch.randn(2, getattr(config, "num_frames", 2) or 2, channels, *size)},
    ]
    pictures += [{"image": pictures[0]["pixel_values"]}, {"pixel_values_videos": pictures[3]["pixel_values"]}]
    sounds = [
        {"input_values": torch.randn(2, 4000)},
        {"input_features": torch.randn(2, mels, 128)},
        {"input_features": torch.randn(2, 128, mels)},
        {"input_features": torch.randn(2, mels, 2 * (getattr(config, "max_source_positions", 32) or 32))},
        {"input_values": torch.randn(2, 1, 4000)},
        {"input_values": torch.randn(2, 64, mels)},
        {"input_values": torch.randn(2, getattr(config, "max_length", None) or 64, mels)},
        {"input_features": torch.randn(2, 1, 128, mels)},
    ]
    embedded = [
        {"inputs_embeds": torch.randn(2, 10, width)},
        {"hidden_states": torch.randn(2, 10, width)},
        {"hidden_states": torch.randn(2, channels, *size)},
        {"hidden_states": torch.randn(2, 16, getattr(config, "input_dim", None) or width)},
        {"input_features": torch.randn(2, 16, getattr(config, "input_dim", None) or width)},
        {"query_embeds": torch.randn(2, 6, width), "encoder_hidden_states": torch.randn(2, 10, width)},
    ]
    embedded += [{"inputs": torch.randn(2, 10, width)}]
    decoded = {"decoder_input_ids": ids[:, :6]}
    voices = {"decoder_input_ids": ids[:, :6].repeat(getattr(config, "num_codebooks", 4) or 4, 1)}
    # A vision tower of packed patches: as many rows as patches, and the grid of each image.
    packed = _packed(config)
    for given in (text, *pictures, *sounds, *packed, *embedded, *_series(config)):
        for more in ({}, decoded, voices, *(pictures[0::3] if given is text else [text])):
            both = {**more, **given} if given is text else {**given, **more}
            fitting = {name: x for name, x in both.items() if name in names}
            if fitting and set(given) & set(fitting) and set(more) <= set(fitting):
                yield fitting
                if extra := _companions(model, fitting, width):
                    yield {**fitting, **extra}


def _series(config: Any) -> list[dict[str, Any]]:
    """Past and future of a time series."""
    lags, ahead = getattr(config, "lags_sequence", None), getattr(config, "prediction_length", None)
    if not lags or not ahead:
        length, count = getattr(config, "context_length", None), getattr(config, "num_input_channels", None)
        return [{"past_values": torch.rand(2, length, count)}] if length and count else []
    length, features = (config.context_length or ahead) + max(lags), config.num_time_features
    return [
        {
            "past_values": torch.rand(2, length),
            "past_time_features": torch.rand(2, length, features),
            "past_observed_mask": torch.ones(2, length),
            "future_values": torch.rand(2, ahead),
            "future_time_features": torch.rand(2, ahead, features),
        }
    ]


def _companions(model: Any, given: dict[str, Any], width: int) -> dict[str, Any]:
    """What some models need beside their input, by name: boxes of words, masks of sounds, a context, object queries."""
    parameters = inspect.signature(model.forward).parameters
    length = next(iter(given.values())).shape[1]
    sound = given.get("input_features", torch.zeros(2, 1, 128))
    boxes = torch.tensor([1, 2, 8, 9]).expand(2, 10, 4)
    known = {
        "bbox": boxes if not hasattr(model.config, "dim_bbox") else boxes / 16,
        "input_features_mask": torch.ones(2, max(sound.shape[-2:]), dtype=torch.long),
        "attention_mask": torch.ones(2, length, dtype=torch.long),
        "encoder_hidden_states": torch.randn(2, 10, width),
        "object_queries": torch.randn(2, length, width),
        "qformer_input_ids": given.get("input_ids", torch.ones(2, 10, dtype=torch.long)),
        "image_attention_mask": torch.ones(2, 10, 2, dtype=torch.long),
        "lang_ids": torch.zeros(2, dtype=torch.long),
        "mask": torch.ones(2, max(sound.shape[-2:]), dtype=torch.bool),
        "visual_feats": torch.randn(2, 10, getattr(model.config, "visual_feat_dim", width)),
        "visual_pos": torch.rand(2, 10, 4),
        "pixel_mask": torch.ones(2, 64, 64, dtype=torch.long),
    }
    wanted = {name for name, each in parameters.items() if each.default is inspect.Parameter.empty}
    wanted |= {"bbox", "input_features_mask", "image_attention_mask", "visual_feats", "visual_pos", "lang_ids"} & set(
        parameters
    )
    return {name: x for name, x in known.items() if name in wanted and name not in given}


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
    two = torch.randn(96, 2 * channels * frames * patch * patch)
    squares = torch.randn(96, channels, patch, patch)
    grids = {"grid_thw": grid, "grid_thws": grid, "image_grid_thw": grid, "target_sizes": grid[:, 1:]}
    grids["merge_sizes"] = torch.ones(2, dtype=torch.long)
    places = torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, 16, 2)
    flat = torch.randn(2, 16, channels * patch * patch)
    return [
        {"pixel_values": squares, **grids},
        {"pixel_values": squares[None], **grids},
        {"pixel_values": two, **grids},
        {"hidden_states": two, **grids},
        {"pixel_values": flat, "pixel_position_ids": places},
        {
            "pixel_values": flat,
            "pixel_attention_mask": torch.ones(2, 16, dtype=torch.long),
            "spatial_shapes": torch.full((2, 2), 4),
        },
        {"flattened_patches": torch.cat([places + 1, flat], -1)},
        {"hidden_states": rows, "grid_thw": grid},
        {"pixel_values": rows, "image_grid_thw": grid},
        {"pixel_values": rows, "grid_thw": grid},
    ]
