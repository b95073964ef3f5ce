"""On which device kernels are launched. No second GPU is needed: the interpreter launches here, and tests look on."""

import contextlib
import math
import sys

import pytest
import torch

from regard.functional import DecayProfile, gaussian_attention, kernels, placed_attention, plan_for, separable_attention


@pytest.mark.parametrize("compiled", [False, True])
def test_the_device_of_the_tensors_is_current_at_every_launch(compiled, monkeypatch):
    """Triton launches on the current device, and a model may span several. Small planes and scans were launched on the first.

    ``compiled``: as custom operators, as compiled code calls them."""
    interpreter = pytest.importorskip("triton.runtime.interpreter").InterpretedFunction
    inside, launched = [], set()

    @contextlib.contextmanager
    def current(x):
        inside.append(x)
        yield
        inside.pop()

    def run(self, *given, **options):
        assert inside
        launched.add(self.fn.__name__)
        return interpreted(self, *given, **options)

    interpreted = interpreter.run
    monkeypatch.setattr(interpreter, "run", run)
    for name, module in list(sys.modules.items()):
        if name.startswith("regard.functional.kernels") and hasattr(module, "on_device_of"):
            monkeypatch.setattr(module, "on_device_of", current)
    monkeypatch.setattr(kernels, "_as_operator", lambda: compiled)
    center, sharpness = torch.randn(2, 2), torch.ones(2, 2)
    queries = [torch.arange(20.0) + 0.5, torch.arange(3.0)]
    for grid, given in (((4, 5), None), ((20, 3), None), ((20, 3), queries), ((140, 1), None)):
        value = torch.randn(1, 2, math.prod(grid), 4)
        gaussian_attention(value, center, sharpness, grid, queries=given, plan="separable" if given else "auto")
    value = torch.randn(1, 2, 140, 4)
    separable_attention(value, [DecayProfile(torch.ones(2))], (140,), plan="scans")
    wide = torch.randn(2, 1), torch.full((2, 1), 1e-4)
    gaussian_attention(value, *wide, (140,), plan=plan_for(*wide, (140,)))
    placed_attention(*[value[..., :6, :].half()] * 3, center, sharpness, (2, 3))
    assert {"plane_forward", "matrices_forward", "pass_forward", "stream_forward", "block_sums", "mix_rows"} <= launched
    assert "placed_columns" in launched
