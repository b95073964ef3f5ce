"""Optimizers, and which parameter goes where in them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from regard.layers import LayerNorm
from regard.layers._gaussian import GaussianHeads
from regard.support.checks import check_probability, describe
from regard.training._muon import StackedMuon

# Modules none of whose parameters decay: norms, and what holds heads' centers and sharpness in whatever form.
EXEMPT = (LayerNorm, nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm, GaussianHeads)
# What every step multiplies by the schedule's factor.
PEAK = "peak"


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers share.

    Weight decay leaves out heads' centers and sharpness, norms, biases and every other parameter of at most one axis:
    shrinking those is no penalty on complexity (a center would be drawn to the query).

    Args:
        learning_rate: its peak; :class:`Schedule` says how it gets there and away again.
        weight_decay: the usual coefficient, of the parameters it applies to.
        center_factor: heads' centers learn at this multiple of the learning rate. They move by pixels, not by the
            hundredths that other parameters do.
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
        raise TypeError(f"{type(self).__name__} is no optimizer of its own: use AdamW, SGD or Muon")

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
class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    >>> from regard.training import AdamW
    >>> [adam] = AdamW(weight_decay=0.05).build(torch.nn.Linear(3, 2))
    >>> [(len(group["params"]), group["weight_decay"]) for group in adam.param_groups]
    [(1, 0.05), (1, 0.0)]
    """

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        super().__post_init__()
        for beta in self.betas:
            check_probability("betas", beta)

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        groups = self._groups(list(parameters_of(network)))
        return [torch.optim.AdamW(groups, betas=self.betas, eps=self.epsilon, fused=True)]


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with momentum; weight decay is added to the gradient."""

    momentum: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability("momentum", self.momentum)

    def build(self, network: nn.Module) -> list[torch.optim.Optimizer]:
        groups = self._groups(list(parameters_of(network)))
        return [torch.optim.SGD(groups, momentum=self.momentum, nesterov=self.nesterov, fused=True)]


@dataclass(frozen=True)
class Muon(AdamW):
    """Muon for the matrices of hidden layers, AdamW for everything else.

    Muon's step along a matrix is the nearest (semi-)orthogonal matrix to its momentum. It is meant for matrices that
    map features to features, whose parameters are called ``weight``: embeddings, the classifier, heads' positions and
    vectors stay with AdamW.

    Args:
        matrix_learning_rate: of the matrices, scaled by √max(1, rows / columns) for each.
        matrix_weight_decay: of the matrices.
        matrix_momentum: of the matrices (Nesterov's).
        matrix_steps: of the iteration that makes a step orthogonal.
        keep_norm: whether matrices are brought back to the norm √rows before each step, for networks in which a norm
            follows each of them.
        convolutions: whether filters are taken as matrices (out, in · height · width) too; those of depthwise
            convolutions never are.
        apart: patterns of names that are left to AdamW although they are matrices.

    >>> from regard.training import Muon
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 4))
    >>> muon, adam = Muon(apart=("1.*",)).build(network)
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


def parameters_of(network: nn.Module) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """(name, parameter, whether weight decay applies to it) of each parameter that is trained, shared ones once."""
    seen = set()
    for path, module in network.named_modules():
        for own, parameter in module.named_parameters(recurse=False):
            if not parameter.requires_grad or id(parameter) in seen:
                continue
            seen.add(id(parameter))
            name = f"{path}.{own}" if path else own
            yield name, parameter, not (parameter.ndim <= 1 or isinstance(module, EXEMPT) or _is_exempt(own))


def is_center(name: str) -> bool:
    """True for the name of heads' centers.

    >>> is_center("blocks.0.attention.center"), is_center("blocks.0.attention.value.weight")
    (True, False)
    """
    return "center" in name.rpartition(".")[2]


def _is_exempt(own: str) -> bool:
    return own.endswith("bias") or is_center(own) or "sharpness" in own


def set_learning_rates(optimizers: Sequence[torch.optim.Optimizer], factor: float) -> None:
    """Each group's peak times ``factor``."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group[PEAK] * factor


def optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], names: dict[int, str]
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """What optimizers remember of each parameter, as tensors by name; and each optimizer's plain numbers.

    ``names`` gives the parameters' names by ``id``.
    """
    tensors, numbers = {}, []
    for optimizer in optimizers:
        plain = {}
        for parameter, memory in optimizer.state.items():
            for key, value in memory.items():
                name = f"{key}.{names[id(parameter)]}"
                if isinstance(value, Tensor):
                    tensors[name] = value
                else:
                    plain[name] = value
        numbers.append(plain)
    return tensors, numbers


def restore_optimizers(
    optimizers: Sequence[torch.optim.Optimizer],
    names: dict[int, str],
    tensors: dict[str, Tensor],
    numbers: list[dict[str, float]],
) -> None:
    """Put back what :func:`optimizer_state` gave."""
    remembered: dict[str, dict[str, Any]] = {}
    sources: list[Mapping[str, Any]] = [tensors, *numbers]
    for source in sources:
        for name, value in source.items():
            key, _, parameter = name.partition(".")
            remembered.setdefault(parameter, {})[key] = value
    for optimizer in optimizers:
        state = optimizer.state_dict()
        ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        state["state"] = {
            at: {key: _laid_out(value, parameter) for key, value in remembered[names[id(parameter)]].items()}
            for at, parameter in enumerate(ordered)
            if names[id(parameter)] in remembered
        }
        optimizer.load_state_dict(state)


def _laid_out(value: Any, parameter: Tensor) -> Any:
    """In the parameter's own order in memory (channels last, say), by which optimizers go through both at once."""
    if not isinstance(value, Tensor) or value.shape != parameter.shape or parameter.is_contiguous():
        return value
    return torch.empty_like(parameter, dtype=value.dtype, device=value.device).copy_(value)
