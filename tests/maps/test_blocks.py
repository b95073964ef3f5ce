"""Attention in blocks has one map over all tokens, and windows of packed images lie on the image."""

import pytest
import torch
from torch import nn

import regard

SMALL = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4, "local_radius": 7}
T5["global_block_size"] = 4
# Configuration and model, what projects values, what takes the heads' outputs (None: the layer returns them), and the keys.
KINDS = {
    "BigBird": (
        (
            "BigBirdConfig",
            "BigBirdModel",
            {**SMALL, "block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 64},
        ),
        ("value", None, 64),
    ),
    "Longformer": (
        ("LongformerConfig", "LongformerModel", {**SMALL, "attention_window": 8, "max_position_embeddings": 130}),
        ("value", None, 64),
    ),
    "LongT5, local": (
        ("LongT5Config", "LongT5EncoderModel", {**T5, "encoder_attention_type": "local"}),
        ("v", "o", 64),
    ),
    "LongT5, with summaries": (
        ("LongT5Config", "LongT5EncoderModel", {**T5, "encoder_attention_type": "transient-global"}),
        ("v", "o", 64 + 16),
    ),
    "Nyströmformer": (
        (
            "NystromformerConfig",
            "NystromformerModel",
            {
                **SMALL,
                "num_landmarks": 8,
                "segment_means_seq_len": 64,
                "conv_kernel_size": 3,
                "max_position_embeddings": 64,
            },
        ),
        ("value", None, 64),
    ),
}


def by_head(x):
    return x.unflatten(-1, (4, -1)).transpose(1, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_map_gives_the_layers_output_for_other_values(transformers, kind):
    (config, model, options), (value, output, keys) = KINDS[kind]
    torch.manual_seed(0)
    model = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    ids = torch.randint(3, 99, (2, 64))
    with torch.no_grad(), regard.capture(model) as maps:
        model(input_ids=ids)
    assert not maps.missed
    (found,) = maps.values()
    assert (found.shape, found.axes, found.kind) == ((2, 4, 64, keys), "known", "blocks")
    assert found.agrees
    torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 4, 64), atol=1e-4, rtol=0)
    # The same queries and keys with other values: what the layer returns then must be map @ values.
    layer, values, outputs = dict(model.named_modules())[found.name], [], []
    nn.init.normal_(getattr(layer, value).weight)
    if kind == "Nyströmformer":
        nn.init.zeros_(layer.conv.weight)
    getattr(layer, value).register_forward_hook(lambda module, args, out: values.append(out))
    if output is None:
        layer.register_forward_hook(lambda module, args, out: outputs.append(out[0]))
    else:
        getattr(layer, output).register_forward_pre_hook(lambda module, args: outputs.append(args[0]))
    with torch.no_grad():
        model(input_ids=ids)
    values = [x.transpose(0, 1) if kind == "Longformer" else x for x in values]
    expected = found.weights @ by_head(torch.cat(values, 1))
    torch.testing.assert_close(expected, by_head(outputs[0]), atol=1e-4, rtol=1e-4)


def test_global_tokens_see_and_are_seen(transformers):
    torch.manual_seed(0)
    config, _, options = KINDS["Longformer"][0]
    model = transformers.LongformerModel(getattr(transformers, config)(**options))
    chosen = torch.zeros(2, 64, dtype=torch.long)
    chosen[:, [0, 40]] = 1
    for training in (False, True):  # dropout must not enter the map
        model.train(training)
        with torch.no_grad(), regard.capture(model) as maps:
            model(input_ids=torch.randint(3, 99, (2, 64)), global_attention_mask=chosen)
        (found,) = maps.values()
        near = (torch.arange(64)[:, None] - torch.arange(64)).abs() <= 4
        near[[0, 40]] = near[:, [0, 40]] = True
        assert bool(((found.weights > 0) == near).all())
        assert found.agrees


def test_a_wrong_map_of_blocks_is_noticed(transformers, spoiled):
    config, model, options = KINDS["LongT5, local"][0]
    model = getattr(transformers, model)(getattr(transformers, config)(**options)).eval()
    nn.init.normal_(model.encoder.block[0].layer[0].LocalSelfAttention.v.weight)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(input_ids=torch.randint(3, 99, (2, 64)))
    assert not maps[0].agrees


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_windows_of_packed_images_lie_on_the_image(transformers, implementation):
    torch.manual_seed(0)
    module = pytest.importorskip("transformers.models.qwen2_5_vl.modeling_qwen2_5_vl")
    config = module.Qwen2_5_VLVisionConfig(
        depth=2, hidden_size=32, intermediate_size=48, num_heads=4, patch_size=4, window_size=16, out_hidden_size=32,
        fullatt_block_indexes=[1], attn_implementation=implementation,
    )  # fmt: skip
    tower = module.Qwen2_5_VisionTransformerPretrainedModel(config).eval()
    for block in tower.blocks:  # queries and keys are the same for all patches: scores depend on their distance alone
        nn.init.zeros_(block.attn.qkv.weight[:64].detach())
        nn.init.normal_(block.attn.qkv.bias.detach())
    with torch.no_grad(), regard.capture(tower) as maps:
        tower(torch.randn(48, 3 * 2 * 16), grid_thw=torch.tensor([[1, 6, 8]]))
    place = torch.stack(torch.meshgrid(torch.arange(6), torch.arange(8), indexing="ij"), -1).reshape(48, 2)
    near = (place[:, None] // 4 == place // 4).all(-1)
    for number, kept in ((0, near), (1, torch.ones(48, 48).bool())):
        found = maps[f"blocks.{number}.attn"]
        assert (found.axes, found.shape, found.latest.layout.grid) == ("known", (1, 4, 48, 48), (6, 8))
        assert bool(((found.weights > 0) == kept).all())
        apart = (place[:, None] - place).unbind(-1)
        scores = (found.weights[0] / found.weights[0].diagonal(dim1=1, dim2=2)[:, :, None]).log()
        at = (apart[0] + 6) * 20 + apart[1] + 8
        for distance in at[kept].unique():
            same = scores[:, (at == distance) & kept]
            torch.testing.assert_close(same, same[:, :1].expand_as(same), atol=1e-4, rtol=0)
    with torch.no_grad(), regard.capture(tower) as maps:  # two images: zero between them
        tower(torch.randn(80, 3 * 2 * 16), grid_thw=torch.tensor([[1, 6, 8], [1, 4, 8]]))
    weights = maps["blocks.1.attn"].weights
    assert bool(((weights > 0) == (torch.block_diag(torch.ones(48, 48), torch.ones(32, 32)) > 0)).all())
