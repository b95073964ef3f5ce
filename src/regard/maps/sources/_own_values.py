"""Values that differ from query to query: positions relative to it, or features of the pair of query and key.

All heads may share these values. Then one product serves the heads of each query, ``(…, queries, heads, keys) @
(…, queries, keys, width)``. It has the shape of a product of each head's queries, so evidence must tell which of the two
it is.
"""

from dataclasses import replace

from torch import Tensor

from regard.maps.sources._tensor_facts import is_turned
from regard.maps.sources._tensor_origins import WeightedSum
from regard.maps.tokens._axes import AxisEvidence, AxisReading, read_rows_as_heads


def with_own_values(
    found: WeightedSum, shape: tuple[int, ...], value: Tensor, evidence: AxisEvidence
) -> tuple[WeightedSum, Tensor, AxisReading] | None:
    """The weighted sum as one with a single row for each query and head, with its values and its reading.

    None if the rows are queries, and the values are those of a head.

    Args:
        shape: of the weights.
        value: the values, with all leading axes.
    """
    lead, rows, width = shape[:-2], shape[-2], value.shape[-1]
    differ = tuple(axis for axis, n in enumerate(lead) if n > 1 and value.shape[axis] == n and value.stride(axis) != 0)
    if rows < 2 or not differ or value.ndim != len(shape):
        return None
    turned = found.origin.turned or is_turned(found.weights.reshape(shape))
    read = read_rows_as_heads(shape, width, evidence, differ, turned=turned)
    if read is None:
        return None
    reading, axis = read
    sizes = reading.lead

    def apart(x: Tensor) -> Tensor:
        return x.reshape(*shape[:-1], x.shape[-1]).movedim(axis, -3).unsqueeze(-2)

    def together(x: Tensor, like: tuple[int, ...]) -> Tensor:
        return x.squeeze(-2).movedim(-3, axis).reshape(like)

    own = replace(
        found,
        weights=apart(found.weights),
        dropped=None if found.dropped is None else apart(found.dropped),
        shape=(*sizes, 1, shape[-1]),
        arrange=lambda out: apart(found.arrange(out)),
        restore=lambda new: found.restore(together(new, (*found.weights.shape[:-1], new.shape[-1]))),
    )
    return own, value.movedim(axis, -3).unsqueeze(-3).expand(*sizes, *value.shape[-2:]), reading
