"""The training loop: it takes steps and decides when to log, evaluate, save and stop.

The loop writes no file and prints nothing. It tells its listeners what happened, by the events of
:mod:`regard.training.events`. What one step does is in ``_learner.py``.

Numbers stay on the device until a *pause* (every ``log_every`` steps, and where the loop evaluates or saves), because reading
them waits for the device.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from regard.data import Loader
from regard.layers import GaussianHeads
from regard.training._checkpoints import Checkpoint
from regard.training._evaluation import Score, score
from regard.training._fabric import product_precision, total_over_processes
from regard.training._learner import Learner
from regard.training._machine import hardware, versions
from regard.training._meter import Meter
from regard.training._recipe import Recipe
from regard.training._recipe_json import encode
from regard.training._stop import NonFiniteError, StopRequest, TrainingInterrupted
from regard.training.events import (
    CheckpointDue,
    Evaluated,
    Event,
    Finished,
    Listener,
    Logged,
    Skipped,
    Started,
    Stepped,
)

MOST_SKIPPED = 100  # skipped steps in a row after which the run fails


class Loop:
    """Runs the steps of a recipe and decides when to log, evaluate, save and stop.

    Args:
        fabric: devices, precision and processes.
        recipe: what to train, and how.
        log_every: steps between reads of the device's numbers.
        save_every: steps between checkpoints; None saves with every evaluation.
    """

    def __init__(self, fabric: Any, recipe: Recipe, *, log_every: int, save_every: int | None) -> None:
        self.fabric, self.recipe = fabric, recipe
        self.log_every, self.save_every = log_every, save_every
        train = recipe.task.examples("train", fabric.device)
        self.validation = recipe.task.examples("validation", fabric.device)
        self.loader: Loader[Any] = Loader(
            train,  # type: ignore[arg-type]  # a task without training samples is refused there
            recipe.batch_size,
            seed=recipe.seed,
            rank=fabric.global_rank,
            world_size=fabric.world_size,
        )
        self.learner = Learner(fabric, recipe)
        self.meter = Meter(fabric, log_every)
        self.clock = Clock(fabric.device)
        self.step, self.total = 0, recipe.epochs * len(self.loader)
        self.latest: Score | None = None
        self.best = -1.0  # the highest validation accuracy
        self.listeners: Sequence[Listener] = ()
        self._logged = (0, 0.0)  # steps and seconds at the last log

    def run(self) -> None:
        """Train from the current step to the last one."""
        with StopRequest() as stop, product_precision(self.recipe.precision):
            self._emit(Started(self.step, self.total))
            try:
                if self.recipe.compile and self.step < self.total:
                    self.clock.compile(lambda: self.learner.warm_up(self._batch()))
                self._logged = (self.step, self.clock.seconds)
                self.clock.start()
                while self.step < self.total:
                    self._take_step()
                    if self._must_pause(stop):
                        self.clock.stop()
                        self._pause(stop)
                        self.clock.start()
                self.clock.stop()
            except ValueError as error:
                self._check_parameters(error)
                raise
        where = hardware(self.fabric.device, self.fabric.world_size)
        self._emit(Finished(self.step, self.learner.result, self.latest, self.clock.summary(), where))

    def _take_step(self) -> None:
        factor = self.recipe.schedule.factor(self.step, self.total)
        measured = self.learner.step(self._batch(), self.step, factor)
        self.step += 1
        self.meter.add(self.step, *measured, self.recipe.optimizer.learning_rate * factor)
        self._emit(Stepped(self.step))

    def _must_pause(self, stop: StopRequest) -> bool:
        """Whether to log, evaluate, save or stop after this step. All processes must agree: with several of them, a request
        to stop takes effect at the next logged step."""
        full = len(self.meter) == self.log_every
        alone = self.fabric.world_size == 1
        return full or self._evaluation_is_due or self._checkpoint_is_due or (stop.asked and alone)

    def _pause(self, stop: StopRequest) -> None:
        """Log, evaluate, save and stop, if they are due."""
        asked = self._any_process(stop.asked)
        self._log()
        accuracy, saves = None, self._checkpoint_is_due
        if self._evaluation_is_due and self.validation is not None:
            self.latest = score(self.fabric, self.recipe.task, self.learner.result, self.validation)
            accuracy = self.latest.accuracy
            epoch = self.step // len(self.loader)
            self._emit(Evaluated(self.step, epoch, self.latest, self.clock.seconds))
            saves = saves or accuracy > self.best
            self.best = max(self.best, accuracy)
        if saves or asked:
            tensors, state = self.state()
            self._emit(CheckpointDue(self.step, tensors, state, accuracy))
            self.fabric.barrier()
        if asked and self.step < self.total:
            raise TrainingInterrupted(f"stopped at step {self.step} and saved a checkpoint there", self.step)

    @property
    def _evaluation_is_due(self) -> bool:
        """At the end of every ``evaluate_every``-th epoch, and of the last one."""
        epoch, rest = divmod(self.step, len(self.loader))
        return rest == 0 and (epoch % self.recipe.evaluate_every == 0 or self.step == self.total)

    @property
    def _checkpoint_is_due(self) -> bool:
        """Every ``save_every`` steps, or with each evaluation, and after the last step. The best evaluation saves, too."""
        regular = self._evaluation_is_due if self.save_every is None else self.step % self.save_every == 0
        return regular or self.step == self.total

    def _log(self) -> None:
        """Read the numbers of the last steps from the device, report them, and check that they are finite."""
        records = self.meter.read()
        wrong = [record for record in records if not record.is_finite]
        stops = self.recipe.non_finite == "stop" or self.learner.skipped_in_a_row >= MOST_SKIPPED
        shown = [record for record in records if not (wrong and stops) or record.step <= wrong[0].step]
        (step, seconds), self._logged = self._logged, (self.step, self.clock.seconds)
        rate = (self.step - step) * self.recipe.batch_size / max(self.clock.seconds - seconds, 1e-9)
        self._emit(Logged(self.step, shown, self.learner.learning_rates(), rate))
        if wrong and stops:
            raise NonFiniteError.of_record(wrong[0], self._indices(wrong[0].step))
        for record in wrong:
            self._emit(Skipped(record, self._indices(record.step)))

    def _check_parameters(self, error: ValueError) -> None:
        """Report the step that made parameters non-finite: a layer that refuses its parameters cannot name it."""
        network = self.learner.network
        values: dict[str, Tensor] = dict(network.named_parameters())
        for name, module in network.named_modules():
            if isinstance(module, GaussianHeads):  # the exponential of a finite number can overflow
                values[f"{name}.sharpness"] = module.sharpness
        bad = [name for name, value in values.items() if not value.isfinite().all()]
        if self.step == 0 or not bad:
            return
        self._log()  # an earlier loss may have been non-finite already
        raise NonFiniteError.of_parameters(self.step, bad, self._indices(self.step)) from error

    def _batch(self) -> Any:
        return self.loader.batch(*divmod(self.step, len(self.loader)))

    def _indices(self, step: int) -> list[int]:
        """The samples in the batch of a step, over all processes."""
        whole: Loader[Any] = Loader(self.loader.examples, self.recipe.batch_size, seed=self.recipe.seed)
        return whole.index(*divmod(step - 1, len(whole))).tolist()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and plain values from which :meth:`restore` continues exactly."""
        tensors, numbers = self.learner.state()
        return tensors, {
            "step": self.step,
            "optimizers": numbers,
            "seconds": self.clock.seconds,
            "process_seconds": self.clock.process_seconds,
            "compile_seconds": self.clock.compile_seconds,
            "evaluation": None if self.latest is None else list(self.latest),
            "best": self.best,
            "recipe": encode(self.recipe),
            "data": self.recipe.task.data_facts(),
            "versions": versions(),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        self.learner.restore(checkpoint)
        state = checkpoint.state
        self.step = state["step"]
        self.clock.seconds, self.clock.compile_seconds = state["seconds"], state["compile_seconds"]
        self.clock.process_seconds = state.get("process_seconds", 0.0)
        self.latest = None if state["evaluation"] is None else Score(*state["evaluation"])
        self.best = state.get("best", -1.0)

    def _emit(self, event: Event) -> None:
        for listener in self.listeners:
            listener(event)

    def _any_process(self, flag: bool) -> bool:
        if self.fabric.world_size == 1:
            return flag
        return bool(total_over_processes(self.fabric, torch.full((), float(flag), device=self.fabric.device)))


class Clock:
    """Measures the training time without compiling, evaluating and saving. Waits for the device before each reading."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds = self.process_seconds = self.compile_seconds = 0.0

    def start(self) -> None:
        self._synchronize()
        self._since = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        self._synchronize()
        self.seconds += time.perf_counter() - self._since[0]
        self.process_seconds += time.process_time() - self._since[1]

    def compile(self, work: Any) -> None:
        """Run ``work`` and count its time as compile time."""
        begin = time.perf_counter()
        work()
        self._synchronize()
        self.compile_seconds += time.perf_counter() - begin

    def summary(self) -> dict[str, float]:
        return {
            "train_seconds": self.seconds,
            "process_seconds": self.process_seconds,
            "compile_seconds": self.compile_seconds,
        }

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
