"""Those who are told how a run goes: the terminal, the files in its folder, TensorBoard."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from regard.training._evaluation import Score
from regard.training._heads import HeadLog
from regard.training._lines import Lines
from regard.training._meter import StepRecord
from regard.training._progress import Progress, say
from regard.training._run import HEADS, METRICS, Run
from regard.training._tensorboard import Board

if TYPE_CHECKING:
    from regard.training._loop import Loop


class Watch:
    """Writes down what the loop tells it. Only the first process does; the others' are silent.

    Args:
        run: the folder.
        active: whether this is the first process.
        board: TensorBoard, or None.
        bar: whether the progress bar is shown; None shows it on terminals.
        resume_command: what a person types to go on with the run.
    """

    def __init__(self, run: Run, *, active: bool, board: Board | None, bar: bool | None, resume_command: str) -> None:
        self.run, self.active, self.board, self.bar = run, active, board, bar
        self.resume_command = resume_command
        self.metrics = Lines(run.folder / METRICS)
        self._head_log: HeadLog | None = None
        self._progress: Progress | None = None
        self._seen = (0, 0.0)  # steps and seconds at the last look

    @contextmanager
    def progress(self, loop: "Loop") -> Iterator[None]:
        """The bar, while the block runs."""
        samples = loop.recipe.batch_size
        shown = self.bar if self.active else False
        self._seen = (loop.step, loop.seconds)
        with Progress(loop.recipe.name, loop.total, loop.step, samples, shown) as self._progress:
            yield

    def steps(self, loop: "Loop", records: Sequence[StepRecord]) -> None:
        if not self.active or not records:
            return
        wrong = next((at for at, record in enumerate(records) if not record.is_finite), None)
        if wrong is not None and loop.recipe.non_finite == "stop":
            records = records[: wrong + 1]
        self.metrics.add(*(vars(record) for record in records))
        before = self._seen
        rate = (loop.step - before[0]) * loop.recipe.batch_size / max(loop.seconds - before[1], 1e-9)
        self._seen = (loop.step, loop.seconds)
        if self._progress is not None:
            self._progress.show(list(records), rate)
        if self.board is not None:
            self.board.steps(records, rate, loop.optimizers)

    def note_heads(self, loop: "Loop") -> None:
        """Remember where heads look, where it is time to; nobody waits."""
        log = self._log_of(loop)
        if self.active and log.is_due(loop.step):
            log.note(loop.step)

    def heads(self, loop: "Loop") -> None:
        """Write down what was noted."""
        for step, heads in self._log_of(loop).write():
            if self.board is not None:
                self.board.heads(step, heads)

    def evaluated(self, loop: "Loop", epoch: int, score: Score) -> None:
        if not self.active:
            return
        self.metrics.add(
            {
                "step": loop.step,
                "epoch": epoch,
                "validation_loss": score.loss,
                "validation_accuracy": score.accuracy,
                "seconds": round(loop.seconds, 3),
            }
        )
        if self._progress is not None:
            self._progress.validated(score.accuracy)
        if self.board is not None:
            self.board.evaluated(loop.step, score)
            if epoch % max(1, loop.recipe.epochs // 4) == 0 or loop.step == loop.total:
                self.board.pictures(loop.step, loop.task, loop.evaluated, loop.validation)

    def save(self, loop: "Loop", score: float | None) -> None:
        if self.active:
            lines = [self.metrics, *([self._head_log.lines] if self._head_log is not None else [])]
            for each in lines:
                each.flush()
            tensors, state = loop.state()
            state["logs"] = {each.path.name: each.size for each in lines}
            self.run.checkpoints.save(loop.step, tensors, {**state, "score": score})
        loop.fabric.barrier()

    def cut(self, sizes: dict[str, int]) -> None:
        """Forget what was written after the checkpoint that notes these sizes."""
        if self.active:
            for name in (METRICS, HEADS):
                lines = Lines(self.run.folder / name)
                lines.cut(sizes.get(name, 0))
            self.metrics = Lines(self.run.folder / METRICS)

    def how_to_go_on(self, step: int) -> str:
        return f"stopped at step {step}, and saved there. To go on: {self.resume_command}"

    def non_finite(self, record: StepRecord, indices: Sequence[int]) -> str:
        """The message for a run that ends there; the samples also go to a file."""
        what = f"the loss is {record.loss:g} and the gradient's norm {record.gradient_norm:g}"
        return self._ends(record.step, what, indices) + "; non_finite='skip' leaves such steps out"

    def spoiled(self, step: int, parameters: Sequence[str], indices: Sequence[int]) -> str:
        """The message for a run whose loss was finite in a step that left parameters which are not."""
        names = ", ".join(parameters[:3]) + (f" and {len(parameters) - 3} more" if len(parameters) > 3 else "")
        return self._ends(step, f"the update left parameters that are not finite ({names})", indices)

    def _ends(self, step: int, what: str, indices: Sequence[int]) -> str:
        if self.active:
            self.run.write("non_finite.json", {"step": step, "indices": list(indices)})
        last = self.run.checkpoints.steps()
        return (
            f"at step {step} {what}, on samples {_listed(indices)} "
            f"(all of them in {self.run.folder / 'non_finite.json'}). "
            + (f"The last checkpoint is of step {last[-1]}. " if last else "No checkpoint was written yet. ")
            + "A lower learning rate or clip=1.0 may help"
        )

    def skipped(self, record: StepRecord, indices: Sequence[int]) -> None:
        if self.active:
            say(
                f"step {record.step} is skipped: its loss is {record.loss:g}, its gradient's norm "
                f"{record.gradient_norm:g}, on samples {_listed(indices)}"
            )

    def _log_of(self, loop: "Loop") -> HeadLog:
        if self._head_log is None:
            self._head_log = HeadLog(self.run.folder / HEADS, loop.network, loop.total)
        return self._head_log


def _listed(indices: Sequence[int]) -> str:
    shown = ", ".join(map(str, indices[:16]))
    return shown if len(indices) <= 16 else f"{shown}, … ({len(indices)} of them)"
