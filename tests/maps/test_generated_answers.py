"""``maps.generation`` of models that return the answer alone: Whisper, and models that are given embeddings."""

import pytest
import torch

import regard

LENGTH = {"max_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}


def check(whole, expected):
    assert list(whole) == list(expected)
    for name, found in whole.items():
        torch.testing.assert_close(found.weights, expected[name].weights, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize(("beams", "tokens"), [(1, 6), (3, 6), (3, 2)])
@torch.no_grad()
def test_the_prompt_may_be_embeddings(transformers, beams, tokens, cache):
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
    config = transformers.LlamaConfig(**sizes, num_hidden_layers=2, eos_token_id=None, initializer_range=0.4)
    model, prompt = transformers.LlamaForCausalLM(config).eval(), torch.randint(1, 50, (2, 4))
    options = {**LENGTH, "max_new_tokens": tokens, "num_beams": beams, "use_cache": cache, "pad_token_id": 0}
    with regard.capture(model) as maps:
        output = model.generate(inputs_embeds=model.model.embed_tokens(prompt), **options)
    assert output.sequences.shape == (2, tokens)
    with regard.capture(model) as expected:
        model(torch.cat([prompt, output.sequences], 1)[:, :-1], use_cache=False)
    check(maps.generation(output), expected)
    if beams == 1:
        check(maps.generation(output.sequences), expected)
        with pytest.raises(ValueError, match=r"do not belong together. Pass what generate\(return_dict"):
            maps.generation(output.sequences[:, :-2])


@pytest.fixture
def whisper(transformers):
    layers = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 1), ("attention_heads", 2))
    }
    config = transformers.WhisperConfig(
        vocab_size=50, d_model=16, encoder_ffn_dim=20, decoder_ffn_dim=20, num_mel_bins=8, max_source_positions=10,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3, **layers,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    model.generation_config.update(is_multilingual=False, return_timestamps=False, no_timestamps_token_id=49)
    return model


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("prompt", [None, [3, 5, 7]])
@torch.no_grad()
def test_whisper_returns_neither_the_prompt_nor_the_last_token(whisper, prompt, ends):
    features = torch.randn(2, 8, 20)[:1]
    given = {} if prompt is None else {"decoder_input_ids": torch.tensor([prompt])}
    whisper.generation_config.eos_token_id = 48
    if ends:  # after its first token
        plain = whisper.generate(features, max_new_tokens=2, **given)
        whisper.generation_config.eos_token_id = int(plain[0, -1])
    with regard.capture(whisper) as maps:
        answer = whisper.generate(features, max_new_tokens=4, **given)
    read = torch.cat([torch.tensor([prompt or [3]]), answer], 1)
    seen = maps["model.decoder.layers.0.self_attn"].latest.positions.end
    assert read.shape[1] == seen + (not ends)  # the token that ends the text is left out, and no other is read last
    with regard.capture(whisper) as expected:
        whisper(features, decoder_input_ids=read[:, :seen], use_cache=False)
    check(maps.generation(answer), expected)
