"""What attention costs, counted on real runs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from regard import analysis, functional, layers, reference
from regard.claims._claim import Evidence, holds, holds_under
from regard.claims._pictures import curves
from regard.claims._trials import Comparison, Trial, trials


def count_products(run: Callable[..., object], *arguments: Any, **options: Any) -> int:
    """Multiply-adds of the matrix products that a call really does, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        run(*arguments, **options)
    return counter.get_total_flops() // 2


class CostFormula(NamedTuple):
    """Multiply-adds of projections and of attention, by tokens, width, key width and value width; and for which
    numbers of tokens (as multiples of the break-even) attention is said to be the larger part.
    """

    projections: Callable[[int, int, int, int], int]
    attention: Callable[[int, int, int, int], int]
    larger_from: float


def _projections(n: int, d: int, dq: int, dv: int) -> int:
    return n * d * (2 * dq + dv)


def _pairs(n: int, d: int, dq: int, dv: int) -> int:
    return n * n * (dq + dv)


@holds_under(
    "c182-cost",
    "problem (c), ii",
    says=CostFormula(_projections, _pairs, larger_from=0.0),
    condition=(
        r"for sequences longer than $d (2 d_q + d_v) / (d_q + d_v)$ tokens, $1.5 d$ at equal widths; below that the "
        "projections cost more",
        CostFormula(_projections, _pairs, larger_from=1.0),
    ),
    mutant=("the projections cost $n d_q d_v$", CostFormula(lambda n, d, dq, dv: n * dq * dv, _pairs, larger_from=1.0)),
)
def cost(formula: CostFormula) -> Evidence:
    r"""Self-attention costs $n d (2 d_q + d_v) + d_q n^2 + n^2 d_v$ multiplications, of which the part with $n^2$ is
    the bottleneck.

    Queries and keys take $n d d_q$ each, values $n d d_v$, scores $n^2 d_q$ and averages $n^2 d_v$. The count is
    exact: torch's counter finds the same number in the library's run. (A product counts as rows times columns times
    the length of the sum. The rule that the exercise states, the product of the two matrices' numbers of elements,
    would give another count.) The part with $n^2$ is larger if $n (d_q + d_v) > d (2 d_q + d_v)$. A vision
    transformer with 197 tokens of width 768 is far below that.
    """
    found = Comparison()
    for trial in trials(16):
        d, dq, dv = trial.size(2, 24), trial.size(1, 16), trial.size(1, 16)
        even = d * (2 * dq + dv) / (dq + dv)
        for share in (0.4, 0.8, 1.2, 3.0):
            n = max(1, int(share * even))
            x, w_q, w_k, w_v = trial.normal(n, d), trial.normal(dq, d), trial.normal(dq, d), trial.normal(dv, d)
            projected = sum(count_products(torch.matmul, x, w.mT) for w in (w_q, w_k, w_v))
            q, k, v = x @ w_q.mT, x @ w_k.mT, x @ w_v.mT
            attended = count_products(functional.attention, q, k, v, return_weights=True)
            sizes = (n, d, dq, dv)
            found.same(
                projected,
                formula.projections(*sizes),
                f"n, d, d_q, d_v = {sizes}: {projected} multiply-adds to project",
            )
            found.same(
                attended, formula.attention(*sizes), f"n, d, d_q, d_v = {sizes}: {attended} multiply-adds to attend"
            )
            found.true(
                (attended > projected) == (n > formula.larger_from * even),
                f"n, d, d_q, d_v = {sizes}: {projected} multiply-adds to project, {attended} with n²",
            )
    tokens = [2**i for i in range(4, 13)]
    series = {
        "projections": (tokens, [_projections(n, 256, 256, 256) for n in tokens]),
        "scores and averages, n²": (tokens, [_pairs(n, 256, 256, 256) for n in tokens]),
    }
    return found.evidence(
        "counts",
        draw=curves("Multiply-adds, widths of 256", "tokens n", "multiply-adds", series, log_x=True, log_y=True),
    )


@holds(
    "c182-heads-cost",
    "problem (c), iii",
    says=lambda one, heads: one,
    mutant=("$h$ heads cost $1/h$ of one", lambda one, heads: one // heads),
)
def heads_cost(of_heads: Callable[[int, int], int]) -> Evidence:
    r"""At an equal number of parameters, $h$ heads take as many multiplications as one.

    Each head is $1/h$ as wide, and there are $h$ of them: $h \cdot n^2 (d_k / h + d_v / h) = n^2 (d_k + d_v)$, and
    the projections are the same matrices. Counted on the library's layer, matrix products alone, as the exercise
    asks; the softmax does take $h$ times as many exponentials, and the maps $h$ times the memory.
    """
    found = Comparison()
    for trial in trials(12):
        dim, n = 8 * trial.size(1, 4), trial.size(2, 20)
        x = trial.normal(1, n, dim)
        layer = {h: layers.MultiHeadAttention(dim, h).double() for h in (1, 2, 4, 8)}
        counts = {h: count_products(layer[h], x, return_weights=True) for h in layer}
        for h in layer:
            found.same(analysis.cost(layer[h], tuple(x.shape)).multiply_adds, counts[h], "the library counts otherwise")
            parameters = sum(p.numel() for p in layer[h].parameters())
            found.same(parameters, sum(p.numel() for p in layer[1].parameters()), f"{h} heads have other parameters")
            found.same(
                counts[h],
                of_heads(counts[1], h),
                f"width {dim}, {n} tokens: {counts[1]} multiply-adds with one head, {counts[h]} with {h}",
            )
    return found.evidence("layers")


@holds(
    "a6-parameters",
    "question 1 (a.1)",
    says=lambda heads, di, dh, do, out: heads * di * (2 * dh + do) + heads * do * out + out,
    mutant=(
        "the output matrix counted once, not per head",
        lambda heads, di, dh, do, out: heads * di * (2 * dh + do) + do * out + out,
    ),
)
def parameters(formula: Callable[[int, int, int, int, int], int]) -> Evidence:
    r"""A multi-head self-attention layer has $N_h D_i (2 D_{hid} + D_o) + N_h D_o D_{out} + D_{out}$ learnable
    parameters.

    Each head has $W_q$ and $W_k$ of $D_i \times D_{hid}$ and $W_v$ of $D_i \times D_o$; the heads share $W_{out}$ of
    $N_h D_o \times D_{out}$ and $b_{out}$. The check counts the numbers that a run of the reference uses (a gradient
    reaches each), and those of the library's layer, where $D_{hid} = D_o$.
    """
    found = Comparison()
    for trial in trials(16):
        heads, di, dh, do, out = (trial.size(1, 6) for _ in range(5))
        w_q, w_k = trial.normal(heads * dh, di), trial.normal(heads * dh, di)
        w_v, w_out, b_out = trial.normal(heads * do, di), trial.normal(out, heads * do), trial.normal(out)
        weights = [weight.requires_grad_() for weight in (w_q, w_k, w_v, w_out, b_out)]
        x = trial.normal(5, di)
        result, _ = reference.multi_head_attention(x, x, w_q, w_k, w_v, w_out, b_out=b_out, heads=heads, beta=1.0)
        gradients = torch.autograd.grad(result.square().sum(), weights)
        used = sum(int((gradient != 0).sum()) for gradient in gradients)
        sizes = (heads, di, dh, do, out)
        found.same(used, formula(*sizes), f"N_h, D_i, D_hid, D_o, D_out = {sizes}: {used} parameters")
        layer = layers.MultiHeadAttention(di, heads, head_dim=dh, out_dim=out, bias=False, output_bias=True)
        counted = sum(p.numel() for p in layer.parameters())
        found.same(counted, formula(heads, di, dh, dh, out), f"a layer of {heads} heads has {counted} parameters")
    return found.evidence("layers")


class Costs(NamedTuple):
    """Multiply-adds by tokens N, width D and encoding width p: with absolute positions, and with Gaussian encoding."""

    absolute: Callable[[int, int, int], int]
    gaussian: Callable[[int, int, int], int]


@holds(
    "a6-cost",
    "question 1 (b.2)",
    says=Costs(lambda n, d, p: 3 * n * d * d + 2 * n * n * d, lambda n, d, p: n * d * d + n * n * p + n * n * d),
    mutant=(
        "with Gaussian encoding only $N^2 D_p$ is left",
        Costs(lambda n, d, p: 3 * n * d * d + 2 * n * n * d, lambda n, d, p: n * n * p),
    ),
)
def encoding_cost(costs: Costs) -> Evidence:
    r"""One head costs $O(N D_x^2 + N^2 D_x)$ with absolute encoding and, because the values are still averaged, the
    same order with Gaussian encoding, of which the scores take only $O(N^2 D_p)$.

    Absolute: three projections, scores and averages, $3 N D_x^2 + 2 N^2 D_x$. Gaussian: no queries and keys, scores
    $v^\top r_\delta$ of width $D_p = 3$, so $N D_x^2 + N^2 D_p + N^2 D_x$, about half for long inputs. On a grid of
    $H \times W = N$ pixels the Gaussian map is a Kronecker product and the library averages axis by axis, at $N (H +
    W) D_x$ instead of $N^2 D_x$. All three are counted on real runs.
    """
    found = Comparison()
    p = 3
    for trial in trials(10):
        rows, columns, d = 2 + trial.size(2, 6), 2 + trial.size(2, 6), trial.size(2, 12)
        n = rows * columns
        counts = _counted(trial, (rows, columns), d)
        for name in ("absolute", "gaussian"):
            found.same(
                counts[name],
                getattr(costs, name)(n, d, p),
                f"N = {n}, D_x = {d}: {counts[name]} multiply-adds with {name} encoding",
            )
        separable = counts["axis by axis"]
        found.same(
            separable, n * (rows + columns) * d, f"grid {rows}×{columns}: {separable} multiply-adds, axis by axis"
        )
    sides, width = (4, 8, 16), 32
    counted = [_counted(Trial(side, 0), (side, side), width) for side in sides]
    tokens = [4**i for i in range(2, 8)]
    series = {
        "absolute": (tokens, [costs.absolute(n, 64, 3) for n in tokens]),
        "Gaussian": (tokens, [costs.gaussian(n, 64, 3) for n in tokens]),
        "Gaussian, axis by axis": (tokens, [n * 64 * 64 + 2 * n * round(n**0.5) * 64 for n in tokens]),
    }
    return found.evidence(
        "counts",
        tokens=[side**2 for side in sides],
        absolute_counted=[count["absolute"] for count in counted],
        absolute_formula=[costs.absolute(side**2, width, p) for side in sides],
        gaussian_counted=[count["gaussian"] for count in counted],
        gaussian_formula=[costs.gaussian(side**2, width, p) for side in sides],
        averages_axis_by_axis=[count["axis by axis"] for count in counted],
        draw=curves("Multiply-adds of one head, width 64", "tokens N", "multiply-adds", series, log_x=True, log_y=True),
    )


def _counted(trial: Trial, grid: tuple[int, int], d: int) -> dict[str, int]:
    """Multiply-adds of one head of width d on a grid, on real runs; axis by axis the averages alone."""
    n = grid[0] * grid[1]
    z, position, weights = trial.normal(n, d), trial.normal(n, d), [trial.normal(d, d) for _ in "qkv"]
    value, center, sharpness = trial.normal(1, 1, n, d), torch.zeros(1, 2).double(), torch.ones(1).double()
    return {
        "absolute": count_products(_absolute_head, z, position, weights),
        "gaussian": count_products(_gaussian_head, z, grid, weights[2], trial.normal(3, 1)),
        "axis by axis": count_products(functional.gaussian_attention, value, center, sharpness, grid, plan="separable"),
    }


def _absolute_head(z: Tensor, position: Tensor, weights: list[Tensor]) -> Tensor:
    x, (w_q, w_k, w_v) = z + position, weights
    out, _ = functional.attention(x @ w_q.mT, x @ w_k.mT, z @ w_v.mT, beta=1.0, return_weights=True)
    return out


def _gaussian_head(z: Tensor, grid: tuple[int, int], w_v: Tensor, v: Tensor) -> Tensor:
    offset = reference.relative_offsets(grid, dtype=torch.float64)
    encoding = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)
    scores = (encoding.flatten(0, 1) @ v).reshape(len(z), len(z))
    return functional.softargmax(scores) @ (z @ w_v.mT)
