"""The training loop."""

import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from regard.data import Loader, random_number
from regard.layers import GaussianHeads
from regard.training._average import Average
from regard.training._checkpoints import Checkpoint
from regard.training._evaluation import Score, score
from regard.training._fabric import product_precision, total_over_processes
from regard.training._machine import versions
from regard.training._meter import Meter
from regard.training._optimizers import optimizer_state, restore_optimizers, set_learning_rates
from regard.training._recipe import Recipe, encode
from regard.training._stop import NonFiniteError, StopRequest, TrainingInterrupted
from regard.training._tasks import ImageTask
from regard.training._watch import Watch


class Loop:
    """A network, its optimizers and where they are: everything that changes from step to step.

    Nothing random is carried along: order and augmentation are functions of (seed, epoch, sample), and each step seeds
    dropout by (seed, step, process). So ``step`` and the tensors are the whole state.

    Args:
        fabric: devices, precision and processes.
        recipe: what to do.
        watch: who is told about it, and where checkpoints go.
        log_every: steps between two looks at the device's numbers.
        save_every: steps between checkpoints; None saves with every evaluation.
    """

    def __init__(self, fabric: Any, recipe: Recipe, watch: Watch, *, log_every: int, save_every: int | None) -> None:
        self.fabric, self.recipe, self.watch = fabric, recipe, watch
        self.save_every = save_every
        self.task = recipe.task
        train = self.task.examples("train", fabric.device)
        self.validation = self.task.examples("validation", fabric.device)
        self.loader: Loader[Any] = Loader(
            train,  # type: ignore[arg-type]  # a task without training samples is refused there
            recipe.batch_size,
            seed=recipe.seed,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        torch.manual_seed(random_number(2**63, recipe.seed, "parameters"))
        self.network = recipe.network.build(self.task).to(fabric.device)
        if getattr(self.task, "channels_last", False):
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)
        self.names = {id(parameter): name for name, parameter in self.network.named_parameters()}
        self.optimizers = recipe.optimizer.build(self.network)
        self.average = Average(self.network, recipe.average) if recipe.average else None
        self.model = fabric.setup_module(self._compiled() if recipe.compile else self.network)
        self.model.train()  # evaluation leaves it so
        self.meter = Meter(fabric, log_every)
        self.log_every = log_every
        self.step, self.total = 0, recipe.epochs * len(self.loader)
        self.seconds = self.process_seconds = self.compile_seconds = 0.0
        self.latest: Score | None = None
        self.best = -1.0  # the highest accuracy on what is held out
        self.skipped_in_a_row = 0

    @property
    def evaluated(self) -> nn.Module:
        """What is evaluated and kept: the average, where there is one."""
        return self.network if self.average is None else self.average.network

    def run(self) -> None:
        """From the present step to the last one."""
        with StopRequest() as stop, self.watch.progress(self), product_precision(self.recipe.precision):
            try:
                self._go_on(stop)
            except ValueError as error:
                self._look_for_spoiled_parameters(error)
                raise

    def _go_on(self, stop: StopRequest) -> None:
        if self.step == 0:
            self.watch.note_heads(self)
        if self.step < self.total:
            self._compile()
        self._start_clock()
        while self.step < self.total:
            self._take_step()

            ends_epoch = self.step % len(self.loader) == 0
            epoch = self.step // len(self.loader)
            evaluates = ends_epoch and (epoch % self.recipe.evaluate_every == 0 or self.step == self.total)
            saves = evaluates if self.save_every is None else self.step % self.save_every == 0
            saves = saves or self.step == self.total
            self.watch.note_heads(self)
            looks = evaluates or saves or len(self.meter) == self.log_every
            # Looking is done by all processes together: there a wish to stop waits for the next regular look.
            if not looks and not (stop.asked and self.fabric.world_size == 1):
                continue

            self._stop_clock()
            asked = self._any_process(stop.asked)
            self.watch.heads(self)  # before a look that may end the run
            self._look()
            if evaluates and self.validation is not None:
                self.latest = score(self.fabric, self.task, self.evaluated, self.validation)
                self.watch.evaluated(self, epoch, self.latest)
                saves = saves or self.latest.accuracy > self.best
                self.best = max(self.best, self.latest.accuracy)
            if saves or asked:
                self.watch.save(self, self.latest.accuracy if evaluates and self.latest else None)
            if asked and self.step < self.total:
                raise TrainingInterrupted(self.watch.how_to_go_on(self.step), self.step)
            self._start_clock()
        self._stop_clock()

    def _take_step(self) -> None:
        recipe, fabric = self.recipe, self.fabric
        factor = recipe.schedule.factor(self.step, self.total)
        set_learning_rates(self.optimizers, factor)
        torch.manual_seed(random_number(2**63, recipe.seed, "step", self.step, fabric.global_rank))

        epoch, at = divmod(self.step, len(self.loader))
        buffers = self._buffers() if recipe.non_finite == "skip" else {}
        loss, correct = self._backward(self.loader.batch(epoch, at))
        norm = self._gradient_norm()
        self.step += 1
        rate = recipe.optimizer.learning_rate * factor
        self.meter.add(self.step, loss, correct, norm, rate)

        if recipe.non_finite == "stop" or self._is_finite(loss, norm):
            for optimizer in self.optimizers:
                optimizer.step()
            if self.average is not None:
                self.average.update(self.step)
        else:
            self._put_back(buffers)  # statistics that have seen what the step shall not
        self._forget_gradients()

    def _backward(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Gradients of the mean loss over the whole batch, however it is spread over processes and parts.

        Returns this process's share of that loss and of the accuracy.
        """
        fabric, parts = self.fabric, self.recipe.accumulate
        targets: Any = self.task.targets(batch)
        if fabric.world_size > 1:
            targets = total_over_processes(fabric, torch.full((), 1.0, device=fabric.device) * targets)
        loss, correct = torch.zeros(2, device=fabric.device)
        pieces = _split(batch, parts)
        for number, part in enumerate(pieces, 1):
            with self._without_exchange(number < len(pieces)):
                outcome = self.task.outcome(self.model, part)
                share = outcome.loss / targets
                fabric.backward(share * fabric.world_size)  # exchanging gradients divides by the number of processes
            loss = loss + share.detach()
            correct = correct + outcome.correct / targets
        return loss, correct

    def _gradient_norm(self) -> Tensor:
        parameters = [parameter for parameter in self.network.parameters() if parameter.grad is not None]
        if self.recipe.clip is not None:
            return torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip)
        return torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters])  # type: ignore[misc]

    def _is_finite(self, loss: Tensor, norm: Tensor) -> bool:
        """Asked where steps may be skipped; waits for the device, and all processes agree."""
        wrong = total_over_processes(self.fabric, (~(loss + norm).isfinite()).float())
        finite = not bool(wrong)
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        return finite

    def _look(self) -> None:
        """Read what the device has noted since the last look, write it down, and see that it is finite."""
        records = self.meter.read()
        self.watch.steps(self, records)
        wrong = next((record for record in records if not record.is_finite), None)
        if wrong is None:
            return
        indices = self._indices(wrong.step)
        if self.recipe.non_finite == "stop" or self.skipped_in_a_row >= 100:
            raise NonFiniteError(self.watch.non_finite(wrong, indices), wrong.step, indices)
        for record in records:
            if not record.is_finite:
                self.watch.skipped(record, self._indices(record.step))

    def _look_for_spoiled_parameters(self, error: ValueError) -> None:
        """A layer that refuses its own parameters says nothing of the step that left them so."""
        values: dict[str, Tensor] = dict(self.network.named_parameters())
        for name, module in self.network.named_modules():
            if isinstance(module, GaussianHeads):  # the exponential of a number that is finite may not be
                values[f"{name}.sharpness"] = module.sharpness
        spoiled = [name for name, value in values.items() if not value.isfinite().all()]
        if self.step == 0 or not spoiled:
            return
        self.watch.heads(self)
        self._look()  # an earlier loss may tell more
        indices = self._indices(self.step)
        raise NonFiniteError(self.watch.spoiled(self.step, spoiled, indices), self.step, indices) from error

    def _indices(self, step: int) -> list[int]:
        """The samples of a step's batch, over all processes."""
        whole: Loader[Any] = Loader(self.loader.examples, self.recipe.batch_size, seed=self.recipe.seed)
        return whole.index(*divmod(step - 1, len(whole))).tolist()

    def _compiled(self) -> Any:
        """On a GPU of its own a step is recorded and replayed: launching kernels one by one takes the host longer than
        a small network takes the device. Gradients that outlive a step or are exchanged do not go with that, nor do
        batches of many shapes, each of which would be recorded."""
        return torch.compile(self.network, mode="reduce-overhead" if self._replays() else None)

    def _replays(self) -> bool:
        alone = self.fabric.device.type == "cuda" and self.fabric.world_size == 1
        return alone and self.recipe.accumulate == 1 and isinstance(self.task, ImageTask)

    def _compile(self) -> None:
        """Run a step's forward and backward pass for nothing, so that compilation is over before the clock runs: once
        to compile, twice more where it is recorded."""
        if not self.recipe.compile:
            return
        begin = time.perf_counter()
        buffers = self._buffers()
        epoch, at = divmod(self.step, len(self.loader))
        for _ in range(3 if self._replays() else 1):
            self._backward(self.loader.batch(epoch, at))
            self._forget_gradients()
        self._put_back(buffers)
        self._wait()
        self.compile_seconds += time.perf_counter() - begin

    def _buffers(self) -> dict[str, Tensor]:
        return {name: buffer.clone() for name, buffer in self.network.named_buffers()}

    @torch.no_grad()
    def _put_back(self, buffers: dict[str, Tensor]) -> None:
        for name, buffer in self.network.named_buffers():
            buffer.copy_(buffers[name])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which :meth:`restore` goes on exactly here."""
        memory, numbers = optimizer_state(self.optimizers, self.names)
        tensors = {f"network.{name}": value for name, value in self.network.state_dict().items()}
        tensors |= {f"optimizer.{name}": value for name, value in memory.items()}
        if self.average is not None:
            tensors |= {f"average.{name}": value for name, value in self.average.network.state_dict().items()}
        epoch, at = divmod(self.step, len(self.loader))
        return tensors, {
            "step": self.step,
            "total": self.total,
            "sampler": {"epoch": epoch, "step": at, "seed": self.recipe.seed},
            "random": {"seed": self.recipe.seed, "step": self.step},
            "schedule": {"step": self.step, "total": self.total},
            "optimizers": numbers,
            "seconds": self.seconds,
            "process_seconds": self.process_seconds,
            "compile_seconds": self.compile_seconds,
            "evaluation": None if self.latest is None else list(self.latest),
            "best": self.best,
            "recipe": encode(self.recipe),
            "versions": versions(),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        state = checkpoint.state
        self.network.load_state_dict(checkpoint.part("network"))
        if self.average is not None:
            self.average.network.load_state_dict(checkpoint.part("average"))
        restore_optimizers(self.optimizers, self.names, checkpoint.part("optimizer"), state["optimizers"])
        self.step, self.seconds, self.compile_seconds = state["step"], state["seconds"], state["compile_seconds"]
        self.process_seconds = state.get("process_seconds", 0.0)
        self.latest = None if state["evaluation"] is None else Score(*state["evaluation"])
        self.best = state.get("best", -1.0)

    def _forget_gradients(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def _without_exchange(self, enabled: bool) -> AbstractContextManager[Any]:
        if enabled and self.fabric.world_size > 1:
            context: AbstractContextManager[Any] = self.fabric.no_backward_sync(self.model)
            return context
        return nullcontext()

    def _any_process(self, flag: bool) -> bool:
        if self.fabric.world_size == 1:
            return flag
        return bool(total_over_processes(self.fabric, torch.full((), float(flag), device=self.fabric.device)))

    def _start_clock(self) -> None:
        self._wait()
        self._since = (time.perf_counter(), time.process_time())

    def _stop_clock(self) -> None:
        self._wait()
        self.seconds += time.perf_counter() - self._since[0]
        self.process_seconds += time.process_time() - self._since[1]

    def _wait(self) -> None:
        if self.fabric.device.type == "cuda":
            torch.cuda.synchronize(self.fabric.device)


def _split(batch: Any, parts: int) -> list[Any]:
    """A batch, a named tuple of tensors with one row for each sample, in parts of one size but for the last: fewer than
    asked for where that does not come out even."""
    if parts == 1:
        return [batch]
    return [type(batch)(*columns) for columns in zip(*(column.chunk(parts) for column in batch), strict=True)]
