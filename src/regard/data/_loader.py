"""Batches of samples. A batch depends on (epoch, step) only."""

from collections.abc import Iterator
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from regard.data._random import random_order
from regard.support.checks import UnusableInputError, check_positive, describe

READ_AHEAD = 2  # batches
Batch_co = TypeVar("Batch_co", covariant=True)


@runtime_checkable
class Examples(Protocol[Batch_co]):
    """Numbered samples, such as :class:`AugmentedImages`, :class:`CaseTask` or :class:`MaskedText`."""

    @property
    def index_device(self) -> torch.device:
        """The device on which it expects indices."""

    def __len__(self) -> int:
        """The number of samples in an epoch."""

    def batch(self, index: Tensor, *, seed: int, epoch: int) -> Batch_co:
        """The samples with these indices. A sample depends on (seed, epoch, index), not on the rest of its batch."""


@runtime_checkable
class ReadsAhead(Protocol):
    """Examples that may read batches from the disk in advance."""

    @property
    def reads_ahead(self) -> bool:
        """Whether batches are read in advance."""

    def announce(self, index: Tensor, *, seed: int, epoch: int) -> None:
        """Announce a batch that will be requested soon."""


@runtime_checkable
class PreparesTogether(Protocol):
    """Examples that can prepare several batches in the time of one: on a GPU, small operations cost little more than their
    launch. A batch is a named tuple of tensors with one row for each sample."""

    @property
    def samples_together(self) -> int:
        """About how many samples to prepare together."""


class Loader(Generic[Batch_co]):
    """Batches of ``examples``, in an order that depends on (seed, epoch).

    A loader has no state: :meth:`batch` returns any step of any epoch, so a run can resume from (epoch, step). A global
    batch is divided into ``world_size`` consecutive parts, one per process; together they are exactly the batch of a
    single process.

    Args:
        batch_size: the batch size of all processes together, a multiple of ``world_size``.
        seed: the seed of the order and of everything that ``examples`` draw.
        shuffle: whether the order is random; otherwise samples come in their own order.
        drop_last: whether to leave out an incomplete last batch. Otherwise its parts may differ by one sample, and may
            be empty; :meth:`total` returns its size over all processes.

    >>> from regard.data import AugmentedImages, Loader, load
    >>> loader = Loader(AugmentedImages(load("fashion-mini").train), batch_size=256)
    >>> len(loader)
    21
    >>> images, labels, indices = loader.batch(epoch=3, step=20)
    >>> tuple(images.shape), images.dtype
    ((256, 1, 28, 28), torch.float32)
    >>> halves = [Loader(loader.examples, 256, rank=rank, world_size=2).batch(3, 20).images for rank in (0, 1)]
    >>> bool((torch.cat(halves) == images).all())
    True
    """

    def __init__(
        self,
        examples: Examples[Batch_co],
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = True,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if not isinstance(examples, Examples):
            raise TypeError(
                f"examples must be numbered samples such as AugmentedImages, CaseTask or MaskedText, "
                f"got {type(examples).__name__}"
            )
        check_positive("batch_size", batch_size)
        check_positive("world_size", world_size)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 … {world_size - 1} (world_size is {world_size}), got {describe(rank)}")
        if batch_size % world_size:
            raise ValueError(
                f"batch_size (of all processes together) must be a multiple of world_size {world_size}, got {batch_size}"
            )
        if drop_last and batch_size > len(examples):
            raise UnusableInputError(
                f"batch_size {batch_size} is larger than the {len(examples)} samples, so no batch would be full; "
                f"at most {len(examples)} fits (--batch-size {len(examples)})"
            )
        self.examples = examples
        self.batch_size = batch_size
        self.seed = seed
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.rank = rank
        self.world_size = world_size
        self._ahead = examples if isinstance(examples, ReadsAhead) and examples.reads_ahead else None
        self._order: tuple[int, Tensor] | None = None
        together = examples.samples_together if isinstance(examples, PreparesTogether) else 1
        self._steps_together = max(1, together * world_size // batch_size)
        self._prepared: tuple[int, dict[int, Batch_co]] = -1, {}  # an epoch, and prepared batches of some of its steps

    def __len__(self) -> int:
        """The number of steps in an epoch."""
        full, rest = divmod(len(self.examples), self.batch_size)
        return full + (rest > 0 and not self.drop_last)

    def total(self, step: int) -> int:
        """The size of this step's batch, over all processes."""
        self._check_step(step)
        return min(self.batch_size, len(self.examples) - step * self.batch_size)

    def index(self, epoch: int, step: int) -> Int[Tensor, "n"]:
        """The indices of this process's samples in a step."""
        begin, total = step * self.batch_size, self.total(step)
        first, last = (begin + total * part // self.world_size for part in (self.rank, self.rank + 1))
        return self._epoch_order(epoch)[first:last]

    def batch(self, epoch: int, step: int) -> Batch_co:
        """This process's part of a step's batch."""
        if self._ahead is not None:
            for later in range(step, min(step + READ_AHEAD + 1, len(self))):
                self._ahead.announce(self.index(epoch, later), seed=self.seed, epoch=epoch)
        if self._steps_together > 1:
            return self._together(epoch, step)
        return self.examples.batch(self.index(epoch, step), seed=self.seed, epoch=epoch)

    def _together(self, epoch: int, step: int) -> Batch_co:
        """The same batch, prepared together with following ones. Samples do not depend on the rest of their batch."""
        self._check_step(step)
        prepared, batches = self._prepared
        if prepared != epoch or step not in batches:
            steps = range(step, min(step + self._steps_together, len(self)))
            indices = [self.index(epoch, one) for one in steps]
            joined: Any = self.examples.batch(torch.cat(indices), seed=self.seed, epoch=epoch)
            columns = [column.split([len(index) for index in indices]) for column in joined]
            batches = dict(zip(steps, map(type(joined), *columns), strict=True))
            self._prepared = epoch, batches
        return batches.pop(step)  # returned only once, since the caller may change it

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch_co]:
        """The batches of an epoch, beginning with step ``start``."""
        if start < 0 or start > len(self):
            raise ValueError(f"start must be in 0 … {len(self)}, the steps of an epoch, got {start}")
        return (self.batch(epoch, step) for step in range(start, len(self)))

    def _epoch_order(self, epoch: int) -> Tensor:
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ValueError(f"epoch must be a whole number of 0 or more, got {describe(epoch)}")
        if self._order is None or self._order[0] != epoch:
            count, device = len(self.examples), self.examples.index_device
            if self.shuffle:
                order = random_order(count, self.seed, epoch, "order", device=device)
            else:
                order = torch.arange(count, device=device)
            self._order = epoch, order
        return self._order[1]

    def _check_step(self, step: Any) -> None:
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < len(self):
            raise ValueError(f"step must be in 0 … {len(self) - 1}, got {describe(step)}")
