"""A whole network from convolution to attention, or from attention to convolution."""

import copy
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from regard.convert._calls import why_changed
from regard.convert._from_conv import Convolution, ConvolutionalAttention, why_not
from regard.convert._report import ConversionReport, LayerReport
from regard.convert._to_conv import attention_to_conv, why_not_gaussian
from regard.convert._trainable import TrainableConvolutionalAttention
from regard.layers import (
    GatedPositionalAttention,
    GaussianAttention,
    MultiHeadAttention,
    PlacedAttention,
    RelativeAttention,
    SeparableAttention,
    flat_tokens,
)
from regard.support.checks import check_choice, describe, is_functional, taking

Target = Literal["attention", "convolution"]
ATTENTION = (
    GaussianAttention, GatedPositionalAttention, RelativeAttention, PlacedAttention, SeparableAttention, MultiHeadAttention,
    nn.MultiheadAttention, TrainableConvolutionalAttention,
)  # fmt: skip
CONVOLUTION = (nn.modules.conv._ConvNd,)


def convert_network(
    model: nn.Module,
    to: Target = "attention",
    *,
    tolerance: float | None = None,
    example: Tensor | tuple[Any, ...] | None = None,
) -> tuple[nn.Module, ConversionReport]:
    """Convert every convolution of a network to attention, or every Gaussian layer to convolution. Also return a report.

    To attention: each ``nn.Conv1d/2d/3d`` becomes the attention that computes the same function
    (:func:`conv_to_attention`). A CIFAR ResNet-18, for example, becomes attention-only and gives the same logits. The
    state_dict keeps its names and values. To convolution: a layer that came from a convolution becomes that convolution
    again, bit for bit, and each :class:`regard.GaussianAttention` becomes convolutions (:func:`attention_to_conv`) where
    possible. Layers that cannot be converted are kept, with the reason in the report; so are layers with hooks, a
    ``forward`` of their own or weights that are computed from others. A measured error above its certified bound gives a
    ``RuntimeWarning``. Where rounding is not specified (on a GPU, with TF32), the report has no bounds and says so; without
    values (``meta``) it has no errors either.

    Args:
        model: it is not changed; the new network has copies of its weights.
        to: ``"attention"`` or ``"convolution"``.
        tolerance: the largest ``leak`` (L1 distance of a row of weights) of a layer; by default 1e-9 to attention (below
            the precision of float32) and 1e-3 to convolution.
        example: an input of the model (or a tuple of inputs). The report then measures errors and costs on the actual
            input of each layer. Without it, each layer is measured on random input.

    >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.ReLU())
    >>> attention, report = convert_network(network, example=torch.randn(1, 3, 8, 8))
    >>> [type(layer).__name__ for layer in attention]
    ['ConvolutionalAttention', 'ReLU']
    >>> back, _ = convert_network(attention, to="convolution")
    >>> all(torch.equal(a, b) for a, b in zip(back.state_dict().values(), network.state_dict().values()))
    True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {describe(model)}")
    check_choice("to", to, ("attention", "convolution"))
    if tolerance is None:
        tolerance = 1e-9 if to == "attention" else 1e-3
    if not isinstance(tolerance, int | float) or not 0 < tolerance < 1:
        raise ValueError(f"tolerance must be a number between 0 and 1, got {describe(tolerance)}")
    network = _copied(model)
    seen = _inputs(model, example)
    convert = _to_attention if to == "attention" else _to_convolution
    rows, done = [], dict[int, nn.Module]()
    attention: tuple[type[nn.Module], ...] = (*ATTENTION, ConvolutionalAttention)
    kinds, others = (CONVOLUTION, attention) if to == "attention" else (attention, CONVOLUTION)
    # One module object may be used in several places: it is converted once, and stays one object.
    for name, module in list(network.named_modules(remove_duplicate=False)):
        if not isinstance(module, kinds):
            continue
        if id(module) not in done:
            done[id(module)], row = convert(name, module, tolerance, seen.get(name))
            rows.append(row)
        if done[id(module)] is not module:
            if name:
                network.set_submodule(name, done[id(module)])
            else:
                network = done[id(module)]
    origin = "each layer's own random input" if example is None else "the example"
    other_way = sum(isinstance(module, others) for module in model.modules())
    report = ConversionReport(to, tolerance, origin, tuple(rows), other_way)
    if report.beyond:
        warnings.warn(report.says_beyond(), RuntimeWarning, stacklevel=2)
    return network, report


def _copied(model: nn.Module) -> nn.Module:
    """A deep copy. copy.deepcopy refuses tensors with a grad_fn (a weight under weight norm or pruning, which the next call
    recomputes); their values are copied without it."""
    computed = [
        value
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    ]
    return copy.deepcopy(model, {id(value): value.detach().clone() for value in computed})


def _inputs(model: nn.Module, example: Tensor | tuple[Any, ...] | None) -> dict[str, tuple[Any, ...]]:
    """The arguments of every layer when the model is called with the example: its first input, and ``grid`` if passed."""
    seen: dict[str, tuple[Any, ...]] = {}
    if example is None:
        return seen

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = inspect.signature(module.forward).bind(*args, **kwargs).arguments  # by name, in their order
            seen.setdefault(name, (next(iter(given.values())), given.get("grid")))

        return hook

    kinds = (*CONVOLUTION, *ATTENTION, ConvolutionalAttention)
    handles = [
        module.register_forward_pre_hook(note(name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]
    training = [module for module in model.modules() if module.training]
    try:
        model.eval()  # batch statistics must not change
        with torch.no_grad(), taking("example", example, model):
            model(*example) if isinstance(example, tuple) else model(example)
    finally:
        for handle in handles:
            handle.remove()
        for module in training:
            module.training = True
    return seen


@torch.no_grad()
def _to_attention(
    name: str, module: nn.Module, tolerance: float, seen: tuple[Any, ...] | None
) -> tuple[nn.Module, LayerReport]:
    before = _describe(module)
    reason = why_not(module)
    if reason:
        return module, LayerReport(name, before, "kept", note=reason)
    conv = cast(Convolution, module)
    attention = ConvolutionalAttention(conv, tolerance)
    if seen is None:
        x = _random((1, conv.in_channels, *_fitting_sizes(attention)), conv.weight)
    else:
        x = seen[0]
    error = _difference(attention(x), conv(x))
    grid = x.shape[-attention.axes :]
    cost = conv.weight.numel() * math.prod(attention.output_size(grid))
    after = f"attention, {attention.heads} head{'s' * (attention.heads > 1)}"
    bound, note = _bound(attention, x)
    return attention, LayerReport(name, before, after, bound, error, cost, attention.multiply_adds(grid), note)


@torch.no_grad()
def _to_convolution(
    name: str, module: nn.Module, tolerance: float, seen: tuple[Any, ...] | None
) -> tuple[nn.Module, LayerReport]:
    before = _describe(module)
    if isinstance(module, ConvolutionalAttention):
        reason = why_changed(module, ConvolutionalAttention, "axis_matrices", "offsets")
        if reason:
            return module, LayerReport(name, before, "kept", note=reason)
        conv = module.to_conv()
        shape = (1, module.in_channels, *_fitting_sizes(module))
        x = _random(shape, module.weight) if seen is None else seen[0]
        grid = x.shape[-module.axes :]
        cost = module.weight.numel() * math.prod(module.output_size(grid))
        bound, note = _bound(module, x)
        row = LayerReport(
            name, before, _describe(conv), bound, _difference(module(x), conv(x)), module.multiply_adds(grid), cost,
            _joined("the convolution it came from", note),
        )  # fmt: skip
        return conv, row
    reason = why_not_gaussian(module)
    if reason:
        return module, LayerReport(name, before, "kept", note=reason)
    return _gaussian_to_convolution(name, cast(GaussianAttention, module), tolerance, seen)


def _gaussian_to_convolution(
    name: str, layer: GaussianAttention, tolerance: float, seen: tuple[Any, ...] | None
) -> tuple[nn.Module, LayerReport]:
    x, grid = seen if seen is not None else (_random((1, *[16] * layer.axes, layer.dim), layer.output.weight), None)
    tokens, sizes = flat_tokens(x, grid, layer.axes, layer.dim)
    x = tokens.unflatten(1, sizes)  # the layer may have been called with channels first, or with flat tokens
    try:
        conv = attention_to_conv(layer, tolerance=tolerance, grid=None if seen is None else sizes)
    except ValueError as refused:
        return layer, LayerReport(name, _describe(layer), "kept", note=str(refused))
    # Compared without dropout.
    theirs, ours = cast(Tensor, copy.copy(layer).eval()(x, sizes)), cast(Tensor, conv(x, sizes))
    inside = (slice(None), *conv.interior(sizes))
    error, everywhere = _difference(ours[inside], theirs[inside]), _difference(ours, theirs)
    bound, note = _bound(conv, x)
    count = math.prod(sizes)
    passes = layer.heads * layer.head_dim * count * sum(sizes)
    linear = (0 if layer.value is None else layer.value.weight.numel()) + layer.output.weight.numel()
    window = "×".join(str(high - low + 1) for low, high in conv.reach)
    after = f"convolution {window}: {len(conv.dense_heads)} heads as taps, {len(conv.chain_heads)} as chains"
    row = LayerReport(
        name, _describe(layer), after, bound, error, passes + linear * count, conv.multiply_adds(sizes),
        _joined("" if everywhere is None else f"with the border {everywhere:.1e}", note),
    )  # fmt: skip
    return conv, row


def _random(shape: tuple[int, ...], like: Tensor) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(0)
    return torch.randn(shape, generator=generator, device="cpu").to(like)


def _fitting_sizes(layer: ConvolutionalAttention) -> list[int]:
    """Of an input that the convolution takes: as large as its kernel, and larger than its padding, which may be reflected."""
    sides = zip(layer.dilation, layer.kernel_size, layer.pads, strict=True)
    return [max(16, d * (k - 1) + 1, 1 + max(pads)) for d, k, pads in sides]


def _bound(layer: Any, x: Tensor) -> tuple[float | None, str]:
    """The certified bound; None, and why, where there is none."""
    try:
        return layer.error_bound(x), ""
    except ValueError as refused:
        return None, f"no bound: {str(refused).partition(':')[0]}"


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _difference(a: Tensor, b: Tensor) -> float | None:
    """None where there is nothing to compare."""
    return None if is_functional(a) or not a.numel() else (a.detach() - b.detach()).abs().max().item()


def _describe(module: nn.Module) -> str:
    name = type(module).__name__
    if isinstance(module, nn.modules.conv._ConvNd):
        kernel = "×".join(map(str, module.kernel_size))
        stride = f" /{module.stride[0]}" if set(module.stride) != {1} else ""
        return f"{name} {module.in_channels}→{module.out_channels}, {kernel}{stride}"
    heads = getattr(module, "heads", getattr(module, "num_heads", None))
    return name if heads is None else f"{name}, {heads} heads"
