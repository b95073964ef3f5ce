"""``RecordListener``: receives the records of attention while a model runs, and later corrections of them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.maps._contributions import ProjectionWatch
from regard.maps._record import AttentionRecord
from regard.maps.outputs._joining import Joint
from regard.maps.repeats._repeated_calls import RepeatedListener


class RecordListener:
    """Receives the record of every attention. Override what you need.

    First come records (:meth:`attended`) and what could not be recorded (:meth:`missed`). The other methods report what the
    model did with the outputs afterwards, if that changes their maps.

    Attributes:
        lost: attention that could not be recorded, with the reason.
        projections: sees the matrix products of the model, to find output projections; None if not needed.
        repeats: takes calls that repeat earlier ones, without their records; None if :meth:`attended` takes all.
    """

    projections: ProjectionWatch | None = None
    repeats: RepeatedListener | None = None

    def __init__(self) -> None:
        self.lost: list[str] = []

    def wants(self, name: str) -> bool:
        """Whether to record attention of this name."""
        return True

    def attended(self, record: AttentionRecord) -> Tensor | None:
        """Take a record. A returned tensor, in the layout of ``record.running.output``, replaces the output."""
        return None

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        """Attention of this name cannot be recorded."""
        self.lost.append(f"{name}: {reason}")

    def noted(self, name: str, note: str) -> None:
        """A reader should know this about the module of this name."""

    def rescaled(self, name: str, factor: Tensor) -> None:
        """The model scaled the rows of the latest output of this name by ``factor``, ``(batch, heads, queries)``.

        It does so for a learned sink, or to merge two kernels by their logsumexp.
        """

    def subtracted(self, first: str, second: str, factor: Any) -> None:
        """The model computed first − factor · second from the latest outputs of these names: their maps become one."""

    def heads_subtracted(self, name: str, first: Sequence[int], second: Sequence[int], factor: Any) -> None:
        """The model computed first − factor · second from some heads of the latest output of this name, given by their
        indices: each pair of heads becomes one."""

    def repeated(self, names: Sequence[str]) -> bool | None:
        """The model concatenated the latest outputs of these names along the width. Return True if their maps are equal, and
        were merged into one; None if they were not kept, so that nothing shows whether they are equal."""
        return False

    def added(self, names: Sequence[str], factors: Sequence[Any], same_keys: bool) -> bool:
        """The model added the latest outputs of these names, each times a factor. Return True if their maps were merged.

        Args:
            same_keys: whether they have the same values; if not, the keys of the second follow those of the first.
        """
        return False

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        """The model concatenated or stacked the latest outputs of these names. Return True if their maps were joined."""
        return False

    def regrouped(self, name: str, known: bool) -> None:
        """The latest attention of this name has samples and heads folded into one axis, and was recorded with samples first.

        Args:
            known: True if heads come first; False if nothing shows which comes first.
        """
        self.missed(name, "its heads and samples are one axis of its tensors, in which samples do not come first")

    def retract(self, name: str) -> None:
        """Forget the latest record of this name: it turned out to be a part of something else."""
