"""Wide heads: each axis matrix is a product of two narrow ones (:mod:`regard.functional._interpolation`), so values are first
reduced to a few nodes per axis, and outputs are computed from those.

A value is read once and an output written once. What lies between them is small, and all that is kept for the backward pass.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from regard.functional import kernels
from regard.functional._axis import Border, Targets, build_dtype, nearest_steps
from regard.functional._call import GaussianCall
from regard.functional._interpolation import NodeBasis, node_basis, nodes_needed
from regard.functional._mix import HeadGroup
from regard.functional._node_products import Multiply, by_items, by_torch
from regard.support.checks import is_exporting, is_transformed, under_autocast
from regard.support.tensor_cache import TensorCache, constant

# Interpolation is used if twice its nodes, over all axes, are at most these shares of what matrices and windows would read. On a
# CPU most blocks of a band have the same matrix, so windows take less time and less memory than nodes. Measured on one core:
# 30,000 tokens with a window of 2,418 take 159 ms, and 659 ms over 768 nodes; with 4,818 they take 503, and 329 over 384.
NODE_SHARE = {"cpu": 0.75, "cuda": 0.5}
WINDOW_SHARE = {"cpu": 0.35, "cuda": 0.5}
MOST_NUMBERS = 2**24  # entries of a basis on a GPU: beyond this many, its memory matters
ON_CHIP = 128  # up to this length of an axis, a GPU's kernels keep all its weights on the chip


def wide_nodes(
    call: GaussianCall, centers: Sequence[Sequence[float]], alphas: Sequence[Sequence[float]],
    windows: Sequence[tuple[int | None, ...] | None], dtype: torch.dtype, slack: float,
) -> list[tuple[int, ...] | None]:  # fmt: skip
    """For each head, how many nodes per axis keep the rows of its map as exact as ``dtype``; None if interpolation does not pay.

    On a GPU it is used if all heads are wide, as the kernels find local heads by themselves, and if an axis is long: wide heads
    on short axes cost as much as local ones.

    Args:
        windows: what a band would read of each axis, None for all of it; None for heads without a band.
    """
    if call.center.device.type != "cpu" and max(call.grid) <= ON_CHIP:
        return [None] * call.heads
    counts = _node_counts(call, centers, alphas, dtype, slack)
    paying = [
        _if_paying(call, nodes, window or (None,) * len(call.grid))
        for nodes, window in zip(counts, windows, strict=True)
    ]
    if call.center.device.type == "cpu":
        return paying
    wide = [nodes for nodes in paying if nodes is not None]
    if len(wide) < call.heads:
        return [None] * call.heads
    most = tuple(map(max, zip(*wide, strict=True)))
    return [most] * call.heads  # one group: groups would be copied apart and together


def _node_counts(
    call: GaussianCall, centers: Sequence[Sequence[float]], alphas: Sequence[Sequence[float]], dtype: torch.dtype,
    slack: float,
) -> list[list[int]]:  # fmt: skip
    """For each head, how many nodes each axis needs; on a short or sharp axis, as many as it has keys."""

    def numbers(values: Sequence[Any]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64, device="cpu")

    ends = [(0.0, size - 1.0) for size in call.grid]
    if call.queries is not None:
        ends = [tuple(map(float, queries.detach().double().aminmax())) for queries in call.queries]  # type: ignore[misc]
    keys = [(-before, size - 1 + after) for size, (before, after) in zip(call.grid, call.padding, strict=True)]
    center, (first, last), (low, high) = numbers(centers), numbers(ends).T, numbers(keys).T
    # The rows of a map are at most as far from the exact ones as those of all axes together.
    tolerance = torch.finfo(dtype).eps / (2 * len(call.grid))
    counts = nodes_needed(numbers(alphas), first + center - slack, last + center + slack, low, high, tolerance)
    return counts.tolist()  # type: ignore[no-any-return]


def _if_paying(call: GaussianCall, needed: Sequence[int], window: Sequence[int | None]) -> tuple[int, ...] | None:
    """The number of nodes per axis, or None if fewer numbers are read without interpolation."""
    device = call.center.device.type
    of_axes, of_windows = (shares.get(device, shares["cuda"]) for shares in (NODE_SHARE, WINDOW_SHARE))
    reads = sum(
        of_axes * size if width is None else of_windows * width for size, width in zip(call.grid, window, strict=True)
    )
    keys = [size + sum(padding) for size, padding in zip(call.grid, call.padding, strict=True)]
    nodes = tuple(min(_rounded(count), most) for count, most in zip(needed, keys, strict=True))
    return nodes if 2 * sum(nodes) <= reads and _fits(call, nodes, keys) else None


def _fits(call: GaussianCall, nodes: Sequence[int], keys: Sequence[int]) -> bool:
    """Whether the bases fit into memory: on a CPU whole matrices and windows take more, on a GPU they are not stored."""
    return call.center.device.type == "cpu" or all(a * b <= MOST_NUMBERS for a, b in zip(nodes, keys, strict=True))


def _rounded(count: int) -> int:
    """A few nodes more, so that heads of similar sharpness have equal numbers and are computed together.

    >>> [_rounded(n) for n in (1, 4, 5, 9, 13, 17, 25, 33)]
    [4, 4, 6, 12, 16, 24, 32, 48]
    """
    power = 4
    while power < count:
        if power + power // 2 >= count:
            return power + power // 2
        power *= 2
    return power


class WideAxis(NamedTuple):
    """One axis of a group of wide heads."""

    coordinates: Float[Tensor, " outputs"]
    inputs: int
    nodes: int
    border: Border
    padding: tuple[int, int]

    def basis(self, dtype: torch.dtype, build: torch.dtype) -> NodeBasis:
        device = self.coordinates.device
        return node_basis(self.nodes, self.inputs, self.border, self.padding, dtype, build, device)

    def weights(
        self, basis: NodeBasis, center: Float[Tensor, " heads"], sharpness: Float[Tensor, " heads"]
    ) -> Float[Tensor, "heads outputs nodes"]:
        """G: what each output takes from each node."""
        steps, shift = self._steps(basis, center)
        weights = (-sharpness[:, None, None] * (steps * (steps + 2 * shift))).exp()
        return weights / (weights @ basis.sums).unsqueeze(-1)

    def derivatives(
        self, basis: NodeBasis, center: Tensor, sharpness: Tensor, weights: Tensor
    ) -> tuple[Float[Tensor, "heads outputs nodes"], Float[Tensor, "heads outputs nodes"]]:
        """Of these weights, by center and by sharpness: a score −α m (m + 2e), with m = node − nearest key and e = nearest key −
        target, has the derivatives 2αm and −m (m + 2e), and weights are normalized."""
        steps, shift = self._steps(basis, center)
        by_center, by_sharpness = 2 * sharpness[:, None, None] * steps, -(steps * (steps + 2 * shift))
        found = [weights * (by - ((weights * by) @ basis.sums).unsqueeze(-1)) for by in (by_center, by_sharpness)]
        return found[0], found[1]

    def _steps(self, basis: NodeBasis, center: Tensor) -> tuple[Tensor, Tensor]:
        """From the key nearest to each target to the nodes, and from the target to this key."""
        steps, shift = nearest_steps(Targets.of(self.coordinates, center), basis.whole, *self.ends)
        return steps + basis.fraction, shift

    @property
    def ends(self) -> tuple[int, int]:
        return -self.padding[0], self.inputs - 1 + self.padding[1]


def wide_heads(
    value: Float[Tensor, "batch value_heads tokens width"], call: GaussianCall, group: HeadGroup
) -> Float[Tensor, "batch heads outputs width"]:
    """The outputs of one group of wide heads, in the order of the group. ``value`` has the values of all heads, or one for all.

    >>> from regard.functional._call import resolve
    >>> call = resolve(torch.zeros(1, 1), torch.tensor([1e-3]), (50,), None, "native", None)
    >>> found = wide_heads(torch.arange(50.0).reshape(1, 1, 50, 1), call, HeadGroup((0,), (), (20,)))
    >>> found[0, 0, [0, 25, 49], 0]
    tensor([16.4475, 24.6758, 32.5525])
    """
    center, sharpness = call.center, call.axis_sharpness
    if _needs_float32(value, center, sharpness):
        return wide_heads(value.float(), call, group).to(value.dtype)
    if group.heads != tuple(range(call.heads)):
        index = constant(group.heads, center.device)
        center, sharpness = center.index_select(0, index), sharpness.index_select(0, index)
        value = value if value.shape[1] == 1 else value.index_select(1, index)
    build = build_dtype(center, sharpness, torch.empty((), dtype=value.dtype))
    axes = tuple(
        WideAxis(_coordinates(call, axis, build), inputs, nodes, call.border, padding)
        for axis, (inputs, nodes, padding) in enumerate(zip(call.grid, group.nodes or (), call.padding, strict=True))
    )
    center, sharpness = center.to(build), sharpness.to(build)
    if not _is_plain(value, center, sharpness) or any(axis.coordinates.requires_grad for axis in axes):
        return _plain(value, center, sharpness, axes)
    if kernels.usable_for_nodes(value, build):
        value = kernels.readable(value)
        form = _form(value, center, sharpness, axes)
        if form.is_launchable:
            return _ByKernels.apply(value, center, sharpness, axes, form)  # type: ignore[no-any-return]
    return _ByProducts.apply(value, center, sharpness, axes)  # type: ignore[no-any-return]


def _needs_float32(value: Tensor, center: Tensor, sharpness: Tensor) -> bool:
    """Whether half precision is not enough without our kernels. The gradients of centers and sharpness are sums over nodes that
    cancel where values have a mean, which rounding at the nodes would disturb; and products in float16 are slow on a CPU."""
    half = value.dtype in (torch.float16, torch.bfloat16)
    if not half or (_is_plain(value) and kernels.usable_for_nodes(value, build_dtype(center, sharpness))):
        return False
    trained = torch.is_grad_enabled() and (center.requires_grad or sharpness.requires_grad)
    return value.dtype is torch.float16 or trained or is_transformed()


_RANGES = TensorCache(64)


def _coordinates(call: GaussianCall, axis: int, dtype: torch.dtype) -> Float[Tensor, " outputs"]:
    """Of the queries of one axis."""
    if call.queries is not None:
        return call.queries[axis].to(dtype).contiguous()  # as the kernels read it
    size, device = call.grid[axis], call.center.device
    return _RANGES.get((size, dtype, device), device, lambda: torch.arange(size, dtype=dtype, device=device))


def _is_plain(value: Tensor, *heads: Tensor) -> bool:
    """Whether autograd may call a function of ours: compilers, transforms and subclasses understand plain operations alone."""
    compiled = torch.compiler.is_compiling() or is_exporting()
    known = all(type(x) in (Tensor, torch.nn.Parameter) for x in (value, *heads))
    return known and not (compiled or is_transformed() or under_autocast(value))


def _plain(value: Tensor, center: Tensor, sharpness: Tensor, axes: Sequence[WideAxis]) -> Tensor:
    bases = [axis.basis(value.dtype, center.dtype) for axis in axes]
    weights = [
        axis.weights(basis, center[:, a], sharpness[:, a]).to(value.dtype)
        for a, (axis, basis) in enumerate(zip(axes, bases, strict=True))
    ]
    entered = _spread(_reduced(value, axes, bases, by_torch), weights, by_torch)
    return _output(by_torch(weights[0], entered[0]), axes, value)


def _reduced(value: Tensor, axes: Sequence[WideAxis], bases: Sequence[NodeBasis], multiply: Multiply) -> Tensor:
    """Values at the nodes: what each polynomial of each axis takes from the tokens, ``(batch, value_heads, …)``."""
    batch, heads, behind, width = value.shape
    x, before = value, 1
    for axis, basis in zip(axes, bases, strict=True):
        behind //= axis.inputs
        x = multiply(basis.polynomials.unsqueeze(0), x.reshape(batch, heads, before, axis.inputs, behind * width))
        before *= axis.nodes
    return x.reshape(batch, heads, before, width)


def _spread(x: Tensor, weights: Sequence[Tensor], multiply: Multiply) -> list[Tensor]:
    """From the values at the nodes, what enters the step of each axis, ``(batch, heads or 1, before, nodes, behind)``: before
    are the nodes of other axes, behind the outputs of other axes with their channels.

    The last axis comes first, so that these are small. The step of the first axis, which gives the output, is left out."""
    entered: list[Tensor] = []  # compilers do not understand list[Tensor]()
    before, behind = x.shape[2:]
    for axis in reversed(range(len(weights))):
        _, outputs, nodes = weights[axis].shape
        before //= nodes
        x = x.reshape(*x.shape[:2], before, nodes, behind)
        entered.append(x)
        if axis:
            x, behind = multiply(weights[axis], x), behind * outputs
    return entered[::-1]


def _output(x: Tensor, axes: Sequence[WideAxis], value: Tensor) -> Tensor:
    outputs = math.prod([len(axis.coordinates) for axis in axes])  # compilers do not understand a generator here
    return x.reshape(*x.shape[:2], outputs, value.shape[3])


class _ByProducts(torch.autograd.Function):
    """The same with a backward pass that reads the gradient once, and neither values nor outputs: the gradients of centers and
    sharpness follow from what is at the nodes. The values are kept for second-order gradients alone."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, axes: tuple[WideAxis, ...]) -> Tensor:
        bases = [axis.basis(value.dtype, center.dtype) for axis in axes]
        kept = [
            axis.weights(basis, center[:, a], sharpness[:, a])
            for a, (axis, basis) in enumerate(zip(axes, bases, strict=True))
        ]
        weights, multiply = [each.to(value.dtype) for each in kept], _multiply(value)
        entered = _spread(_reduced(value, axes, bases, multiply), weights, multiply)
        ctx.axes, ctx.bases = axes, bases
        ctx.save_for_backward(value, center, sharpness, *kept, *entered)
        return _output(multiply(weights[0], entered[0]), axes, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, center, sharpness, *rest = ctx.saved_tensors
        axes, bases, needs = ctx.axes, ctx.bases, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return *_plain_gradient((value, center, sharpness), axes, needs, grad), None
        weights, entered, multiply = rest[: len(axes)], rest[len(axes) :], _multiply(value)
        x, by_heads = grad, torch.zeros(2, *center.shape, dtype=center.dtype, device=center.device)
        for a, (axis, basis, weight, known) in enumerate(zip(axes, bases, weights, entered, strict=True)):
            x = x.reshape(*x.shape[:2], known.shape[2], weight.shape[1], known.shape[4])
            if not (needs[1] or needs[2]):
                x = multiply(weight.to(x.dtype).mT, x)
                continue
            derivatives = axis.derivatives(basis, center[:, a], sharpness[:, a], weight)
            three = torch.cat([weight, *derivatives], 2).to(x.dtype)
            parts = multiply(three.mT, x).unflatten(3, (3, -1))
            x = parts.select(3, 0)
            # Weights sum to one, so a constant in the values changes nothing; without it, less is rounded.
            known = known.to(center.dtype)
            known = known - (basis.sums / basis.sums.sum()).unsqueeze(-1) * known.sum(-2, keepdim=True)
            for i in range(2):
                found = parts.select(3, i + 1).to(center.dtype) * known
                by_heads[i, :, a] = found.transpose(0, 1).flatten(1).sum(1)
        by_value = _by_tokens(x, value, axes, bases, multiply) if needs[0] else None
        return by_value, by_heads[0] if needs[1] else None, by_heads[1] if needs[2] else None, None


def _multiply(value: Tensor) -> Multiply:
    return by_items if value.device.type == "cpu" else by_torch


def _by_tokens(
    x: Tensor, value: Tensor, axes: Sequence[WideAxis], bases: Sequence[NodeBasis], multiply: Multiply
) -> Tensor:
    """The gradient by the values, from that by the values at the nodes: the transpose of :func:`_reduced`."""
    batch, heads, _, width = value.shape
    before, behind = math.prod(axis.nodes for axis in axes), width
    x = x.reshape(batch, x.shape[1], before, width)
    x = x.sum(1, keepdim=True) if heads == 1 else x
    for axis, basis in zip(reversed(axes), reversed(bases), strict=True):
        before //= axis.nodes
        x = multiply(basis.polynomials.mT.unsqueeze(0), x.reshape(batch, heads, before, axis.nodes, behind))
        behind *= axis.inputs
    return x.reshape(value.shape)


def _plain_gradient(
    inputs: tuple[Tensor, Tensor, Tensor], axes: Sequence[WideAxis], needs: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """By plain operations, which autograd records for second-order gradients."""
    wanted = [x for x, need in zip(inputs, needs, strict=True) if need]
    found = iter(torch.autograd.grad(_plain(*inputs, axes), wanted, grad, create_graph=True))
    return [next(found) if need else None for need in needs]


class _ByKernels(torch.autograd.Function):
    """The same on a GPU: values and gradients are read, and outputs written, in their own layouts."""

    @staticmethod
    def forward(
        ctx: Any, value: Tensor, center: Tensor, sharpness: Tensor, axes: tuple[WideAxis, ...], form: kernels.WideForm
    ) -> Tensor:
        launches = kernels.wide_launches(form)
        bases = [axis.basis(dtype, center.dtype) for axis, dtype in zip(axes, launches.dtypes, strict=True)]
        out, weights, entered = launches.forward(
            value, center, sharpness, [axis.coordinates for axis in axes], [basis.places for basis in bases],
            [basis.polynomials for basis in bases],
        )  # fmt: skip
        ctx.axes, ctx.bases, ctx.form = axes, bases, form
        ctx.save_for_backward(value, center, sharpness, *weights, *entered)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        value, center, sharpness, *rest = ctx.saved_tensors
        axes, needs = ctx.axes, ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            return *_plain_gradient((value, center, sharpness), axes, needs, grad), None, None
        places, polynomials = [basis.places for basis in ctx.bases], [basis.polynomials for basis in ctx.bases]
        by_value, by_heads = kernels.wide_launches(ctx.form).backward(
            kernels.readable(grad), value, rest[: len(axes)], rest[len(axes) :], places, polynomials, needs[0]
        )
        return by_value, by_heads[0] if needs[1] else None, by_heads[1] if needs[2] else None, None, None


def _form(value: Tensor, center: Tensor, sharpness: Tensor, axes: Sequence[WideAxis]) -> kernels.WideForm:
    batch, value_heads, _, width = value.shape
    sizes = tuple(kernels.AxisSizes(axis.inputs, len(axis.coordinates), axis.nodes, *axis.ends) for axis in axes)
    return kernels.WideForm(
        batch, value_heads, len(center), width, sizes, value.stride(), center.stride(), sharpness.stride(), value.dtype,
        value.device,
    )  # fmt: skip
