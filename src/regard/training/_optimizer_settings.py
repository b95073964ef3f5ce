"""Settings of the optimizers, and which parameter goes into which group."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from typing import Any

import torch
from torch import nn

from regard.layers import GaussianHeads, LayerNorm
from regard.support.checks import check_probability, describe
from regard.training._muon import StackedMuon

# Weight decay leaves out all parameters of these modules: norms, and the centers and sharpness of heads.
EXEMPT = (LayerNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm, GaussianHeads)
# The key of a group's peak learning rate, which each step multiplies by the schedule's factor.
PEAK = "peak"


@dataclass(frozen=True)
class OptimizerSettings:
    """Base class of the optimizers' settings.

    Weight decay excludes the centers and sharpness of heads, norms, biases and every other parameter of at most one
    axis: shrinking those does not make the network simpler (it would pull a center to the query).

    Args:
        learning_rate: the peak learning rate; :class:`ScheduleSettings` gives the factor on it at each step.
        weight_decay: weight decay of the parameters it applies to.
        center_factor: centers of heads learn at this multiple of the learning rate. They move by whole tokens, other
            parameters by hundredths.
    """

    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    center_factor: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type in ("float", float) and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise TypeError(f"{field.name} must be a number, got {describe(value)}")
            if isinstance(value, int | float) and not isinstance(value, bool) and not 0 <= value < float("inf"):
                raise ValueError(f"{field.name} must be a finite number of 0 or more, got {describe(value)}")

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        """Optimizers that together hold every trained parameter of the network exactly once."""
        raise TypeError(f"{type(self).__name__} must define build(network), as AdamWSettings does")

    def _groups(self, parameters: Sequence[tuple[str, "nn.Parameter", bool]]) -> list[dict[str, Any]]:
        """One group for each pair of learning rate and weight decay that occurs."""
        groups: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = {}
        for name, parameter, decays in parameters:
            rate = self.learning_rate * (self.center_factor if is_center(name) else 1.0)
            groups.setdefault((rate, self.weight_decay if decays else 0.0), []).append((name, parameter))
        return [
            {"params": members, "lr": rate, PEAK: rate, "weight_decay": decay}
            for (rate, decay), members in groups.items()
        ]


@dataclass(frozen=True)
class AdamWSettings(OptimizerSettings):
    """Settings of :class:`torch.optim.AdamW`: Adam with decoupled weight decay.

    >>> from regard.training import AdamWSettings
    >>> [adam] = AdamWSettings(weight_decay=0.05).build(torch.nn.Linear(3, 2))
    >>> [(len(group["params"]), group["weight_decay"]) for group in adam.param_groups]
    [(1, 0.05), (1, 0.0)]
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.betas, tuple | list) or len(self.betas) != 2:
            raise TypeError(f"betas must be two numbers in [0, 1), got {describe(self.betas)}")
        for beta in self.betas:
            check_probability("betas", beta)

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        groups = self._groups(list(parameters_of(network)))
        return [torch.optim.AdamW(groups, betas=self.betas, eps=self.epsilon, fused=True)]


@dataclass(frozen=True)
class SGDSettings(OptimizerSettings):
    """Settings of :class:`torch.optim.SGD` with momentum; weight decay is added to the gradient."""

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("momentum", self.momentum)

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        groups = self._groups(list(parameters_of(network)))
        return [torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov, fused=True)]


@dataclass(frozen=True)
class MuonSettings(AdamWSettings):
    """Settings of Muon for the matrices of hidden layers, with AdamW for everything else.

    Muon's step along a matrix is the nearest (semi-)orthogonal matrix to its momentum. It is meant for matrices that
    map features to features, whose parameters are called ``weight``. AdamW trains embeddings, the classifier, positions
    of heads and vectors.

    Args:
        matrix_learning_rate: learning rate of the matrices, scaled by √max(1, rows / columns) for each.
        matrix_weight_decay: weight decay of the matrices.
        matrix_momentum: Nesterov momentum of the matrices.
        matrix_steps: Newton–Schulz iterations of a step.
        keep_norm: whether each matrix is scaled to the norm √rows before a step. For networks with a norm after each
            matrix, whose scale then does not matter.
        convolutions: whether Muon also trains filters, as matrices (out, in · height · width); never those of depthwise
            convolutions.
        apart: name patterns of matrices that AdamW trains instead.

    >>> from regard.training import MuonSettings
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
    >>> muon, adam = MuonSettings(apart=("1.*",)).build(network)
    >>> [tuple(parameter.shape) for group in muon.param_groups for parameter in group["params"]]
    [(4, 3)]
    """

    matrix_learning_rate: float = 0.02
    matrix_weight_decay: float = 0.0
    matrix_momentum: float = 0.95
    matrix_steps: int = 5
    keep_norm: bool = False
    convolutions: bool = False
    apart: tuple[str, ...] = (
        "head.*",
        "fc.*",
        "output.*",
        "*classifier*",
        "*class_output*",
        "*embedding*",
        "*position*",
    )

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        embeddings = {id(module.weight) for module in network.modules() if isinstance(module, nn.Embedding)}
        matrices, rest = [], []
        for name, parameter, decays in parameters_of(network):
            is_weight = "weight" in name.rpartition(".")[2] and id(parameter) not in embeddings
            is_matrix = parameter.ndim == 2 or (self.convolutions and parameter.ndim > 2 and parameter.shape[1] > 1)
            hidden = is_weight and decays and is_matrix
            if hidden and not any(fnmatch(name, pattern) for pattern in self.apart):
                matrices.append((name, parameter))
            else:
                rest.append((name, parameter, decays))
        built: list[torch.optim.Optimizer] = []
        if matrices:
            group = {"params": matrices, PEAK: self.matrix_learning_rate}
            built.append(
                StackedMuon(
                    [group],
                    lr=self.matrix_learning_rate,
                    weight_decay=self.matrix_weight_decay,
                    momentum=self.matrix_momentum,
                    steps=self.matrix_steps,
                    keep_norm=self.keep_norm,
                )
            )
        if rest:
            built.append(torch.optim.AdamW(self._groups(rest), betas=self.betas, eps=self.epsilon, fused=True))
        return built


def parameter_groups(
    model: nn.Module, learning_rate: float, *, weight_decay: float = 0.0, center_factor: float = 1.0
) -> list[dict[str, Any]]:
    """Parameter groups for any optimizer of torch, for a training loop of your own.

    Weight decay excludes the centers and sharpness of heads, norms, biases, every other parameter of at most one axis, and
    parameters that a module names in ``no_weight_decay()``. Centers learn at their own rate.

    Args:
        model: the network, with regard's layers in it or not.
        learning_rate: the learning rate.
        weight_decay: weight decay of the parameters it applies to.
        center_factor: centers of heads learn at this multiple of the learning rate (our recipes use 5): they move by
            whole tokens, other parameters by hundredths.

    >>> from regard.training import parameter_groups
    >>> groups = parameter_groups(regard.GaussianAttention(18, 9), 1e-3, weight_decay=0.05, center_factor=5)
    >>> sorted((group["lr"], group["weight_decay"]) for group in groups)
    [(0.001, 0.0), (0.001, 0.05), (0.005, 0.0)]
    >>> optimizer = torch.optim.AdamW(groups)
    """
    settings = OptimizerSettings(learning_rate, weight_decay, center_factor)
    groups = settings._groups(list(parameters_of(model)))
    return [{key: value for key, value in group.items() if key != PEAK} for group in groups]


def parameters_of(network: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """(name, parameter, whether weight decay applies) of each trained parameter; shared ones once."""
    seen, named = set(), _named_exempt(network)
    for path, module in network.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{path}.{own}" if path else own
            exempt = parameter.ndim <= 1 or isinstance(module, EXEMPT) or _is_exempt(own) or name in named
            yield name, parameter, not exempt


def _named_exempt(network: nn.Module) -> set[str]:
    """The full names of the parameters that modules name in ``no_weight_decay()``."""
    found = set()
    for path, module in network.named_modules():
        says = getattr(module, "no_weight_decay", None)
        if callable(says):
            found |= {f"{path}.{own}" if path else str(own) for own in says()}
    return found


def is_center(name: str) -> bool:
    """Whether this is the name of the centers of heads.

    >>> is_center("blocks.0.attention.center"), is_center("blocks.0.attention.value.weight")
    (True, False)
    """
    return "center" in name.rpartition(".")[2]


def _is_exempt(own: str) -> bool:
    return own.endswith("bias") or is_center(own) or "sharpness" in own
