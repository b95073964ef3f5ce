"""Tasks on streams of their own are ordered: after what came before, and before what comes next."""

import copy
from contextlib import contextmanager

import pytest
import torch

from regard.training import _muon
from regard.training import _side_by_side as module
from regard.training._muon import StackedMuon
from regard.training._side_by_side import side_by_side

CUDA = torch.device("cuda")
SHAPES = [(8, 24), (24, 8), (8, 24), (16, 16), (5, 3)]


class Streams:
    """A card of several streams: what each was given, with what must have ended before."""

    def __init__(self):
        self.given, self.current = [], None
        self.main = self.current = self.Stream(None)

    def work(self, name):
        self.given.append((name, self.current, frozenset(self.current.ended)))
        self.current.ended.add(name)

    class Stream:
        def __init__(self, _device):
            self.ended = set()

        def wait_stream(self, other):
            self.ended |= other.ended

    def current_stream(self, _device):
        return self.current

    @contextmanager
    def stream(self, stream):
        self.current, before = stream, self.current
        yield
        self.current = before


@pytest.fixture
def card(monkeypatch):
    card = Streams()
    monkeypatch.setattr(module, "_streams", copy.deepcopy(module._streams))
    for name in ("Stream", "current_stream", "stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(card, name))
    module._streams.clear()
    return card


def test_tasks_begin_after_and_end_before_the_current_stream(card):
    for call in (1, 2):
        card.work(f"before {call}")
        side_by_side([lambda at=at, call=call: card.work(f"{call}: {at}") for at in "abc"], CUDA)
        card.work(f"after {call}")
    done = {name: (stream, ended) for name, stream, ended in card.given}
    for call in (1, 2):
        tasks = [f"{call}: {at}" for at in "abc"]
        assert len({id(done[task][0]) for task in tasks}) == 3
        for task in tasks:
            stream, ended = done[task]
            assert stream is not card.main
            assert f"before {call}" in ended
            assert not ended & (set(tasks) - {task})  # they do not wait for each other
        stream, ended = done[f"after {call}"]
        assert stream is card.main
        assert set(tasks) <= ended
    # Another call has the same streams, each of which knows that all others have ended.
    assert all(done[f"1: {at}"][0] is done[f"2: {at}"][0] for at in "abc")
    assert all({"1: a", "1: b", "1: c"} <= done[f"2: {at}"][1] for at in "abc")


def test_one_task_and_no_task_need_no_stream(card):
    side_by_side([], CUDA)
    side_by_side([lambda: card.work("alone")], CUDA)
    assert [(name, stream is card.main) for name, stream, _ in card.given] == [("alone", True)]


def test_the_order_of_shapes_does_not_change_a_step_of_muon(monkeypatch):
    """Shapes share nothing, so they may run at the same time: backwards they are the same to the last bit."""
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in SHAPES]
    others = copy.deepcopy(ours)
    optimizers = [StackedMuon(each, lr=0.05, keep_norm=True) for each in (ours, others)]
    counts = []

    def backwards(tasks, device):
        counts.append((len(tasks), device.type))
        side_by_side(tasks[::-1], device)

    for _ in range(3):
        for own, other in zip(ours, others, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        optimizers[0].step()
        with monkeypatch.context() as changed:
            changed.setattr(_muon, "side_by_side", backwards)
            optimizers[1].step()
    assert counts == [(3, "cpu")] * 3
    for own, other in zip(ours, others, strict=True):
        assert own.equal(other)


def test_a_copied_optimizer_steps():
    weight = torch.nn.Parameter(torch.randn(4, 6))
    optimizer = copy.deepcopy(StackedMuon([weight]))
    [copied] = optimizer.param_groups[0]["params"]
    copied.grad = torch.randn(4, 6)
    before = copied.detach().clone()
    optimizer.step()
    assert not copied.equal(before)


@pytest.mark.gpu
def test_on_a_gpu_muon_takes_the_same_steps_in_one_stream_and_in_several(monkeypatch):
    ours = [torch.nn.Parameter(torch.randn(shape, device="cuda")) for shape in ((256, 900), (512, 900), (512, 300))]
    others = copy.deepcopy(ours)
    optimizers = [StackedMuon(each, lr=0.05, keep_norm=True) for each in (ours, others)]
    for _ in range(20):
        for own, other in zip(ours, others, strict=True):
            own.grad = torch.randn_like(own)
            other.grad = own.grad.clone()
        optimizers[0].step()
        with monkeypatch.context() as changed:
            changed.setattr(_muon, "side_by_side", lambda tasks, _: [task() for task in tasks])
            optimizers[1].step()
        for optimizer in optimizers:
            optimizer.zero_grad()
    for own, other in zip(ours, others, strict=True):
        assert own.equal(other)
