"""Text to numbers and back."""

import json
import string

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Vocabulary

LETTERS = Vocabulary(string.ascii_letters + " ", markers=("<U>", "<L>"))


@given(st.text(string.ascii_letters + " "), st.sampled_from(["", "<U> ", "<L> "]))
def test_characters_come_back(text, task):
    numbers = LETTERS.encode(task + text)
    assert LETTERS.decode(numbers) == task + text
    assert len(numbers) == len(text) + (2 if task else 0), "a marker is one token"


@given(st.lists(st.sampled_from(["the", "Cat", "sat,", "don't", "t-shirt", "end."]), max_size=8))
def test_words_come_back_in_lower_case(words):
    text = " ".join(words)
    vocabulary = Vocabulary.of(text, level="word")
    assert vocabulary.decode(vocabulary.encode(text)) == text.lower()
    assert vocabulary.unknown not in vocabulary.encode(text)


def test_an_unlisted_word_is_unknown_and_an_unlisted_character_an_error():
    words = Vocabulary.of("a cat", level="word")
    assert words.encode("a dog") == [words.numbers["a"], words.unknown]
    with pytest.raises(ValueError, match="character 'ä', which is not one of"):
        LETTERS.encode("Bär")


def test_special_tokens_have_fixed_places_and_padding_is_zero():
    for vocabulary in (LETTERS, Vocabulary("xyz"), Vocabulary.of("some words", level="word")):
        assert vocabulary.tokens[: vocabulary.special_count - len(vocabulary.markers)] == (
            "<pad>", "<begin>", "<end>", "<class>", "<mask>", "<unknown>",
        )  # fmt: skip
        assert vocabulary.pad == 0
        assert vocabulary.tokens[vocabulary.mask] == "<mask>"
        assert vocabulary.tokens[vocabulary.class_] == "<class>"


@given(st.lists(st.text("abc", max_size=6), min_size=1, max_size=5), st.booleans(), st.booleans())
def test_padding_is_masked_and_nothing_else_is(texts, begin, end):
    tokens, keep = LETTERS.pad_together(texts, begin=begin, end=end)
    assert torch.equal(keep, tokens != LETTERS.pad)
    assert keep.sum(1).tolist() == [len(text) + begin + end for text in texts]
    assert [LETTERS.decode(row) for row in tokens] == texts
    wider, _ = LETTERS.pad_together(texts, begin=begin, end=end, length=10)
    assert wider.shape == (len(texts), 10)


def test_decoding_stops_at_the_end():
    row = [LETTERS.begin, *LETTERS.encode("ab"), LETTERS.end, *LETTERS.encode("cd")]
    assert LETTERS.decode(row) == "ab"
    assert LETTERS.decode(row, keep_special=True) == "<begin>ab<end>cd"


def test_a_vocabulary_travels_as_json():
    for vocabulary in (LETTERS, Vocabulary.of("Some words, here.", level="word")):
        again = Vocabulary.from_dict(json.loads(json.dumps(vocabulary.to_dict())))
        assert again == vocabulary
        assert hash(again) == hash(vocabulary)
    assert Vocabulary("ab") != Vocabulary("ba")


def test_what_does_not_fit_is_refused(user_errors):
    with pytest.raises(ValueError, match="'a' occurs more than once"):
        Vocabulary("aba")
    with pytest.raises(ValueError, match="level must be one of"):
        Vocabulary("ab", level="syllable")
    with pytest.raises(ValueError, match="numbers must be in 0 … 7"):
        Vocabulary("ab").decode([8])
    with pytest.raises(ValueError, match="length is 1 but the longest text has 2"):
        Vocabulary("ab").pad_together(["ab"], length=1)
    with pytest.raises(TypeError, match="text must be a string"):
        Vocabulary("ab").encode(5)
