"""One training step: forward and backward passes over a batch, and the optimizers.

:class:`Learner` holds everything that changes from step to step: the network, its optimizers, and the average of its
parameters if there is one. So its state, with the number of the step, is all that a checkpoint needs of it. When to take a
step is decided in ``_loop.py``.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.data import random_number
from regard.support.checks import UnusableInputError, describe
from regard.support.text import listed
from regard.training._average import Average
from regard.training._checkpoints import Checkpoint
from regard.training._fabric import total_over_processes
from regard.training._fitting import check_state
from regard.training._optimizer_state import (
    build_optimizers,
    optimizer_state,
    restore_optimizers,
    set_learning_rates,
)
from regard.training._recipe import Recipe

# Options of the compiler, each measured on the 2020 paper's network (benchmarks/results/training-step-h200-2026-11-18.json).
# Dropout uses torch's own kernel, as in eager training: compiled code computes four random numbers to use one. Padded
# rows are copied if our kernels read them. Sums over rows and over columns in one pass are slow with a dropout mask.
COMPILED = {"fallback_random": True, "comprehensive_padding": False, "triton.mix_order_reduction": False}


class Measured(NamedTuple):
    """The numbers of a step, still on the device: this process's share of the batch's mean loss and accuracy, and the
    norm of the whole batch's gradient."""

    loss: Tensor
    accuracy: Tensor
    gradient_norm: Tensor


class Learner:
    """A network and its optimizers. :meth:`step` trains on one batch.

    There is no random state to save: each step seeds dropout by (seed, step, process). So the tensors and the step
    number are the whole state.

    Args:
        fabric: devices, precision and processes.
        recipe: what to train, and how.
    """

    def __init__(self, fabric: Any, recipe: Recipe) -> None:
        self.fabric, self.recipe, self.task = fabric, recipe, recipe.task
        torch.manual_seed(random_number(2**63, recipe.seed, "parameters"))
        self.network = _built(recipe)
        recipe.network.fit(self.network, self.task)
        self.network = self.network.to(fabric.device)
        if self.task.memory_format is not None:
            self.network = self.network.to(memory_format=self.task.memory_format)  # type: ignore[call-overload]
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)
        self.names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        self.optimizers = build_optimizers(recipe.optimizer, self.network)
        self.average = Average(self.network, recipe.average) if recipe.average else None
        self.model = fabric.setup_module(self._compiled() if recipe.compile else self.network)
        self.model.train()  # evaluation restores this mode
        self.skipped_in_a_row = 0

    @property
    def result(self) -> nn.Module:
        """The network that is evaluated and saved: the average, if there is one."""
        return self.network if self.average is None else self.average.network

    def step(self, batch: Any, step: int, factor: float) -> Measured:
        """Train on a batch. ``step`` counts from 0; ``factor`` is the schedule's factor on the learning rates."""
        recipe = self.recipe
        set_learning_rates(self.optimizers, factor)
        self._seed(random_number(2**63, recipe.seed, "step", step, self.fabric.global_rank))

        buffers = self._buffers() if recipe.non_finite == "skip" else {}
        loss, accuracy = self._backward(batch)
        norm = self._gradient_norm()
        if recipe.non_finite == "stop" or self._is_finite(loss, norm):
            for optimizer in self.optimizers:
                optimizer.step()
            if self.average is not None:
                self.average.update(step + 1)
        else:
            self._restore_buffers(buffers)  # a skipped step does not change the statistics either
        self.network.zero_grad()
        return Measured(loss, accuracy, norm)

    def learning_rates(self) -> dict[str, float]:
        """The current learning rate of each parameter group."""
        return {
            f"{number}_{type(optimizer).__name__}_{at}": group["lr"]
            for number, optimizer in enumerate(self.optimizers)
            for at, group in enumerate(optimizer.param_groups)
        }

    def warm_up(self, batch: Any) -> None:
        """Compile before the clock starts: one forward and backward pass without an update, and two more if CUDA graphs
        are recorded."""
        buffers = self._buffers()
        for _ in range(3 if self._replays() else 1):
            self._backward(batch)
            self.network.zero_grad()
        self._restore_buffers(buffers)

    def state(self) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
        """The tensors and the optimizers' plain numbers from which :meth:`restore` continues."""
        memory, numbers = optimizer_state(self.optimizers, self.names)
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in memory.items()}
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.network.state_dict().items()}
        return tensors, numbers

    def restore(self, checkpoint: Checkpoint) -> None:
        networks = {"network": self.network} | ({} if self.average is None else {"average": self.average.network})
        for part, network in networks.items():
            check_state(network, state := checkpoint.part(part), f"the checkpoint of step {checkpoint.state['step']}")
            network.load_state_dict(state)
        restore_optimizers(self.optimizers, self.names, checkpoint.part("optimizer"), checkpoint.state["optimizers"])

    def _backward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Compute the gradient of the mean loss over the whole batch, over all processes and parts.

        Returns this process's share of that loss and of the accuracy.
        """
        fabric = self.fabric
        targets: Any = self.task.targets(batch)
        if fabric.world_size > 1:
            targets = total_over_processes(fabric, torch.full((), 1.0, device=fabric.device) * targets)
        loss, correct = torch.zeros(2, device=fabric.device)
        parts = _split(batch, self.recipe.accumulate)
        for number, part in enumerate(parts, 1):
            with self._without_exchange(number < len(parts)):
                outcome = self.task.outcome(self.model, part)
                share = outcome.loss / targets
                fabric.backward(share * fabric.world_size)  # the gradient exchange divides by the number of processes
            loss = loss + share.detach()
            correct = correct + outcome.correct / targets
        return loss, correct

    def _seed(self, number: int) -> None:
        """Like ``torch.manual_seed``, but only for the devices of this step: searching for others takes longer than seeding."""
        if self.fabric.device.type not in ("cpu", "cuda"):
            torch.manual_seed(number)
            return
        torch.default_generator.manual_seed(number)
        if self.fabric.device.type == "cuda":
            torch.cuda.manual_seed(number)

    def _gradient_norm(self) -> Tensor:
        parameters = [parameter for parameter in self.network.parameters() if parameter.grad is not None]
        if self.recipe.clip is not None:
            return torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])  # type: ignore[misc]

    def _is_finite(self, loss: Tensor, norm: Tensor) -> bool:
        """Whether loss and gradient are finite in all processes. Synchronizes with the device."""
        wrong = total_over_processes(self.fabric, (~(loss + norm).isfinite()).float())
        finite = not bool(wrong)
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        return finite

    def _compiled(self) -> Any:
        """Compile the network. On a single GPU its passes are recorded as CUDA graphs and replayed, since launching the
        kernels of a small network one by one takes longer than running them. That is impossible if gradients outlive a
        step or are exchanged, and wasteful for batches of many shapes."""
        from torch._inductor import list_options

        wanted = {"triton.cudagraphs": self._replays(), **COMPILED}
        known = list_options()  # in this version of torch
        return torch.compile(self.network, options={name: value for name, value in wanted.items() if name in known})

    def _replays(self) -> bool:
        alone = self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        return alone and self.recipe.accumulate == 1 and self.task.has_fixed_shapes

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.network.named_buffers()}

    @torch.no_grad()
    def _restore_buffers(self, buffers: dict[str, Tensor]) -> None:
        for name, buffer in self.network.named_buffers():
            buffer.copy_(buffers[name])

    def _without_exchange(self, enabled: bool) -> AbstractContextManager[Any]:
        if enabled and self.fabric.world_size > 1:
            context: AbstractContextManager[Any] = self.fabric.no_backward_sync(self.model)
            return context
        return nullcontext()


def _built(recipe: Recipe) -> nn.Module:
    """The recipe's network, with the shapes of all parameters: a run could not be resumed or opened without them."""
    network: object = recipe.network.build(recipe.task)
    name = f"{type(recipe.network).__name__}.build"
    if not isinstance(network, nn.Module):
        raise UnusableInputError(f"{name} must return an nn.Module, got {describe(network)}")
    state: dict[str, Any] = network.state_dict()
    if strange := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise UnusableInputError(
            f"{name} must return a network whose state are tensors, but {listed(strange)} is none: a checkpoint cannot hold it"
        )
    if lazy := [name for name, value in state.items() if nn.parameter.is_lazy(value)]:
        raise UnusableInputError(
            f"{name} must return a network whose parameters have shapes, but lazy modules left {listed(lazy)} without: "
            f"call the network once on an example in build, such as network(torch.zeros(1, *task.image_shape))"
        )
    return network


def _split(batch: Any, parts: int) -> list[Any]:
    """Split a batch, a named tuple of tensors with one row for each sample, into parts of equal size; the last may be
    smaller. There may be fewer parts than requested if the rows do not divide evenly."""
    if parts == 1:
        return [batch]
    return [type(batch)(*columns) for columns in zip(*(column.chunk(parts) for column in batch), strict=True)]
