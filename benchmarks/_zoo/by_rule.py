"""Small configurations of transformers' models, made by rule from the names of their fields."""

import dataclasses
import inspect
import re
from typing import Any

# Pattern of a field's name, and the number for it. The first that matches counts.
_NUMBERS: tuple[tuple[str, int], ...] = (
    (r"num_kv_shared_layers", 1),
    (r"mask_feature_size|fpn_feature_size|^d_latents$", 32),
    (r"self_attends_per_block", 2),
    (r"num_(key_value|kv)_heads$|num_query_groups|n_head_kv|multi_query_group_num|num_kv_heads", 2),
    (r"(^|_)(num_)?(attention_)?heads$|^n_heads?$|^nhead$|num_attention_heads|_attn_heads$|_heads$", 4),
    (r"qk_rope_head_dim|^rotary_dim$", 8),
    (r"qk_nope_head_dim|v_head_dim|qk_head_dim", 8),
    (r"head_dim$|^d_kv$|attention_head_size|kv_channels|head_size$|attention_key_size", 8),
    (r"(num_)?(hidden_)?layers$|^n_layers?$|num_layers|^depth$|num_blocks$|_depth$|num_stages_none|n_layers$", 2),
    (r"moe_intermediate_size|expert_(ffn|inter)|expert_hidden", 16),
    (r"num_(local_|routed_)?experts$|n_routed_experts|num_experts$|moe_num_experts", 4),
    (r"experts_per_tok|moe_topk|moe_k$|num_selected_experts|num_experts_per_token|^top_k_experts|moe_top_k", 2),
    (r"^n_group$|topk_group", 1),
    (r"intermediate_size|ffn_dim|^d_ff$|n_inner|ffn_hidden|mlp_dim|feed_?forward(_size|_dim)?$|ffn_size|ff_dim", 48),
    (r"q_lora_rank|kv_lora_rank|lora_rank", 16),
    (r"(^|_)hidden_size$|^d_model$|^n_embd$|^hidden_dim$|^embed_dim$|embedding_size$|^(emb_)?dim$|^encoder_dim$|^model_dim$", 32),
    (r"hidden_size|hidden_dim|embed_dim$|projection_dim|out_hidden_size|d_model$|cross_attention_dim|_dim_model|channels$", 32),
    (r"vocab_size.*|^vocab.*size$|num_embeddings|^n_words$", 99),
    (r"max_position|n_positions|^n_ctx$|max_(source|target)_positions|seq_length$|max_seq_len|max_sequence", 64),
    (r"^image_size$|img_size|input_size|image_resolution", 32),
    (r"^patch_size$", 8),
    (r"^num_mel_bins$|n_mels|^num_mel|feature_size$", 16),
    (r"window_size|sliding_window|attention_window|chunk_size|^context_size$", 8),
    (r"num_queries|num_query_tokens|num_latents|n_latents|num_object_queries", 6),
    (r"num_frames|temporal_", 2),
    (r"spatial_merge_size", 2),
    (r"state_size|ssm_state|d_state|mamba_d_state", 8),
    (r"num_labels|num_classes", 3),
)  # fmt: skip
# These keep their default although a pattern fits.
_KEPT = re.compile(
    r"num_channels|in_channels|image_channels|type_vocab|temporal_patch|num_feature_levels|n_points|num_conv"
)
_LISTS: tuple[tuple[str, int], ...] = (
    (r"depths|num_blocks|layers$|num_layers", 1),
    (r"heads", 2),
    (r"hidden_sizes|embed_dims|dims$|channels|hidden_sizes|encoder_hidden|planes|width", 16),
)  # fmt: skip


_WIDTHS = re.compile(
    r"head_dim|head_size|d_kv|rank|kv_channels|attention_key_size|state_size|d_state|window|projection_dim"
)
_EVERY = re.compile(
    _WIDTHS.pattern + r"|hidden_size|hidden_dim|embed_dim|d_model|^dim$|channels|image_size|patch_size|mel|heads"
)


@dataclasses.dataclass(frozen=True)
class Profile:
    """A way to make a configuration small; the first one with which a model runs counts.

    Attributes:
        kept: names of fields that keep their default.
        numbers: numbers for fields of these names, instead of the rule's.
        filled: values for fields of these names that are None by default.
    """

    kept: re.Pattern[str] | None = None
    numbers: tuple[tuple[str, int], ...] = ()
    filled: tuple[tuple[str, Any], ...] = ()


_FILLED: tuple[tuple[str, Any], ...] = (
    (r"^head_dim$", 8),
    (r"^vocab_size$", 99),
    (r"experts_per_tok$", 2),
    (r"^attn_layer_indices$", [1]),
    (r"^prediction_length$", 4),
    (r"^mlp_layer_types$", ["dense", "sparse"]),
    (r"^(n_routed|num|num_local)_experts$", 4),
    (r"^n_shared_experts$|^n_group$|^topk_group$", 1),
    (r"^sliding_window$", 8),
    (r"^vocabulary_map$", {"<image>": 85}),
    (r"^moe_intermediate_size$|^expert_intermediate_size$", 16),
    (r"^top_k_experts$|^num_key_value_heads$", 2),
)


PROFILES = (
    Profile(),
    Profile(numbers=((r"^image_size$", 64),)),
    Profile(numbers=((r"^patch_size$", 4),)),
    Profile(kept=_WIDTHS, numbers=((r"num_(key_value|kv)_heads$", 4),)),
    Profile(kept=_WIDTHS, numbers=((r"num_(key_value|kv)_heads$", 2), (r"heads$|^n_head$", 2), (r"hidden_size$", 256))),
    Profile(filled=_FILLED),
    Profile(numbers=((r"num_(key_value|kv)_heads$", 4),), filled=_FILLED),
    Profile(filled=((r"^rope_(parameters|scaling)$", {"mrope_section": [1, 1, 2]}),)),
    Profile(filled=((r"^rope_parameters$", {"rope_type": "default", "rope_theta": 10000.0}), *_FILLED)),
    Profile(filled=((r"^layers?_(block_)?types?$", ["mamba", "attention"]),)),
    Profile(filled=((r"^layer_types$", ["conv", "full_attention"]),)),
    Profile(numbers=((r"^(?!num_kv_shared).*layers$|^n_layers?$|^depth$", 6),)),
    Profile(kept=_EVERY),
)


def small_configuration(kind: type, profile: Profile = PROFILES[0]) -> Any:
    """An instance of a configuration class with small numbers."""
    return kind(**_overrides(kind(), kind, profile))


def _overrides(default: Any, kind: type, profile: Profile) -> dict[str, Any]:
    found: dict[str, Any] = {}
    fields: Any = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    accepted = {field.name for field in fields} or set(inspect.signature(kind.__init__).parameters)
    for name, value in default.to_dict().items():
        if name not in accepted:
            continue
        try:
            own = getattr(default, name, value)
        except Exception:  # configurations that differ from layer to layer refuse
            own = value
        if hasattr(own, "to_dict") and hasattr(own, "model_type") and not isinstance(own, type):
            found[name] = {"model_type": own.model_type, **_overrides(own, type(own), profile)}
        else:
            number = _small(name, value, profile)
            if number is not None:
                found[name] = number
    for name in [name for name in default.to_dict() if name in accepted and name not in found]:
        each = _for_each_layer(default.to_dict(), name, found)
        if each is not None:
            found[name] = each
    return found


def _for_each_layer(default: dict[str, Any], name: str, found: dict[str, Any]) -> list[Any] | None:
    """Of a list with an entry for each layer, as many entries as there are layers now, of every kind if that is possible."""
    value = default[name]
    if name == "attention_types":  # GPT-Neo's: how many times which layers follow each other
        return [[value[0][0], 1]]
    layers = [new for field, new in found.items() if re.search(r"layers$|^n_layers?$", field) and isinstance(new, int)]
    before = [default[field] for field in found if re.search(r"layers$|^n_layers?$", field)]
    if not isinstance(value, list) or not layers or len(value) not in before or isinstance(value[0], list | dict):
        return None
    kinds = list(dict.fromkeys(value))
    return (kinds * layers[0])[: layers[0]] if len(kinds) <= layers[0] else [kinds[0], *kinds[1 - layers[0] :]]


def _small(name: str, value: Any, profile: Profile) -> Any:
    """A small value for this field; None to keep its default."""
    if value is None or (isinstance(value, dict) and profile.filled):
        filled = next((new for pattern, new in profile.filled if re.search(pattern, name)), None)
        return (
            {**value, **filled} if isinstance(value, dict) and isinstance(filled, dict) else None if value else filled
        )
    if isinstance(value, bool) or _KEPT.search(name) or (profile.kept is not None and profile.kept.search(name)):
        return None
    if isinstance(value, int) and re.search(r"_token_(id|index)$|_token$", name):
        return value if 0 <= value < 90 else 80 + len(name) % 15
    if isinstance(value, int) and value > 0:
        number = _number(name, (*profile.numbers, *_NUMBERS))
        return number if number is not None and number < value else None
    if isinstance(value, list | tuple) and value and all(type(n) is int for n in value):
        number = _number(name, _LISTS)
        if number is None:
            return None
        small = [number * (2**i if number == 16 else 1) for i in range(len(value))]
        return [3, *small[1:]] if value[0] == 3 and number == 16 else small  # the colors of an image
    return None


def _number(name: str, rules: tuple[tuple[str, int], ...]) -> int | None:
    return next((number for pattern, number in rules if re.search(pattern, name)), None)
