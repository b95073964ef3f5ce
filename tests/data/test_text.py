"""The embedded text, its split, and samples of it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Loader, MaskedText, NextTokens, TextData, Vocabulary, embedded_text, load_text, mask_tokens
from regard.data._chronicle import chronicle

SIGMAS = 5  # fails by chance once in 1.7 million


def test_the_text_is_long_plain_and_always_the_same():
    text = embedded_text()
    assert 50_000 < len(text) < 100_000
    assert text.isascii()
    assert "{" not in text, "every blank is filled"
    assert chronicle(30) == chronicle(30)
    assert chronicle(30, seed=1) != chronicle(30)
    assert chronicle(30).startswith(chronicle(10)), "days do not depend on how many follow"
    assert all(paragraph.endswith(".") for paragraph in text.strip().split("\n\n"))


@pytest.mark.parametrize("level", ["word", "character"])
def test_parts_are_disjoint_and_whole(level):
    data = load_text(level)
    parts = [data.train, data.validation, data.test()]
    sizes = torch.tensor([len(part) for part in parts], dtype=torch.float64)
    torch.testing.assert_close(sizes / sizes.sum(), torch.tensor([0.8, 0.1, 0.1]).double(), rtol=0, atol=0.02)
    assert torch.cat(parts).tolist() == data.vocabulary.encode(data.text)
    if level == "character":
        assert data.vocabulary.decode(torch.cat(parts)) == data.text
    for part in parts:
        assert (part == data.vocabulary.unknown).float().mean() < 0.01


def test_masking_is_15_percent_and_80_10_10():
    vocabulary = Vocabulary([f"w{number}" for number in range(1000)], level="word")
    tokens = torch.randint(vocabulary.special_count, len(vocabulary), (400, 200))
    masked, targets = mask_tokens(tokens, vocabulary, torch.arange(400))
    asked = targets != -100
    count = asked.sum().item()

    def near(share, expected, of):
        return abs(share - expected) < SIGMAS * math.sqrt(expected * (1 - expected) / of)

    assert near(count / tokens.numel(), 0.15, tokens.numel())
    assert near((masked[asked] == vocabulary.mask).float().mean().item(), 0.8, count)
    # One random token in a thousand is the one that was there.
    assert near((masked[asked] == tokens[asked]).float().mean().item(), 0.1 + 0.0001, count)
    assert torch.equal(targets[asked], tokens[asked])
    assert torch.equal(masked[~asked], tokens[~asked])
    replaced = masked[asked & (masked != vocabulary.mask) & (masked != tokens)]
    assert replaced.min() >= vocabulary.special_count


@given(st.floats(0.0, 0.9), st.integers(1, 12))
def test_special_tokens_are_never_asked_for_and_each_row_is(rate, width):
    vocabulary = Vocabulary("abc")
    tokens = torch.randint(0, len(vocabulary), (30, width))
    tokens[:, 0] = 0
    masked, targets = mask_tokens(tokens, vocabulary, torch.arange(30), rate=rate)
    special = tokens < vocabulary.special_count
    assert bool((targets[special] == -100).all())
    assert torch.equal(masked[special], tokens[special])
    assert torch.equal((targets != -100).any(1), ~special.all(1))


@pytest.mark.parametrize("class_token", [False, True])
def test_masked_windows_are_the_same_for_any_split_over_processes(class_token):
    data = load_text("word")
    examples = MaskedText(data.train, data.vocabulary, 48, class_token=class_token)
    whole = Loader(examples, 16, seed=1).batch(3, 2)
    parts = [Loader(examples, 16, seed=1, rank=rank, world_size=2).batch(3, 2) for rank in range(2)]
    for field in whole._fields:
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))
    assert whole.tokens.shape == (16, 48 + class_token)
    assert bool((whole.tokens[:, 0] == data.vocabulary.class_).all()) is class_token
    original = torch.where(whole.targets == -100, whole.tokens, whole.targets)
    text = data.train.unfold(0, 48, 1)
    for row in original[:, int(class_token) :]:
        assert bool((text == row).all(1).any()), "a window of the text"


@given(st.integers(2, 200), st.integers(0, 20))
def test_windows_do_not_overlap_and_stay_inside(length, epoch):
    tokens = torch.arange(1000)
    examples = NextTokens(tokens, length)
    batch = examples.batch(torch.arange(len(examples)), seed=0, epoch=epoch)
    assert torch.equal(batch.targets, batch.tokens + 1)
    flat = batch.tokens.flatten()
    assert torch.equal(flat, torch.arange(flat[0], flat[0] + flat.numel()))
    assert len(examples) == 1000 // length - 1


def test_windows_begin_elsewhere_in_other_epochs():
    examples = NextTokens(torch.arange(1000), 100)
    begins = {examples.batch(torch.tensor([0]), seed=0, epoch=epoch).tokens[0, 0].item() for epoch in range(2000)}
    assert begins >= set(range(100)), "anywhere within a window"


def test_what_does_not_fit_is_refused(user_errors):
    data = load_text("word")
    with pytest.raises(ValueError, match="too few for windows of 50"):
        NextTokens(torch.arange(50), 50)
    with pytest.raises(ValueError, match="tokens must be an int64 tensor"):
        NextTokens(torch.rand(50), 5)
    with pytest.raises(ValueError, match=r"rate must lie in \[0, 1\)"):
        MaskedText(data.train, data.vocabulary, 16, rate=1.0)
    with pytest.raises(ValueError, match="tokens must be"):
        mask_tokens(data.train, data.vocabulary, torch.arange(3))
    with pytest.raises(ValueError, match="index must have one entry"):
        mask_tokens(data.train[:10].reshape(2, 5), data.vocabulary, torch.arange(3))
    with pytest.raises(ValueError, match="level must be one of"):
        load_text("syllable").vocabulary  # noqa: B018


def test_levels_that_are_none_are_refused_at_once(user_errors):
    with pytest.raises(ValueError, match="level must be one of 'character', 'word', got 'x'"):
        load_text("x")
    with pytest.raises(ValueError, match="level must be one of 'character', 'word', got None"):
        TextData("abc", None)
    with pytest.raises(TypeError, match="text must be a string"):
        TextData(3, "word")


def test_a_text_shows_its_beginning_only():
    data = load_text("character")
    assert repr(data).startswith("TextData('The village of Sallow")
    assert f"level='character', characters={len(data.text)}" in repr(data)
    assert len(repr(data)) < 120
    assert "…" not in repr(TextData("short", "word"))
