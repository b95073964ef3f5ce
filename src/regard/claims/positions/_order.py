"""What attention knows of the order of its tokens."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from regard import layers, reference
from regard.claims._claim import Evidence, fails, holds_under
from regard.claims._trials import Comparison, show, trials


class Order(NamedTuple):
    """Which masks are tried, and whether positions are added."""

    causal: tuple[bool, ...]
    positions: bool


@holds_under(
    "hw4-position",
    "question 1.3 (b)",
    says=Order(causal=(False, True), positions=False),
    condition=("nothing else depends on the place: there is no causal mask", Order(causal=(False,), positions=False)),
    mutant=("it ignores order with positions added, too", Order(causal=(False,), positions=True)),
)
def ignores_order(order: Order) -> Evidence:
    r"""Without positional encoding self-attention ignores the order of its tokens.

    Scores and values depend only on the tokens, and a sum over keys does not depend on their order: if tokens change
    places, their outputs move with them, unchanged. A *causal* mask does depend on the position: the first token sees
    one key and the last token sees all, so decoders have some information about the order without any encoding.
    """
    found = Comparison()
    for trial in trials(16):
        n, heads = trial.size(2, 7), trial.size(1, 3)
        layer = layers.MultiHeadAttention(4 * heads, heads).double()
        x, moved = trial.normal(1, n, 4 * heads), trial.other_order(n)
        place = reference.sinusoidal_positions(n, 4 * heads, dtype=torch.float64) if order.positions else 0.0
        for causal in order.causal:
            out = layer(x + place, causal=causal)
            after = layer(x[:, moved] + place, causal=causal)
            what = "with a causal mask" if causal else "without a mask"
            change = float((after - out[:, moved]).detach().abs().max())
            found.same(after, out[:, moved], f"{n} tokens in another order, {what}: an output changes by {change:.2g}")
    return found.evidence("layers")


@fails(
    "a6-permutation",
    "question 1, before equation 4",
    says=lambda out, moved: out,
    instead=(
        r"it is permutation *equivariant*: $\text{Self-Attention}(\Pi Z) = \Pi \, \text{Self-Attention}(Z)$; invariant is, for "
        "instance, the mean of its outputs",
        lambda out, moved: out[:, moved],
    ),
    mutant=(r"outputs are permuted by the inverse, $\Pi^\top$", lambda out, moved: out[:, moved.argsort()]),
)
def permutation(predicts: Callable[[Tensor, Tensor], Tensor]) -> Evidence:
    r"""Self-attention without positions is permutation invariant.

    Invariant would mean $f(\Pi Z) = f(Z)$. But $\softmax(\Pi Z W_q W_k^\top Z^\top \Pi^\top) \Pi Z W_v = \Pi
    \softmax(Z W_q W_k^\top Z^\top) \Pi^\top \Pi Z W_v$, and $\Pi^\top \Pi = I$: the outputs move along with the
    tokens. Attention cannot see the order, but it gives one output for each token.
    """
    found = Comparison()
    for trial in trials(16):
        n, heads = trial.size(2, 7), trial.size(1, 3)
        layer = layers.MultiHeadAttention(2 * heads, heads).double()
        x, moved = trial.normal(1, n, 2 * heads), trial.other_order(n)
        after, out = layer(x[:, moved]), layer(x)
        case = f"{n} tokens change places: the outputs {show(out[0, :, 0])} become {show(after[0, :, 0])}"
        found.same(after, predicts(out, moved), case)
        found.same(after.mean(1), out.mean(1), "the mean of the outputs changes")
    return found.evidence("layers")
