"""Every attention class of timm: in the smallest model that uses it, or alone if no model does."""

import importlib
import inspect
import pkgutil
import re
from typing import Any

import torch
from torch import nn

from _zoo.judge import Animal

_ATTENTION = re.compile(r"attention|attn|litemla|lambda|^SHSA$|^TokenMixer", re.IGNORECASE)
# The smallest models that have each class. Classes of timm.layers are tried alone as well.
MODELS = [
    "bat_resnext26ts", "beit_base_patch16_224", "caformer_s18", "cait_xxs24_224", "coat_tiny", "coatnet_pico_rw_224",
    "convit_tiny", "cpubone_nano", "crossvit_tiny_240", "csatv2", "davit_tiny", "deit_tiny_distilled_patch16_224",
    "eca_botnext26ts_256", "edgenext_xx_small", "efficientformer_l1", "efficientformerv2_s0", "efficientvit_b0",
    "efficientvit_m0", "eva02_tiny_patch14_224", "fastvit_mci0", "gcvit_xxtiny", "halonet_h1", "hiera_tiny_224",
    "hieradet_small", "lambda_resnet26t", "levit_128s", "lowformer_b0", "maxvit_pico_rw_256", "maxvit_tiny_pm_256",
    "mobilevit_xxs", "mobilevitv2_050", "mvitv2_tiny", "nest_tiny", "nextvit_small", "pit_ti_224", "pvt_v2_b0",
    "pvt_v2_b2_li", "resnet50_clip", "samvit_base_patch16_224", "shvit_s1", "swiftformer_xs",
    "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_ns_224", "swinv2_tiny_window8_256", "tiny_vit_5m_224",
    "tnt_s_legacy_patch16_224", "twins_pcpvt_small", "twins_svt_small", "visformer_tiny",
    "vit_base_patch16_siglip_224", "vit_relpos_small_patch16_224", "vit_tiny_patch16_224",
    "vit_base_patch16_rope_224", "vitamin_small_224", "volo_d1_224", "xcit_nano_12_p8_224",
    "naflexvit_base_patch16_gap", "gemma4_vit_167m", "mobilenetv5_base",
]  # fmt: skip
SMALLER: tuple[dict[str, Any], ...] = ({"depth": 2, "img_size": 112}, {"depth": 2}, {"img_size": 128}, {})


def model_types() -> list[str]:
    return [*MODELS, *(f"class {name}" for name in _classes())]


def animal(name: str) -> Animal:
    if name.startswith("class "):
        return _alone(name.removeprefix("class "))
    import timm

    why: Exception | None = None
    for extra in SMALLER:
        try:
            torch.manual_seed(0)
            model = timm.create_model(name, pretrained=False, num_classes=3, **extra).eval()
            size = extra.get("img_size") or model.pretrained_cfg["input_size"][-1]
            inputs = {"x": torch.randn(2, 3, size, size)}
            with torch.no_grad():
                model(**inputs)
        except TimeoutError:
            raise
        except Exception as error:
            why = why or error
            continue
        _scaled(model)
        return Animal("timm", name, model, inputs)
    raise why or LookupError(name)


def _scaled(model: nn.Module) -> None:
    """Biases that start as zero say nothing about where they belong."""
    for name, parameter in model.named_parameters():
        if "bias_table" in name or "rel_pos" in name or "attention_bias" in name:
            nn.init.normal_(parameter, std=0.5)


def _classes() -> dict[str, type[nn.Module]]:
    """Classes of attention in timm's layers."""
    import timm.layers

    found = {}
    for part in pkgutil.iter_modules(timm.layers.__path__):
        module = importlib.import_module(f"timm.layers.{part.name}")
        for name, x in vars(module).items():
            own = inspect.isclass(x) and issubclass(x, nn.Module) and x.__module__ == module.__name__
            if own and _ATTENTION.search(name):
                found[name] = x
    return found


def _alone(name: str) -> Animal:
    """The class by itself, with the arguments that most classes take."""
    kind = _classes()[name]
    takes = inspect.signature(kind.__init__).parameters
    options: dict[str, Any] = {"num_heads": 4, "feat_size": 8, "fused_attn": True, "block_size": 4, "groups": 2}
    given = {key: x for key, x in options.items() if key in takes}
    why: Exception | None = None
    sizes = ((2, 32, 8, 8), (2, 10, 32), (2, 8, 8, 32), (2, 2, 32, 8, 8))  # the last: features of two paths
    inputs = [{"x": torch.randn(size)} for size in sizes]
    for first in ((32,), (32, 32), ()):
        for x in inputs:
            try:
                torch.manual_seed(0)
                model = kind(*first, **given).eval()
                names = list(inspect.signature(model.forward).parameters)
                with torch.no_grad():
                    model(x["x"])
                return Animal("timm", f"class {name}", model, {names[0]: x["x"]})
            except Exception as error:
                why = why or error
    raise why or LookupError(name)
