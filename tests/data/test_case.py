"""The case task is always answered rightly, has exactly the wanted length and is the same everywhere."""

import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.data import CaseTask, Loader
from regard.data._case import _word_table

WORDS = set((Path(regard.data.__file__).parent / "files" / "words.txt").read_text().split())


@given(st.integers(1, 60), st.integers(0, 10**9), st.integers(0, 100))
def test_sentences_have_the_length_and_the_answer(length, index, seed):
    source, answer = CaseTask(length).example(index, seed=seed)
    marker, sentence = source[:3], source[4:]
    assert marker in ("<U>", "<L>")
    assert source[3] == " "
    assert len(sentence) == length
    assert answer == (sentence.upper() if marker == "<U>" else sentence.lower())
    assert {word.lower() for word in sentence.split(" ")} <= {word.lower() for word in WORDS}


@given(st.integers(1, 20), st.integers(0, 20), st.integers(0, 5))
def test_batches_hold_the_examples(shortest, more, epoch):
    task = CaseTask((shortest, shortest + more), size=50)
    batch = task.batch(torch.tensor([3, 41, 7]), seed=2, epoch=epoch)
    for row, index in enumerate((3, 41, 7)):
        source, answer = task.example(index + 50 * epoch, seed=2)
        assert task.vocabulary.decode(batch.source[row]) == source
        assert task.vocabulary.decode(batch.target[row]) == answer
        assert task.vocabulary.decode(batch.target_input[row]) == answer
        assert shortest <= len(answer) <= shortest + more
        assert batch.source_keep[row].sum() == len(answer) + 2
        assert batch.target_keep[row].sum() == len(answer) + 1
        assert batch.target[row, len(answer)] == task.vocabulary.end
    assert bool((batch.target_input[:, 0] == task.vocabulary.begin).all())
    assert torch.equal(batch.source_keep, batch.source != 0)
    assert batch.source.shape == (3, shortest + more + 2)
    assert batch.target.shape == batch.target_input.shape == batch.target_keep.shape == (3, shortest + more + 1)


def test_processes_side_by_side_are_one_process():
    task = CaseTask((4, 30), size=64)
    whole = Loader(task, 16, seed=5).batch(2, 1)
    parts = [Loader(task, 16, seed=5, rank=rank, world_size=4).batch(2, 1) for rank in range(4)]
    for field in whole._fields:
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))


def test_epochs_seeds_and_splits_bring_new_sentences():
    task = CaseTask(40, size=20)
    seen = [task.example(index)[0] for index in range(60)]
    assert len(set(seen)) == 60
    assert task.example(0, seed=1) != task.example(0)
    assert CaseTask(40, split="validation").example(0) != task.example(0)
    assert CaseTask(40, split="test").example(0) != CaseTask(40, split="validation").example(0)


def test_the_task_is_even_and_the_case_mixed():
    task = CaseTask(20)
    batch = task.batch(torch.arange(4000), seed=0, epoch=0)
    share = (batch.source[:, 0] == task.vocabulary.numbers["<U>"]).float().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / 4000**0.5
    first = task.vocabulary.numbers["a"]
    letters = batch.source[:, 2:][batch.source[:, 2:] >= first]
    upper = (letters >= first + 26).float().mean().item()
    # a quarter capitals, a quarter half of them, a quarter of words with one
    assert 0.375 < upper < 0.55


def test_every_word_and_every_length_comes_up():
    task = CaseTask((1, 24))
    batch = task.batch(torch.arange(8000), seed=0, epoch=0)
    lengths = batch.target_keep.sum(1) - 1
    assert lengths.unique().tolist() == list(range(1, 25))
    words = {word for row in batch.target for word in task.vocabulary.decode(row).lower().split()}
    assert len(words) > 0.99 * len(WORDS)


def test_the_word_list_fits_the_task():
    table = _word_table(torch.device("cpu"))
    assert len(table.lengths) == len(WORDS) >= 300
    assert all(word.isascii() and word.isalpha() for word in WORDS)
    assert table.lengths.unique().tolist() == list(range(1, 13)), "any rest of a sentence can be filled"


def test_it_goes_on_without_end():
    task = CaseTask(10, size=5)
    assert list(itertools.islice(task, 12)) == [task.example(index) for index in range(12)]


def test_the_first_sentences_are_pinned():
    """A trained model's data must not change from one version to the next."""
    assert CaseTask((8, 24)).example(2) == ("<U> Begin Off", "BEGIN OFF")


def test_what_does_not_fit_is_refused(user_errors):
    for length in (0, (5, 0), (9, 5), (1, 2, 3), (4,), ()):
        with pytest.raises(ValueError, match="length must be"):
            CaseTask(length)
    for length in (2.5, None, "ab", True, (1, 2.5), {4, 9}):
        with pytest.raises(TypeError, match="length must be a whole number"):
            CaseTask(length)
    with pytest.raises(ValueError, match="split must be one of"):
        CaseTask(5, split="dev")
    with pytest.raises(ValueError, match="size must be 1 or more"):
        CaseTask(5, size=0)
    with pytest.raises(ValueError, match="index must be"):
        CaseTask(5).example(-1)
    with pytest.raises(ValueError, match="source must begin with '<U> '"):
        CaseTask(5).answer("I am a student")
