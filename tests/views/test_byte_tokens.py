"""Tokens that spell bytes are shown as characters, whatever the tokenizer is."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.views import tokens_of
from regard.views._byte_tokens import joined, readable

tokenizers = pytest.importorskip("tokenizers", reason="transformers are not installed")
TEXT = "世界 café the world ’tis\n\n  x 👍"


@pytest.fixture(scope="module")
def byte_level():
    """A tokenizer as GPT-2, Llama 3 and Qwen have it, trained on one sentence."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<|ä|>"], show_progress=False
    )
    made.train_from_iterator([TEXT] * 5, trainer)
    return made


def plain(tokens):
    """The text of tokens."""
    return joined(tokens).replace("Ġ", " ").replace("Ċ", "\n")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="ĠĊ<>"), min_size=1))
def test_any_text_can_be_read_in_its_tokens(byte_level, text):
    encoded = byte_level.encode(text)
    assert plain(tokens_of(byte_level, encoded.ids)) == text
    if any(token.startswith("Ġ") for token in encoded.tokens):
        assert plain(readable(encoded.tokens)) == text  # without the tokenizer


def test_a_page_has_the_characters_and_not_the_letters_of_their_bytes(byte_level):
    encoded = byte_level.encode("世界 café 猫<|ä|>")
    expected = ["世界", "Ġcafé", "Ġ", "<0xE7>", "<0x8C>", "<0xAB>", "<|ä|>"]
    count = len(expected)
    maps = torch.rand(2, count, count).softmax(-1)
    for given_tokens in ({"tokenizer": byte_level, "ids": encoded.ids}, {"tokens": encoded.tokens}):
        assert regard.show(maps, **given_tokens).payload.meta["tokens"]["text"] == expected
        assert regard.show(maps, maps, **given_tokens).payload.meta["tokens"][0] == expected
        mixed = regard.show(maps, segments=[("text", count - 4), ("image", (2, 2))], **given_tokens)
        assert mixed.payload.meta["tokens"][: count - 4] == expected[:-4]


def test_bytes_become_characters_in_words(byte_level):
    encoded = byte_level.encode("the 猫 x")
    maps = torch.rand(2, len(encoded.ids), len(encoded.ids)).softmax(-1)
    shown = regard.show(maps, tokenizer=byte_level, ids=encoded.ids, words=True)
    assert shown.payload.meta["tokens"]["text"] == ["the", "Ġ猫", "Ġx"]
    pieces = ["▁a", "▁", "<0xE7>", "<0x8C>", "<0xAB>", "</s>"]
    shown = regard.show(torch.rand(2, 6, 6).softmax(-1), tokens=pieces, words=True)
    assert shown.payload.meta["tokens"]["text"] == ["▁a", "▁猫", "</s>"]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        # CLIP: bytes, and a mark at the end of each word
        (
            ["<|start|>", "un", "able</w>", "<</w>", "çĮ", "«</w>", "<|end|>"],
            ["<|start|>", "unable</w>", "<</w>", "猫</w>", "<|end|>"],
        ),
        (["a</w>", "b", "c"], ["a</w>", "bc"]),
        (["un@@", "able", "st@@", "ory@@"], ["unable", "story@@"]),
        (["##a", "un", "##able@@", "b"], ["a", "unable@@", "b"]),
    ],
)
def test_words_end_and_go_on_where_their_marks_say(pieces, words):
    weights = torch.rand(1, len(pieces), len(pieces)).softmax(-1)
    assert regard.show(weights, tokens=pieces, words=True).payload.meta["tokens"]["text"] == words


def test_a_tokenizer_of_bytes_may_mark_the_end_of_words():
    class Tokenizer:
        """As CLIP's: it decodes the mark as a space."""

        def convert_ids_to_tokens(self, ids):
            return [["cafÃ©</w>", "is</w>"][one] for one in ids]

        def decode(self, ids):
            return "".join(["café ", "is "][one] for one in ids)

    assert tokens_of(Tokenizer(), [0, 1]) == ["café</w>", "is</w>"]


@pytest.mark.parametrize(
    "tokens",
    [
        ["Ġcafé", "Ġx"],  # read before
        ["Ġorġ", "ħa"],  # Maltese
        ["Ã©", "â"],  # letters without the mark of byte-level BPE
        ["▁é", "▁Ã"],
        ["Ġthe", "Ġ猫"],
    ],
)
def test_letters_that_are_no_bytes_stay(tokens):
    assert readable(tokens) == tokens


def test_a_tokenizer_of_letters_keeps_them():
    """The same letters, of a tokenizer that does not spell bytes."""

    class Letters:
        def convert_ids_to_tokens(self, ids):
            return [chr(one) for one in ids]

        def decode(self, ids):
            return "".join(map(chr, ids))

    assert tokens_of(Letters(), [ord(letter) for letter in "Ã©Ġx"]) == list("Ã©Ġx")
