"""Text with images in it, names from a tokenizer, and words made of subwords."""

import pytest
import torch

import regard
from regard.maps import ImageTokens, check_segments, find_segments

TEXT = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}


def llava(transformers):
    vision = transformers.CLIPVisionConfig(**VISION)
    config = transformers.LlavaConfig(
        vision_config=vision, text_config=transformers.LlamaConfig(**TEXT), image_token_id=59
    )
    return transformers.LlavaForConditionalGeneration(config), (4, 4), {"pixel_values": torch.randn(1, 3, 32, 32)}


def paligemma(transformers):
    vision = transformers.SiglipVisionConfig(**VISION, vision_use_head=False)
    text = transformers.GemmaConfig(**TEXT, head_dim=8)
    config = transformers.PaliGemmaConfig(
        vision_config=vision, text_config=text, image_token_id=59, projection_dim=32, pad_token_id=0
    )
    return transformers.PaliGemmaForConditionalGeneration(config), (4, 4), {"pixel_values": torch.randn(1, 3, 32, 32)}


def qwen(transformers):
    vision = {
        "depth": 1,
        "embed_dim": 16,
        "hidden_size": 32,
        "num_heads": 2,
        "patch_size": 4,
        "spatial_merge_size": 2,
        "mlp_ratio": 2,
    }
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}
    config = transformers.Qwen2VLConfig(
        text_config={**TEXT, "rope_parameters": rope, "rope_scaling": rope}, vision_config=vision,
        image_token_id=59, vision_start_token_id=58, vision_end_token_id=57, video_token_id=56,
    )  # fmt: skip
    patches = torch.randn(4 * 6, 3 * 2 * 4 * 4)  # an image of 4 × 6 patches, of which squares of 4 become one token
    given = {"pixel_values": patches, "image_grid_thw": torch.tensor([[1, 4, 6]])}
    return transformers.Qwen2VLForConditionalGeneration(config), (2, 3), given


@pytest.mark.parametrize("family", [llava, paligemma, qwen])
def test_the_image_is_found_in_the_text(transformers, family):
    model, grid, given = family(transformers)
    count = grid[0] * grid[1]
    ids = torch.tensor([[5, 58, *[59] * count, 57, 7, 8]])
    if family is qwen:
        given["mm_token_type_ids"] = (ids == 59).int()
    with torch.no_grad(), regard.capture(model.eval()) as maps:
        model(input_ids=ids, attention_mask=torch.ones_like(ids), **given)
    text = maps["*language_model*"]
    image = torch.rand(3, 8 * grid[0], 8 * grid[1])
    payload = regard.show(text, ids=ids, image=image).payload
    assert payload.view == "mixed"
    expected = [(0, 2, None), (2, count, grid), (2 + count, 3, None)]
    assert [(each["start"], each["count"], each["grid"]) for each in payload.meta["segments"]] == expected
    weights = text[-1].weights[0]
    torch.testing.assert_close(payload.arrays["map0"].values, weights, atol=0.005, rtol=0)
    before, patches, after = regard.rollout(text, segments=payload_segments(payload))
    assert (before.shape[-1], patches.shape[-2:], after.shape[-1]) == (2, grid, 3)
    torch.testing.assert_close(patches.flatten(-2), regard.rollout(text)[..., 2 : 2 + count])


def payload_segments(payload):
    return [
        ("text", each["count"]) if each["grid"] is None else ("image", each["grid"])
        for each in payload.meta["segments"]
    ]


def test_segments_lie_where_they_are_said_to_lie(tmp_path):
    weights = torch.rand(2, 9, 9).softmax(-1)
    segments = [("text", 2), ("image", (2, 2)), ("text", 1), ("image", (1, 2))]
    pictures = [torch.zeros(3, 4, 4), torch.ones(3, 2, 4)]
    show = regard.show(weights, tokens=["a", "b", "c"], image=pictures, segments=segments)
    meta = show.payload.meta
    assert meta["tokens"] == ["a", "b", "(0, 0)", "(0, 1)", "(1, 0)", "(1, 1)", "c", "(0, 0)", "(0, 1)"]
    assert (meta["images"], show.payload.arrays["image1"].shape) == (2, (2, 4, 3))
    assert "Text and image attention" in show.save(tmp_path / "mixed.html").read_text("utf-8")
    assert "<svg" in show.save(tmp_path / "mixed.svg", query=6).read_text("utf-8")
    parts = [segment.part(weights) for segment in check_segments(segments, 9)]
    assert [tuple(part.shape[2:]) for part in parts] == [(2,), (2, 2), (1,), (1, 2)]
    assert torch.equal(parts[1][:, :, 1, 0], weights[:, :, 4])


WRONG = {
    "segments have 3 tokens in all, but the maps attend over 4": {"segments": [("text", 3)]},
    "got \\('audio', 4\\) among them": {"segments": [("audio", 4)]},
    "got \\('image', 4\\) among them": {"segments": [("image", 4)]},
    "image has 2 pictures, but segments have 1": {"segments": [("image", (2, 2))], "image": [torch.zeros(3, 2, 2)] * 2},
    "tokens has 3 entries, but segments have 4 tokens, 0 of them": {
        "segments": [("image", (2, 2))],
        "tokens": list("abc"),
    },
    "ids is None, but must be given with a tokenizer": {"tokenizer": object()},
    "tokenizer must have convert_ids_to_tokens": {"tokenizer": 3, "ids": [1, 2, 3, 4]},
    "needs tokens with subword marks": {"tokens": list("abcd"), "words": True},
    "needs the tokens of one text": {"words": True},
}


@pytest.mark.parametrize("message", list(WRONG))
def test_wrong_arguments_are_named(message, user_errors):
    with pytest.raises((ValueError, TypeError), match=message):
        regard.show(torch.rand(1, 4, 4).softmax(-1), **WRONG[message])


def test_a_size_that_is_not_stated_is_not_guessed():
    with pytest.raises(ValueError, match="36 image tokens stand together, for which the configuration states no size"):
        find_segments([1, *[9] * 36, 2], ImageTokens(9))
    assert find_segments([1, *[9] * 36, 2], ImageTokens(9), (4, 9))[1].grid == (4, 9)
    assert [each.grid for each in find_segments([9] * 8, ImageTokens(9, (2, 2)))] == [(2, 2), (2, 2)]
    with pytest.raises(ValueError, match="there is no image in the text"):
        find_segments([1, 2], ImageTokens(9, (2, 2)))


class Tokenizer:
    words = ("[CLS]", "un", "##believ", "##able", "story")

    def convert_ids_to_tokens(self, ids):
        return [self.words[i] for i in ids]


def test_a_tokenizer_spells_the_ids():
    ids = torch.tensor([[0, 4, 4], [0, 1, 3]])
    payload = regard.show(torch.rand(2, 1, 3, 3).softmax(-1), tokenizer=Tokenizer(), ids=ids, sample=1).payload
    assert payload.meta["tokens"] == {"text": ["[CLS]", "un", "##able"]}


def test_subwords_are_summed_over_keys_and_averaged_over_queries():
    weights = torch.rand(1, 2, 5, 5).softmax(-1)
    payload = regard.show(weights, tokenizer=Tokenizer(), ids=torch.arange(5), words=True).payload
    assert payload.meta["tokens"] == {"text": ["[CLS]", "unbelievable", "story"]}
    summed = torch.stack([weights[0, :, :, 0], weights[0, :, :, 1:4].sum(-1), weights[0, :, :, 4]], -1)
    expected = torch.stack([summed[:, 0], summed[:, 1:4].mean(1), summed[:, 4]], 1)
    torch.testing.assert_close(payload.arrays["map0"].values, expected, atol=0.005, rtol=0)
    torch.testing.assert_close(expected.sum(-1), torch.ones(2, 3))
