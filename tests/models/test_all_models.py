"""What holds for every model: saved and loaded the same, gradients everywhere, exported the same, all attention seen."""

import copy

import pytest
import torch
from torch import nn

from regard.layers import (
    AdditiveAttention,
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    RelativeAttention,
)
from regard.maps import capture
from regard.models import Pretrained, TextEncoder
from regard.models._seq2seq import DotAttention

ATTENTION = (
    AdditiveAttention,
    DotAttention,
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    RelativeAttention,
)


def test_save_and_load_give_the_same_model(case, tmp_path):
    case.model.save_pretrained(tmp_path / "saved")
    draws = torch.random.get_rng_state()
    loaded = type(case.model).from_pretrained(tmp_path / "saved")
    assert torch.equal(torch.random.get_rng_state(), draws)
    assert type(loaded) is type(case.model)
    assert not loaded.training
    assert repr(loaded) == repr(case.model)
    assert torch.equal(case.run(loaded), case.run())
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"config.json", "model.safetensors"}


def test_half_precision_is_kept(case, tmp_path):
    state = {name: value.clone() for name, value in case.model.bfloat16().state_dict().items()}
    case.model.save_pretrained(tmp_path)
    loaded = Pretrained.from_pretrained(tmp_path).state_dict()
    assert all(loaded[name].dtype == value.dtype and torch.equal(loaded[name], value) for name, value in state.items())


def test_gradients_reach_every_parameter(case):
    case.model.train()
    case.run().square().sum().backward()
    if isinstance(case.model, TextEncoder):
        case.run(head="classes").square().sum().backward()
    missing = [name for name, parameter in case.model.named_parameters() if parameter.grad is None]
    assert not missing
    assert all(parameter.grad.isfinite().all() for parameter in case.model.parameters())


def test_parameters_may_be_given_from_outside(case):
    given = {name: parameter.detach().clone() for name, parameter in case.model.named_parameters()}
    found = torch.func.functional_call(case.model, given, case.inputs, case.options)
    torch.testing.assert_close(found, case.run())


def test_a_copy_is_independent_and_remembers_its_arguments(case):
    other = copy.deepcopy(case.model)
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    assert not torch.equal(case.run(other), case.run())
    assert other.config == case.model.config


@pytest.mark.filterwarnings("ignore:The tensor attribute")  # torch's own recurrent modules
def test_exported_program_gives_the_same(case):
    program = torch.export.export(case.model, case.inputs, case.options)
    torch.testing.assert_close(case.run(program.module()), case.run(), atol=1e-6, rtol=1e-5)


def test_every_attention_layer_is_captured(case):
    layers = [name for name, module in case.model.named_modules() if isinstance(module, ATTENTION)]
    if not layers:
        pytest.skip("no attention in it")
    with torch.no_grad():
        expected = case.run()
        with capture(case.model) as maps:
            out = case.run()
    assert torch.equal(out, expected)
    assert set(maps) == set(layers)
    assert not maps.missed
    for name in maps:
        torch.testing.assert_close(maps[name].weights.sum(-1), torch.ones(maps[name].weights.shape[:-1]))
        assert maps[name].residual < 1e-5


def test_dropout_is_off_in_evaluation(case):
    assert torch.equal(case.run(), case.run())


def test_runs_under_autocast_and_in_double(case):
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert case.run().isfinite().all()
    case.model.double()
    inputs = tuple(x.double() if x is not None and x.is_floating_point() else x for x in case.inputs)
    assert case.model(*inputs, **case.options).dtype is torch.float64


def test_every_model_is_a_module_with_a_config(case):
    assert isinstance(case.model, nn.Module)
    rebuilt = type(case.model)(**case.model.config)
    assert {n: p.shape for n, p in rebuilt.named_parameters()} == {n: p.shape for n, p in case.model.named_parameters()}
