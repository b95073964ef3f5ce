"""``maps.generation`` of overviews: the cells and statistics of one pass over the final text."""

import pytest
import torch
import torch.nn.functional as F

import regard
from regard.maps import Maps

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LENGTH = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "return_dict_in_generate": True}
PROMPT = torch.tensor([[7, 8, 9, 7, 8, 9, 7, 8, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]])


@pytest.fixture(scope="module")
def text_model(transformers):
    """By the width of its sliding window: None for full attention."""

    def build(window=None):
        torch.manual_seed(0)
        extra = {"num_key_value_heads": 2, "eos_token_id": None, "initializer_range": 0.4}
        if window is None:
            return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **extra)).eval()
        return transformers.MistralForCausalLM(
            transformers.MistralConfig(**SMALL, **extra, sliding_window=window)
        ).eval()

    return build


def assert_overview_of(found, weights, away):
    """Every number of a kept overview is that of the dense map ``(batch, heads, queries, keys)``."""
    overview, (queries, keys) = found.latest.overview, weights.shape[2:]
    assert overview.shape == weights.shape
    rows, columns = overview.cell
    cells = (
        F.pad(weights, (0, -keys % columns, 0, -queries % rows)).unflatten(3, (-1, columns)).unflatten(2, (-1, rows))
    )
    half = {"atol": 2e-4, "rtol": 2e-3}  # float16, in which they are kept
    torch.testing.assert_close(overview.mass, cells.sum((3, 5)), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(overview.largest.float(), cells.amax((3, 5)), **half)
    query, key = overview.per_query, overview.per_key
    torch.testing.assert_close(query.entropy.float(), torch.special.entr(weights).sum(-1), **half)
    torch.testing.assert_close(query.first.float(), weights[..., :4].sum(-1), **half)
    torch.testing.assert_close(query.distance, (weights * away).sum(-1), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(key.received, weights.sum(2), atol=1e-4, rtol=1e-4)
    for largest, place, axis in ((query.largest, query.where, 3), (key.largest, key.source, 2)):
        torch.testing.assert_close(largest.float(), weights.amax(axis), **half)
        there = weights.gather(axis, place.long().clamp_min(0).unsqueeze(axis)).squeeze(axis)
        torch.testing.assert_close(there, weights.amax(axis), **half)
        assert bool(((place < 0) == (weights.amax(axis) == 0)).all())


def distances(queries, keys):
    return (torch.arange(keys) - torch.arange(queries)[:, None]).abs()


KINDS = {
    "dynamic": (None, {}),
    "static": (None, {"cache_implementation": "static", "disable_compile": True}),
    "sliding window": (5, {}),
    "static, sliding window": (5, {"cache_implementation": "static", "disable_compile": True}),
    "chunked prefill": (None, {"prefill_chunk_size": 6}),
    "no cache": (None, {"use_cache": False}),
    "beams": (None, {"num_beams": 3, "output_scores": True}),
    "beams of several answers": (None, {"num_beams": 3, "num_return_sequences": 2, "output_scores": True}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 4, 64])
def test_a_generation_has_the_overview_of_the_whole_text(text_model, kind, cells):
    window, options = KINDS[kind]
    model, given = text_model(window), {"attention_mask": torch.ones_like(PROMPT), **LENGTH, **options}
    with torch.no_grad(), regard.capture(model) as dense, regard.capture(model, overview=cells) as maps:
        output = model.generate(PROMPT, **given)
    expected = dense.generation(output)
    for name, found in maps.generation(output).items():
        weights = expected[name].weights
        assert_overview_of(found, weights, distances(*weights.shape[2:]))
        assert max(found.overview.shape[2:]) < 2 * cells
        assert (found.query_positions.tolist(), found.agrees) == (list(range(19)), True)
        assert found.residual == max(call.residual for call in maps[name].calls)
    if not kind.startswith("beams"):
        torch.testing.assert_close(maps.generation()[0].overview, maps.generation(output)[0].overview)


def test_the_rows_of_all_steps_are_kept(text_model, tmp_path):
    model = text_model()
    with (
        torch.no_grad(),
        regard.capture(model) as dense,
        regard.capture(model, overview=4, rows=-1, heads=[2, 0]) as maps,
    ):
        model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), **LENGTH)
    weights = dense.generation()[0].weights[:, [2, 0]]
    for kept in (maps, Maps.load(maps.save(tmp_path / "maps"))):
        found = kept.generation()[0]
        assert_overview_of(found, weights, distances(19, 19))
        assert found.latest.rows == tuple(range(10, 19))
        torch.testing.assert_close(found.weights, weights[:, :, 10:])
        torch.testing.assert_close(found.row(-2), weights[:, :, -2])
    again = Maps.load(maps.generation().save(tmp_path / "joined"))[0]
    assert torch.equal(again.overview, found.overview)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["in memory", "in a folder"])
def test_rows_of_the_whole_text_come_from_the_keys_of_all_steps(text_model, kind, where, tmp_path):
    window, options = KINDS[kind]
    stream = None if where == "in memory" else tmp_path
    model, given = text_model(window), {"attention_mask": torch.ones_like(PROMPT), **LENGTH, **options}
    given["attention_mask"][1, :3] = 0
    with (
        torch.no_grad(),
        regard.capture(model) as dense,
        regard.capture(model, overview=4, heads=[3, 0], keep_keys=True, stream=stream) as maps,
    ):
        output = model.generate(PROMPT, **given)
    maps = maps if stream is None else Maps.load(stream)
    for name, found in maps.generation(output).items():
        weights = dense.generation(output)[name].weights[:, [3, 0]]
        torch.testing.assert_close(found.block(), weights)
        torch.testing.assert_close(found.block([14, 2, 18, 2], slice(5, 12)), weights[:, :, [14, 2, 18, 2], 5:12])
        torch.testing.assert_close(found.row(-1), weights[:, :, -1])
        assert found.block([], slice(2)).shape == (*weights.shape[:2], 0, 2)


def test_padded_prompts_and_a_prompt_of_one_token(text_model):
    model = text_model()
    padding = torch.ones_like(PROMPT)
    padding[1, :4] = 0
    for prompt, mask in ((PROMPT, padding), (PROMPT[:, :1], padding[:1, :1].expand(2, 1))):
        with torch.no_grad(), regard.capture(model) as dense, regard.capture(model, overview=3) as maps:
            model.generate(prompt, attention_mask=mask, **LENGTH)
        weights = dense.generation()[0].weights
        assert_overview_of(maps.generation()[0], weights, distances(*weights.shape[2:]))


def test_encoder_and_decoder(transformers):
    config = {"vocab_size": 50, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_heads": 4}
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(
        transformers.T5Config(**config, decoder_start_token_id=0, eos_token_id=None)
    ).eval()
    with torch.no_grad(), regard.capture(model) as dense, regard.capture(model, overview=4) as maps:
        model.generate(PROMPT, **LENGTH)
    for name, found in maps.generation().items():
        weights = dense.generation()[name].weights
        queries, keys = weights.shape[2:]
        away = distances(queries, keys)
        if queries != keys:  # cross-attention: each step is measured from the last key, as a single query
            away = (torch.arange(keys) - (keys - 1)).abs().expand(queries, keys)
        assert_overview_of(found, weights, away)


def test_what_cannot_be_joined_says_so(text_model):
    """Rejected tokens, whose rows are in no cell of their own, and cells that do not fit into each other."""
    model, one = text_model(), PROMPT[:1]
    given = {"attention_mask": torch.ones_like(one), **LENGTH}
    with torch.no_grad(), regard.capture(model, overview=4) as maps:
        output = model.generate(one.repeat(1, 3), **{**given, "attention_mask": None}, prompt_lookup_num_tokens=3)
    with pytest.raises(ValueError, match="some tokens of a call were rejected"):
        maps.generation(output)
    with torch.no_grad(), regard.capture(model, overview=8) as maps:
        model.generate(torch.arange(1, 48)[None], **{**given, "attention_mask": None}, prefill_chunk_size=9)
    with pytest.raises(ValueError, match=r"cells of 2, 3, 4, 5, 6 tokens, which do not fit into each other"):
        maps.generation()
