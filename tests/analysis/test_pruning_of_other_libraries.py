"""Pruning attention of transformers that gets more than hidden states: biases of each head, or keys of another layer."""

import pytest
import torch

import regard
from regard.analysis import mask_heads

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


@torch.no_grad()
@pytest.mark.parametrize("kept", [[0, 3], [1], [0, 1, 2]])
@pytest.mark.parametrize("family", ["Lxmert", "LayoutLMv3"])
def test_pruning_takes_the_biases_of_the_kept_heads(transformers, family, kept):
    """LayoutLMv3 computes a bias for each head outside of its attention; LXMERT has its own name for the size of all heads."""
    sizes = {
        "vocab_size": 50,
        **SMALL,
        "max_2d_position_embeddings": 64,
        "visual_embed": False,
        "pad_token_id": 1,
        "coordinate_size": 5,
        "shape_size": 6,
        "has_relative_attention_bias": True,
    }
    crossed = {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 6}
    config = getattr(transformers, f"{family}Config")(**(sizes if family == "LayoutLMv3" else {**SMALL, **crossed}))
    model, ids = getattr(transformers, f"{family}Model")(config).double().eval(), torch.randint(2, 50, (2, 7))
    boxes = {"bbox": torch.randint(0, 60, (2, 7, 4)).sort(-1).values}
    seen = {"visual_feats": torch.randn(2, 5, 6).double(), "visual_pos": torch.rand(2, 5, 4).double()}
    given = {"input_ids": ids, **(boxes if family == "LayoutLMv3" else seen)}
    names = [name for name in regard.analysis.heads_in(model, lambda: model(**given)) if name.endswith(".self")]
    with mask_heads(model, {name: [head for head in range(4) if head not in kept] for name in names}):
        expected = model(**given)[0]
    small = regard.prune_heads(model, dict.fromkeys(names, kept))
    torch.testing.assert_close(small(**given)[0], expected)


def test_attention_that_fewer_heads_would_break_is_refused(transformers):
    """Moonshine splits its heads by its configuration; Gemma 3n takes keys and values of an earlier layer."""
    sizes = {**SMALL, "vocab_size": 50, "num_key_value_heads": 4}
    moonshine = transformers.MoonshineConfig(
        **{**sizes, "encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1, "num_key_value_heads": None},
        encoder_num_attention_heads=4, decoder_num_attention_heads=4,
    )  # fmt: skip
    gemma = transformers.Gemma3nTextConfig(
        **{**sizes, "num_key_value_heads": 2}, head_dim=8, vocab_size_per_layer_input=50, hidden_size_per_layer_input=8,
        num_kv_shared_layers=1, altup_num_inputs=2, laurel_rank=4, layer_types=["full_attention", "full_attention"],
    )  # fmt: skip
    for model in (transformers.MoonshineModel(moonshine), transformers.Gemma3nTextModel(gemma)):
        with pytest.raises(KeyError, match="there is none: prune_heads works on"):
            regard.prune_heads(model, {"*": [0]})
