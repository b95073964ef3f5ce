"""``edit``: change the attention weights of a running model: block edges, set weights, or use those of another run."""

import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch import Tensor, nn

from regard.analysis._chosen_numbers import Chosen, Named, checked_chosen, count_of, listed, numbers_of
from regard.analysis._composed_maps import Composition, CompositionListener
from regard.analysis._edited_weights import (
    Edges,
    NewWeights,
    TokenPlaces,
    called,
    check_weights,
    has_keys,
    indices,
    least_of,
    table_from_run,
    table_of,
    with_weights,
    without_edges,
)
from regard.analysis._replaceable import check_runs_once, why_fixed
from regard.maps import (
    AttentionRecord,
    Map,
    Maps,
    Numbers,
    Selection,
    check_patterns,
    intercept,
    matches,
    may_match,
    shared_heads,
)
from regard.support.checks import check_flag, describe
from regard.support.tables import text_table

_CHUNK_BYTES = 64 * 2**20  # bytes of weights computed at a time


@dataclass(eq=False)
class Edit:
    """What :func:`edit` returns: a context manager.

    Attributes:
        edges: how many edges of one sample were changed, by the name of the attention, over all calls.
    """

    model: nn.Module
    where: str | Sequence[str]
    queries: Chosen = None
    keys: Chosen = None
    heads: Chosen = None
    weights: NewWeights = None
    renormalize: bool = False
    edges: Counter[str] = field(default_factory=Counter)
    _stack: ExitStack | None = None

    def __post_init__(self) -> None:
        self._least = least_of(self.weights)

    def __enter__(self) -> "Edit":
        if self._stack is not None:
            raise RuntimeError("this edit is already active: write `with regard.edit(…):` again")
        self.edges.clear()
        self._named = {axis: Named(listed(getattr(self, axis))) for axis in ("heads", "queries", "keys")}
        self._stack = ExitStack()
        self._editor = _join_editor(self, self._stack)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()
        if kind is None:
            self._report()

    def wants(self, name: str) -> bool:
        return matches(name, self.where)

    def chosen(self, record: AttentionRecord) -> tuple[Edges, tuple[list[int], list[int]]]:
        """The edges that this edit changes in this attention, and the numbers of the chosen queries and keys."""
        at = TokenPlaces.of(record)
        heads = numbers_of(self.heads, record.shape[1])
        if not heads:
            raise ValueError(f"heads={self.heads}: {record.name!r} has {record.shape[1]} heads")
        if self.heads is not None and record.axes.certainty == "ambiguous":
            raise ValueError(
                f"heads={self.heads}: the axis of the heads of {record.name!r} is ambiguous; edit all heads"
            )
        asked = numbers_of(self.queries, count_of(at.query))
        read = numbers_of(self.keys, count_of(at.key))
        # Without keys= also those of no token: pooled ones and padding of windows.
        key = indices(at.key, read).clamp_min(0 if self.keys is None and not has_keys(self.weights) else -1)
        return Edges(heads, indices(at.query, asked), key, at), (asked, read)

    def see(self, record: AttentionRecord, edges: Edges) -> None:
        """Count the edges that this edit changes in this attention, and remember which of its numbers are there."""
        self.edges[record.name] += edges.count
        heads = torch.arange(record.shape[1])
        for axis, places in (("heads", heads), ("queries", edges.at.query), ("keys", edges.at.key)):
            self._named[axis].see(places)

    def why_not_composed(self, found: Composition) -> str | None:
        """Why this edit of attentions that are one map is not the one of the map, if so."""
        names, new = found.names, self.weights
        if not self.wants(names[0]):  # the name of the map; other parts were chosen by their own names
            return None
        if not all(map(self.wants, names)):
            one_head = found.way == "heads" and self.heads == 0  # head 0 of the first part is that of the map
            return None if one_head else f"it is computed in parts: name all of them in where ({', '.join(names)})"
        table = isinstance(new, Tensor | Map | Maps)
        zero = not table and not callable(new) and not new  # blocked edges, or weights of 0
        if found.way == "difference":
            if table or not (zero or callable(new)):
                return "its map is the difference of several attentions, none of which can take the weights of the map"
            heads = [] if self.heads is None else numbers_of(self.heads, 1 + max(map(max, found.pairs), default=0))
            for one, two in found.split_pairs(heads):
                return f"a head of its map is the difference of heads {one} and {two}: name both"
            return None
        if found.way in ("keys", "same keys"):
            if zero and self.keys is None:  # whole rows
                return None
            return "it is computed in parts that share one softmax, and an edit sees one of them"
        numbered = {
            "batch": table,
            "heads": table or self.heads is not None,
            "batch and heads": table or self.heads is not None,
            "queries": table or self.queries is not None or self.keys is not None,
            "values": False,
        }
        if numbered[found.way]:
            return "it is computed in parts, or in another order, so queries, keys or heads have other numbers than in its map"
        return None

    def change(self, record: AttentionRecord, weights: Tensor, rows: Tensor, call: int) -> Tensor:
        """The weights ``(batch, heads, rows, keys)`` of all heads, with this edit."""
        edges, wanted = self.chosen(record)
        mask = edges.mask(rows).to(weights.device)
        heads = torch.tensor(edges.heads, device=weights.device)
        part = weights[:, heads]
        new = self.weights
        if new is None:
            changed = without_edges(part, mask, record.kind)
        else:
            if isinstance(new, Map | Maps):
                values = table_from_run(new, record, call).look_up(record, edges, rows)
            elif isinstance(new, Tensor):
                values = table_of(new, edges, wanted, record.name).look_up(record, edges, rows)
            elif callable(new):
                # The rows of this edit alone: others that are active at the same time may change more.
                own = (edges.query[:, rows] >= 0).any(0).to(weights.device)
                values = part.clone()
                values[:, :, own] = called(new, part[:, :, own], record.name)
            else:
                values = torch.tensor(float(new), dtype=weights.dtype)
            if self._least < 0 and not bool((part < 0).any()):
                raise ValueError(
                    f"weights has negative numbers, down to {self._least:.3g}, but {record.name!r} has none: pass 0 or more"
                )
            changed = with_weights(part, values.to(weights.device), mask, self.renormalize, record.name)
        return weights.index_copy(1, heads, changed)

    def _report(self) -> None:
        lost = [text for name, text in self._editor.lost_by_name if self.wants(name)]
        if lost:
            raise ValueError(f"not edited: {'; '.join(lost[:3])}")
        if not self.edges:
            seen = sorted(self._editor.names)
            there = f"there are {', '.join(seen)}" if seen else "the model computed no attention inside the block"
            raise ValueError(f"where={self.where!r} names no attention; {there}")
        if not sum(self.edges.values()):
            raise ValueError(
                f"no edge was changed: queries and keys must name tokens of {', '.join(self.edges)}, but queries="
                f"{self.queries!r} and keys={self.keys!r} name none"
            )
        for axis, one in (("heads", "head"), ("queries", "query"), ("keys", "key")):
            named = self._named[axis]
            if named.absent:  # others may be in some attentions only
                raise ValueError(
                    f"{axis}={getattr(self, axis)}: no edited attention has a {one} {named.absent[0]}, the most are {named.most}"
                )

    def __str__(self) -> str:
        rows = [("name", "edges changed"), *((name, f"{count:,}") for name, count in self.edges.items())]
        return "\n".join(text_table(rows, right={1})) if self.edges else "no edges were changed"


class _Editor(CompositionListener):
    """All active edits of one model in this thread, applied one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.edits: list[Edit] = []
        self.names: set[str] = set()
        self._calls: Counter[str] = Counter()

    def wants(self, name: str) -> bool:
        self.names.add(name)
        return any(may_match(name, edit.where) for edit in self.edits)

    def retract(self, name: str) -> None:
        raise ValueError(
            f"{name!r} cannot be edited: what it averages are no values, as in linear attention, which has no map, or in a map "
            "that is a product of several matrices"
        )

    def rescaled(self, name: str, factor: Tensor) -> None:
        warnings.warn(
            f"{name!r} rescales the output of its kernel (a learned sink): its share stays that of the weights before the edit",
            stacklevel=2,
        )
        super().rescaled(name, factor)

    def composed(self, found: Composition) -> None:
        for edit in self.edits:
            reason = edit.why_not_composed(found)
            if reason:
                self.lost_by_name.append((found.names[0], f"{found.names[0]}: {reason}"))

    def attended(self, record: AttentionRecord) -> Tensor | None:
        self.remember(record)
        call = self._calls[record.name]
        self._calls[record.name] += 1
        running, edits_of_it = record.running, [edit for edit in self.edits if edit.wants(record.name)]
        reason = _why_not(record) if edits_of_it else None
        if reason:
            raise ValueError(f"{record.name!r} cannot be edited: it {reason}")
        edits = [(edit, edit.chosen(record)[0]) for edit in edits_of_it]
        for edit, edges in edits:
            edit.see(record, edges)
        edits = [(edit, edges) for edit, edges in edits if edges.count]
        if not edits:
            return None
        check_runs_once(record.name)
        rows = torch.cat([edges.rows for _, edges in edits]).unique()
        heads = sorted({head for _, edges in edits for head in edges.heads})
        chosen = [edit for edit, _ in edits]
        by_function = any(callable(edit.weights) for edit in chosen)

        def edited(some: Selection, which: Selection) -> Tensor:
            part = torch.arange(record.shape[2])[some.cpu() if isinstance(some, Tensor) else some]
            if not by_function:
                return _weights(record, chosen, part, call)[:, which]
            # A function sees all rows that it changes, also if a capture asks for some of them, or for others.
            whole, found = _weights(record, chosen, rows, call), _weights(record, [], part, call).clone()
            at = torch.isin(part, rows)
            found[:, :, at.to(found.device)] = whole[:, :, torch.searchsorted(rows, part[at]).to(whole.device)]
            return found[:, which]

        running.edited = edited  # for a capture inside the block
        with torch.autocast(running.device.type, enabled=False):
            return self._output(record, chosen, rows, heads, call)

    def _output(self, record: AttentionRecord, edits: list[Edit], rows: Tensor, heads: list[int], call: int) -> Tensor:
        running = record.running
        output, value = running.output, running.value
        if output is None or value is None:
            raise ValueError(f"{record.name!r} cannot be edited")  # see _why_not
        batch, count, _, keys = record.shape
        step = max(1, _CHUNK_BYTES // max(1, 4 * batch * count * keys))
        if any(callable(edit.weights) for edit in edits):
            step = max(1, len(rows))  # a function sees all chosen rows
        device, chosen = output.device, torch.tensor(heads, device=output.device)
        new = output.clone()
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            weights = _weights(record, edits, part, call)
            mixed = weights[:, chosen] @ shared_heads(value, chosen, count).to(weights.dtype)
            new[:, chosen[:, None], part.to(device)] = mixed.to(new.dtype)
        return new


def _weights(record: AttentionRecord, edits: list[Edit], rows: Tensor, call: int) -> Tensor:
    """The edited weights of these rows, ``(batch, heads, rows, keys)``."""
    weights = record.running.weights(rows.to(record.running.device), slice(None))[0]
    weights = weights.expand(record.shape[0], -1, -1, -1)
    for edit in edits:
        weights = edit.change(record, weights, rows, call)
    return weights


def _why_not(record: AttentionRecord) -> str | None:
    """Why this attention cannot be edited, if so."""
    running = record.running
    if record.axes.over == "channels":
        return "attends over channels, not over tokens"
    if record.axes.over == "samples":
        return "has different keys for each query"
    if running.value is None:
        return "has an output that is not a product of weights and values"
    return why_fixed(record)


_active = threading.local()


def _join_editor(edit: Edit, stack: ExitStack) -> _Editor:
    """Add the edit to the model's editor in this thread until ``stack`` is closed; a new editor is created if needed."""
    editors: dict[int, _Editor] = _active.__dict__.setdefault("editors", {})
    key = id(edit.model)
    found = editors.get(key)
    editor = _Editor() if found is None else found
    editor.edits.append(edit)
    stack.callback(editor.edits.remove, edit)
    if found is None:
        editors[key] = editor
        stack.callback(editors.pop, key, None)
        stack.callback(editor.forget)  # an edit may be kept, to be read or entered again
        # Entered last, so that it exits first: at its exit it reports missed attention to the edits, which must still exist.
        stack.enter_context(intercept(edit.model, editor, keeps_path=False))
    return editor


def edit(
    model: nn.Module,
    where: str | Sequence[str],
    *,
    queries: Numbers = None,
    keys: Numbers = None,
    heads: Numbers = None,
    weights: NewWeights = None,
    renormalize: bool | None = None,
) -> Edit:
    r"""Change attention while the model runs: block edges, set their weights, or use the weights of another run.

    .. math:: O_h = A'_h V_h \qquad\text{with}\quad A'_{qk} =
        \begin{cases} 0 & \text{blocked} \\ A_{qk} / (1 - \sum_{\text{blocked } j} A_{qj}) & \text{else} \end{cases}
        \quad\text{or}\quad A'_{qk} = \text{what you pass}

    The edges are all pairs of the chosen queries, keys and heads. A blocked edge has the score −∞: the other keys of its
    row share its weight, and a row without any other key becomes zero. Works in every model that ``regard.capture``
    recognizes (fused kernels, FlexAttention, ``nn.TransformerEncoder``, attention written by hand, layers of regard), and
    gradients flow through the changed map. The model itself is not changed; inside the block, dropout does not act on the
    rows that are changed. Nested edits of one model apply one after another, the outer first.

    Args:
        where: the name of the attention as ``regard.capture`` names it, a pattern such as ``"layers.*"``, or several. If
            the model computes a map in parts (``attn``, ``attn#2``, …), name all of them, as ``"attn*"`` does; ``attn#2``
            alone stands for this part. If a head of the map is the difference of two heads (differential attention),
            choose both. Otherwise the block ends with an error.
        queries, keys: positions in the sequence: a number, a slice or several numbers, also as a tensor or an array;
            negative ones count from the newest token, None stands for all. In ``generate``, and with other caches, they
            are absolute: ``queries=slice(5, None)`` is the sixth token and all that follow. In cross-attention they are
            the rows and columns of the map.
        heads: numbers of heads; None for all.
        weights: None to block; a number; a tensor ``(batch or 1, heads, queries, keys)`` for the chosen edges, where every
            axis may be 1 and leading axes may be left out; the maps of another run (by name, call and position); or a
            function of the weights ``(batch, heads, chosen queries, all keys)`` that returns weights of this shape; only
            the chosen edges are used.
        renormalize: whether the row keeps its sum, by scaling its other weights. Blocking always does; for set weights
            the default is False.

    >>> layer, x = regard.MultiHeadAttention(8, 2), torch.randn(1, 3, 8)
    >>> with regard.edit(layer, "*", keys=0) as edited, regard.capture(layer) as maps:
    ...     out = layer(x)                      # no query reads the first token
    >>> print(edited)
    name                edges changed
    ──────────────────  ─────────────
    MultiHeadAttention              6
    >>> with regard.edit(layer, "*", weights=maps):
    ...     same = layer(torch.randn(1, 3, 8))  # other values, weights of the first run
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    if where is None:
        raise TypeError('where must be the name of an attention or a pattern such as "layers.*", got None')
    check_patterns("where", where)
    places = checked_chosen("queries", queries), checked_chosen("keys", keys), checked_chosen("heads", heads)
    if weights is None and queries is None and keys is None and heads is None:
        raise ValueError("queries, keys, heads and weights are all None: name the edges to block, or pass weights")
    check_weights(weights)
    if renormalize is not None:
        check_flag("renormalize", renormalize)
        if weights is None and not renormalize:
            raise ValueError(
                "renormalize=False needs weights: to block edges and keep the other weights unchanged, pass weights=0.0"
            )
    return Edit(model, where, *places, weights, bool(renormalize))
