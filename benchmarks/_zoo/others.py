"""Transformers of diffusers, x-transformers, vit-pytorch, and of torch and torchvision themselves."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from _zoo.judge import Animal

_LATENT = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))


def _images(size: int = 32) -> torch.Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def _text(width: int = 32, length: int = 6) -> torch.Tensor:
    return torch.randn(2, length, width, generator=torch.Generator().manual_seed(2))


def _diffusers() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    import diffusers as d

    small = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2, "sample_size": 8, "patch_size": 2}
    step = torch.tensor([3, 5])
    unet = {
        "block_out_channels": (32, 64), "layers_per_block": 1, "sample_size": 8, "in_channels": 4, "out_channels": 4,
        "norm_num_groups": 8,
    }  # fmt: skip
    joint = {"in_channels": 4, "joint_attention_dim": 32, "pooled_projection_dim": 32}
    return {
        "UNet2DConditionModel": lambda: (
            d.UNet2DConditionModel(
                **unet, cross_attention_dim=32, attention_head_dim=4,
                down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
            ),
            {"sample": _LATENT, "timestep": step, "encoder_hidden_states": _text()},
        ),
        "UNet2DModel": lambda: (
            d.UNet2DModel(
                **unet, down_block_types=("AttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "AttnUpBlock2D"),
                attention_head_dim=8,
            ),
            {"sample": _LATENT, "timestep": step},
        ),
        "DiTTransformer2DModel": lambda: (
            d.DiTTransformer2DModel(**small, in_channels=4, num_embeds_ada_norm=10, norm_num_groups=8),
            {"hidden_states": _LATENT, "timestep": step, "class_labels": torch.tensor([1, 2])},
        ),
        "SD3Transformer2DModel": lambda: (
            d.SD3Transformer2DModel(**small, **joint, caption_projection_dim=32, out_channels=4),
            {"hidden_states": _LATENT, "timestep": step, "encoder_hidden_states": _text(), "pooled_projections": _text()[:, 0]},
        ),
        "FluxTransformer2DModel": lambda: (
            d.FluxTransformer2DModel(
                patch_size=1, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
                axes_dims_rope=(4, 4, 8), **joint,
            ),
            {
                "hidden_states": _text(4, 16), "encoder_hidden_states": _text(), "pooled_projections": _text()[:, 0],
                "timestep": step.float(), "img_ids": torch.randn(16, 3), "txt_ids": torch.zeros(6, 3),
            },
        ),
        "PixArtTransformer2DModel": lambda: (
            d.PixArtTransformer2DModel(
                **small, in_channels=4, cross_attention_dim=32, caption_channels=32, norm_num_groups=8, num_embeds_ada_norm=10,
                use_additional_conditions=False,
            ),
            {
                "hidden_states": _LATENT, "timestep": step, "encoder_hidden_states": _text(),
                "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
            },
        ),
        "SanaTransformer2DModel": lambda: (
            d.SanaTransformer2DModel(
                in_channels=4, out_channels=4, num_attention_heads=4, attention_head_dim=8, num_layers=2,
                num_cross_attention_heads=4, cross_attention_head_dim=8, cross_attention_dim=32, caption_channels=32,
                sample_size=8, patch_size=1,
            ),
            {"hidden_states": _LATENT, "timestep": step, "encoder_hidden_states": _text()},
        ),
        "AuraFlowTransformer2DModel": lambda: (
            d.AuraFlowTransformer2DModel(
                sample_size=8, patch_size=2, in_channels=4, out_channels=4, num_mmdit_layers=1, num_single_dit_layers=1,
                attention_head_dim=8, num_attention_heads=4, joint_attention_dim=32, caption_projection_dim=32,
                pos_embed_max_size=64,
            ),
            {"hidden_states": _LATENT, "timestep": step / 10, "encoder_hidden_states": _text()},
        ),
        "AutoencoderKL": lambda: (
            d.AutoencoderKL(block_out_channels=(32,), norm_num_groups=8, sample_size=16), {"sample": _images(16)},
        ),
    }  # fmt: skip


def _x_transformers() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    import x_transformers as x

    ids = torch.randint(0, 50, (2, 8), generator=torch.Generator().manual_seed(3))
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "flash": {"attn_flash": True},
        "talking heads": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
        "sparse topk": {"attn_sparse_topk": 3},
        "one kv head": {"attn_one_kv_head": True},
        "grouped queries": {"attn_kv_heads": 2},
        "memory keys": {"attn_num_mem_kv": 4},
        "null key": {"attn_add_zero_kv": True},
        "gated values": {"attn_gate_values": True},
        "qk norm": {"attn_qk_norm": True},
        "rotary": {"rotary_pos_emb": True},
        "alibi": {"alibi_pos_bias": True},
        "T5 bias": {"rel_pos_bias": True},
        "residual attention": {"residual_attn": True},
        "softclamp": {"attn_softclamp_logits": True},
        "hard": {"attn_hard": True},
        "selective": {"attn_selective": True},
        "laser": {"attn_laser": True},
        "hybrid": {},
    }

    def build(options: dict[str, Any]) -> tuple[nn.Module, dict[str, Any]]:
        layers = x.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **options)
        return x.TransformerWrapper(num_tokens=50, max_seq_len=16, attn_layers=layers), {"x": ids}

    return {
        f"x-transformers, {name}": (lambda o=options: build(o))
        for name, options in variants.items()
        if name != "hybrid"
    }


def _torch() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    layer = {"batch_first": True, "dropout": 0.0}

    def vision(name: str, **options: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
        import torchvision

        return lambda: (
            getattr(torchvision.models, name)(weights=None, **options),
            {"x": _images(options.get("image_size", 64))},
        )

    found: dict[str, Any] = {
        "nn.TransformerEncoder": lambda: (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 48, **layer), 2), {"src": _text()},
        ),
        "nn.TransformerDecoder": lambda: (
            nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 48, **layer), 2),
            {"tgt": _text(), "memory": _text(length=9)},
        ),
        "nn.MultiheadAttention": lambda: (
            nn.MultiheadAttention(32, 4, batch_first=True), {"query": _text(), "key": _text(), "value": _text()},
        ),
        "torchvision vit_b_16": vision("vit_b_16", image_size=64),
        "torchvision swin_t": vision("swin_t"),
        "torchvision swin_v2_t": vision("swin_v2_t"),
    }  # fmt: skip
    if importlib.util.find_spec("vit_pytorch") is not None:
        import vit_pytorch

        sizes = {"image_size": 32, "patch_size": 8, "num_classes": 3, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48}
        found["vit-pytorch"] = lambda: (vit_pytorch.ViT(**sizes), {"img": _images()})
    return found


def _all() -> dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]]:
    found = _torch()
    for package, models in (("diffusers", _diffusers), ("x_transformers", _x_transformers)):
        if importlib.util.find_spec(package) is not None:
            found.update(models())
    return found


def model_types() -> list[str]:
    return list(_all())


def animal(name: str) -> Animal:
    torch.manual_seed(0)
    model, inputs = _all()[name]()
    return Animal("others", name, model.eval(), inputs)
