"""Which parameter decays, how fast it learns, and which optimizer it belongs to."""

import copy
import json

import pytest
import torch
from torch import nn

from regard.layers import LayerNorm
from regard.models import ImageEncoder, ResNet18, Seq2SeqRNN, TextEncoder, VisionTransformer
from regard.training import AdamWSettings, MuonSettings, SGDSettings
from regard.training._optimizer_settings import parameters_of
from regard.training._optimizer_state import optimizer_state, restore_optimizers, set_learning_rates

MODELS = {
    "gaussian": lambda: ImageEncoder(8, 2, 3, dim=8, depth=2, heads=4, hidden=8),
    "diagonal": lambda: ImageEncoder(8, 2, 3, dim=8, depth=1, heads=4, hidden=8, attention="gaussian-diagonal"),
    "full": lambda: ImageEncoder(8, 2, 3, dim=8, depth=1, heads=4, hidden=8, attention="gaussian-full"),
    "gated": lambda: ImageEncoder(8, 2, 3, dim=8, depth=1, heads=4, hidden=8, attention="gated"),
    "relative": lambda: ImageEncoder(8, 2, 3, dim=8, depth=1, heads=4, hidden=8, attention="relative-content"),
    "class token": lambda: VisionTransformer(8, 4, 3, dim=8, depth=1, heads=2, hidden=8, registers=2),
    "attention pooling": lambda: VisionTransformer(
        8, 4, 3, dim=8, depth=1, heads=2, hidden=8, pool="attention", positions="relative"
    ),
    "resnet": lambda: ResNet18(3, width=4),
    "recurrent": lambda: Seq2SeqRNN(9, dim=4, hidden=4),
    "text": lambda: TextEncoder(9, length=6, dim=8, depth=1, heads=2, hidden=8),
}
OPTIMIZERS = {
    "adamw": AdamWSettings(1e-2, weight_decay=0.1, center_factor=5.0),
    "sgd": SGDSettings(1e-2, weight_decay=0.1, center_factor=5.0),
    "muon": MuonSettings(1e-2, weight_decay=0.1, center_factor=5.0, matrix_weight_decay=0.3),
}


def _settings(network, optimizers):
    """(learning rate, weight decay, optimizer) by the parameter's name."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    return {
        names[id(parameter)]: (group["lr"], group["weight_decay"], type(optimizer).__name__)
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
    }


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_every_trained_parameter_is_in_exactly_one_group(build, settings):
    network = build()
    frozen = next(iter(network.parameters())).requires_grad_(False)
    held = [p for o in settings.build(network) for group in o.param_groups for p in group["params"]]
    assert len(held) == len({id(p) for p in held})
    assert {id(p) for p in held} == {id(p) for p in network.parameters() if p.requires_grad}
    assert all(p is not frozen for p in held)


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_centers_sharpness_norms_and_biases_do_not_decay_and_matrices_do(build, settings):
    network = build()
    found = _settings(network, settings.build(network))
    norms = (LayerNorm, nn.LayerNorm, nn.BatchNorm2d)
    exempt = {
        f"{path}.{name}".removeprefix(".")
        for path, module in network.named_modules()
        for name, parameter in module.named_parameters(recurse=False)
        if isinstance(module, norms)
        or "bias" in name
        or parameter.ndim < 2
        or any(word in name for word in ("center", "sharpness", "root"))
    }
    for name, (_, decay, _) in found.items():
        assert (decay == 0) == (name in exempt), name
    assert exempt
    assert exempt != set(found)


def test_centers_learn_at_a_multiple_of_the_rate():
    network = MODELS["gaussian"]()
    for settings in OPTIMIZERS.values():
        found = _settings(network, settings.build(network))
        centers = [rate for name, (rate, _, _) in found.items() if name.endswith("center")]
        assert centers == [pytest.approx(5e-2)] * 2
        assert found["blocks.0.attention.positions.log_sharpness"][0] == 1e-2


@pytest.mark.parametrize("build", MODELS.values(), ids=MODELS)
def test_muon_has_the_hidden_matrices_and_adamw_the_rest(build):
    network = build()
    found = _settings(network, OPTIMIZERS["muon"].build(network))
    for name, parameter in network.named_parameters():
        if found[name][2] == "StackedMuon":
            assert parameter.ndim == 2
            assert "weight" in name
            assert not any(word in name for word in ("head.", "embedding", "position", "bias"))
    inner = [name for name in found if ".feed_forward." in name and name.endswith("weight")]
    assert all(found[name][2] == "StackedMuon" for name in inner)
    assert inner or isinstance(network, ResNet18 | Seq2SeqRNN)


def test_the_schedule_multiplies_every_groups_own_peak():
    network = MODELS["gaussian"]()
    optimizers = OPTIMIZERS["muon"].build(network)
    before = _settings(network, optimizers)
    for factor in (0.5, 0.1, 1.0):
        set_learning_rates(optimizers, factor)
        after = _settings(network, optimizers)
        assert {name: rate for name, (rate, _, _) in after.items()} == {
            name: pytest.approx(factor * rate) for name, (rate, _, _) in before.items()
        }


@pytest.mark.parametrize("settings", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_restored_optimizers_take_the_same_next_step(settings):
    torch.manual_seed(1)
    network = MODELS["gaussian"]()
    images = torch.randn(4, 3, 8, 8)

    def step(network, optimizers):
        network(images).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    optimizers = settings.build(network)
    step(network, optimizers)
    tensors, numbers = optimizer_state(optimizers, {id(p): name for name, p in network.named_parameters()})
    tensors = {name: value.clone() for name, value in tensors.items()}
    twin = copy.deepcopy(network)
    restored = settings.build(twin)
    restore_optimizers(restored, {id(p): name for name, p in twin.named_parameters()}, tensors, numbers)
    step(network, optimizers)
    step(twin, restored)
    for (name, left), right in zip(network.named_parameters(), twin.parameters(), strict=True):
        assert torch.equal(left, right), name


def test_options_that_fit_a_device_are_those_of_the_machine_that_resumes():
    layer = nn.Linear(3, 3)
    names = {id(parameter): name for name, parameter in layer.named_parameters()}
    on_a_gpu = torch.optim.AdamW(layer.parameters(), lr=0.3, capturable=True)
    tensors, numbers = optimizer_state([on_a_gpu], names)
    here = torch.optim.AdamW(layer.parameters(), lr=0.1, foreach=False)
    restore_optimizers([here], names, tensors, json.loads(json.dumps(numbers)))
    layer(torch.ones(1, 3)).sum().backward()
    here.step()  # capturable optimizers refuse parameters on the CPU
    assert here.param_groups[0]["lr"] == 0.3


def test_shared_parameters_are_named_once():
    layer = nn.Linear(3, 3)
    names = [name for name, _, _ in parameters_of(nn.Sequential(layer, layer))]
    assert names == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AdamWSettings(-1.0), "learning_rate must be a finite number of 0 or more"),
        (lambda: AdamWSettings(1e-3, weight_decay=float("nan")), "weight_decay must be"),
        (lambda: AdamWSettings(betas=(0.9, 1.0)), "betas must lie in"),
        (lambda: SGDSettings(momentum=2.0), "momentum must lie in"),
    ],
)
def test_what_does_not_fit_is_refused(user_errors, build, words):
    with pytest.raises(ValueError, match=words):
        build()
