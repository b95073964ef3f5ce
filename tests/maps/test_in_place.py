"""Attention that changes its weights in place: the model computes what it computes alone, and the map is what it used."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import regard

EYE = torch.eye(5, dtype=torch.bool)


def subtract(x, y):
    x -= 0.3 * y
    return x


def accumulate(x, y):
    total = torch.zeros_like(x)
    for each in (x, y):
        total += each / 2
    return total


def write_a_head(x, y):
    x[:, 1] = y[:, 1]
    return x


def add_a_number(x, y):
    x += 0.1
    return x


def hide_a_key(x, y):
    x[..., 0] = 0
    return x


# Two softmaxes of scores -> the weights that are multiplied with values. The first may be changed in place.
CHANGES = {
    "-=": subtract,
    "sub_": lambda x, y: x.sub_(y, alpha=0.3),
    "add_": lambda x, y: x.add_(y),
    "mul_": lambda x, y: x.mul_(y),
    "lerp_": lambda x, y: x.lerp_(y, 0.3),
    "addcmul_": lambda x, y: x.addcmul_(y, torch.ones(()), value=0.2),
    "index_add_": lambda x, y: x.index_add_(1, torch.tensor([0]), y[:, :1]),
    "accumulated": accumulate,
    "written": write_a_head,
}
# With dropout of one of them or both. What the functions do with weights before dropout is the map.
DROPPED = {
    **{name: CHANGES[name] for name in ("-=", "sub_", "add_", "lerp_", "addcmul_", "accumulated", "index_add_")},
    "a new tensor": lambda x, y: x + 0.5 * y,
    "a number": add_a_number,
    "a hidden key": hide_a_key,
    "masked_fill_": lambda x, y: x.masked_fill_(EYE, 0),
    "tril_": lambda x, y: x.tril_(),
}


class TwoSoftmaxes(nn.Module):
    num_heads = 3

    def __init__(self, change, first=0.0, second=0.0):
        super().__init__()
        self.change, self.first, self.second = change, first, second

    def weights(self, q, k, first=0.0, second=0.0):
        one, two = (q @ k.mT).softmax(-1), (k @ q.mT).softmax(-1)
        entered = one.clone()
        used = self.change(F.dropout(one, first) if first else one, F.dropout(two, second) if second else two)
        return used, one, entered

    def forward(self, q, k, v):
        used, self.kept, self.entered = self.weights(q, k, self.first, self.second)
        return used @ v


def captured(model, *tensors):
    torch.manual_seed(1)
    alone = model(*tensors)
    torch.manual_seed(1)
    with regard.capture(model) as maps:
        out = model(*tensors)
    assert torch.equal(out, alone)
    assert not maps.missed
    assert list(maps) == ["TwoSoftmaxes"]
    assert maps[0].agrees
    return maps[0].weights


@pytest.mark.parametrize("name", list(CHANGES))
def test_two_maps_that_become_one_in_place_are_one_map(name):
    torch.manual_seed(0)
    model, (q, k, v) = TwoSoftmaxes(CHANGES[name]), torch.randn(3, 2, 3, 5, 4).unbind(0)
    torch.testing.assert_close(captured(model, q, k, v), model.weights(q, k)[0])


@pytest.mark.parametrize(("first", "second"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.5)])
@pytest.mark.parametrize("name", list(DROPPED))
def test_dropout_before_a_change_in_place_stays_out_of_the_map(name, first, second):
    torch.manual_seed(0)
    model, (q, k, v) = TwoSoftmaxes(DROPPED[name], first, second), torch.randn(3, 2, 3, 5, 4).unbind(0)
    if name in ("a number", "a hidden key", "masked_fill_", "tril_") and second:
        model.change = lambda x, y: DROPPED[name](x + y, y)  # these functions do not use the second one
    found = captured(model, q, k, v)
    torch.testing.assert_close(found, model.weights(q, k)[0])


def test_what_entered_dropout_is_not_changed_by_a_capture():
    """A model may return its weights without dropout, after it changed those with dropout in place."""
    model, (q, k, v) = TwoSoftmaxes(add_a_number, first=0.5), torch.randn(3, 2, 3, 5, 4).unbind(0)
    captured(model, q, k, v)
    assert torch.equal(model.kept, model.entered)


def test_a_change_in_place_that_cannot_be_followed_is_missed():
    """The weights after dropout are overwritten by the result of a function that has another name than in place."""
    change, tensors = (lambda x, y: torch.clamp(x, max=0.3, out=x)), torch.randn(3, 2, 3, 5, 4).unbind(0)
    model = TwoSoftmaxes(change, first=0.5)
    with torch.no_grad(), pytest.warns(UserWarning, match="no map was captured"), regard.capture(model) as maps:
        model(*tensors)
    assert [missed.name for missed in maps.missed] == ["TwoSoftmaxes"]
    assert torch.equal(model.kept, model.entered)


class MaskedAtRandom(nn.Module):
    num_heads = 3

    def forward(self, q, k, v):
        scores = q @ k.mT
        hidden = scores.masked_fill(torch.rand_like(scores) < 0.3, -1e9)
        return torch.softmax(hidden, -1, out=torch.empty_like(scores)) @ v


class NoisyScores(nn.Module):
    num_heads = 3

    def forward(self, q, k, v):
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        hidden = torch.where(torch.rand(len(q), q.shape[1], k.shape[1]) < 0.3, -1e9, 0.0)
        scores = torch.baddbmm(hidden, q, k.mT, out=torch.empty_like(hidden))
        return scores.softmax(-1) @ v


INTO_A_TENSOR = {
    "cat": TwoSoftmaxes(lambda x, y: torch.cat([x[:, :1], x[:, 1:]], 1, out=torch.empty_like(x)), first=0.5),
    "stack": TwoSoftmaxes(lambda x, y: torch.stack(x.unbind(1), 1, out=torch.empty_like(x)), first=0.5),
    "softmax": MaskedAtRandom(),
    "baddbmm": NoisyScores(),
}


@torch.no_grad()
@pytest.mark.parametrize("name", list(INTO_A_TENSOR))
def test_a_result_in_a_tensor_of_the_model_is_not_overwritten_by_what_entered_dropout(name):
    model, tensors = INTO_A_TENSOR[name], torch.randn(3, 2, 3, 5, 4).unbind(0)
    torch.manual_seed(1)
    alone = model(*tensors)
    torch.manual_seed(1)
    with regard.capture(model) as maps:
        out = model(*tensors)
    assert torch.equal(out, alone)
    q, k, _ = tensors
    torch.testing.assert_close(maps[0].weights.reshape(2, 3, 5, 5), (q @ k.mT).softmax(-1))
