"""The heads of a running model, changed one by one: silenced, scaled or replaced."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.maps import AttentionRecord, Joint, RecordListener, intercept
from regard.support.checks import check_module, describe

# From one attention and its output to another output (batch, heads, queries, width), or None to leave it.
Change = Callable[[AttentionRecord, Tensor], Tensor | None]


class ChangedHeads(RecordListener):
    """Replaces the outputs of attention, see :func:`changing`.

    Attributes:
        seen: the number of heads of each attention, by name.
        broken: what was changed in another way than asked for.
    """

    def __init__(
        self, change: Change, retract: Callable[[str], None] | None = None, *, by_position: bool = False
    ) -> None:
        super().__init__()
        self.change, self.by_position = change, by_position
        self.broken: list[str] = []
        self._retract = retract
        self.seen: dict[str, int] = {}
        self._changed: set[str] = set()

    def retract(self, name: str) -> None:
        self.seen.pop(name, None)
        if self._retract is not None:
            self._retract(name)

    def attended(self, record: AttentionRecord) -> Tensor | None:
        self.seen[record.name] = record.shape[1]
        output = record.running.output
        new = None if output is None else self.change(record, output)
        if new is not None:
            self._changed.add(record.name)
        return new

    def joined(self, names: Sequence[str], joint: Joint) -> bool:
        first, every = names[0] in self._changed, self._changed.issuperset(names)
        if first and not every and joint.axis != "heads":
            self.broken.append(f"{names[0]!r} is computed in parts: name all of them ({', '.join(names)})")
        elif first and self.by_position:
            self.broken.append(f"{names[0]!r} is computed in parts or in another order of tokens than its map")
        return False

    def regrouped(self, name: str, known: bool) -> None:
        if name in self._changed:
            raise ValueError(
                f"the heads of {name!r} cannot be changed: its heads and samples are one axis of its tensors, in which "
                + ("heads come first" if known else "nothing shows which comes first")
            )


@contextmanager
def changing(
    model: nn.Module, change: Change, retract: Callable[[str], None] | None = None, *, by_position: bool = False
) -> Iterator[ChangedHeads]:
    """Inside the block ``change`` replaces the output of each attention. The model itself is not changed. The fast path of
    ``nn.TransformerEncoder`` is off, because heads cannot be changed in it. ``retract`` is called with the name of an
    attention that turns out to be a part of another operation; ``by_position`` says that the change depends on where the
    tokens lie. At the end of the block an error says what could not be changed as asked."""
    check_module("model", model)
    changed = ChangedHeads(change, retract, by_position=by_position)
    with intercept(model, changed, keeps_path=False):
        yield changed
    if changed.broken:
        raise ValueError(f"heads were not changed as asked: {'; '.join(dict.fromkeys(changed.broken))}")


def heads_in(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """The number of heads of each attention of the model, by name; ``run`` runs the model."""
    check_module("model", model)
    if isinstance(run, type) or not callable(run):
        raise TypeError(f"run must be a function that runs the model, got {describe(run)}")
    with torch.no_grad(), changing(model, lambda record, output: None) as changed:
        try:
            run()
        except Exception as error:
            raise ValueError(f"run must run the model, but {run!r:.100} raised an error: {error}") from error
    if not changed.seen:
        raise ValueError(
            f"{type(model).__name__} computed no attention in run ({run!r:.100}); run must run a model with attention"
            + "".join(f"; {x}" for x in changed.lost)
        )
    return dict(changed.seen)


@contextmanager
def mask_heads(model: nn.Module, heads: Mapping[str, Sequence[int]]) -> Iterator[None]:
    """Silence heads: inside the block their outputs are zero.

    Args:
        heads: the heads to silence, by the name of the attention, as ``regard.capture`` names it.

    >>> from regard.analysis import mask_heads
    >>> layer, x = regard.MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    >>> with mask_heads(layer, {"MultiHeadAttention": [0, 1]}):
    ...     out = layer(x)
    >>> torch.equal(out, layer.output.bias.expand(1, 3, 8))
    True
    """
    if not isinstance(heads, Mapping):
        raise TypeError(f"heads must be a mapping from names of attention to numbers of heads, got {describe(heads)}")

    if not isinstance(heads, Mapping) or not all(isinstance(name, str) for name in heads):
        raise TypeError(f"heads must map names to numbers of heads, got {describe(heads)}")

    def change(record: AttentionRecord, output: Tensor) -> Tensor | None:
        silent = heads.get(record.name)
        if not silent:
            return None
        check_heads(record.name, silent, output.shape[1])
        gate = output.new_ones(output.shape[1])
        gate[list(silent)] = 0
        return output * gate[:, None, None]

    with changing(model, change) as changed:
        yield
    unknown = [name for name in heads if name not in changed.seen]
    if unknown and changed.seen:
        raise KeyError(f"no attention is named {unknown}; there are {sorted(changed.seen)}")


def check_heads(name: str, chosen: Sequence[int], count: int, argument: str = "heads") -> None:
    """Raise an error unless ``chosen`` are different numbers below ``count``."""
    if not isinstance(chosen, Collection):
        raise TypeError(f"{argument} of {name!r} must be several numbers below {count}, got {describe(chosen)}")
    wrong = [h for h in chosen if isinstance(h, bool) or not isinstance(h, int) or not 0 <= h < count]
    if wrong or len(set(chosen)) != len(chosen):
        raise ValueError(f"{argument} of {name!r} must be different numbers below {count}, got {list(chosen)}")
