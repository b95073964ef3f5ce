"""Several heads side by side."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import functional, layers, reference
from regard.claims._claim import Evidence, fails, holds, holds_under
from regard.claims._pictures import curves
from regard.claims._trials import Comparison, full, show, trials


@fails(
    "hw4-multihead",
    "questions 1.2 (a) and 1.3 (a)",
    says="right",
    instead=(
        r"with tokens as columns the projections stand on the left: $O_i = W_i^V V \softargmax_\beta((W_i^K K)^\top W_i^Q "
        r"Q)$, $H = W^O O$ with $O \in \mathbb{R}^{h d'' \times n}$ and $W^O \in \mathbb{R}^{t \times h d''}$",
        "left",
    ),
    mutant=("projections on the left, the output matrix for the heads in reverse order", "reversed"),
)
def multihead(side: str) -> Evidence:
    r"""With tokens as columns, the heads are $O_i = (V W_i^V) \softargmax_\beta((K W_i^K)^\top (Q W_i^Q))$, and the
    output is $O W^O$ for the stacked $O$.

    The output is indeed a linear map of the stacked heads. But the projections are on the wrong side: $V \in
    \mathbb{R}^{t \times m}$ has one column per token, so $V W_i^V$ mixes *tokens* instead of features. It would need
    another weight for another number of tokens, and the order of the keys would matter, which it never does in
    attention. From the left, $W_i^V V$ projects each token. (The next part of the same answer has the products on the
    left, but gives $Q_i = W_i^Q C$ the shape $d' h \times e$; it is $d' \times n$.) The check compares with the
    library.
    """
    found = Comparison()
    for trial in trials(16):
        heads, width, d = trial.size(1, 3), trial.size(1, 3), trial.size(2, 5)
        n, m = trial.size(2, 6), trial.size(2, 6)
        q, c, order = trial.normal(d, n), trial.normal(d, m), trial.other_order(m)
        on_left = side != "right"
        # On the right a weight has a row for each token, on the left a column for each feature.
        w_q = trial.normal(heads, width, d) if on_left else trial.normal(heads, n, n)
        w_k, w_v = (trial.normal(heads, width, d) if on_left else trial.normal(heads, m, m) for _ in "kv")
        w_o = trial.normal(d, heads * width)

        stacked = _stacked_heads(q, c, (w_q, w_k, w_v), side)
        moved = _stacked_heads(q, c[:, order], (w_q, w_k, w_v), side)
        case = f"{m} tokens as columns: the output changes when keys and values change places together"
        found.same(moved, stacked, case)
        if on_left:
            weights = [w.flatten(0, 1) for w in (w_q, w_k, w_v)] + [w_o]
            right, _ = reference.multi_head_attention(q.mT, c.mT, *weights, heads=heads, beta=0.5)
            found.same(w_o @ stacked, right.mT, f"{heads} heads of width {width}")
    return found.evidence("layers")


def _stacked_heads(q: Tensor, c: Tensor, weights: tuple[Tensor, Tensor, Tensor], side: str) -> Tensor:
    """Heads of tokens in columns, on top of each other, with the projections on the left or on the right."""
    parts = []
    for head in zip(*weights, strict=True):
        query, key, value = (x @ w if side == "right" else w @ x for x, w in zip((q, c, c), head, strict=True))
        parts.append(value @ functional.softargmax(key.mT @ query, 0.5, dim=0))
    return torch.cat(parts[::-1] if side == "reversed" else parts)


@holds(
    "a6-sum-of-heads",
    "question 1 (c.1)",
    says=lambda w_out, heads: w_out.unflatten(0, (heads, -1)),
    mutant=(
        "head $h$ takes every $N_h$-th row of $W_{out}$",
        lambda w_out, heads: w_out.unflatten(0, (-1, heads)).transpose(0, 1),
    ),
)
def sum_of_heads(split: Callable[[Tensor, int], Tensor]) -> Evidence:
    r"""Multi-head attention is $\sum_h \softmax(A^{(h)}) Z W^{(h)} + b_{out}$ with $W^{(h)} = W_v^{(h)}
    W_{out}^{(h)}$, where $W_{out}^{(h)}$ is the $h$-th block of $D_o$ rows of $W_{out}$.

    A concatenation times a matrix is the sum of the parts times the blocks of rows they meet: $[O_1, \dots, O_{N_h}]
    W_{out} = \sum_h O_h W_{out}^{(h)}$, and $O_h = \softmax(A^{(h)}) Z W_v^{(h)}$. For one pixel,
    $\text{MultiHead}(Z)_q = \sum_h \sum_k \softmax(A_{q,:}^{(h)})_k Z_k W^{(h)} + b_{out}$.
    """
    found = Comparison()
    for trial in trials(16):
        heads, width, dim, n = 1 + trial.size(1, 3), 1 + trial.size(1, 3), trial.size(1, 5), trial.size(1, 6)
        layer = layers.MultiHeadAttention(dim, heads, head_dim=width, bias=False, output_bias=True).double()
        x = trial.normal(1, n, dim)
        out, maps_ = layer(x, return_weights=True)
        w_v = layer.input_weights()[2].unflatten(0, (heads, width)).mT  # (heads, dim, width)
        w = w_v @ split(layer.output.weight.mT, heads)
        total = sum((maps_[0, h] @ x[0] @ w[h] for h in range(heads)), layer.output.bias)
        found.same(out[0], total, f"{heads} heads of width {width}")
    return found.evidence("layers")


@holds("hw4-heads-like-kernels", "question 1.2 (b)", says="stacked", mutant=("their outputs are added", "added"))
def heads_like_kernels(combined: str) -> Evidence:
    r"""Several heads are to attention what several kernels are to a convolution: each reads the same input with
    weights of its own, and their outputs are stacked.

    A convolution with kernels $w_1, \dots, w_c$ is the stack of the convolutions with one kernel each, and attention
    with $h$ heads, before the output matrix mixes them, is the stack of $h$ attentions. The check takes both apart.
    The analogy ignores that attention's weights depend on the input. And for a head that looks at a fixed offset the
    closer counterpart is one *tap* of a kernel (see a6-theorem-1).
    """
    found = Comparison()
    for trial in trials(16):
        parts, dim, n = 1 + trial.size(1, 3), trial.size(1, 4), trial.size(3, 8)
        x = trial.normal(1, dim, n)
        kernels = trial.normal(parts, dim, 3)
        each = [F.conv1d(x, kernels[i : i + 1]) for i in range(parts)]
        found.same(F.conv1d(x, kernels), _combine(each, combined), f"a convolution with {parts} kernels")
        q, k, v = (trial.normal(parts, dim, dim) for _ in range(3))
        tokens = x[0].mT
        attended = [functional.attention(tokens @ q[i], tokens @ k[i], tokens @ v[i]).mT[None] for i in range(parts)]
        weights = [w.mT.flatten(0, 1) for w in (q, k, v)] + [torch.eye(parts * dim).double()]
        together, _ = reference.multi_head_attention(tokens, tokens, *weights, heads=parts)
        found.same(together.mT[None], _combine(attended, combined), f"attention with {parts} heads")
    return found.evidence("layers")


def _combine(parts: list[Tensor], how: str) -> Tensor:
    return torch.cat(parts, 1) if how == "stacked" else torch.stack(parts).sum(0)


class Slices(NamedTuple):
    """Whether projections have numbers outside their diagonal blocks, and how the slices are assigned to heads."""

    general: bool
    shifted: bool


@holds_under(
    "c182-split-heads",
    "section 0.2, the definition of multi-head attention",
    says=Slices(general=True, shifted=False),
    condition=(
        r"$W_q$, $W_k$ and $W_v$ are block-diagonal, $1/h$ of their numbers; in general every head projects the *whole* "
        "input, and what is cut into heads are the projections",
        Slices(general=False, shifted=False),
    ),
    mutant=("block-diagonal projections, and head $i$ reads slice $i + 1$", Slices(general=False, shifted=True)),
)
def split_heads(slices: Slices) -> Evidence:
    r"""Multi-head attention cuts its input into slices, and head $i$ attends within slice $X_i$ alone.

    The Transformer's head is $\text{Attention}(X W_i^q, X W_i^k, X W_i^v)$ with the whole $X$. Cutting $X$ first is
    the special case in which $W_i^q$ has rows for slice $i$ alone. No head can then compare features of different
    slices. The library offers it as `slice_heads=True`, and the check compares both of its layers.
    """
    found = Comparison()
    for trial in trials(16):
        heads, width, n = 1 + trial.size(1, 3), trial.size(1, 3), trial.size(2, 6)
        dim = heads * width
        sliced = layers.MultiHeadAttention(dim, heads, slice_heads=True, bias=False).double()
        whole = layers.MultiHeadAttention(dim, heads, bias=False).double()
        x = trial.normal(1, n, dim)
        with torch.no_grad():
            # Each head's projection of its slice, as rows of one matrix of the whole input.
            blocks = [torch.block_diag(*w) for w in sliced.input_weights()]
            extra = [trial.normal(dim, dim) * (block == 0) if slices.general else 0.0 for block in blocks]
            whole.qkv.weight.copy_(torch.cat([block + more for block, more in zip(blocks, extra, strict=True)]))
            whole.output.weight.copy_(sliced.output.weight)
            read = x.roll(-width, -1) if slices.shifted else x
            got, expected = sliced(read), whole(x)
        found.same(
            got,
            expected,
            f"{heads} heads on {n} tokens of width {dim}: heads that read all features give another output",
        )
    return found.evidence("layers")


@holds(
    "e182-many-heads",
    "question 2 (d)",
    says=3,
    mutant=("one head gives each of three features nearly all its weight", 1),
)
def many_heads(heads: int) -> Evidence:
    r"""Several heads keep features that a single softmax would mute.

    The weights of one softmax sum to one, so among $F$ features at different tokens the smallest weight is at most
    $1/F$; and if one score is ahead by $g$, the next weight is at most $e^{-\beta g}$ times the largest. With a head
    for each feature, every feature can have a weight close to 1. The check builds such a layer from tokens that carry
    one feature each, with scores that differ, and asks for a weight of 0.9 on every feature. (As the source says, one
    head *can* pass on several, diluted.)
    """
    features, found = 3, Comparison()
    shown: dict[str, Tensor] = {}
    for trial in trials(12):
        strengths = 1 + 0.5 * torch.arange(features)[trial.order(features)].double()
        tokens = torch.diag(strengths)  # token i carries feature i, more or less strongly
        # The query of head h asks for feature h; a single head asks for all of them.
        asks = torch.eye(features).double() if heads == features else torch.ones(1, features).double()
        _, weights = functional.attention(
            asks[:, None],
            tokens.expand(len(asks), -1, -1),
            tokens.expand(len(asks), -1, -1),
            beta=8.0,
            return_weights=True,
        )
        reached = weights[:, 0].amax(0)
        shown.setdefault(f"{len(asks)} head{'s' if len(asks) > 1 else ''}", weights[:, 0])
        found.true(bool((reached > 0.9).all()), f"features of strength {show(strengths)}: weights {show(reached)}")
        found.same(weights.sum(-1), full(1.0, len(asks), 1), "weights do not sum to one")
    gap = torch.linspace(0, 3, 31, dtype=torch.float64)
    line = (gap.tolist(), torch.sigmoid(-gap).tolist())
    return found.evidence(
        "layers",
        draw=curves(
            "One softmax: the weight of the second feature", "gap between the scores, β g", "weight", {"second": line}
        ),
    )
