"""Heads of a running model, changed one by one: silenced, scaled, or replaced."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from regard.maps._seen import Seen
from regard.maps._watch import watch
from regard.support.checks import describe

# For one attention: another output (batch, heads, queries, width), or None to leave it.
Change = Callable[[Seen, Tensor], Tensor | None]


class _Changing:
    def __init__(self, change: Change, retract: Callable[[str], None] | None = None) -> None:
        self.change = change
        self._retract = retract
        self.seen: dict[str, int] = {}
        self.lost: list[str] = []

    def wants(self, name: str) -> bool:
        return True

    def missed(self, name: str, reason: str, shape: tuple[int, ...] | None = None) -> None:
        self.lost.append(f"{name}: {reason}")

    def retract(self, name: str) -> None:
        self.seen.pop(name, None)
        if self._retract is not None:
            self._retract(name)

    def attended(self, seen: Seen) -> Tensor | None:
        self.seen[seen.name] = seen.shape[1]
        return None if seen.output is None else self.change(seen, seen.output)


@contextmanager
def changing(model: nn.Module, change: Change, retract: Callable[[str], None] | None = None) -> Iterator[_Changing]:
    """Inside the block each attention's output is what ``change`` makes of it. The model itself is not touched; the
    fast path of ``nn.TransformerEncoder``, inside which no head can be reached, is not taken. ``retract`` is told the
    name of an attention that turned out to be part of a larger one."""
    sink = _Changing(change, retract)
    with watch(model, sink, keeps_path=False):
        yield sink


def heads_in(model: nn.Module, run: Callable[[], object]) -> dict[str, int]:
    """How many heads each attention of the model has, found by running it."""
    with torch.no_grad(), changing(model, lambda seen, output: None) as sink:
        run()
    if not sink.seen:
        raise ValueError(f"no attention of {type(model).__name__} was seen" + "".join(f"; {x}" for x in sink.lost))
    return dict(sink.seen)


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

    def change(seen: Seen, output: Tensor) -> Tensor | None:
        silent = heads.get(seen.name)
        if not silent:
            return None
        check_heads(seen.name, silent, output.shape[1])
        gate = output.new_ones(output.shape[1])
        gate[list(silent)] = 0
        return output * gate[:, None, None]

    with changing(model, change) as sink:
        yield
    unknown = [name for name in heads if name not in sink.seen]
    if unknown and sink.seen:
        raise KeyError(f"no attention is named {unknown}; there are {sorted(sink.seen)}")


def check_heads(name: str, chosen: Sequence[int], count: int) -> None:
    """Whole numbers below the number of heads, each once."""
    if not isinstance(chosen, Collection):
        raise TypeError(f"heads of {name!r} must be several numbers below {count}, got {describe(chosen)}")
    wrong = [h for h in chosen if isinstance(h, bool) or not isinstance(h, int) or not 0 <= h < count]
    if wrong or len(set(chosen)) != len(chosen):
        raise ValueError(f"heads of {name!r} must be different numbers below {count}, got {list(chosen)}")
