"""Captions say what pictures show, or do not where they should not."""

import dataclasses

import pytest
import torch

from regard.data import Captions, Loader, load, normalize
from regard.data._captions import NOUNS


@pytest.fixture(scope="module")
def data():
    return load("fashion-mini").train


@pytest.fixture(scope="module")
def captions(data):
    return Captions(data, size=3000)


@pytest.fixture(scope="module")
def batch(captions):
    return captions.batch(torch.arange(3000), seed=0, epoch=0)


def test_a_caption_matches_exactly_where_it_says_so(captions, batch):
    for tokens, content, matches in zip(batch.tokens, batch.content.tolist(), batch.matches, strict=True):
        assert (captions.vocabulary.decode(tokens) == captions.caption(tuple(content))) is bool(matches)
    share = batch.matches.float().mean().item()
    assert abs(share - 0.5) < 5 * 0.5 / 3000**0.5
    assert bool(Captions(captions.set, matching=1.0).batch(torch.arange(500), seed=0, epoch=0).matches.all())


def test_pictures_are_the_sets_images_side_by_side(data, batch):
    images = normalize(data.images, data.mean, data.std)
    black = normalize(torch.zeros(1, 1, 28, 28, dtype=torch.uint8), data.mean, data.std)[0]
    for at in range(60):
        for label, half in zip(batch.content[at].tolist(), batch.images[at].split(28, -1), strict=True):
            if label == -1:
                assert torch.equal(half, black)
            else:
                same = (images[data.labels == label] == half).flatten(1).all(1)
                assert bool(same.any())


def test_every_form_is_equally_frequent(batch):
    left, right = batch.content.unbind(1)
    single, twice = (left == -1) | (right == -1), left == right
    for share in (single, twice, ~single & ~twice):
        assert abs(share.float().mean().item() - 1 / 3) < 5 * (2 / 9 / 3000) ** 0.5
    on_the_right = (left == -1).sum() / single.sum()
    assert abs(on_the_right.item() - 0.5) < 5 * 0.5 / single.sum().item() ** 0.5


def test_words():
    assert Captions.caption((8, 8)) == "two bags"
    assert Captions.caption((5, -1)) == Captions.caption((-1, 5)) == "a sandal"
    assert Captions.caption((9, 1)) == "an ankle boot and a pair of trousers"
    assert len({Captions.caption((a, b)) for a in range(-1, 10) for b in range(-1, 10) if (a, b) != (-1, -1)}) == 110
    assert all(one.split()[-1] in two or one.split()[1] in two for one, two in NOUNS)


def test_processes_side_by_side_are_one_process(captions):
    whole = Loader(captions, 12, seed=4).batch(1, 3)
    parts = [Loader(captions, 12, seed=4, rank=rank, world_size=3).batch(1, 3) for rank in range(3)]
    for field in whole._fields:
        assert torch.equal(getattr(whole, field), torch.cat([getattr(part, field) for part in parts]))
    assert torch.equal(whole.keep, whole.tokens != 0)


def test_what_does_not_fit_is_refused(data, user_errors):
    with pytest.raises(ValueError, match="Fashion-MNIST's 10 classes"):
        Captions(dataclasses.replace(data, classes=("a", "b")))
    with pytest.raises(ValueError, match="some of each class"):
        Captions(data.select(data.labels != 3))
    with pytest.raises(ValueError, match="matching must lie in"):
        Captions(data, matching=1.5)
    with pytest.raises(ValueError, match="one class at least"):
        Captions.caption((-1, -1))
