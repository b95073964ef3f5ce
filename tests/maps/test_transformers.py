"""Capture on Hugging Face transformers, with the kernel they take by default and with hand-written attention."""

import pytest
import torch

import regard

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
VISION = {**SMALL, "image_size": 32, "patch_size": 8}
FAMILIES = {
    "Bert": {"vocab_size": 50, **SMALL},
    "ViT": VISION,
    "GPT2": {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "Llama": {"vocab_size": 50, **SMALL, "num_key_value_heads": 2},
    "T5": {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2], "num_heads": [2], "window_size": 4},
}


def build(transformers, family, implementation=None, **extra):
    config = getattr(transformers, f"{family}Config")(**{**FAMILIES.get(family, VISION), **extra})
    if implementation:
        config._attn_implementation = implementation
    return getattr(transformers, f"{family}Model")(config).eval()


def inputs(family, tokens, images):
    if family in FAMILIES and FAMILIES[family].get("image_size") is None:
        more = {"decoder_input_ids": tokens[:, :4]} if family == "T5" else {}
        padding = torch.ones_like(tokens)
        padding[1, 5:] = 0
        return {"input_ids": tokens, "attention_mask": padding, **more}
    return {"pixel_values": images}


def their_attentions(model, family, given):
    """What the model itself says, computed by its slow implementation."""
    output = model(**given, output_attentions=True)
    if family == "T5":
        both = [*output.encoder_attentions]
        for own, cross in zip(output.decoder_attentions, output.cross_attentions, strict=True):
            both += [own, cross]
        return both
    return list(output.attentions)


def comparable(maps, family):
    """Swin itself gives the last block of each stage alone."""
    return list(maps.values())[-1:] if family == "Swin" else list(maps.values())


@pytest.mark.parametrize("family", list(FAMILIES))
def test_maps_under_the_default_kernel_are_those_of_the_slow_implementation(transformers, family, tokens, images):
    fast, slow = build(transformers, family), build(transformers, family, "eager")
    slow.load_state_dict(fast.state_dict())
    assert fast.config._attn_implementation == "sdpa"
    given = inputs(family, tokens, images)
    with torch.no_grad():
        plain = fast(**given)
        with regard.capture(fast) as maps:
            out = fast(**given)
        expected = their_attentions(slow, family, given)
    assert torch.equal(out[0], plain[0])
    assert not maps.missed
    for found, theirs in zip(comparable(maps, family), expected, strict=True):
        weights = found.windows if found.windows is not None else found.weights
        rows = weights.sum(-1) > 0
        torch.testing.assert_close(weights[rows], theirs[rows], atol=1e-5, rtol=1e-4)
        assert found.against == "kernel"
        assert found.residual < 1e-5
        assert found.agrees


@pytest.mark.parametrize("family", list(FAMILIES))
def test_hand_written_attention_is_recognized(transformers, family, tokens, images):
    model, given = build(transformers, family, "eager"), inputs(family, tokens, images)
    with torch.no_grad():
        plain = model(**given)
        with regard.capture(model) as maps:
            out = model(**given)
        expected = their_attentions(model, family, given)
    assert torch.equal(out[0], plain[0])
    assert not maps.missed
    for found, theirs in zip(comparable(maps, family), expected, strict=True):
        assert torch.equal(found.windows if found.windows is not None else found.weights, theirs)
        assert found.against == "product"
        assert found.agrees


@pytest.mark.parametrize("implementation", [None, "eager"])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_wrong_map_is_noticed(transformers, family, implementation, tokens, images, spoiled):
    model, given = build(transformers, family, implementation), inputs(family, tokens, images)
    # Random weights hardly tell tokens apart: let values differ, so that a wrong map must show.
    for name, parameter in model.named_parameters():
        if "embed" in name and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=3.0)
    with torch.no_grad(), pytest.warns(UserWarning, match="do not reproduce"), regard.capture(model) as maps:
        model(**given)
    for found in maps.values():
        assert found.residual > 1e-3
        assert not found.agrees


@pytest.mark.parametrize("implementation", [None, "eager"])
def test_dropout_in_training_stays_out_of_the_maps(transformers, implementation, tokens):
    model = build(transformers, "Bert", implementation, attention_probs_dropout_prob=0.4).train()
    torch.manual_seed(2)
    plain = model(input_ids=tokens)[0]
    torch.manual_seed(2)
    with regard.capture(model) as maps:
        out = model(input_ids=tokens)[0]
    assert torch.equal(out, plain)
    for found in maps.values():
        torch.testing.assert_close(found.weights.sum(-1), torch.ones(2, 4, 7))
        assert found.weights.min() > 0
        assert found.agrees


@pytest.mark.parametrize(
    ("family", "prefix", "size", "extra"),
    [
        ("ViT", 1, (32, 16), {"image_size": (32, 16)}),
        ("DeiT", 2, (32, 16), {"image_size": (32, 16)}),
        ("Dinov2", 1, (32, 32), {}),
        ("Dinov2WithRegisters", 4, (32, 32), {"num_register_tokens": 3}),
    ],
)
def test_prefix_tokens_and_grids_of_vision_models(transformers, family, prefix, size, extra):
    model = build(transformers, family, **extra)
    with torch.no_grad(), regard.capture(model) as maps:
        model(pixel_values=torch.randn(1, 3, *size))
    assert (maps[0].grid, maps[0].prefix) == ((size[0] // 8, size[1] // 8), prefix)


def test_the_grid_is_that_of_the_image_that_was_seen(transformers):
    model = build(transformers, "Dinov2")
    with torch.no_grad(), regard.capture(model) as maps:
        model(pixel_values=torch.randn(1, 3, 16, 48))
    assert maps[0].grid == (2, 6)


def test_a_text_has_no_grid_unless_it_is_given(transformers, tokens):
    model = build(transformers, "Bert")
    with torch.no_grad(), regard.capture(model) as maps:
        model(input_ids=tokens)
    with pytest.raises(ValueError, match="pass grid="):
        maps[0].grid  # noqa: B018
    with torch.no_grad(), regard.capture(model, grid=(7,)) as maps:
        model(input_ids=tokens)
    assert (maps[0].grid, maps[0].prefix) == ((7,), 0)


def test_generation_keeps_every_step_in_order(transformers, tokens):
    config = transformers.LlamaConfig(**FAMILIES["Llama"], eos_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    with regard.capture(model) as maps:
        model.generate(tokens[:1], max_new_tokens=4, do_sample=False, pad_token_id=0)
    calls = maps["model.layers.0.self_attn"].calls
    assert [call.weights.shape[-2:] for call in calls] == [(7, 7), (1, 8), (1, 9), (1, 10)]
    assert all(call.agrees for call in calls)


def test_swin_windows_are_put_back_onto_the_image(transformers, images):
    model = build(transformers, "Swin")
    with torch.no_grad(), regard.capture(model) as maps:
        model(pixel_values=images)
    plain, shifted = maps.values()
    assert plain.weights.shape == (2, 2, 64, 64)
    assert plain.grid == (8, 8)
    torch.testing.assert_close(plain.weights.sum(-1), torch.ones(2, 2, 64))
    window = torch.arange(64).reshape(8, 8) // 32 * 2 + torch.arange(8) // 4
    same = (window.flatten()[:, None] == window.flatten()).expand(2, 2, 64, 64)
    assert plain.weights[~same].max() == 0
    assert plain.weights[same].min() > 0
    assert shifted.weights[~same].max() > 0  # shifted windows cross the borders of plain ones
    assert shifted.latest.windows.shift == (2, 2)


def test_swin_pads_images_that_windows_do_not_fit(transformers):
    model = build(transformers, "Swin")
    with torch.no_grad(), regard.capture(model) as maps:
        model(pixel_values=torch.randn(1, 3, 24, 40))
    assert maps[0].weights.shape == (1, 2, 60, 60)
    assert maps[0].grid == (6, 10)
    assert maps[0].agrees
