"""Launches of the kernels for wide heads (``_node_pass.py``)."""

import torch
from torch import Tensor

from regard.functional.kernels._tensors import on_device_of, power_of_two

COLUMNS = 128  # of a tile: channels of some tokens
# The largest tiles: rows of a product, and nodes of a transposed one, and how many numbers are added up in one step. In float32 a
# half of each, so that tiles fit into the shared memory of every card.
MOST_ROWS, MOST_NODES, STEPS = 128, 64, 64


def weights_of_nodes(
    coordinates: Tensor, center: Tensor, sharpness: Tensor, places: Tensor, ends: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    """``(3, heads, outputs, nodes)``: what each output takes from each node, and its derivatives by center and sharpness.

    Args:
        center, sharpness: ``(heads,)``.
        places: ``(2, nodes)``: the nodes' coordinates, and the sums of their polynomials.
    """
    from regard.functional.kernels._node_pass import node_weights

    heads, outputs, nodes = len(center), len(coordinates), places.shape[1]
    found = torch.empty(3, heads, outputs, nodes, dtype=dtype, device=center.device)
    across = max(16, power_of_two(nodes))
    height = max(1, min(16, 4096 // across))
    with on_device_of(center):
        node_weights[-(-outputs // height), heads](
            coordinates, center, sharpness, places, found, outputs, heads, *ends, nodes, center.stride(0),
            sharpness.stride(0), height, across,
        )  # fmt: skip
    return found


def mixed_rows(matrix: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """``out[b, h, row, other] = Σ_step matrix[h, row, step] x[b, h, step, other]``; a single matrix serves all heads.

    Args:
        x, out: ``(batch, heads, steps or rows, others, width)``, of any strides but that of the width, which is 1.
    """
    from regard.functional.kernels._node_pass import mix_rows

    batch, heads, rows, others, width = out.shape
    height, at_once = _side(rows, MOST_ROWS, x), _side(x.shape[2], STEPS, x)
    across, tokens, tiles, width_tiles = _tiles(others, width)
    m_head = 0 if len(matrix) == 1 else matrix.stride(0)
    with on_device_of(x):
        mix_rows[tiles, batch * heads, -(-rows // height)](
            matrix, x, out, rows, x.shape[2], others, width, width_tiles, heads, m_head, *matrix.stride()[1:],
            *_steps(x), *_steps(out), _precision(x), height, at_once, tokens, across,
            num_warps=8 if height >= 64 else 4,
        )  # fmt: skip
    return out


def gathered_rows(weights: Tensor, grad: Tensor, entered: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient by ``entered`` of what ``weights[0]`` makes of it, and ``(2, heads)``, that of centers and sharpness.

    Args:
        weights: those of :func:`weights_of_nodes`.
        grad, entered: ``(batch, heads, outputs or nodes, others, width)``.
    """
    from regard.functional.kernels._node_pass import gather_rows

    batch, heads, outputs, others, width = grad.shape
    nodes = weights.shape[3]
    height = _side(nodes, MOST_NODES, grad)
    across, tokens, tiles, width_tiles = _tiles(others, width)
    x = torch.empty(batch, heads, nodes, others, width, dtype=grad.dtype, device=grad.device)
    parts = -(-nodes // height)
    partial = torch.empty(2, heads, batch * parts * tiles, dtype=torch.float32, device=grad.device)
    with on_device_of(grad):
        gather_rows[tiles, batch * heads, parts](
            weights, grad, entered, x, partial, nodes, outputs, others, width, width_tiles, heads,
            *_steps(grad), *_steps(entered), *_steps(x), _precision(grad), height, _side(outputs, STEPS, grad),
            tokens, across, num_warps=8 if height >= 64 else 4,
        )  # fmt: skip
    return x, partial.sum(2)


def _side(count: int, most: int, x: Tensor) -> int:
    """The side of a tile: a power of two, at least the 16 of tensor cores."""
    return min(most * 2 // x.element_size(), max(16, power_of_two(count)))


def _tiles(others: int, width: int) -> tuple[int, int, int, int]:
    """Channels and tokens of a tile, the number of tiles, and how many of them one token needs."""
    across = min(COLUMNS, max(16, power_of_two(width)))
    tokens = COLUMNS // across
    width_tiles = -(-width // across)
    return across, tokens, -(-others // tokens) * width_tiles, width_tiles


def _steps(x: Tensor) -> tuple[int, int, int, int]:
    """The strides of a value; one that has a single head serves all heads."""
    item, head, step, other, _ = x.stride()
    return item, 0 if x.shape[1] == 1 else head, step, other


def _precision(x: Tensor) -> str:
    from regard.functional.kernels._setups import precision

    return precision(x.dtype)
