"""Memory of large maps: used again when nothing refers to it any more, and zero whenever it is given out."""

import gc
import threading

import pytest
import torch
from torch import nn

import regard
from regard.maps.weights import _map_memory
from regard.maps.weights._map_memory import FreedMemory, zeros

CPU = torch.device("cpu")
SHAPE = (2, 2**9, 2**10)  # 4 MiB of float32
SIZE = 2**22

pytestmark = pytest.mark.skipif(
    not hasattr(_map_memory.mmap, "MADV_FREE"), reason="this system does not take freed pages back"
)


@pytest.fixture
def freed(monkeypatch):
    """An empty store, which keeps two of these maps."""
    found = FreedMemory(2 * SIZE)
    monkeypatch.setattr(_map_memory, "_freed", found)
    return found


def test_memory_of_a_freed_map_is_used_again_and_zero(freed):
    made = zeros(SHAPE, torch.float32, CPU)
    place = made.data_ptr()
    made.fill_(7.0)
    del made
    assert freed.size == SIZE
    again = zeros((4, 2**18), torch.float32, CPU)
    assert again.data_ptr() == place
    assert freed.size == 0
    assert not again.any()


@pytest.mark.parametrize(
    "refer", [lambda x: x[1, 2:5], lambda x: x.numpy(), lambda x: torch.from_dlpack(x), nn.Parameter]
)
def test_memory_is_not_used_again_while_anything_refers_to_it(freed, refer):
    made = zeros(SHAPE, torch.float32, CPU).fill_(7.0)
    held = refer(made)
    del made
    other = zeros(SHAPE, torch.float32, CPU).fill_(1.0)
    assert freed.size == 0
    assert bool((held == 7.0).all())
    del held, other
    gc.collect()
    assert freed.size == 2 * SIZE


def test_no_more_is_kept_than_allowed_and_the_oldest_goes_first(freed):
    maps = [zeros(SHAPE, torch.float32, CPU) for _ in range(3)]
    places = [made.data_ptr() for made in maps]
    large = zeros((SIZE,), torch.float32, CPU)  # alone it is more than is kept
    del large
    assert freed.size == 0
    while maps:
        del maps[0]
    assert freed.size == 2 * SIZE
    assert zeros(SHAPE, torch.float32, CPU).data_ptr() in places[1:]


def test_another_size_or_a_small_map_takes_other_memory(freed):
    made = zeros(SHAPE, torch.float32, CPU)
    del made
    other = zeros((3, *SHAPE[1:]), torch.float32, CPU)
    small = zeros((2, 3), torch.float32, CPU)
    assert freed.size == SIZE
    assert not other.any()
    assert not small.any()


def test_threads_never_share_memory(freed):
    wrong = []

    def work(number: int) -> None:
        for _ in range(50):
            made = zeros(SHAPE, torch.float32, CPU)
            first = bool(made[0, 0].any()) or bool(made[-1, -1].any())
            made[0, 0], made[-1, -1] = number, number
            if first or float(made[0, 0, 0]) != number or float(made[-1, -1, -1]) != number:
                wrong.append(number)
            del made

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert freed.size <= 2 * SIZE


def test_memory_freed_while_the_store_is_in_use_is_returned_to_the_system(freed):
    made = zeros(SHAPE, torch.float32, CPU)
    with freed._lock:
        del made
        assert freed.take(SIZE) is None
    assert freed.size == 0


def test_maps_of_a_second_pass_are_those_of_the_model(freed):
    """Causal maps write half of their memory: what was in the other half must not be seen."""

    class Causal(nn.Module):
        def forward(self, x):
            return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    model, x = Causal(), torch.randn(1, 1, 1100, 8)
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    expected, place = maps[0].weights.clone(), maps[0].weights.data_ptr()
    maps[0].weights.fill_(3.0)  # whatever a user does to a map
    with torch.no_grad(), regard.capture(model) as maps:
        model(x)
    assert maps[0].weights.data_ptr() == place
    assert torch.equal(maps[0].weights, expected)
