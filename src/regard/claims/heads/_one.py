"""One head: its matrix form, its map, and what else it is."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import functional, layers, reference
from regard.claims._claim import Evidence, holds, holds_under
from regard.claims._pictures import matrices
from regard.claims._trials import Comparison, full, show, trials


class Shapes(NamedTuple):
    """Attention on columns; whether there may be another number of values than keys, and the axis of the softmax."""

    any_values: bool
    dim: int


@holds_under(
    "hw4-matrix-form",
    "question 1.1 (a)",
    says=Shapes(any_values=True, dim=0),
    condition=("$M = m$, as many values as keys", Shapes(any_values=False, dim=0)),
    mutant=("softargmax along the rows of $K^\\top Q$", Shapes(any_values=False, dim=1)),
)
def matrix_form_columns(shapes: Shapes) -> Evidence:
    r"""The output of attention is $H = V \softargmax_\beta(K^\top Q)$ for $Q \in \mathbb{R}^{d \times n}$, $K \in
    \mathbb{R}^{d \times m}$, $V \in \mathbb{R}^{t \times M}$, with softargmax applied to columns.

    Column $j$ of $K^\top Q$ holds the scores of query $j$, so column $j$ of $H$ is the average of the values with
    that query's weights. It is the library's form, transposed. The product $V A$ with $A \in \mathbb{R}^{m \times n}$
    needs $M = m$; the capital letter in the question is probably a typo.
    """
    found = Comparison()
    for trial in trials():
        d, n, m, t = (trial.size(1, 6) for _ in range(4))
        values = m + 1 if shapes.any_values else m
        q, k, v = trial.normal(d, n), trial.normal(d, m), trial.normal(t, values)
        weights = functional.softargmax(k.mT @ q, 0.7, dim=shapes.dim)
        if values != m:
            found.true(False, f"m = {m} and M = {values}: there is no product of {t}×{values} and {m}×{n} numbers")
            continue
        found.same(v @ weights, functional.attention(q.mT, k.mT, v.mT, beta=0.7).mT, f"{m} keys, {n} queries")
    return found.evidence()


@holds("c182-matrix-form", "problem (a)", says=-1, mutant=("softmax applied column-wise", -2))
def matrix_form_rows(dim: int) -> Evidence:
    r"""For stacked queries, keys and values attention is $\softmax(Q K^\top) V$, the softmax row-wise.

    Row $i$ of $Q K^\top$ holds the scores $q_i \cdot k_1, \dots, q_i \cdot k_t$, so row $i$ of the result is $\sum_j
    \softmax(q_i \cdot k)_j v_j$: attention of query $i$ alone, which the check computes one key at a time.
    """
    found = Comparison()
    for trial in trials():
        t, d = trial.size(2, 7), trial.size(1, 6)
        q, k, v = (trial.normal(t, d) for _ in range(3))
        stacked = functional.softargmax(q @ k.mT, dim=dim) @ v
        single = torch.stack([reference.attention_for_query(row, k, v, beta=1.0) for row in q])
        found.same(stacked, single, f"{t} tokens of width {d}")
        found.same(functional.attention(q, k, v, beta=1.0), stacked, f"{t} tokens of width {d}, the library")
    return found.evidence()


@holds("a6-query-form", "question 1 (a.2)", says=-1, mutant=("the softmax over queries instead of keys", 0))
def query_form(dim: int) -> Evidence:
    r"""For one query pixel $q$, $\text{Self-Attention}(Z)_q = \sum_k \softmax(A_{q,:})_k Z_k W_v$ with $A_{q,k} = Z_q
    W_q W_k^\top Z_k^\top$, and $\text{MultiHead}(Z)_q = \concat_h [\text{Self-Attention}_h(Z)_q] W_{out} + b_{out}$.

    Softmax works on each row of $A$ by itself and a row of a product needs only that row of the first factor, so
    every step of the matrix form can be done for one pixel. The sum runs over all pixels $k$ of the image. (In the
    source's equation 3 $W_{out}$ stands inside the bracket; its shape says that it multiplies the concatenation.)
    """
    found = Comparison()
    for trial in trials(16):
        rows, columns, heads, di, dh, do, out = (trial.size(1, 4) for _ in range(7))
        z = trial.normal(rows * columns, di)
        w_q, w_k, w_v = trial.normal(heads, di, dh), trial.normal(heads, di, dh), trial.normal(heads, di, do)
        w_out, b_out = trial.normal(heads * do, out), trial.normal(out)
        projections = [w.mT.flatten(0, 1) for w in (w_q, w_k, w_v)] + [w_out.mT]
        whole, _ = reference.multi_head_attention(z, z, *projections, b_out=b_out, heads=heads, beta=1.0)
        pixel = trial.size(0, rows * columns - 1)
        parts = []
        for h in range(heads):
            scores = torch.stack([z[i] @ w_q[h] @ (z[k] @ w_k[h]) for i in range(len(z)) for k in range(len(z))])
            weights = functional.softargmax(scores.reshape(len(z), len(z)), dim=dim)[pixel]
            parts.append(sum((weights[k] * (z[k] @ w_v[h]) for k in range(len(z))), full(0.0, do)))
        found.same(torch.cat(parts) @ w_out + b_out, whole[pixel], f"a {rows}×{columns} image, {heads} heads")
    return found.evidence()


class Match(NamedTuple):
    """Which two of query, key and value need the same width."""

    first: str
    second: str


@holds(
    "c182-key-query-width",
    "problem (c), i",
    says=Match("query", "key"),
    mutant=("keys and values must have the same width", Match("key", "value")),
)
def key_query_width(match: Match) -> Evidence:
    r"""Keys and queries must have the same width, $d_k = d_q$.

    A dot product needs vectors of one width. Nothing ties the width of the values, which are only averaged; and the
    *numbers* of queries and keys are free, too. Scores that are not dot products need no equal widths: additive
    attention takes any two. The check runs the library and the reference on all kinds of widths and sees which they
    refuse.
    """
    found = Comparison()
    for trial in trials(8):
        for widths in ((2, 2, 2), (2, 2, 3), (2, 3, 3), (3, 2, 3), (2, 3, 4)):
            width = dict(zip(("query", "key", "value"), widths, strict=True))
            q, k, v = (
                trial.normal(trial.size(1, 4), width["query"]),
                trial.normal(3, width["key"]),
                trial.normal(3, width["value"]),
            )
            for attend in (functional.attention, reference.attention):
                try:
                    attend(q, k, v)
                    runs = True
                except (ValueError, TypeError, RuntimeError):
                    runs = False
                allowed = width[match.first] == width[match.second]
                case = f"widths of query, key, value {widths}: {'accepted' if runs else 'refused'}"
                found.true(runs == allowed, case)
            w_q, w_k, w_s = trial.normal(4, width["query"]), trial.normal(4, width["key"]), trial.normal(4)
            found.true(reference.additive_attention(q, k, v, w_q, w_k, w_s)[0].shape == (len(q), width["value"]))
    return found.evidence("calls")


@holds("ex05-map", "section 1, question 2", says=-1, mutant=("every column sums to one", -2))
def attention_map(dim: int) -> Evidence:
    r"""The attention map of a sequence of $d_{seq}$ elements is a $d_{seq} \times d_{seq}$ matrix per item, and every
    row, the weights of one query, sums to one.

    There is one score for each pair of positions, and the softmax normalizes over the keys, along a row. Columns need
    not sum to one: a key may get much attention or little. With several heads there is one such map per head.
    """
    found = Comparison()
    shown: dict[str, Tensor] = {}
    for trial in trials(16):
        batch, n, heads = trial.size(1, 3), trial.size(2, 8), trial.size(1, 3)
        layer = layers.MultiHeadAttention(heads * 2, heads).double()
        _, weights = layer(3 * trial.normal(batch, n, heads * 2), return_weights=True)
        shown = {"one head's map": weights[0, 0]}
        found.true(
            weights.shape == (batch, heads, n, n), f"{n} elements: the map has shape {tuple(weights.shape[-2:])}"
        )
        found.same(weights.sum(dim), full(1.0, batch, heads, n), f"{n} elements: sums {show(weights.sum(dim)[0, 0])}")
    return found.evidence("maps", draw=matrices("Rows sum to one", shown))


@holds("ex05-self", "section 1, question 3", says="same", mutant=("keys and values come from another input", "other"))
def self_attention(context: str) -> Evidence:
    r"""Self-attention is attention whose queries, keys and values all come from one input.

    In the general form $\text{Attention}(Q, K, V)$ it is the case $Q = K = V = X$, each then projected by its own
    matrix. The check calls the library's layer both ways, and the general formula written out.
    """
    found = Comparison()
    for trial in trials(16):
        heads, n = trial.size(1, 3), trial.size(2, 7)
        layer = layers.MultiHeadAttention(heads * 2, heads, bias=False).double()
        x = trial.normal(1, n, heads * 2)
        source = x if context == "same" else trial.normal(1, n, heads * 2)
        found.same(layer(x, source, source), layer(x), f"{n} tokens")
        general, _ = reference.multi_head_attention(x, source, *layer.input_weights(), layer.output.weight, heads=heads)
        found.same(general, layer(x), f"{n} tokens, the formula")
    return found.evidence("layers")


class Graph(NamedTuple):
    """Message passing between all nodes, with or without an edge from each node to itself, and how messages combine."""

    loops: bool
    mean: bool


@holds_under(
    "ex05-graph",
    "section 1, question 4",
    says=Graph(loops=False, mean=False),
    condition=("every node also sends to itself: the complete graph has self-loops", Graph(loops=True, mean=False)),
    mutant=("messages averaged with equal weights", Graph(loops=True, mean=True)),
)
def graph(passing: Graph) -> Evidence:
    r"""The attention update is message passing on a complete graph: each node gathers the values of all other nodes,
    weighted by the attention scores.

    Node $i$ receives $\sum_j a_{ij} v_j$ over edges $j \to i$, with edge weights that a softmax normalizes over the
    edges into $i$. All of them are positive, so no edge is missing. The sum includes $j = i$: without self-loops a
    lone token would receive nothing, while attention gives it its own value.
    """
    found = Comparison()
    for trial in trials(16):
        n, d = trial.size(1, 6), trial.size(1, 4)
        q, k, v = (trial.normal(n, d) for _ in range(3))
        v = torch.ones_like(v) if trial.number == 0 else v
        received = []
        for i in range(n):
            senders = [j for j in range(n) if passing.loops or j != i]
            strength = torch.tensor([math.exp(float(q[i] @ k[j]) * d**-0.5) for j in senders], dtype=torch.float64)
            strength = torch.ones_like(strength) if passing.mean else strength
            messages = v[senders] * (strength / strength.sum().clamp_min(1e-300))[:, None]
            received.append(messages.sum(0))
        attended = functional.attention(q, k, v)
        case = f"{n} node{'s' if n > 1 else ''}: attention gives {show(attended[0])}, the graph {show(received[0])}"
        found.same(torch.stack(received), attended, case)
    return found.evidence("graphs")


@holds(
    "c182-kernel-regression",
    "problem: non-local means",
    says=reference.exponential_kernel,
    mutant=(
        "the kernel of the distance, whatever the lengths of keys",
        lambda beta: reference.gaussian_kernel(beta**-0.5),
    ),
)
def kernel_regression(kernel: Callable[[float], Callable[[Tensor, Tensor], Tensor]]) -> Evidence:
    r"""Attention is a Nadaraya–Watson (non-local means) average of the values, with the similarity $e^{q \cdot
    k/\sqrt{d_k}}$ as its kernel.

    $\sum_i \frac{K(x, x_i)}{\sum_j K(x, x_j)} y_i$ with $x = q$, $x_i = k_i$, $y_i = v_i$ and $K(q, k) = e^{\beta q
    \cdot k}$ is the softmax average, term by term. Since $\beta q \cdot k = -\frac{\beta}{2} \|q - k\|^2 +
    \frac{\beta}{2} \|q\|^2 + \frac{\beta}{2} \|k\|^2$, the kernel is the familiar Gaussian one exactly when all keys
    have the same length. As a kernel of *inputs* it is symmetric only where $W_q^\top W_k$ is. (The source's
    $\text{out}_i = a_{ij} v_j$ stands for the sum over $j$.)
    """
    found = Comparison()
    for trial in trials():
        n, m, d = trial.size(1, 6), trial.size(2, 7), trial.size(1, 5)
        q, k, v = trial.normal(n, d), trial.normal(m, d), trial.normal(m, 3)
        averaged = reference.kernel_regression(q, k, v, kernel(d**-0.5))
        found.same(functional.attention(q, k, v), averaged, f"{m} keys of width {d}")
        equal = k / k.norm(dim=-1, keepdim=True)
        gaussian = reference.kernel_regression(q, equal, v, reference.gaussian_kernel(d**0.25))
        found.same(functional.attention(q, equal, v), gaussian, "keys of equal length, Gaussian kernel")
    return found.evidence()
