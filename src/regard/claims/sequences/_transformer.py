"""The Transformer, attention between two inputs, and a worked example."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from regard import functional, layers, models, reference
from regard.claims._claim import Evidence, fails, holds, holds_under
from regard.claims._pictures import bars
from regard.claims._symbols import symbols
from regard.claims._trials import Comparison, Trial, trials


@fails(
    "c182-cross-attention",
    "question 4",
    says=lambda n, m, d, e: d == e,
    instead=(
        "only the projected queries and keys must be equally wide; each input has projections of its own, so the inputs "
        "may differ in width, too",
        lambda n, m, d, e: True,
    ),
    mutant=("the inputs must be equally long", lambda n, m, d, e: n == m),
)
def cross_attention(allowed: Callable[[int, int, int, int], bool]) -> Evidence:
    r"""In cross-attention the two inputs may differ in length, but their hidden widths must match.

    $Q = X W_q$ with $W_q$ of $d \times d_k$ and $K = C W_k$, $V = C W_v$ with $W_k$ of $e \times d_k$: the scores
    need $d_k$ twice, and nothing ties $d$ to $e$. An image encoder's tokens of width 768 can be read by a text
    decoder of width 512. The library's layer has `context_dim` for that, and the check runs it for all kinds of
    lengths and widths and compares with the formula. (The widths must match only if $W_q$ and $W_k$ are shared, or if
    there are no projections.)
    """
    found = Comparison()
    for trial in trials(16):
        n, m, d, e = trial.size(1, 5), 1 + trial.size(1, 5), 2 * trial.size(1, 3), 1 + trial.size(1, 5)
        x, context = trial.normal(1, n, d), trial.normal(1, m, e)
        runs = True
        try:
            layer = layers.MultiHeadAttention(d, 2, context_dim=e, bias=False).double()
            got = layer(x, context)
            right, _ = reference.multi_head_attention(x, context, *layer.input_weights(), layer.output.weight, heads=2)
            found.same(got, right, "another output than the formula's")
        except (ValueError, RuntimeError):
            runs = False
        found.true(
            runs == allowed(n, m, d, e),
            f"an input of {n}×{d} attends to one of {m}×{e}: it {'works' if runs else 'is refused'}",
        )
    return found.evidence("pairs of inputs")


class Parts(NamedTuple):
    """Which parts of the architecture are searched, and from which kernel size on a layer counts as a convolution."""

    model: Callable[[], nn.Module]
    smallest_kernel: int


def _transformer() -> nn.Module:
    return models.Transformer(7, dim=8, depth=1, heads=2, dropout=0.0).double()


@holds_under(
    "hw4-no-recurrence",
    "question 1.4 (a)",
    says=Parts(_transformer, smallest_kernel=1),
    condition=(
        "kernels of size 1 are not counted: position-wise layers are such convolutions",
        Parts(_transformer, smallest_kernel=2),
    ),
    mutant=(
        "the vision transformer has none either",
        Parts(
            lambda: models.VisionTransformer(8, 4, 3, channels=1, dim=8, depth=1, heads=2).double(), smallest_kernel=2
        ),
    ),
)
def no_recurrence(parts: Parts) -> Evidence:
    r"""The Transformer uses neither recurrence nor convolution.

    Nothing in it hands a state from one position to the next, and no layer slides a window over positions. Strictly
    speaking its feed-forward layers *are* convolutions, with a kernel of size 1, as its authors note. (In inference
    the decoder is called once per token, on its own output so far; that loop is outside the network.) The check goes
    through all modules, and through all linear layers to see that each is a convolution with kernel size 1.
    """
    found = Comparison()
    model = parts.model()
    trial = Trial(0, 0)
    for name, module in model.named_modules():
        recurrent = isinstance(module, nn.RNNBase | nn.RNNCellBase)
        kernel = 0
        if isinstance(module, nn.Linear):
            x = trial.normal(1, 5, module.in_features)
            convolved = reference.convolution(x.mT, module.weight[:, :, None], module.bias).mT
            kernel = 1 if torch.allclose(module(x), convolved) else 0
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            kernel = max(module.kernel_size)
        found.true(not recurrent, f"{name} is recurrent")
        found.true(
            not kernel or kernel < parts.smallest_kernel, f"the layer {name} is a convolution with kernel size {kernel}"
        )
    return found.evidence("modules")


class Roles(NamedTuple):
    """What the encoder's output gives to the decoder's attention, and where the decoder's self-attention stands."""

    from_encoder: frozenset[str]
    self_attention: str


@fails(
    "hw4-decoder-attention",
    "question 1.4 (b)",
    says=Roles(frozenset({"query", "key", "value"}), self_attention="after"),
    instead=(
        "self-attention is inside every layer of both; the encoder's output gives keys and values to the "
        "cross-attention of every decoder layer, whose queries are the decoder's own; and the decoder's "
        "self-attention comes first and sees only what is before",
        Roles(frozenset({"key", "value"}), self_attention="before"),
    ),
    mutant=("the encoder's output gives the queries", Roles(frozenset({"query"}), self_attention="before")),
)
def decoder_attention(roles: Roles) -> Evidence:
    r"""The encoder's output holds keys, values and queries, to which self-attention is then applied; and
    self-attention is applied to the output of the decoder.

    In an encoder layer queries, keys and values are projections of the previous layer's tokens. A decoder layer has
    self-attention, causal, on its own tokens, and then cross-attention: $Q$ from the decoder, $K$ and $V$ from the
    encoder's output. The shapes show it: the cross map is target × source. And the order of the encoder's tokens has
    no effect, which is true of keys and values, but not of queries. The check looks at a decoder block of the
    library, and gives each of the three to its cross-attention by itself.
    """
    found = Comparison()
    for trial in trials(8):
        target, source, dim = trial.size(2, 6), 1 + trial.size(2, 6), 4
        block = layers.DecoderBlock(dim, 2, norm="post").double()
        x, memory = trial.normal(1, target, dim), trial.normal(1, source, dim)
        out, weights = block(x, memory, return_weights=True)
        rows = source if "query" in roles.from_encoder else target
        columns = source if "key" in roles.from_encoder else target
        shape = tuple(weights.cross_attention.shape[-2:])
        found.true(
            shape == (rows, columns),
            f"{target} target and {source} source tokens: the cross map is {shape[0]}×{shape[1]}",
        )
        moved = block(x, memory[:, trial.other_order(source)])
        same = torch.allclose(moved, out)
        found.true(same == ("query" not in roles.from_encoder), "the order of the encoder's tokens matters")
        own, _ = block.attention(x, causal=True, return_weights=True)
        first = block.attention_norm(x + own)
        rest = block.cross_attention(first, memory)
        second = block.cross_attention_norm(first + rest)
        before = torch.allclose(out, block.feed_forward_norm(second + block.feed_forward(second)))
        found.true(
            before == (roles.self_attention == "before"),
            "self-attention comes first, then cross-attention, then the feed-forward network",
        )
        found.true(bool((weights.attention.triu(1) == 0).all()), "a token sees later ones")
        read = trial.normal(1, target, dim)  # as long as the target, so that each of the three could come from either
        given = (read if role in roles.from_encoder else first for role in ("query", "key", "value"))
        found.true(
            torch.allclose(block.cross_attention(*given), block.cross_attention(first, read)),
            "keys and values come from the encoder's output, queries do not",
        )
    return found.evidence("blocks")


@holds(
    "e182-scores",
    "question 2 (a)",
    says=(1054, 852, -396),
    mutant=("the last score without its sign", (1054, 852, 396)),
)
def worked_scores(scores: tuple[int, ...]) -> Evidence:
    r"""In the worked example the scores of token 2 are 1054, 852 and −396.

    $q_2 = W_q h_2 = (4, 35)$, $k_1 = W_k h_1 = (1, 30)$, $k_2 = (3, 24)$, $k_3 = (6, -12)$, so $q_2 \cdot k_1 = 4 +
    1050$, $q_2 \cdot k_2 = 12 + 840$ and $q_2 \cdot k_3 = 24 - 420$. In exact integers, and by the library.
    """
    example = reference.worked_example()
    matrices = symbols().Matrix
    w_q, w_k = (matrices(w.int().tolist()) for w in (example.w_query, example.w_key))
    hidden = [matrices(h.int().tolist()) for h in example.hidden]
    exact = [int((w_q * hidden[1]).dot(w_k * h)) for h in hidden]
    found = Comparison()
    found.true(tuple(exact) == scores, f"in exact integers {exact}")
    query, key = example.hidden @ example.w_query.mT, example.hidden @ example.w_key.mT
    found.same((query @ key.mT)[1], torch.tensor(scores).double(), f"the library: {(query @ key.mT)[1].tolist()}")
    found.same(example.scores, torch.tensor(scores).double(), "the reference")
    return found.evidence(
        "computations",
        scores=exact,
        draw=bars("Scores of token 2", "score", {f"key {i + 1}": float(x) for i, x in enumerate(exact)}),
    )


@holds("e182-argmax", "question 2 (c)", says=(23, 46), mutant=("token 2 keeps its own value", (25, 39)))
def worked_argmax(output: tuple[int, int]) -> Evidence:
    r"""With an arg max instead of the softmax, the output at token 2 of the worked example is $(23, 46)$.

    The largest score is that of key 1, so the output is $v_1 = W_v h_1 = (4 \cdot 5 + 3 \cdot 1, 9 \cdot 5 + 1 \cdot
    1)$. The gap to the next score is 202, so even the softmax at $\beta = 1$ gives the same to float64's precision:
    $e^{-202} \approx 10^{-88}$.
    """
    example = reference.worked_example()
    query, key, value = (example.hidden @ w.mT for w in (example.w_query, example.w_key, example.w_value))
    goal = torch.tensor(output).double()
    found = Comparison()
    for name, beta in (("hard", float("inf")), ("softmax", 1.0)):
        out = functional.attention(query, key, value, beta=beta)[1]
        found.same(out, goal, f"{name}: {out.tolist()}")
    found.same(example.hard, goal, "the reference")
    return found.evidence("computations")
