"""Multi-head attention: heads that read the whole input, heads that read a slice of it, and the sum over heads."""

from jaxtyping import Bool, Float
from torch import Tensor

from regard.reference._dot_product_attention import attention
from regard.reference._linear import linear


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
    r"""Each head reads the whole input; a linear map mixes their outputs.

    .. math:: \mathrm{out} = \mathrm{concat}_h\big[A^{(h)} V^{(h)}\big] W_{out}^\top + b_{out}

    .. math:: Q^{(h)} = X W_q^{(h)\top} + b_q^{(h)}, \quad K^{(h)} = C W_k^{(h)\top} + b_k^{(h)}, \quad
        V^{(h)} = C W_v^{(h)\top} + b_v^{(h)}

    ``context = x`` is self-attention, anything else cross-attention. Head h owns the h-th of ``heads`` equal blocks of
    rows of ``w_query``. If ``w_key`` and ``w_value`` have fewer blocks, neighboring heads share one.

    Args:
        x, context: X, which gives the queries, and C, which gives the keys and values.
        w_query, w_key, w_value, w_out: in the layout of ``nn.Linear``, (outputs, inputs).
        b_query, b_key, b_value, b_out: their biases, or None.
        heads: the number of heads.
        values: gives the values instead of ``context``.
        beta, keep, bias, causal: as in :func:`attention`; masks are ``(queries, keys)`` or have as many axes as the
            weights, heads among them.

    Returns the output and the weights.

    >>> x, eye = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.eye(2)
    >>> output, weights = multi_head_attention(x, x, eye, eye, eye, eye, heads=2, beta=math.inf)
    >>> weights[0]  # the first head reads only the first feature; a score of 0 for every key is a tie
    tensor([[1.0000, 0.0000],
            [0.5000, 0.5000]])
    """
    values = context if values is None else values
    shared = key_value_heads(heads, w_query, w_key, w_value)
    query = split_heads(linear(x, w_query, b_query), heads)
    key = shared_heads(split_heads(linear(context, w_key, b_key), shared), heads)
    value = shared_heads(split_heads(linear(values, w_value, b_value), shared), heads)
    output, weights = attention(query, key, value, beta=beta, keep=keep, bias=bias, causal=causal)
    return linear(join_heads(output), w_out, b_out), weights


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
    r"""What :func:`multi_head_attention` computes, written as a sum over heads.

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
    shared = key_value_heads(heads, w_query, w_key, w_value)
    query = split_heads(linear(x, w_query, b_query), heads)
    key = shared_heads(split_heads(linear(context, w_key, b_key), shared), heads)
    w_value_head = shared_heads(w_value.unflatten(0, (shared, -1)), heads)  # (heads, value_width, dim_value)
    w_out_head = w_out.unflatten(1, (heads, -1)).transpose(0, 1)  # (heads, out, value_width)
    message = values.unsqueeze(-3) @ (w_value_head.mT @ w_out_head.mT)  # C W, (*batch, heads, keys, out)
    if b_value is not None:
        b_value_head = shared_heads(b_value.reshape(shared, 1, -1), heads)
        message = message + b_value_head @ w_out_head.mT
    output, weights = attention(query, key, message, beta=beta, keep=keep, bias=bias, causal=causal)
    output = output.sum(-3)
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
    r"""Each head reads its own slice of the input.

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
    if len(w_query) != heads:
        raise ValueError(
            f"w_query has shape {tuple(w_query.shape)}, weights of {len(w_query)} heads, but heads is {heads}"
        )

    def project(source: Tensor, weight: Tensor, offset: Tensor | None) -> Tensor:
        projected = split_heads(source, heads) @ weight.mT  # each head: (*batch, tokens, slice) by (slice, width)
        return projected if offset is None else projected + offset.unsqueeze(-2)

    query, key = project(x, w_query, b_query), project(context, w_key, b_key)
    value = project(context, w_value, b_value)
    output, weights = attention(query, key, value, beta=beta, keep=keep, bias=bias, causal=causal)
    return linear(join_heads(output), w_out, b_out), weights


def split_heads(x: Float[Tensor, "*batch tokens inner"], heads: int) -> Float[Tensor, "*batch heads tokens width"]:
    """Equal parts of the width become heads, on an axis before the tokens.

    >>> split_heads(torch.arange(4.0).reshape(1, 4), 2)
    tensor([[[0., 1.]],
    <BLANKLINE>
            [[2., 3.]]])
    """
    return x.unflatten(-1, (heads, -1)).transpose(-2, -3)


def join_heads(x: Float[Tensor, "*batch heads tokens width"]) -> Float[Tensor, "*batch tokens inner"]:
    """The inverse of :func:`split_heads`."""
    return x.transpose(-2, -3).flatten(-2)


def shared_heads(x: Float[Tensor, "*batch shared _ _"], heads: int) -> Float[Tensor, "*batch heads _ _"]:
    """One entry for each head, where neighboring heads share an entry."""
    return x.repeat_interleave(heads // x.shape[-3], -3)


def key_value_heads(heads: int, w_query: Tensor, w_key: Tensor, w_value: Tensor) -> int:
    """The number of heads that keys and values have: ``heads``, or a divisor of it."""
    if heads < 1 or len(w_query) % heads:
        raise ValueError(f"w_query has {len(w_query)} rows, which cannot be divided between heads={heads}")
    width = len(w_query) // heads
    shared = len(w_key) // width
    if not shared or len(w_key) % width or heads % shared or len(w_value) % shared:
        raise ValueError(
            f"w_key has {len(w_key)} rows and w_value {len(w_value)}, but heads={heads} of width {width} need {len(w_query)} "
            f"rows of w_key, or {width} times a divisor of heads, and as many heads in w_value"
        )
    return shared
