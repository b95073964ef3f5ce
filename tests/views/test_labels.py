"""Each query and each key is called by its own name, also where rows were chosen or queries are not the keys."""

import pytest
import torch
from torch import nn

import regard
from regard.maps import AttentionRecord, Layout, Map, MapAxes, Maps, Positions
from regard.views import _static_figure as static_figure

WORDS = [f"w{number}" for number in range(16)]
IMAGE = torch.rand(3, 16, 16)


class Pool(nn.Module):
    """Learned queries that look at all tokens."""

    def __init__(self, queries):
        super().__init__()
        self.asks = nn.Parameter(torch.randn(1, queries, 8))
        self.attn = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        return self.attn(self.asks.expand(len(x), -1, -1), x, x, need_weights=False)[0]


class Steps(Pool):
    """A decoder that asks once for each word it writes."""

    def forward(self, x):
        return torch.cat([super(Steps, self).forward(x) for _ in range(3)], 1)


def captured(model, *inputs, **options):
    with torch.no_grad(), regard.capture(model.eval(), **options) as maps:
        for x in inputs:
            model(x)
    return maps


def encoder():
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)


def layer_of(shown):
    return shown.payload.meta["layers"][0]


@pytest.mark.parametrize("rows", [None, 2, [2, 1]])
def test_queries_that_are_no_tokens_have_no_names_of_tokens(rows):
    maps = captured(Pool(3), torch.randn(1, 16, 8), rows=rows, grid=(4, 4))
    assert (layer_of(regard.show(maps, tokens=WORDS))["asks"], layer_of(regard.show(maps))["asks"]) == (None, None)
    assert layer_of(regard.show(maps, tokens=WORDS))["reads"] == "text"
    on_image = layer_of(regard.show(maps, image=IMAGE))
    assert (on_image["query_grid"], on_image["query_prefix"]) == (None, 3)


def test_chosen_rows_keep_their_names():
    x = torch.randn(1, 16, 8)
    maps = captured(encoder(), x, rows=[5, 3], grid=(4, 4))
    shown = regard.show(maps, tokens=WORDS)
    assert (layer_of(shown)["asks"], layer_of(shown)["rows"]) == ("text", [5, 3])
    assert layer_of(regard.show(maps))["asks"] == "0 + 4 × 4"
    assert layer_of(regard.show(maps, image=IMAGE))["query_grid"] == [4, 4]


def test_several_images_are_not_one_generation():
    images = torch.randn(3, 1, 16, 8)
    maps = captured(Pool(1), *images, grid=(4, 4))
    for shown in (regard.show(maps), regard.show(maps, image=IMAGE)):
        layer = layer_of(shown)
        assert (layer["queries"], layer["joined"], layer["calls"]) == (1, False, 3)
        torch.testing.assert_close(shown.payload.arrays["map0"].values, maps[0].weights[0], atol=0.01, rtol=0)
    steps = layer_of(regard.show(captured(Steps(1), images[0])))
    assert (steps["queries"], steps["joined"]) == (3, True)


def test_a_comparison_names_the_rows_that_were_chosen():
    model, x = encoder(), torch.randn(1, 6, 8)
    whole, some = captured(model, x), captured(model, x, rows=slice(1, None))
    words = list("abcdef")
    shown = regard.show(some, some, tokens=words)
    labels = [label.get_text() for label in static_figure.figure(shown.payload).axes[0].get_yticklabels()]
    assert labels == words[1:]
    assert layer_of(shown)["sides"][0]["rows"] == [1, 2, 3, 4, 5]
    unnamed = static_figure.figure(regard.show(some, some).payload).axes[0].get_yticklabels()
    assert [label.get_text() for label in unnamed] == list("12345")
    both = regard.show(whole, some, tokens=words).payload
    assert both.meta["layers"][0]["rows"] == [[row, row - 1] for row in range(1, 6)]
    assert not both.arrays["difference0"].values.any()


def test_a_comparison_of_rows_that_are_not_the_same_is_refused():
    model, x = encoder(), torch.randn(1, 6, 8)
    first, last = captured(model, x, rows=0), captured(model, x, rows=5)
    with pytest.raises(
        ValueError, match=r"has the rows \[0\] and, in other, \[5\]: a difference needs the same queries"
    ):
        regard.show(first, last)


def test_an_overview_names_queries_only_if_they_are_the_tokens():
    maps = captured(Pool(3), torch.randn(1, 16, 8), overview=4)
    shown = regard.show(maps, tokens=WORDS)
    assert (layer_of(shown)["asks"], layer_of(shown)["reads"]) == (None, "text")
    axes = static_figure.figure(shown.payload).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_xticklabels()[0].get_text() == "0 w0"
    layer = layer_of(regard.show(captured(encoder(), torch.randn(1, 16, 8), overview=4), tokens=WORDS))
    assert (layer["asks"], layer["reads"]) == ("text", "text")


def test_segments_are_not_the_queries_of_another_attention():
    segments = [("text", 4), ("image", (3, 4))]
    maps = captured(Pool(3), torch.randn(1, 16, 8), rows=1)
    with pytest.raises(ValueError, match="'attn' attends from 3 queries to 16 keys"):
        regard.show(maps, segments=segments)
    assert regard.show(captured(encoder(), torch.randn(1, 16, 8), rows=[3]), segments=segments).view == "mixed"


def test_contributions_of_rows_know_the_whole_map(tmp_path):
    model, x = encoder(), torch.randn(1, 6, 8)
    model.train()
    sizes = captured(model, x, rows=[4, 1], heads=[1], values=True).contributions()
    assert sizes[0].latest.shape == (1, 2, 6, 6)
    assert layer_of(regard.show(sizes, tokens=list("abcdef")))["asks"] == "text"
    read = regard.maps.Maps.load(sizes.save(tmp_path / "sizes.safetensors"))
    assert read[0].latest.rows == (4, 1)
    torch.testing.assert_close(read[0].weights, sizes[0].weights)


def test_many_tokens_beside_a_grid_are_no_prefix_unless_that_is_said():
    x, weights = torch.randn(1, 17, 8), torch.rand(2, 17, 17).softmax(-1)
    with pytest.raises(ValueError, match=r"grid \(3, 3\) leaves 8 of the 17 tokens .* pass prefix=8"):
        regard.show(weights, grid=(3, 3))
    assert layer_of(regard.show(weights, grid=(3, 3), prefix=8))["prefix"] == 8
    assert layer_of(regard.show(weights, grid=(4, 4)))["prefix"] == 1
    with pytest.warns(UserWarning, match=r"grid=\(3, 3\) .* fits no map: .* \[17\] tokens; pass prefix="):
        assert captured(encoder(), x, grid=(3, 3))[0].latest.layout is None
    assert captured(encoder(), x, grid=(3, 3), prefix=8)[0].prefix == 8
    with pytest.raises(ValueError, match="leaves 8 of the 17 tokens"):
        regard.locality(captured(encoder(), x), grid=(3, 3))


def test_a_prefix_that_the_model_states_need_not_be_repeated():
    layout = Layout((2, 2), 5)  # a class token and four registers
    maps = Maps([Map("attn", [AttentionRecord.given(torch.rand(1, 2, 9, 9).softmax(-1), layout=layout)])])
    assert layer_of(regard.show(maps, grid=(2, 2)))["prefix"] == 5
    with pytest.raises(ValueError, match="leaves 7 of the 9 tokens"):
        regard.show(maps, grid=(1, 2))


def test_options_that_would_not_be_used_are_refused():
    weights = torch.rand(2, 16, 16).softmax(-1)
    with pytest.raises(ValueError, match=r"prefix is 1, but goes with grid= or image="):
        regard.show(weights, prefix=1)
    with pytest.raises(ValueError, match=r"prefix is 1 .*, which does not go with a comparison"):
        regard.show(weights, weights, prefix=1)
    with pytest.raises(ValueError, match=r"grid is \(4, 4\) .* segments already say where the grids are"):
        regard.show(weights, segments=[("image", (4, 4))], grid=(4, 4))
    with pytest.raises(ValueError, match="which names no tokens without a tokenizer"):
        regard.show(weights, ids=torch.arange(16))


def test_options_of_a_figure_are_checked(tmp_path):
    shown = regard.show(torch.rand(2, 4, 4).softmax(-1), grid=(2, 2))
    for error, said, options in (
        (ValueError, "width must be a number of inches above 0, got 0", {"width": 0}),
        (ValueError, "width must be a number of inches above 0, got 'a'", {"width": "a"}),
        (TypeError, "head must be a whole number or a name, got True", {"head": True}),
        (TypeError, "layer must be a whole number or a name, got 1.0", {"layer": 1.0}),
        (TypeError, "query must be a whole number, got a", {"query": torch.tensor(2)}),
        (TypeError, "heads is no option of a figure, which has layer, head, query, width", {"heads": 1}),
    ):
        with pytest.raises(error, match=said):
            shown.save(tmp_path / "figure.svg", **options)
    for name in ("figure.PNG", "page.HTML"):
        assert shown.save(tmp_path / name).stat().st_size > 1000


def generated(name, first, keys=None, steps=3):
    """A generation: a prompt of ``first`` tokens, then one token after the other, over all before or over ``keys``."""
    sizes = [(first, keys or first), *((1, keys or first + step) for step in range(1, steps))]
    calls = [AttentionRecord.given(torch.rand(1, 2, *size).softmax(-1), name) for size in sizes]
    for step, call in enumerate(calls):
        place = Positions(
            first + step - 1 if step else 0, call.shape[2], 0, call.shape[3], first + step, True, cross=bool(keys)
        )
        call.axes, call.moment = MapAxes(positions=place), (step, 0)
    return Map(name, calls)


@pytest.mark.parametrize("unread", [0, 1])
def test_words_of_a_generation_have_all_rows(unread):
    maps = Maps([generated("attn", 3)])
    tokens = ["▁a", "b", "▁c", "▁d", "e", "▁f"][: 5 + unread]
    shown = regard.show(maps, tokens=tokens, words=True)
    layer = layer_of(shown)
    assert (layer["queries"], layer["keys"], layer["asks"]) == (3, 3, "text")
    assert shown.payload.meta["tokens"]["text"] == ["▁ab", "▁c", "▁de"]
    whole = torch.zeros(2, 5, 5)
    for row, call in zip((0, 3, 4), maps[0].calls, strict=True):
        whole[:, row : row + call.shape[2], : call.shape[3]] = call.weights[0]
    into = torch.tensor([[1.0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 1]])
    expected = (into / into.sum(-1, keepdim=True)) @ whole @ into.mT
    torch.testing.assert_close(shown.payload.arrays["map0"].values, expected, atol=0.01, rtol=0)


@pytest.mark.parametrize("unread", [0, 1])
@pytest.mark.parametrize("source", [5, 6])
def test_an_answer_may_end_in_a_token_that_was_not_read(unread, source):
    encoder_map = Map("encoder.attn", [AttentionRecord.given(torch.rand(1, 2, source, source).softmax(-1))])
    maps = Maps([encoder_map, generated("decoder.attn", 3), generated("decoder.cross_attn", 3, source)])
    texts = [f"s{place}" for place in range(source)], [f"t{place}" for place in range(5 + unread)]
    shown = regard.show(maps, tokens=texts).payload.meta
    names = [(layer["asks"], layer["reads"]) for layer in shown["layers"]]
    assert names == [("source", "source"), ("target", "target"), ("target", "source")]
    assert shown["tokens"]["target"] == texts[1][:5]


def test_a_long_text_may_end_in_a_token_that_was_not_read():
    maps = captured(encoder(), torch.randn(1, 15, 8), overview=4)
    shown = regard.show(maps, tokens=WORDS)
    assert shown.payload.meta["tokens"] == {"text": WORDS[:15]}
    assert (layer_of(shown)["asks"], layer_of(shown)["reads"]) == ("text", "text")


GENERATIONS = {
    "dynamic": (None, {}),
    "static": (None, {"cache_implementation": "static", "disable_compile": True}),
    "sliding window, as long as the prompt": (6, {}),
    "sliding window, shorter": (4, {}),
    "prefill in chunks": (None, {"prefill_chunk_size": 4}),
}


@pytest.mark.parametrize("kind", GENERATIONS)
def test_a_generation_is_shown_with_keys_at_their_own_places(transformers, kind):
    window, options = GENERATIONS[kind]
    torch.manual_seed(0)
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 16, "num_key_value_heads": 1, "eos_token_id": None, "pad_token_id": 0}
    config = transformers.MistralConfig(**small, sliding_window=window)
    model, prompt = transformers.MistralForCausalLM(config).eval(), torch.randint(1, 50, (2, 6))
    with torch.no_grad(), regard.capture(model) as maps:
        model.generate(prompt, max_new_tokens=5, do_sample=False, **options)
    shown = regard.show(maps, tokens=WORDS[:11], sample=1)
    layer = layer_of(shown)
    assert (layer["queries"], layer["keys"], layer["joined"], layer["steps"]) == (10, 10, True, 4)
    expected = maps.generation()[0].weights[1]
    torch.testing.assert_close(shown.payload.arrays["map0"].values, expected, atol=0.01, rtol=0)


def test_beams_are_not_joined_without_the_output_that_says_how(transformers):
    torch.manual_seed(0)
    small = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(**small, intermediate_size=16, eos_token_id=None, pad_token_id=0)
    model, prompt = transformers.LlamaForCausalLM(config).eval(), torch.randint(1, 50, (1, 6))
    options = {"max_new_tokens": 5, "num_beams": 3, "return_dict_in_generate": True, "output_scores": True}
    with torch.no_grad(), regard.capture(model) as maps:
        output = model.generate(prompt, **options)
    layer = layer_of(regard.show(maps))
    assert (layer["queries"], layer["joined"]) == (1, False)  # the latest of several calls, as the page says
    assert layer_of(regard.show(maps.generation(output)))["queries"] == 10
