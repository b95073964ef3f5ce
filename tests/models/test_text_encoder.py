"""The text encoder: two heads, padding that is not seen, learning what was masked."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from regard.models import TextEncoder

SMALL = {"dim": 8, "depth": 2, "heads": 2, "hidden": 12}


@given(norm=st.sampled_from(["pre", "post"]), tokens=st.integers(1, 6), classes=st.integers(1, 4))
def test_shapes(norm, tokens, classes):
    model = TextEncoder(11, length=6, num_classes=classes, norm=norm, **SMALL).eval()
    numbers = torch.randint(11, (3, tokens))
    scores, intermediates = model(numbers, return_intermediates=True)
    assert scores.shape == (3, tokens, 11)
    assert [x.shape for x in intermediates] == [(3, tokens, 8)] * 2
    features = model.forward_features(numbers)
    torch.testing.assert_close(model.forward_tokens(features), scores)
    torch.testing.assert_close(model.forward_classes(features), model(numbers, head="classes"))
    assert model(numbers, head="classes").shape == (3, classes)


def test_padding_is_not_seen():
    model = TextEncoder(11, length=6, num_classes=3, **SMALL).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    numbers, keep = torch.randint(11, (2, 6)), torch.arange(6) < torch.tensor([[6], [4]])
    for head in ("tokens", "classes"):
        out = model(numbers, keep=keep, head=head)[1:]
        alone = model(numbers[1:, :4], head=head)
        torch.testing.assert_close(out[:, :4] if head == "tokens" else out, alone)


def test_tokens_see_both_sides():
    model = TextEncoder(11, length=6, **SMALL).double().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    numbers = torch.randint(11, (1, 6))
    changed = numbers.clone()
    changed[0, 3] = (numbers[0, 3] + 1) % 11
    assert ((model(numbers) - model(changed)).abs().amax(-1) > 1e-4).all()


def test_learns_what_was_masked():
    """Every second token repeats the one before it: a masked one can be read off its neighbor."""
    model = TextEncoder(6, length=8, dim=16, depth=1, heads=2, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    places = torch.arange(8)
    for _ in range(150):
        truth = torch.randint(1, 6, (64, 4)).repeat_interleave(2, 1)
        masked = places == torch.randint(8, (64, 1))
        scores = model(truth.masked_fill(masked, 0))
        loss = nn.functional.cross_entropy(scores[masked], truth[masked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert (scores[masked].argmax(-1) == truth[masked]).double().mean() > 0.95


def test_bad_input(user_errors):
    model = TextEncoder(11, length=6, **SMALL)
    numbers = torch.zeros(2, 6, dtype=torch.int64)
    calls = [
        (lambda: model(numbers, head="classes"), "num_classes=0: it has no head"),
        (lambda: model(numbers, head="words"), "head must be one of 'tokens', 'classes'"),
        (lambda: model(numbers.double()), "tokens must be token numbers"),
        (lambda: model(numbers - 1), "tokens holds numbers from -1"),
        (lambda: model(torch.zeros(2, 7, dtype=torch.int64)), "7 tokens from 0 go beyond the learned positions"),
        (lambda: model(numbers, keep=torch.ones(2, 5, dtype=torch.bool)), r"keep has shape \(2, 5\)"),
        (lambda: TextEncoder(11, num_classes=True), "num_classes must be a whole number"),
    ]
    for call, message in calls:
        with pytest.raises((TypeError, ValueError), match=message):
            call()
