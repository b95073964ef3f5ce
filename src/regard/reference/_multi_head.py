"""Multi-head attention: projecting the whole input, slicing it, and written as a sum over heads."""

from collections.abc import Sequence
from typing import TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.reference._attention import attention
from regard.support.checks import check_broadcastable, check_positive, check_shapes

T = TypeVar("T")


def multi_head_attention(
    x: Float[Tensor, "*batch queries dim"],
    context: Float[Tensor, "*batch keys dim_context"],
    w_query: Float[Tensor, "inner dim"],
    w_key: Float[Tensor, "inner_key dim_context"],
    w_value: Float[Tensor, "inner_value dim_value"],
    w_out: Float[Tensor, "out inner_out"],
    *,
    b_query: Float[Tensor, "inner"] | None = None,
    b_key: Float[Tensor, "inner_key"] | None = None,
    b_value: Float[Tensor, "inner_value"] | None = None,
    b_out: Float[Tensor, "out"] | None = None,
    heads: int,
    values: Float[Tensor, "*batch keys dim_value"] | None = None,
    beta: float | Tensor | None = None,
    keep: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "*batch queries out"], Float[Tensor, "*batch heads queries keys"]]:
    r"""Heads that each look at the whole input; their outputs are concatenated and mixed.

    .. math:: \mathrm{out} = \mathrm{concat}_h\big[A^{(h)} V^{(h)}\big] W_{out}^\top + b_{out}

    .. math:: Q^{(h)} = X W_q^{(h)\top} + b_q^{(h)}, \quad K^{(h)} = C W_k^{(h)\top} + b_k^{(h)}, \quad
        V^{(h)} = C W_v^{(h)\top} + b_v^{(h)}

    ``context = x`` is self-attention, anything else cross-attention. Head h owns the h-th of ``heads`` equal blocks of
    rows of ``w_query``. ``w_key`` and ``w_value`` may have blocks for fewer heads; neighboring heads then share one.

    Args:
        x, context: X and C, the inputs that ask and that answer.
        w_query, w_key, w_value, w_out: in the layout of ``nn.Linear``, (outputs, inputs).
        b_query, b_key, b_value, b_out: their biases, or None.
        values: what is averaged, where that is not ``context``.
        beta, keep, bias, causal: as in :func:`attention`; masks are ``(queries, keys)`` or have as many axes as the
            weights, heads among them.

    Returns the output and the weights.

    >>> x, eye = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> output, weights = multi_head_attention(x, x, eye, eye, eye, eye, heads=2, beta=math.inf)
    >>> weights[0]  # the first head sees the first number alone, and zero ties with everything
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    values = context if values is None else values
    biases = (b_query, b_key, b_value, b_out)
    shared = _check_projections(x, context, values, (w_query, w_key, w_value, w_out), biases, heads)
    outputs, weights = _attend(
        _linear(x, w_query, b_query).chunk(heads, -1),
        _repeat(_linear(context, w_key, b_key).chunk(shared, -1), heads),
        _repeat(_linear(values, w_value, b_value).chunk(shared, -1), heads),
        beta,
        keep,
        bias,
        causal,
    )
    return _linear(torch.cat(outputs, -1), w_out, b_out), weights


def sum_of_heads(
    x: Float[Tensor, "*batch queries dim"],
    context: Float[Tensor, "*batch keys dim_context"],
    w_query: Float[Tensor, "inner dim"],
    w_key: Float[Tensor, "inner_key dim_context"],
    w_value: Float[Tensor, "inner_value dim_value"],
    w_out: Float[Tensor, "out inner_out"],
    *,
    b_query: Float[Tensor, "inner"] | None = None,
    b_key: Float[Tensor, "inner_key"] | None = None,
    b_value: Float[Tensor, "inner_value"] | None = None,
    b_out: Float[Tensor, "out"] | None = None,
    heads: int,
    values: Float[Tensor, "*batch keys dim_value"] | None = None,
    beta: float | Tensor | None = None,
    keep: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "*batch queries out"], Float[Tensor, "*batch heads queries keys"]]:
    r"""The same numbers as :func:`multi_head_attention`, with nothing concatenated: heads are terms of a sum.

    .. math:: \mathrm{out} = \sum_h A^{(h)} \big(C W^{(h)} + c^{(h)}\big) + b_{out}, \qquad
        W^{(h)} = W_v^{(h)\top} W_{out}^{(h)\top}, \quad c^{(h)} = b_v^{(h)} W_{out}^{(h)\top}

    where :math:`W_{out}^{(h)}` are the columns of ``w_out`` that head h writes through. With every :math:`A^{(h)}` a
    shift of the image this is a convolution, and :math:`W^{(h)}` its kernel at that shift. Arguments as in
    :func:`multi_head_attention`.

    >>> x, eye = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> output, weights = sum_of_heads(x, x, eye, eye, eye, eye, heads=2, beta=math.inf)
    >>> output
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    values = context if values is None else values
    biases = (b_query, b_key, b_value, b_out)
    shared = _check_projections(x, context, values, (w_query, w_key, w_value, w_out), biases, heads)
    messages = []
    w_value_heads = _repeat(w_value.chunk(shared), heads)
    b_value_heads = _repeat([None] * shared if b_value is None else b_value.chunk(shared), heads)
    for w_value_head, b_value_head, w_out_head in zip(
        w_value_heads, b_value_heads, w_out.chunk(heads, -1), strict=True
    ):
        message = values @ (w_value_head.mT @ w_out_head.mT)
        messages.append(message if b_value_head is None else message + b_value_head @ w_out_head.mT)
    outputs, weights = _attend(
        _linear(x, w_query, b_query).chunk(heads, -1),
        _repeat(_linear(context, w_key, b_key).chunk(shared, -1), heads),
        messages,
        beta,
        keep,
        bias,
        causal,
    )
    output = torch.stack(outputs).sum(0)
    return (output if b_out is None else output + b_out), weights


def sliced_multi_head_attention(
    x: Float[Tensor, "*batch queries dim"],
    context: Float[Tensor, "*batch keys dim_context"],
    w_query: Float[Tensor, "heads width slice"],
    w_key: Float[Tensor, "heads width slice_context"],
    w_value: Float[Tensor, "heads value_width slice_context"],
    w_out: Float[Tensor, "out inner_out"],
    *,
    b_query: Float[Tensor, "heads width"] | None = None,
    b_key: Float[Tensor, "heads width"] | None = None,
    b_value: Float[Tensor, "heads value_width"] | None = None,
    b_out: Float[Tensor, "out"] | None = None,
    heads: int,
    beta: float | Tensor | None = None,
    keep: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "*batch queries out"], Float[Tensor, "*batch heads queries keys"]]:
    r"""Heads that each look at their own slice of the input.

    .. math:: \mathrm{out} = \mathrm{concat}_h\big[\mathrm{attention}(X_h W_q^{(h)\top}, C_h W_k^{(h)\top},
        C_h W_v^{(h)\top})\big] W_{out}^\top + b_{out}

    where :math:`X_h` is the h-th of ``heads`` equal slices of the width of X. This is :func:`multi_head_attention`
    with block-diagonal projections, at 1/heads of their parameters.

    Args:
        w_query, w_key, w_value: one ``nn.Linear`` weight per head, (heads, outputs, inputs of the slice).
        b_query, b_key, b_value: one bias per head.
        x, context, w_out, b_out, beta, keep, bias, causal: as in :func:`multi_head_attention`.

    >>> x, one = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.ones(2, 1, 1)
    >>> output, weights = sliced_multi_head_attention(x, x, one, one, one, torch.eye(2), heads=2, beta=math.inf)
    >>> output
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    check_positive("heads", heads)
    sizes = check_shapes(
        x=(x, "... queries dim"),
        context=(context, "... keys dim_context"),
        w_query=(w_query, "heads width slice"),
        w_key=(w_key, "heads width slice_context"),
        w_value=(w_value, "heads value_width slice_context"),
        w_out=(w_out, "out inner"),
        b_query=(b_query, "heads width"),
        b_key=(b_key, "heads width"),
        b_value=(b_value, "heads value_width"),
        b_out=(b_out, "out"),
    )
    for name, what, have, want in (
        ("w_query", "heads", sizes["heads"], heads),
        ("x", "width", sizes["dim"], heads * sizes["slice"]),
        ("context", "width", sizes["dim_context"], heads * sizes["slice_context"]),
        ("w_out", "columns", sizes["inner"], heads * sizes["value_width"]),
    ):
        if have != want:
            raise ValueError(f"{name} has {what} {have} but heads={heads} slices need {want}")

    def project(source: Tensor, weight: Tensor, offset: Tensor | None) -> list[Tensor]:
        slices = source.chunk(heads, -1)
        return [_linear(slices[h], weight[h], None if offset is None else offset[h]) for h in range(heads)]

    outputs, weights = _attend(
        project(x, w_query, b_query),
        project(context, w_key, b_key),
        project(context, w_value, b_value),
        beta,
        keep,
        bias,
        causal,
    )
    return _linear(torch.cat(outputs, -1), w_out, b_out), weights


def _attend(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    beta: float | Tensor | None,
    keep: Tensor | None,
    bias: Tensor | None,
    causal: bool,
) -> tuple[list[Tensor], Tensor]:
    """One head after another: their outputs, and their weights stacked along an axis before the queries'."""
    *batch, rows, _ = queries[0].shape
    shape = (*batch, len(queries), rows, keys[0].shape[-2])
    for name, mask, dtype in (("keep", keep, torch.bool), ("bias", bias, None)):
        if mask is not None:
            fits = shape[-2:] if isinstance(mask, Tensor) and mask.ndim == 2 else shape
            check_broadcastable(name, mask, fits, "scores", dtype=dtype)
    if isinstance(beta, Tensor):
        check_broadcastable("beta", beta, (*shape[:-1], 1), "(*batch, heads, queries, 1)", same_ndim=False)

    outputs, maps = [], []
    for head, (query, key, value) in enumerate(zip(queries, keys, values, strict=True)):
        output, weights = attention(
            query,
            key,
            value,
            beta=_of_head(beta, head) if isinstance(beta, Tensor) else beta,
            keep=_of_head(keep, head),
            bias=_of_head(bias, head),
            causal=causal,
        )
        outputs.append(output)
        maps.append(weights)
    return outputs, torch.stack(maps, -3)


def _of_head(value: Tensor | None, head: int) -> Tensor | None:
    """What belongs to one head; without an axis for heads, or with one of size 1, all heads share it."""
    if value is None or value.ndim < 3:
        return value
    return value.select(-3, head if value.shape[-3] > 1 else 0)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x @ weight.mT if bias is None else x @ weight.mT + bias


def _repeat(shared: Sequence[T], heads: int) -> list[T]:
    """One entry per head, where neighboring heads share an entry."""
    return [shared[head * len(shared) // heads] for head in range(heads)]


def _check_projections(
    x: Tensor,
    context: Tensor,
    values: Tensor,
    weights: tuple[Tensor, Tensor, Tensor, Tensor],
    biases: tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None],
    heads: int,
) -> int:
    """Refuse what does not fit together; the number of key and value heads, which is ``heads`` or divides it."""
    check_positive("heads", heads)
    sizes = check_shapes(
        x=(x, "... queries dim"),
        context=(context, "... keys dim_context"),
        values=(values, "... keys dim_value"),
        w_query=(weights[0], "inner dim"),
        w_key=(weights[1], "inner_key dim_context"),
        w_value=(weights[2], "inner_value dim_value"),
        w_out=(weights[3], "out inner_out"),
        b_query=(biases[0], "inner"),
        b_key=(biases[1], "inner_key"),
        b_value=(biases[2], "inner_value"),
        b_out=(biases[3], "out"),
    )
    if sizes["inner"] % heads or not sizes["inner"]:
        raise ValueError(f"w_query has {sizes['inner']} rows, which heads={heads} do not share evenly")
    width = sizes["inner"] // heads
    shared = sizes["inner_key"] // width
    if not shared or sizes["inner_key"] % width or heads % shared:
        raise ValueError(
            f"w_key has {sizes['inner_key']} rows, but heads of width {width} need {sizes['inner']}, "
            f"or {width} times a divisor of heads={heads}"
        )
    if sizes["inner_value"] % shared:
        raise ValueError(f"w_value has {sizes['inner_value']} rows, which {shared} key heads do not share evenly")
    if sizes["inner_out"] != heads * (sizes["inner_value"] // shared):
        raise ValueError(
            f"w_out has {sizes['inner_out']} columns, but heads={heads} of width {sizes['inner_value'] // shared} "
            f"need {heads * (sizes['inner_value'] // shared)}"
        )
    return shared
