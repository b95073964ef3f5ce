"""The heads of a running model, changed one by one: silenced, scaled or replaced."""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsIndex

import torch
from torch import Tensor, nn

from regard.analysis._composed_maps import Composition, CompositionListener
from regard.analysis._replaceable import check_runs_once, why_fixed
from regard.maps import AttentionRecord, intercept, whole_number
from regard.support.checks import check_module, describe, is_iterable

# From one attention and its output to another output (batch, heads, queries, width), or None to leave it.
Change = Callable[[AttentionRecord, Tensor], Tensor | None]
# Numbers of heads as a caller passes them: also those of numpy and torch, alone or in an array.
HeadNumbers = Collection[SupportsIndex] | Tensor


class ChangedHeads(CompositionListener):
    """Replaces the outputs of attention, see :func:`changing`.

    Attributes:
        seen: the number of heads of each attention, by name.
        compositions: which attentions are one map.
        broken: what was changed in another way than asked for.
    """

    def __init__(
        self,
        change: Change,
        retract: Callable[[str], None] | None = None,
        *,
        of_maps: bool = False,
        chosen: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        super().__init__()
        self.change, self.of_maps, self.chosen = change, of_maps, chosen or {}
        self.broken: list[str] = []
        self._retract = retract
        self.seen: dict[str, int] = {}
        self.compositions: dict[Composition, None] = {}
        self._changed: set[str] = set()

    def retract(self, name: str) -> None:
        self.seen.pop(name, None)
        if self._retract is not None:
            self._retract(name)

    def attended(self, record: AttentionRecord) -> Tensor | None:
        self.seen[record.name] = record.shape[1]
        self.remember(record)
        output = record.running.output
        new = None if output is None else self.change(record, output)
        if new is None:
            return None
        reason = why_fixed(record)
        if reason:
            self.broken.append(f"{record.name!r} {reason}")
            return None
        check_runs_once(record.name)
        self._changed.add(record.name)
        return new

    def composed(self, found: Composition) -> None:
        self.compositions[found] = None
        name, names = found.names[0], ", ".join(found.names)
        if name not in self._changed:  # other parts were chosen by their own names
            return
        if found.way == "batch and heads":
            self.broken.append(
                f"{name!r} computes some heads of some samples at a time, so that none can be changed alone"
            )
        elif self.of_maps and (found.way != "values" or not self._changed.issuperset(found.names)):
            self.broken.append(
                f"{name!r} is computed in parts, or as a difference, or in another order of tokens than its map"
            )
        elif not self._changed.issuperset(found.names) and found.way != "heads":
            self.broken.append(f"{name!r} is computed in parts: name all of them ({names})")
        elif split := found.split_pairs(self.chosen.get(name, ())):
            one, two = split[0]
            self.broken.append(
                f"a head of the map of {name!r} is the difference of its heads {one} and {two}: name both of them, or none"
            )

    def regrouped(self, name: str, known: bool) -> None:
        if name in self._changed:
            self.broken.append(
                f"the heads of {name!r} cannot be changed: its heads and samples are one axis of its tensors, in which "
                + ("heads come first" if known else "nothing shows which comes first")
            )


@contextmanager
def changing(
    model: nn.Module,
    change: Change,
    retract: Callable[[str], None] | None = None,
    *,
    of_maps: bool = False,
    chosen: Mapping[str, Sequence[int]] | None = None,
) -> Iterator[ChangedHeads]:
    """Inside the block ``change`` replaces the output of each attention. The model itself is not changed. The fast path of
    ``nn.TransformerEncoder`` is off, because heads cannot be changed in it. At the end of the block an error says what
    could not be changed as asked.

    Args:
        retract: called with the name of an attention that turns out to be a part of another operation.
        of_maps: whether the change was made for maps of ``capture``: for their heads, at the places of their tokens.
        chosen: the heads that are changed, by name, if not all are.
    """
    check_module("model", model)
    changed = ChangedHeads(change, retract, of_maps=of_maps, chosen=chosen)
    with intercept(model, changed, keeps_path=False):
        yield changed
    if changed.broken:
        raise ValueError(f"heads were not changed as asked: {'; '.join(dict.fromkeys(changed.broken))}")


def heads_in(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """The number of heads of each attention of the model, by name, as the model computes them and :func:`mask_heads` takes
    them; ``run`` runs the model.

    Maps of ``regard.capture`` may have other heads, see :func:`mask_heads`.
    """
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
def mask_heads(model: nn.Module, heads: Mapping[str, HeadNumbers]) -> Iterator[None]:
    """Silence heads: inside the block their outputs are zero, and so are their maps for a capture or an edit in it.

    A model may compute one map of ``regard.capture`` in parts, which are called ``attn``, ``attn#2``, …. Then name all of
    them, or the block ends with an error that does. ``attn#2`` alone stands for this part. In differential attention a head
    of the map may be the difference of two heads of the model: silence both or none. Heads of ``find_heads`` and of
    ``importance`` are those of the maps: :func:`pruning_curve` silences these, :func:`heads_in` shows which the model has.

    Args:
        heads: the heads to silence, by the name of the attention, as ``regard.capture`` names it.

    >>> from regard.analysis import mask_heads
    >>> layer, x = regard.MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    >>> with mask_heads(layer, {"MultiHeadAttention": [0, 1]}):
    ...     out = layer(x)
    >>> torch.equal(out, layer.output.bias.expand(1, 3, 8))
    True
    """
    with masking(model, heads):
        yield


@contextmanager
def masking(model: nn.Module, heads: Mapping[str, HeadNumbers]) -> Iterator[ChangedHeads]:
    """:func:`mask_heads` that says what the model computed inside the block."""
    if not isinstance(heads, Mapping):
        raise TypeError(f"heads must be a mapping from names of attention to numbers of heads, got {describe(heads)}")
    if not all(isinstance(name, str) for name in heads):
        raise TypeError(f"heads must map names to numbers of heads, got {describe(heads)}")
    silenced = {name: plain_heads(chosen) for name, chosen in heads.items()}

    def change(record: AttentionRecord, output: Tensor) -> Tensor | None:
        silent = silenced.get(record.name)
        if not silent:
            return None
        check_heads(record.name, silent, output.shape[1], more=_AS_COMPUTED)
        gate = output.new_ones(output.shape[1])
        gate[list(silent)] = 0
        running = record.running
        # For a capture or an edit inside the block: the map of a silent head is zero.
        running.edited = lambda rows, which: running.weights(rows, which)[0] * gate[which, None, None].detach()
        return output * gate[:, None, None]

    with changing(model, change, chosen=silenced) as changed:
        yield changed
    named = [name for name, silent in silenced.items() if silent]
    lost = dict.fromkeys(text for name, text in changed.lost_by_name if name in named)
    if lost:
        raise ValueError(f"heads were not silenced: {'; '.join(lost)}")
    if named and not changed.seen:
        warnings.warn(f"no heads of {', '.join(named)} were silenced: {none_seen(model)}", stacklevel=5)
    unknown = [name for name in silenced if name not in changed.seen]
    if unknown and changed.seen:
        raise KeyError(f"no attention is named {unknown}; there are {sorted(changed.seen)}")


def none_seen(model: nn.Module) -> str:
    return f"{type(model).__name__} did not run inside the block, or has no attention that regard recognizes"


def plain_heads(chosen: Any) -> Any:
    """Whole numbers of numpy and torch, also in one array, as plain ones; anything else as it is, see :func:`check_heads`.

    >>> plain_heads(torch.tensor([2, 0])), plain_heads("all")
    ([2, 0], 'all')
    """
    numbers = [whole_number(each) for each in chosen] if is_iterable(chosen, Collection) else [None]
    return chosen if None in numbers else numbers


_AS_COMPUTED = (
    ". They are counted as the model computes them: the map of regard.capture may have more heads if it consists of several "
    "attentions, which heads_in names"
)


def check_heads(name: str, chosen: Sequence[int], count: int, argument: str = "heads", more: str = "") -> None:
    """Raise an error unless ``chosen`` are different numbers below ``count``. ``more`` is added to its message."""
    if not isinstance(chosen, Collection):
        raise TypeError(f"{argument} of {name!r} must be several numbers below {count}, got {describe(chosen)}")
    wrong = [h for h in chosen if isinstance(h, bool) or not isinstance(h, int) or not 0 <= h < count]
    if wrong or len(set(chosen)) != len(chosen):
        raise ValueError(f"{argument} of {name!r} must be different numbers below {count}, got {list(chosen)}{more}")
