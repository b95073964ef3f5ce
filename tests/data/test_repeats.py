"""Windows whose pieces come again: what is asked for can be looked up, and nothing else is asked for."""

import pytest
import torch

from regard.data import RepeatedPieces


def looked_up(text, at):
    """The characters that followed earlier occurrences of the two characters before ``at``."""
    pair = text[at - 2 : at]
    return {text[i + 2] for i in range(at - 2) if text[i : i + 2] == pair}


def test_what_is_asked_for_followed_the_same_two_letters_before():
    examples = RepeatedPieces(48, size=40)
    batch = examples.batch(torch.arange(40), seed=3, epoch=1)
    decode = examples.vocabulary.decode
    asked = 0
    for tokens, targets in zip(batch.tokens, batch.targets, strict=True):
        text = decode(tokens)
        for at in range(1, 47):
            if targets[at] != -100:
                asked += 1
                assert decode(targets[at : at + 1]) == text[at + 1]
                assert text[at + 1] in looked_up(text, at + 1)
    assert asked > 40 * 10


def test_windows_are_new_in_each_epoch_and_split():
    draw = lambda split, epoch: RepeatedPieces(size=4, split=split).batch(torch.arange(4), seed=0, epoch=epoch).tokens  # noqa: E731
    first = draw("train", 0)
    assert bool((first == draw("train", 0)).all())
    assert not bool((first == draw("train", 1)).all())
    assert not bool((first == draw("test", 0)).all())


def test_wrong_sizes_are_refused():
    with pytest.raises(ValueError, match="pieces"):
        RepeatedPieces(pieces=0)
