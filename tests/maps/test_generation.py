"""``maps.generation``: the calls of ``generate``, put together, are the maps of one pass over the final text."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard
from regard.maps import AttentionRecord, Map, MapAxes, Maps, Positions
from regard.maps.repeats import _learning, _repeated_calls

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LENGTH = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}


@pytest.fixture(scope="module")
def text_model(transformers):
    """By the width of its sliding window: None for full attention."""
    kept = {}

    def build(window=None):
        if window not in kept:
            torch.manual_seed(0)
            extra = {"num_key_value_heads": 2, "eos_token_id": None, "initializer_range": 0.4}
            if window is None:
                kept[window] = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **extra)).eval()
            else:
                config = transformers.MistralConfig(**SMALL, **extra, sliding_window=window)
                kept[window] = transformers.MistralForCausalLM(config).eval()
        return kept[window]

    return build


def at_once(model, sequences, **more):
    """The maps of one pass over the text, without its last token."""
    with torch.no_grad(), regard.capture(model) as maps:
        model(input_ids=sequences[:, :-1], use_cache=False, **more)
    return maps


KINDS = {
    "dynamic": (None, {}),
    "static": (None, {"cache_implementation": "static", "disable_compile": True}),
    "sliding window": (5, {}),
    "static, sliding window": (5, {"cache_implementation": "static", "disable_compile": True}),
    "chunked prefill": (None, {"prefill_chunk_size": 3}),
    "chunked prefill, sliding window": (5, {"prefill_chunk_size": 3}),
    "prompt lookup": (None, {"prompt_lookup_num_tokens": 3}),
    "no cache": (None, {"use_cache": False}),
    "sampled": (None, {"do_sample": True, "top_p": 0.9}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_equals_one_pass_over_the_final_text(text_model, kind):
    window, options = KINDS[kind]
    model = text_model(window)
    count = 1 if kind == "prompt lookup" else 2
    prompt = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8]])[:count]
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), **{**LENGTH, **options})
    assert not maps.missed
    expected = at_once(model, output.sequences)
    whole = maps.generation(output)
    assert list(whole) == list(expected)
    for name, found in whole.items():
        assert len(maps[name].calls) > 1
        assert found.shape == (count, 4, 13, 13)
        torch.testing.assert_close(found.weights, expected[name].weights, atol=1e-5, rtol=1e-4)
        assert found.agrees
        assert found.query_positions.tolist() == found.key_positions.tolist() == list(range(13))
    if kind != "prompt lookup":
        torch.testing.assert_close(maps.generation().stack(), whole.stack())


@pytest.mark.parametrize("kind", [*KINDS, "beams", "long", "long, beams"])
def test_what_values_contribute_is_known_of_the_whole_text(text_model, kind):
    window, options = KINDS.get(kind, (None, {}))
    model = text_model(window)
    kept = {"overview": 4, "rows": [-1], "heads": [2, 0]} if "long" in kind else {}
    beams = {"num_beams": 3, "num_return_sequences": 2, "output_scores": True} if "beams" in kind else {}
    prompt = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8]])
    with torch.no_grad(), regard.capture(model, values=True, **kept) as maps:
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), **{**LENGTH, **options, **beams})
    with torch.no_grad(), regard.capture(model, values=True) as expected:
        model(input_ids=output.sequences[:, :-1], use_cache=False)
    for name, found in maps.generation(output).items():
        rows, heads = ([*range(7, 13)], [2, 0]) if kept else ([*range(13)], [*range(4)])
        for one, other in (
            (found.contributions(), expected[name].contributions()),
            (found.head_contributions(), expected[name].head_contributions()),
        ):
            torch.testing.assert_close(one, other[:, heads][:, :, rows], atol=1e-5, rtol=1e-4)


def test_a_padded_prompt_is_joined_without_a_cache(transformers):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, eos_token_id=None, attn_implementation="eager")
    model = transformers.LlamaForCausalLM(config).eval()
    prompt, mask = torch.randint(1, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[0, :3] = 0  # these tokens see nothing, so that their rows are even, also over keys that come later
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, attention_mask=mask, use_cache=False, **LENGTH)
    whole = maps.generation(output)
    torch.testing.assert_close(whole.stack(), torch.stack([found.calls[-1].weights for found in maps.values()]))
    even = Maps([Map("attn", [AttentionRecord.given(torch.full((1, 1, n, n), 1 / n)) for n in (3, 4)])])
    for call in even[0].calls:
        call.axes = MapAxes(positions=Positions(0, *call.shape[2:3], 0, *call.shape[3:], call.shape[3]))
    with pytest.raises(ValueError, match="starts a sequence of its own"):
        even.generation()


@pytest.mark.parametrize(
    "more", [{}, {"do_sample": True, "top_p": 0.9}, {"num_beams": 2}], ids=["greedy", "sampled", "beams"]
)
def test_after_the_first_pass_calls_are_recorded_in_short(text_model, more, monkeypatch):
    model, prompt = text_model(), torch.randint(1, 50, (1, 7))
    _learning._learned.pop(model, None)
    usual, runs = _repeated_calls.RepeatedCalls.run, []
    monkeypatch.setattr(
        _repeated_calls.RepeatedCalls, "run", lambda self, *call: runs.append(usual(self, *call)) or runs[-1]
    )
    with torch.no_grad(), regard.capture(model) as maps:
        model.generate(prompt, **{**LENGTH, **more})
    assert [len(found.calls) for found in maps.values()] == [6, 6]
    # The first pass, and one call of each module from which others are known, are recorded in full.
    assert sum(run is not None for run in runs) >= 6
    assert all(call.agrees and call.positions.end == 7 + i for m in maps.values() for i, call in enumerate(m.calls))


def test_positions_of_each_call_are_recorded(text_model):
    model, prompt = text_model(5), torch.randint(1, 50, (1, 7))
    with torch.no_grad(), regard.capture(model) as maps:
        model.generate(prompt, **LENGTH, cache_implementation="static", disable_compile=True)
    first, second = maps[0].calls[:2]
    assert first.positions.key_positions.tolist() == list(range(7))
    assert second.positions.query_positions.tolist() == [7]
    assert second.positions.key_positions.tolist() == [3, 4, 5, 6, 7]  # what the window keeps
    with torch.no_grad(), regard.capture(text_model()) as maps:
        text_model().generate(prompt, **LENGTH, cache_implementation="static", disable_compile=True)
    keys = maps[0].calls[1].positions.key_positions
    assert keys[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, -1]  # the rest is empty
    assert maps[0].query_positions.tolist() == [11]


def test_padded_prompts(text_model):
    model = text_model()
    prompt, mask = torch.randint(1, 50, (2, 7)), torch.ones(2, 7, dtype=torch.long)
    mask[1, :3] = 0
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, attention_mask=mask, **LENGTH)
    mask = F.pad(mask, (0, 5), value=1)
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    expected = at_once(model, output.sequences, attention_mask=mask, position_ids=positions)
    seen = mask.bool()[:, None, :, None].expand(2, 4, 12, 12)  # rows of padding are anything
    for found, whole in zip(maps.generation(output).values(), expected.values(), strict=True):
        torch.testing.assert_close(found.weights[seen], whole.weights[seen], atol=1e-5, rtol=1e-4)


def test_a_quantized_cache_gives_the_maps_of_its_dequantized_keys(transformers, text_model, monkeypatch):
    model, prompt = text_model(), torch.randint(1, 50, (2, 7))
    rows, kernel = [], F.scaled_dot_product_attention

    def witness(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, **_):
        key_heads = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
        scores = query @ key_heads.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        causal = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(scores.shape[-1] - scores.shape[-2])
        rows.append(F.pad(scores.masked_fill(~causal, -torch.inf).softmax(-1), (0, 12 - key.shape[2])))
        options = {"attn_mask": attn_mask, "is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        return kernel(query, key, value, **options)

    cache = transformers.QuantizedCache(backend="fp8", config=model.config)
    monkeypatch.setattr(F, "scaled_dot_product_attention", witness)
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, past_key_values=cache, **LENGTH)
    monkeypatch.undo()
    whole, exact = maps.generation(output), at_once(model, output.sequences)
    for layer, found in enumerate(whole.values()):
        torch.testing.assert_close(found.weights, torch.cat(rows[layer::2], 2), atol=1e-5, rtol=1e-4)
        assert (found.weights - exact[layer].weights).abs().max() > 1e-4  # not those of exact keys


@pytest.mark.parametrize("count", [1, 3])
def test_beams_are_followed_by_their_ancestry(text_model, count):
    model, prompt = text_model(), torch.randint(1, 50, (2, 7))
    options = {**LENGTH, "num_beams": 3, "num_return_sequences": count, "output_scores": True}
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, **options)
    expected = at_once(model, output.sequences)
    whole = maps.generation(output)
    for name, found in whole.items():
        torch.testing.assert_close(found.weights, expected[name].weights, atol=1e-5, rtol=1e-4)
    for given in (None, output.sequences):
        with pytest.raises(ValueError, match="beam search exchanged the rows"):
            maps.generation(given)


@pytest.mark.parametrize("overview", [None, 4])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_beams_without_a_cache_are_those_with_a_cache(text_model, count, ends, overview):
    """Each call has the whole text, in rows that change places. A sequence that ended is in no later call."""
    model, prompt = text_model(), torch.tensor([[7, 8, 9, 7, 8, 9, 7], [1, 2, 3, 4, 5, 6, 7]])
    options = {**LENGTH, "num_beams": 3, "num_return_sequences": count, "output_scores": True, "length_penalty": -1.0}
    found, end = [], None
    if ends:
        with torch.no_grad():
            end = int(model.generate(prompt, **options).sequences[0, 9])
        options["eos_token_id"] = end
    for cached in (False, True):
        for _ in range(1 if cached else 2):  # the second capture knows the calls of the first
            with torch.no_grad(), regard.capture(model, overview=overview, budget=None) as maps:
                output = model.generate(prompt, use_cache=cached, **options)
        ended = bool((output.sequences[:, 7:-1] == end).any()) if ends else False
        assert ended == ends
        if overview and not cached and ended:
            with pytest.raises(ValueError, match="ended before the others"):
                maps.generation(output)
            return
        with pytest.raises(ValueError, match="beam search exchanged the rows"):
            maps.generation()
        whole = maps.generation(output)
        found.append([one.per_query.entropy.float() if overview else one.weights for one in whole.values()])
    assert len(found[0][0]) == len(output.sequences)
    torch.testing.assert_close(found[0], found[1], atol=1e-2 if overview else 1e-5, rtol=1e-4)


def t5(transformers):
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=None,
        decoder_start_token_id=0, initializer_factor=8.0,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config).eval()


def bart(transformers):
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, pad_token_id=0,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=32,
        eos_token_id=None, forced_eos_token_id=None, decoder_start_token_id=1, init_std=0.3,
    )  # fmt: skip
    return transformers.BartForConditionalGeneration(config).eval()


@pytest.mark.parametrize("cache", [True, False])
@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.parametrize("build", [t5, bart])
def test_encoder_and_decoder(transformers, build, beams, cache):
    model, source = build(transformers), torch.randint(1, 50, (2, 7))
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(source, num_beams=beams, output_scores=True, use_cache=cache, **LENGTH)
    with torch.no_grad(), regard.capture(model) as expected:
        model(input_ids=source, decoder_input_ids=output.sequences[:, :-1], use_cache=False)
    whole = maps.generation(output)
    assert list(whole) == list(expected)
    shapes = {found.shape[-2:] for found in whole.values()}
    assert shapes == {(7, 7), (6, 6), (6, 7)}
    for name, found in whole.items():
        torch.testing.assert_close(found.weights, expected[name].weights, atol=1e-5, rtol=1e-4)


class Crossing(nn.Module):
    num_heads = 2

    def __init__(self):
        super().__init__()
        self.q, self.kv = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, hidden_states, key_value_states=None):
        other = hidden_states if key_value_states is None else key_value_states
        k, v = self.kv(other).unflatten(-1, (2, 2, 4)).permute(2, 0, 3, 1, 4)
        q = self.q(hidden_states).unflatten(-1, (2, 4)).transpose(1, 2)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("queries", [1, 5])
def test_positions_of_cross_attention_without_a_cache(queries):
    """They are known in the first pass, and of calls that repeat it with another number of keys."""
    layer = Crossing()
    for keys in (3, 5, 5, 7, 7):
        x, other = torch.randn(2, queries, 8), torch.randn(2, keys, 8)
        with torch.no_grad(), regard.capture(layer) as maps:
            layer(x, other)
        found = maps["Crossing"]
        assert found.query_positions.tolist() == list(range(queries))
        assert found.key_positions.tolist() == list(range(keys))
        assert found.latest.positions.cross


@pytest.mark.parametrize("crosses", [(True, True, False), (False, False, True)])
def test_a_layer_that_attends_to_either_sequence_has_the_positions_of_each_call(crosses):
    layer, x = Crossing(), torch.randn(2, 5, 8)
    for cross in crosses:
        other = torch.randn(2, 5, 8) if cross else None
        with torch.no_grad(), regard.capture(layer) as maps:
            layer(x, other)
        assert maps["Crossing"].latest.positions.cross == cross


def whisper(transformers):
    sizes = {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("layers", 2), ("attention_heads", 4))
    }
    config = transformers.WhisperConfig(
        vocab_size=50, d_model=32, encoder_ffn_dim=40, decoder_ffn_dim=40, num_mel_bins=8, max_source_positions=10,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **sizes,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    return model, {"input_features": torch.randn(2, 8, 20)}, {"decoder_input_ids": torch.tensor([[1, 5, 7]] * 2)}


def mllama(transformers):
    text = {"vocab_size": 50, "num_hidden_layers": 3, "num_key_value_heads": 2, "cross_attention_layers": [1]}
    vision = {"num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 4, "image_size": 16, "patch_size": 8}
    vision |= {"max_num_tiles": 2, "vision_output_dim": 64, "intermediate_layers_indices": [1]}
    both = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    rotary = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    config = transformers.MllamaConfig(
        vision_config={**both, **vision, "supported_aspect_ratios": [[1, 1], [1, 2]]},
        text_config={**both, **text, **tokens, **rotary}, image_token_index=49,
    )  # fmt: skip
    model = transformers.MllamaForConditionalGeneration(config).eval()
    for gate in (
        model.model.language_model.layers[1].cross_attn_attn_gate,
        model.model.language_model.layers[1].cross_attn_mlp_gate,
    ):
        torch.nn.init.ones_(gate)
    image = {
        "pixel_values": torch.randn(1, 1, 2, 3, 16, 16), "aspect_ratio_ids": torch.tensor([[2]]),
        "aspect_ratio_mask": torch.ones(1, 1, 2, dtype=torch.long),
    }  # fmt: skip
    return model, {**image, **sees_all(5)}, {"input_ids": torch.tensor([[1, 49, 5, 6, 7]])}


def sees_all(tokens):
    """All tokens see both tiles of the image."""
    return {"cross_attention_mask": torch.ones(1, tokens, 1, 2, dtype=torch.long)}


@pytest.mark.parametrize("build", [whisper, mllama])
def test_cross_attention_whose_cache_holds_the_other_sequence_alone(transformers, build):
    torch.manual_seed(0)
    model, source, prompt = build(transformers)
    model.generation_config.eos_token_id = None
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(**source, **prompt, return_dict_in_generate=True, max_new_tokens=4)
    text = dict.fromkeys(prompt, output.sequences[:, :-1])
    source |= sees_all(output.sequences.shape[1] - 1) if build is mllama else {}
    with torch.no_grad(), regard.capture(model) as expected:
        model(**source, **text, use_cache=False)
    cross = [name for name in maps if "encoder_attn" in name or "cross_attn" in name]
    whole = maps.generation(output)
    assert cross
    for name, found in whole.items():
        if name in cross or "self_attn" in name:
            torch.testing.assert_close(found.weights, expected[name].weights, atol=1e-5, rtol=1e-4)
    for name in cross:
        assert maps[name].calls[-1].positions.query_positions.tolist() == [output.sequences.shape[1] - 2]
    with torch.no_grad(), regard.capture(model) as single:
        model(**source, **text)
    assert [single[name].query_positions.tolist() for name in cross] == [
        list(range(output.sequences.shape[1] - 1))
    ] * len(cross)


def test_a_module_that_several_layers_share_has_the_positions_of_each(transformers):
    kinds = ["mamba", "hybrid", "mamba", "hybrid"]
    config = transformers.Zamba2Config(
        **{**SMALL, "num_hidden_layers": 4}, layer_types=kinds, layers_block_type=kinds, n_mamba_heads=8, mamba_d_state=8,
        num_mem_blocks=1, use_mamba_kernels=False, eos_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    model, prompt = transformers.Zamba2ForCausalLM(config).eval(), torch.randint(1, 50, (2, 7))
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, **LENGTH)
    assert len(maps) == 2
    whole, expected = maps.generation(output), at_once(model, output.sequences)
    for name, found in maps.items():
        assert [call.positions.first for call in found.calls] == [0, *range(7, 12)]
        torch.testing.assert_close(whole[name].weights, expected[name].weights, atol=1e-5, rtol=1e-4)


def test_calls_that_do_not_continue_each_other_are_not_joined(text_model, networks):
    model, images = networks(1), torch.randn(3, 1, 5, 8)
    with torch.no_grad(), regard.capture(model) as maps:
        for image in images:
            model(image)
    assert len(maps[0].calls) == 3
    with pytest.raises(ValueError, match="starts a sequence of its own"):
        maps.generation()
    prompt = torch.randint(1, 50, (1, 7))
    with torch.no_grad(), regard.capture(text_model()) as maps:
        outputs = [text_model().generate(prompt, **LENGTH) for _ in range(2)]
    with pytest.raises(ValueError, match="one generate"):
        maps.generation(outputs[-1])


def test_what_was_not_seen_is_refused(text_model):
    model, prompt = text_model(), torch.randint(1, 50, (1, 7))
    with torch.no_grad():
        before = model(prompt, use_cache=True)
        with regard.capture(model) as maps:
            model(torch.tensor([[3]]), past_key_values=before.past_key_values)
    assert maps[0].query_positions.tolist() == [7]
    with pytest.raises(ValueError, match="what filled the cache before was not captured"):
        maps.generation()
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, **LENGTH)
    with pytest.raises(ValueError, match="do not belong together"):
        maps.generation(output.sequences[:, :9])
    with pytest.raises(TypeError, match="output must be"):
        maps.generation("a text")
    with torch.no_grad(), regard.capture(model, rows=0) as part:
        model.generate(prompt, **LENGTH)
    with pytest.raises(ValueError, match="rows="):
        part.generation()


def test_rejected_tokens_need_the_output():
    weights = torch.eye(4)[None, None]
    calls = [
        AttentionRecord.given(weights, axes=MapAxes(positions=Positions(0, 4, 0, 4, 4, cached=True))),
        AttentionRecord.given(
            torch.ones(1, 1, 3, 7) / 7, axes=MapAxes(positions=Positions(4, 3, 0, 7, 7, cached=True))
        ),
        AttentionRecord.given(
            torch.ones(1, 1, 3, 8) / 8, axes=MapAxes(positions=Positions(5, 3, 0, 8, 8, cached=True))
        ),
    ]
    maps = Maps([Map("attn", calls)])
    with pytest.raises(ValueError, match="may have been rejected"):
        maps.generation()
    whole = maps.generation(torch.zeros(1, 8))["attn"].weights[0, 0]
    assert whole.shape == (7, 7)
    torch.testing.assert_close(whole[:4, :4], weights[0, 0])
    torch.testing.assert_close(whole[4], torch.ones(7) / 7)
    torch.testing.assert_close(whole[5:], torch.ones(2, 7) / 8)  # the rows of rejected tokens were replaced


def test_positions_are_saved(text_model, tmp_path):
    model, prompt = text_model(), torch.randint(1, 50, (1, 7))
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, **LENGTH)
    again = Maps.load(maps.save(tmp_path / "maps"))
    torch.testing.assert_close(again.generation(output).stack(), maps.generation(output).stack())


@pytest.mark.parametrize("kind", ["dynamic", "static", "sliding window", "static, sliding window", "chunked prefill"])
def test_distances_of_an_overview_are_those_of_the_positions(text_model, kind):
    """A static cache has room for later keys: queries and keys do not end together there."""
    window, options = KINDS[kind]
    model, prompt = text_model(window), torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8]])
    given = {"attention_mask": torch.ones_like(prompt), **LENGTH, **options}
    with torch.no_grad(), regard.capture(model) as whole, regard.capture(model, overview=4) as maps:
        model.generate(prompt, **given)
    for call, short in zip(whole[0].calls, maps[0].calls, strict=True):
        away = (call.positions.key_positions - call.positions.query_positions[:, None]).abs()
        torch.testing.assert_close(short.overview.per_query.distance, (call.weights * away).sum(-1))


def test_a_wrong_call_is_not_excused_by_the_rounding_of_another_one(text_model):
    model = text_model()
    with torch.no_grad(), regard.capture(model) as maps:
        model.generate(torch.tensor([[1, 2, 3]]), **LENGTH)
    assert all(found.agrees for found in maps.generation().values())
    first, second = maps[0].calls[:2]
    first.check.allowed = torch.tensor(100.0)
    second.check.add(torch.tensor(1.0), None)
    assert not second.agrees
    joined = maps.generation()[0]
    assert not joined.agrees
    assert joined.residual == 1.0
