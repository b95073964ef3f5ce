"""``RecordListener``: what receives the records of attention while a model runs."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from regard.maps._contributions import ProjectionWatch
from regard.maps._joining import Joint
from regard.maps._record import AttentionRecord
from regard.maps._repeated_calls import RepeatedCall


class RecordListener:
    """Receives the record of every attention. Override what you need.

    Attributes:
        lost: attention that could not be recorded, with the reason.
        projections: is shown the products of the model, among which are its output projections; None if not needed.
    """

    projections: ProjectionWatch | None = None

    def __init__(self) -> None:
        self.lost: list[str] = []

    def wants(self, name: str) -> bool:
        """Whether to record attention of this name."""
        return True

    def attended(self, record: AttentionRecord) -> Tensor | None:
        """Take a record. A returned tensor, in the layout of ``record.running.output``, replaces the output."""
        return None

    def took(self, call: RepeatedCall, moment: tuple[int, int]) -> bool:
        """A call like earlier ones ran, as the attention of this number in this run: whether that is all there is to know. If
        not, its record follows."""
        return False

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        """Attention of this name cannot be recorded."""
        self.lost.append(f"{name}: {reason}")

    def noted(self, name: str, note: str) -> None:
        """In the module of this name, something else was found that looks like attention."""

    def rescaled(self, name: str, factor: Tensor) -> None:
        """The model multiplied the rows of the latest output of this name, by ``(batch, heads, queries)``: a learned sink,
        or two kernels that are merged by their logsumexp."""

    def subtracted(self, first: str, second: str, factor: Any) -> None:
        """The model subtracted the latest output of one name, times a factor, from that of the other: their maps are one."""

    def heads_subtracted(self, name: str, first: Sequence[int], second: Sequence[int], factor: Any) -> None:
        """The model subtracted some heads of the latest output of this name, times a factor, from others: their maps are
        one."""

    def repeated(self, names: Sequence[str]) -> bool:
        """The model put the latest outputs of these names side by side. Whether their maps are the same, and one now."""
        return False

    def added(self, names: Sequence[str], factors: Sequence[Any], same_keys: bool) -> bool:
        """The model added the latest outputs of several names, each times a factor. Whether their maps are one now.

        Args:
            same_keys: whether they have the same values; if not, the keys of the second follow those of the first.
        """
        return False

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        """The model concatenated or stacked the latest outputs of these names. Whether their maps are one now."""
        return False

    def regrouped(self, name: str, known: bool) -> None:
        """In the axis that holds samples and heads of the latest attention of this name, heads come first; or it is not
        known which comes first."""
        self.missed(name, "its heads and samples are one axis of its tensors, in which samples do not come first")

    def retract(self, name: str) -> None:
        """Forget the latest record of this name: it was a part of something else."""
