"""How much each head contributes: the norms of values behind the layer's own output projection.

A weight alone does not say how much a token contributes: a sink has large weights and small values. The contribution of
key j to query i by head h is the vector A_ij · v_j W_h, where W_h are the columns of the output projection that belong
to the head. Only norms are kept: ‖v_j W_h‖ for each key, and ‖Σ_j A_ij v_j W_h‖ for each query.

The output projection is found by its input: it is the first product of a weight matrix with exactly the merged heads.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from regard.maps._record import AttentionRecord
from regard.maps.weights._attention_scores import exact, shared_heads

# Functions of torch that apply a projection.
PROJECTIONS = frozenset({"linear", "addmm", "matmul", "__matmul__", "mm", "conv2d"})
_TRIES = 6  # products after an attention whose input is compared with the attention's output


@dataclass(eq=False)
class ValueNorms:
    """Norms of what heads contribute, after the output projection.

    Attributes:
        keys: ‖v_j W_h‖, ``(batch, heads, keys)``.
        heads: ‖Σ_j A_ij v_j W_h‖, ``(batch, heads, queries)``.
    """

    keys: Tensor
    heads: Tensor

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Both tensors by name, as files store them."""
        return {"keys": self.keys, "heads": self.heads}

    @classmethod
    def of(cls, tensors: dict[str, Tensor], record: AttentionRecord) -> "ValueNorms":
        """The norms from :attr:`tensors`; an error if they do not fit the record."""
        batch, _, queries, keys = record.shape
        heads = record.shape[1] if record.heads is None else len(record.heads)
        rows = queries if record.rows is None else len(record.rows)
        found = {name: tuple(x.shape) for name, x in tensors.items() if x.is_floating_point()}
        if found != {"keys": (batch, heads, keys), "heads": (batch, heads, rows)}:
            raise ValueError(f"{record.name!r:.100} is {record.shape}, which norms of {found!r:.200} do not fit")
        return cls(tensors["keys"], tensors["heads"])


class ProjectionWatch:
    """Waits for the output projection of the latest attention, and adds the norms to its record."""

    def __init__(self) -> None:
        self._waiting: tuple[AttentionRecord, Tensor, Tensor, Tensor, int] | None = None

    def expect(
        self, record: AttentionRecord, value: Tensor | None, output: Tensor | None, clean: Tensor | None
    ) -> None:
        """Wait for the output projection of this record's attention.

        Args:
            value, output: ``(batch, heads, tokens, width)``, as the model computed them.
            clean: the output without dropout.
        """
        self._waiting = None
        if value is not None and output is not None and clean is not None:
            self._waiting = (record, value.detach(), output.detach(), clean.detach(), _TRIES)

    def close(self) -> None:
        """Release the tensors of the latest attention, if no projection followed."""
        self._waiting = None

    def projected(self, record: AttentionRecord, value: Tensor, output: Tensor, weight: Tensor) -> None:
        """Compute the norms with this projection, ``(heads · width, out)``."""
        count, width = output.shape[1], output.shape[3]
        with torch.no_grad(), torch.autocast(value.device.type, enabled=False):
            by_head = exact(weight.detach()).reshape(count, width, -1)
            values = shared_heads(exact(value), slice(None), count).expand(-1, count, -1, -1)
            # ‖v W‖² = v (W Wᵀ) vᵀ: the Gram matrices are small, and the projected values are never built.
            gram = by_head @ by_head.mT
            record.norms = ValueNorms(*(_norms(x.to(gram.dtype), gram) for x in (values, exact(output))))
        _select(record)
        self._waiting = None

    def saw(self, function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is about to call one of the :data:`PROJECTIONS`."""
        if self._waiting is None:
            return
        record, value, output, clean, tries = self._waiting
        found = _operands(function, args, kwargs)
        if found is None or found[1].shape[0] != output.shape[1] * output.shape[3]:
            return
        x, weight = found
        if _is_merged(x.detach(), output):
            self.projected(record, value, clean, weight)
        else:
            self._waiting = (record, value, output, clean, tries - 1) if tries > 1 else None


def _norms(x: Tensor, gram: Tensor) -> Tensor:
    """√(x G xᵀ) for each vector x. Rounding may make the product slightly negative."""
    return ((x @ gram) * x).sum(-1).clamp_min(0).sqrt()


def _select(record: AttentionRecord) -> None:
    """Keep the rows and heads that the record keeps."""
    norms = record.norms
    if norms is None:
        return
    if record.heads is not None:
        chosen = torch.tensor(record.heads, dtype=torch.long, device=norms.keys.device)
        norms.keys, norms.heads = norms.keys[:, chosen], norms.heads[:, chosen]
    if record.rows is not None:
        norms.heads = norms.heads[:, :, torch.tensor(record.rows, dtype=torch.long, device=norms.heads.device)]


def _operands(function: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor] | None:
    """The input ``(…, in)`` and the weight ``(in, out)`` of a projection; None if this call is none."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if function == "addmm":
        given = given[1:]
    if len(given) < 2:
        return None
    x, weight = given[:2]
    if function == "linear":
        return (x, weight.mT) if weight.ndim == 2 else None
    if function == "conv2d":
        point = weight.ndim == 4 and tuple(weight.shape[2:]) == (1, 1) and x.ndim == 4
        return (x.flatten(2).mT, weight[:, :, 0, 0].mT) if point else None
    return (x, weight) if weight.ndim == 2 else None


def _is_merged(x: Tensor, output: Tensor) -> bool:
    """Whether x holds the merged heads of the output ``(batch, heads, queries, width)``: ``(batch · queries, heads · width)``
    or ``(queries · batch, heads · width)``."""
    if x.numel() != output.numel() or x.dtype != output.dtype:
        return False
    flat = x.reshape(-1, math.prod(output.shape[1::2]))
    orders: tuple[Callable[[Tensor], Tensor], ...] = (lambda y: y.transpose(1, 2), lambda y: y.permute(2, 0, 1, 3))
    return any(torch.equal(flat, order(output).reshape(flat.shape)) for order in orders)
