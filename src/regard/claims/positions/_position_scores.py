"""How positions enter the scores."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from regard import figures, functional, reference
from regard.claims._claim import Evidence, fails, holds
from regard.claims._symbols import proof, symbols
from regard.claims._trials import Comparison, full, trials


class Terms(NamedTuple):
    """The third of a score's four terms, its matrices multiplied in the order in which they are printed."""

    third: Callable[..., Tensor]

    def or_none(self, *factors: Tensor) -> Tensor | None:
        """The product, or None where the shapes do not fit."""
        try:
            return self.third(*factors)
        except RuntimeError:
            return None


@fails(
    "a6-absolute",
    "question 1, equation 5",
    says=Terms(lambda p_q, z_k, w_q, w_k: p_q @ w_q @ w_k.mT @ z_k),
    instead=(
        r"the third term is $P_q W_q W_k^\top Z_k^\top$, with the key transposed as in the other three",
        Terms(lambda p_q, z_k, w_q, w_k: p_q @ w_q @ w_k.mT @ z_k.mT),
    ),
    mutant=(r"the third term with $W_k W_q^\top$", Terms(lambda p_q, z_k, w_q, w_k: p_q @ w_k @ w_q.mT @ z_k.mT)),
)
def absolute(terms: Terms) -> Evidence:
    r"""With positions added to the input, a score expands into $Z_q W_q W_k^\top Z_k^\top + Z_q W_q W_k^\top P_k^\top
    + P_q W_q W_k^\top Z_k + P_q W_q W_k^\top P_k^\top$.

    Multiplying $(Z_q + P_q) W_q W_k^\top (Z_k + P_k)^\top$ out gives content with content, content with position,
    position with content and position with position: four terms, as the source says. Its third term lacks a
    transposition, and a row times a row is not defined. The check multiplies the terms as printed and compares with
    the score and the reference.
    """
    found = Comparison()
    for trial in trials(16):
        n, d, width = 2 + trial.size(0, 3), 1 + trial.size(1, 4), trial.size(1, 4)
        z, p, w_q, w_k = trial.normal(n, d), trial.normal(n, d), trial.normal(d, width), trial.normal(d, width)
        expected = (z + p) @ w_q @ w_k.mT @ (z + p).mT
        parts = reference.absolute_scores(z, p, w_q.mT, w_k.mT)
        found.same(parts.total, expected, "the reference's four terms")
        for q in range(n):
            for k in range(n):
                z_q, p_q, z_k, p_k = (x[i : i + 1] for i in (q, k) for x in (z, p))
                got = terms.or_none(p_q, z_k, w_q, w_k)
                if got is None:
                    found.true(False, f"rows of width {d}: the third term is a 1×{d} row times a 1×{d} row")
                else:
                    others = z_q @ w_q @ w_k.mT @ z_k.mT + (z_q + p_q) @ w_q @ w_k.mT @ p_k.mT
                    found.same((others + got)[0, 0], expected[q, k], f"{n} tokens of width {d}")
    return found.evidence("scores")


@fails(
    "a6-relative",
    "question 1, equation 6",
    says=Terms(lambda u, z_k, w_k: u.mT @ w_k @ z_k),
    instead=(
        r"the third term is $u^\top W_k^\top Z_k^\top$, with $u \in \mathbb{R}^{D_{hid}}$",
        Terms(lambda u, z_k, w_k: u.mT @ w_k.mT @ z_k.mT),
    ),
    mutant=("the third term left out", Terms(lambda u, z_k, w_k: 0 * (u.mT @ w_k.mT @ z_k.mT))),
)
def relative(terms: Terms) -> Evidence:
    r"""A relative encoding scores $Z_q W_q W_k^\top Z_k^\top + Z_q W_q \widetilde{W}_k r_\delta + u^\top W_k Z_k +
    v^\top \widetilde{W}_k r_\delta$, which knows of positions only the offset $\delta$.

    It is the absolute form with $W_k^\top P_k^\top$ replaced by $\widetilde{W}_k r_\delta$ and $P_q W_q$ by the
    learned $u^\top$ and $v^\top$, so the third term is $u^\top$ times the key $W_k^\top Z_k^\top$. As printed ($W_k$
    of $D_i \times D_{hid}$, $Z_k$ a row) its shapes do not fit. The check multiplies the terms as printed, compares
    with the reference, and shifts a pair of tokens together, which must not change the score.
    """
    found = Comparison()
    for trial in trials(12):
        n, d, width, encoded = 3 + trial.size(0, 3), 1 + trial.size(1, 3), trial.size(1, 3), trial.size(1, 3)
        z, w_q, w_k = trial.normal(n, d), trial.normal(d, width), trial.normal(d, width)
        w_r = trial.normal(width, encoded)
        u, v, table = trial.normal(width, 1), trial.normal(width, 1), trial.normal(2 * n - 1, encoded)
        encoding = reference.encoding_by_offset(table, (n,))
        expected = reference.relative_scores(z, encoding, w_q.mT, w_k.mT, w_r, u[:, 0], v[:, 0]).total
        for q in range(n):
            for k in range(n):
                z_q, z_k, r = z[q : q + 1], z[k : k + 1], encoding[q, k][:, None]
                got = terms.or_none(u, z_k, w_k)
                if got is None:
                    shapes = f"1×{width}, {d}×{width} and 1×{d}"
                    found.true(False, f"D_i = {d}, D_hid = {width}: the factors of the third term are {shapes}")
                else:
                    others = z_q @ w_q @ w_k.mT @ z_k.mT + z_q @ w_q @ w_r @ r + v.mT @ w_r @ r
                    found.same((others + got)[0, 0], expected[q, k], f"D_i = {d}, D_hid = {width}")
        same = z[:1].expand(n, -1)  # equal contents: only the offset is left
        shifted = reference.relative_scores(same, encoding, w_q.mT, w_k.mT, w_r, u[:, 0], v[:, 0]).total
        found.same(shifted[1:, 1:], shifted[:-1, :-1], "a pair that moves together changes its score")
    return found.evidence("scores")


@holds(
    "a6-gaussian-simplify",
    "question 1 (b.1)",
    says=lambda alpha, delta, center: (
        -alpha * (sum(x**2 for x in delta) - 2 * sum(x * c for x, c in zip(delta, center, strict=True)))
    ),
    mutant=(
        r"$-\alpha \|\delta - \Delta\|^2$ itself",
        lambda alpha, delta, center: -alpha * sum((x - c) ** 2 for x, c in zip(delta, center, strict=True)),
    ),
)
def gaussian_simplify(formula: Callable[[Any, Any, Any], Any]) -> Evidence:
    r"""With the Gaussian encoding the relative score is $A_{q,k} = -\alpha (\|\delta\|^2 - 2 \Delta_1 \delta_1 - 2
    \Delta_2 \delta_2)$.

    $W_q = W_k = 0$ removes the first three terms and $\widetilde{W}_k = I$ leaves $v^\top r_\delta$, the product of
    $-\alpha (1, -2 \Delta_1, -2 \Delta_2)$ and $(\|\delta\|^2, \delta_1, \delta_2)$. It is $-\alpha \|\delta -
    \Delta\|^2$ plus a constant (a6-constant), so the weights are those of a Gaussian bump. The check proves it
    symbolically, and compares the reference's four terms with the library's weights. (There $\delta = q - k$; the
    library's center is key − query, $-\Delta$. As printed, $\widetilde{W}_k = I$ fits the second term only where
    $D_{hid} = D_p$; that term is zero anyway.)
    """
    sympy = symbols()
    alpha, d1, d2, c1, c2 = sympy.symbols("alpha delta1 delta2 Delta1 Delta2", real=True)
    v = -alpha * sympy.Matrix([1, -2 * c1, -2 * c2])
    r = sympy.Matrix([d1**2 + d2**2, d1, d2])
    proved = proof({"vᵀr": (v.T * r)[0] - formula(alpha, (d1, d2), (c1, c2))})
    found = Comparison()
    for trial in trials(12):
        grid = (trial.size(1, 4), trial.size(1, 4))
        center, a = trial.normal(2), abs(float(trial.normal(1))) + 0.1
        offset = -reference.relative_offsets(grid, dtype=torch.float64)  # δ = query − key
        encoding = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)
        vector = -a * torch.cat([torch.ones(1).double(), -2 * center])
        nothing = torch.zeros(3, 4).double()
        z = trial.normal(grid[0] * grid[1], 4)
        scores = reference.relative_scores(
            z, encoding, nothing, nothing, torch.eye(3).double(), trial.normal(3), vector
        ).total
        guess = formula(a, (offset[..., 0], offset[..., 1]), center.tolist())
        found.same(scores, guess, f"grid {grid}, α = {a:.2g}")
        weights = functional.gaussian_weights(-center[None], full(a, 1), grid)[0]
        found.same(functional.softargmax(guess), weights, "the library's weights")
    numeric = found.evidence(
        "grids",
        draw=lambda: figures.relative_positions(
            torch.tensor([[1.0, 2.0]]), torch.tensor([0.3]), (9, 9), queries=[(4, 4)]
        ),
    )
    return Evidence(
        proved.accepted and numeric.accepted,
        f"{proved.line}; {numeric.line}",
        numeric.numbers,
        proved.counterexample,
        numeric.draw,
    )
