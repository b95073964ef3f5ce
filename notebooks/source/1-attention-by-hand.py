# %% [raw]
# # ASSIGNMENT CONFIG
# name: 1-attention-by-hand
# init_cell: false
# export_cell: false
# show_question_points: true
# tests:
#   files: true
#   ok_format: false

# %%
# Run this first. It installs what is missing, from the wheel that lies beside this notebook or from an address.
import importlib.util
import subprocess
import sys
from pathlib import Path

if importlib.util.find_spec("regard") is None:
    RELEASE = ""
    beside = sorted(Path.cwd().glob("regard-*.whl"))
    wheel = f"{beside[-1]}[notebook,train]" if beside else f"regard[notebook,train] @ {RELEASE}" if RELEASE else None
    if wheel is None:
        raise SystemExit(
            "regard is not installed, and there is no regard-….whl beside this notebook. On Colab: click on the folder on "
            "the left, upload the .whl file you were given, and run this cell again (once per session, about a minute)."
        )
    offline = ["--no-index", "--find-links", "wheels"] if Path("wheels").is_dir() else []
    subprocess.check_call([sys.executable, "-m", "pip", "install", "--quiet", *offline, wheel])

import math

import matplotlib.pyplot as plt
import torch

import regard

# %matplotlib inline
grader = regard.course.Notebook("1-attention-by-hand")

# %% [markdown]
# # 1 · Attention by hand
#
# A dictionary takes a *query*, finds the *key* that equals it and returns its *value*. Attention does the same
# softly: it compares the query with **every** key and returns a weighted average of **all** values.
#
# $$
# w_{ij} = \frac{e^{\beta\, q_i \cdot k_j}}{\sum_l e^{\beta\, q_i \cdot k_l}}, \qquad h_i = \sum_j w_{ij}\, v_j
# $$
#
# Tokens are rows here: `query` is `(queries, d)`, `key` is `(keys, d)`, `value` is `(keys, dv)`, and the weights are
# `(queries, keys)`. (Where tokens are columns, the same thing reads $H = V\,\mathrm{softargmax}_\beta(K^\top Q)$.)
#
# You will build it from sums, products and `exp`. **The checks refuse ready-made functions** (`torch.softmax`,
# `regard.attention`, …); they run your code on other numbers than you see here, and they say what is wrong.
#
# Whoever looks something up in a dictionary has a *query*; the entries' headwords are the *keys*, what is said there are
# the *values*. The weights (the *attention map*) say how much of each value goes into the answer: one row for each query,
# one column for each key.

# %%
regard.course.diagram("attention")

# %% [markdown]
# Move the query below and watch the weights.

# %%
figure, panels = plt.subplots(1, 2, figsize=(8, 2.6))
arrows = torch.tensor([[1.0, 0.2], [0.6, 0.9], [-0.8, 0.5], [-0.3, -1.0]])
for name, (x, y), color in zip(
    ("key 0", "key 1", "key 2", "key 3", "query"),
    [*arrows.tolist(), (0.9, 0.7)],
    ["black"] * 4 + ["tab:red"],
    strict=True,
):
    panels[0].quiver(0, 0, x, y, angles="xy", scale_units="xy", scale=1, color=color, width=0.008)
    panels[0].text(1.15 * x, 1.15 * y, name, color=color, ha="center", va="center")
panels[0].set(xlim=(-1.5, 1.6), ylim=(-1.4, 1.3), title="four keys and a query")
scores = arrows @ torch.tensor([0.9, 0.7])
panels[1].bar(range(4), (2 * scores).exp() / (2 * scores).exp().sum())
panels[1].set(xlabel="key", ylabel="weight, β = 2", xticks=range(4), ylim=(0, 1), title="its weights")
regard.course.picture(
    figure,
    "Left: four keys and a query as arrows. Right: the weights of the query; the two keys that point the same way share "
    "nearly all of it.",
    shown=regard.show("mechanism"),
)

# %% [raw]
# # BEGIN QUESTION
# name: scores
# points: 2

# %% [markdown]
# ## 1.1 Scores
#
# In *self*-attention queries, keys and values are made from the same tokens $h_i$ by three matrices: $q_i = W_q h_i$,
# $k_i = W_k h_i$, $v_i = W_v h_i$. Tokens are rows of `hidden`, so the matrix goes to the other side, and transposed.
#
# Return the score $q_i \cdot k_j$ of every query with every key, `(tokens, tokens)`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def scores_of(hidden, w_query, w_key):
    """hidden (tokens, dim), w_query and w_key (d, dim) -> scores (tokens, tokens), query i in row i."""
    query = hidden @ w_query.T  # SOLUTION
    key = hidden @ w_key.T  # SOLUTION
    scores = query @ key.T  # SOLUTION
    return scores


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_worked_example(scores_of, NUMBERS):
    import torch

    from regard.course import by_hand, expect, numbers

    example = numbers("1-attention-by-hand", NUMBERS)
    hidden, w_query, w_key = (torch.tensor(example[name]).float() for name in ("hidden", "w_query", "w_key"))
    got = by_hand(scores_of)(hidden, w_query, w_key)
    right = (hidden @ w_query.T) @ (hidden @ w_key.T).T
    mistakes = {
        "the matrices are not transposed: row i of hidden @ W is Wᵀh_i, not W h_i": (
            hidden @ w_query @ (hidden @ w_key).T
        ),
        "queries belong in the rows and keys in the columns; you have them the other way round": right.T,
        "these are the scores of the tokens themselves; the matrices W are not used": hidden @ hidden.T,
        "only the query is projected; the key is W_k h": (hidden @ w_query.T) @ hidden.T,
    }
    expect(got, right, mistakes, of="the scores of the worked example")


# %%
# HIDDEN
def test_other_sizes(scores_of, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    tokens, dim, width = draw.size(2, 6), draw.size(2, 5), draw.size(6, 9)
    hidden, w_query, w_key = draw(tokens, dim), draw(width, dim), draw(width, dim)
    right = (hidden @ w_query.T) @ (hidden @ w_key.T).T
    expect(by_hand(scores_of)(hidden, w_query, w_key), right, of="the scores where d differs from dim")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION


# %% [markdown]
# A worked example: three tokens with two features, and small whole numbers as weights.

# %%
hidden = torch.tensor(NUMBER_hidden).float()
w_query = torch.tensor(NUMBER_w_query).float()
w_key = torch.tensor(NUMBER_w_key).float()
w_value = torch.tensor(NUMBER_w_value).float()

# %% [raw]
# # BEGIN QUESTION
# name: pencil
# points: 2

# %% [markdown]
# ## 1.2 With a pencil
#
# Take the numbers of the cell above. Which scores does the **second** token give to the three keys, and what is its output
# if it takes the value of its best key alone (arg max instead of a softargmax)? Two small products each; then let
# `scores_of` confirm the first.

# %% [raw]
# # BEGIN SOLUTION

# %%
second_scores = (1054, 852, -396)  # SOLUTION
second_output = (23, 46)  # SOLUTION

# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_numbers(second_scores, second_output):
    from regard.course import expect_numbers

    expect_numbers(second_scores, 3, of="second_scores")
    expect_numbers(second_output, 2, of="second_output")


# %%
# HIDDEN
def test_second_scores(second_scores, NUMBERS):
    import torch

    from regard.course import expect, expect_numbers, numbers

    example = {name: torch.tensor(value).float() for name, value in numbers("1-attention-by-hand", NUMBERS).items()}
    query, key = example["hidden"] @ example["w_query"].T, example["hidden"] @ example["w_key"].T
    mistakes = {
        "these are the scores of the first token": query[0] @ key.T,
        "this is what the three queries give the second key; the second query is asked": query @ key[1],
        "a row of hidden @ W is Wᵀh; the query is W h": (example["hidden"] @ example["w_query"])[1]
        @ (example["hidden"] @ example["w_key"]).T,
    }
    expect(expect_numbers(second_scores, 3, of="second_scores"), query[1] @ key.T, mistakes, of="the three scores")


# %%
# HIDDEN
def test_second_output(second_output, NUMBERS):
    import torch

    from regard.course import expect, expect_numbers, numbers

    example = {name: torch.tensor(value).float() for name, value in numbers("1-attention-by-hand", NUMBERS).items()}
    query, key, value = (example["hidden"] @ example[name].T for name in ("w_query", "w_key", "w_value"))
    best = int((query[1] @ key.T).argmax())
    mistakes = {
        "this is the best key's token itself; its value is W_v h": example["hidden"][best],
        "this is the best key, not its value": key[best],
        "this is the second token's own value; its best key is another one": value[1],
    }
    expect(expect_numbers(second_output, 2, of="second_output"), value[best], mistakes, of="the output")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: softargmax
# points: 3

# %% [markdown]
# ## 1.3 From scores to weights
#
# $$\mathrm{softargmax}_\beta(z)_i = \frac{e^{\beta z_i}}{\sum_j e^{\beta z_j}}$$
#
# With a plus: the *largest* score gets the largest weight. Normalize over the **last** axis, the keys. And mind large
# scores, such as 1054: $e^{1054}$ is infinity for a computer. Adding a constant to all scores of a row changes nothing;
# which constant makes every exponent at most zero?

# %% [raw]
# # BEGIN SOLUTION


# %%
def softargmax(scores, beta=1.0):
    """scores (..., keys) -> weights (..., keys), each row sums to one."""
    # BEGIN SOLUTION
    scores = beta * scores
    powers = torch.exp(scores - scores.max(dim=-1, keepdim=True).values)
    return powers / powers.sum(dim=-1, keepdim=True)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_small_scores(softargmax):
    import torch

    from regard.course import by_hand, expect, expect_tensor

    scores = torch.tensor([[0.0, 1.0, 2.0], [3.0, -1.0, 0.5]])
    mistakes = {
        "the sign is wrong: e^{−z} prefers the smallest score, that is the arg min": (-scores).softmax(-1),
        "divide by the sum of the exponentials, so that each row sums to one": scores.exp(),
        "normalize each row on its own, not all numbers together": scores.exp() / scores.exp().sum(),
    }
    got = expect_tensor(by_hand(softargmax, without="softmax")(scores), 2, 3, of="softargmax")
    if torch.allclose(got.sum(0), torch.ones(3)):
        raise AssertionError("the columns sum to one; the rows should: normalize over the last axis (the keys, dim=-1)")
    expect(got, scores.softmax(-1), mistakes, of="softargmax")


# %%
def test_large_scores(softargmax):
    import torch

    from regard.course import by_hand, expect

    got = by_hand(softargmax, without="softmax")(torch.tensor([1054.0, 852.0, -396.0]))
    nothing = torch.full((3,), torch.nan)
    if isinstance(got, torch.Tensor) and got.isnan().any():
        raise AssertionError("e^1054 overflows, and ∞/∞ is NaN: subtract the largest score of the row before exp")
    expect(got, torch.tensor([1.0, 0.0, 0.0]), {"overflow": nothing}, of="softargmax of (1054, 852, −396)")
    rows = torch.tensor([[500.0, 501.0], [-500.0, -501.0]])
    got = by_hand(softargmax, without="softmax")(rows)
    if isinstance(got, torch.Tensor) and got.isnan().any():
        raise AssertionError("subtract the largest score of each row by itself: with one for all, low rows become 0/0")
    expect(got, rows.softmax(-1), of="softargmax of the rows (500, 501) and (−500, −501)")


# %%
# HIDDEN
def test_inverse_temperature(softargmax, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    scores, beta = draw(3, draw.size(4, 7), 5), 0.2 + 0.1 * draw.size(1, 9)
    mistakes = {
        "β is not used": scores.softmax(-1),
        "β multiplies the scores; you divide by it (that would be a temperature)": (scores / beta).softmax(-1),
        "β belongs inside the exponential": beta * scores.softmax(-1),
    }
    expect(by_hand(softargmax, without="softmax")(scores, beta), (beta * scores).softmax(-1), mistakes, of="softargmax")


# %%
def test_beta_is_used(softargmax):
    import torch

    from regard.course import by_hand, expect

    scores, beta = torch.tensor([[0.5, -1.0, 2.0, 0.0], [1.0, 1.5, -0.5, 0.0]]), 0.3
    mistakes = {
        "β is not used": scores.softmax(-1),
        "β multiplies the scores; you divide by it (that would be a temperature)": (scores / beta).softmax(-1),
        "β belongs inside the exponential": beta * scores.softmax(-1),
    }
    got = by_hand(softargmax, without="softmax")(scores, beta)
    expect(got, (beta * scores).softmax(-1), mistakes, of="softargmax with β = 0.3")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# What β does to three scores. At β = 0 all of $m$ keys weigh $1/m$ (one over the number of *keys*, whatever their
# width); as β grows the best key takes all. β = 1 is nothing special: every weight is still positive there.

# %%
betas = torch.linspace(0, 6, 200)
curves = torch.stack([softargmax(torch.tensor([1.0, 0.6, -0.5]), float(beta)) for beta in betas])
figure, panel = plt.subplots(figsize=(5.5, 3))
for score, curve in zip((1.0, 0.6, -0.5), curves.T, strict=True):
    panel.plot(betas, curve, label=f"score {score}")
panel.set(xlabel="β", ylabel="weight", title="Small β spreads, large β chooses")
panel.legend()
regard.course.picture(
    figure,
    "Weights of three keys against β. At β = 0 all three weigh a third; as β grows the key with the largest score takes "
    "all and the other two fall to zero.",
)

# %% [raw]
# # BEGIN QUESTION
# name: attention
# points: 4

# %% [markdown]
# ## 1.4 Attention
#
# Put it together: scores, weights, weighted sum. `query` and `key` share a width $d$; `value` may have another one, and
# there may be more keys than queries: the same function does **self**-attention (all from one sequence) and
# **cross**-attention (queries from one, keys and values from another).
#
# Where `beta` is not given, use $1/\sqrt d$: the dot product of two vectors of $d$ independent numbers with mean zero and
# variance one has a standard deviation of $\sqrt d$, and dividing by it keeps the softargmax away from its flat ends, at
# any width.

# %% [raw]
# # BEGIN SOLUTION


# %%
def attention(query, key, value, beta=None):
    """query (..., queries, d), key (..., keys, d), value (..., keys, dv) -> (..., queries, dv)."""
    if beta is None:
        beta = 1 / math.sqrt(query.shape[-1])  # SOLUTION
    weights = softargmax(query @ key.mT, beta)  # SOLUTION
    output = weights @ value  # SOLUTION
    return output


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_self_attention(attention):
    from regard.course import Draw, by_hand, expect

    draw = Draw(1)
    query, key, value = draw(4, 3), draw(4, 3), draw(4, 3)
    scores = query @ key.T
    mistakes = {
        "the scores are not divided by √d": scores.softmax(-1) @ value,
        "the scores are divided by d; it should be √d": (scores / 3).softmax(-1) @ value,
        "the scores are multiplied by √d; it should be divided": (scores * 3**0.5).softmax(-1) @ value,
        "the softargmax runs over the queries; it should run over the keys, the last axis": (
            (scores / 3**0.5).softmax(0) @ value
        ),
        "the weights are transposed before they meet the values": (scores / 3**0.5).softmax(-1).T @ value,
        "the values are mixed with the scores themselves; the softargmax is missing": (scores / 3**0.5) @ value,
    }
    expect(
        by_hand(attention, without="softmax")(query, key, value),
        (scores / 3**0.5).softmax(-1) @ value,
        mistakes,
        of="attention",
    )


# %%
def test_cross_attention(attention):
    from regard.course import Draw, by_hand, expect

    draw = Draw(2)
    query, key, value = draw(2, 4), draw(5, 4), draw(5, 7)
    scores = query @ key.T
    mistakes = {
        "β is given here, and not used": (scores / 2).softmax(-1) @ value,
        "where β is given it replaces 1/√d; you use both": (0.7 * scores / 2).softmax(-1) @ value,
        "β is given here, and the scores go into the softargmax without it": scores.softmax(-1) @ value,
    }
    got = by_hand(attention, without="softmax")(query, key, value, 0.7)
    expect(got, (0.7 * scores).softmax(-1) @ value, mistakes, of="attention of 2 queries to 5 keys with β = 0.7")
    mistakes = {
        "β = 0 counts as False, so that 1/√d takes its place: compare with None": (scores / 2).softmax(-1) @ value
    }
    got = by_hand(attention, without="softmax")(query, key, value, 0.0)
    expect(got, value.mean(0).expand(2, 7), mistakes, of="attention of 2 queries to 5 keys with β = 0")


# %%
# HIDDEN
def test_batches(attention, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    queries, keys, width = draw.size(2, 5), draw.size(6, 9), draw.size(2, 7)
    query, key, value = draw(2, 11, queries, width), draw(2, 11, keys, width), draw(2, 11, keys, 10)
    scores = query @ key.mT
    mistakes = {
        "the scores are not divided by √d": scores.softmax(-1) @ value,
        "√d is the width of the queries and keys, not of the values": (scores / 10**0.5).softmax(-1) @ value,
        "√d is the width d, not the number of keys": (scores / keys**0.5).softmax(-1) @ value,
    }
    right = (scores / width**0.5).softmax(-1) @ value
    expect(by_hand(attention, without="softmax")(query, key, value), right, mistakes, of="attention in a batch")


# %%
# HIDDEN
def test_gradients(attention, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED + 1)
    query, key, value, weight = draw(3, 4), draw(3, 4), draw(3, 4), draw(3, 4)
    got = by_hand(attention, without="softmax").slopes(query, key, value, weight=weight)
    inputs = [part.clone().requires_grad_() for part in (query, key, value)]
    made = ((inputs[0] @ inputs[1].T) / 2).softmax(-1) @ inputs[2]
    right = torch.autograd.grad((made * weight).sum(), inputs)
    for name, ours, theirs in zip(("queries", "keys", "values"), right, got, strict=True):
        if theirs is None:
            raise AssertionError(f"no gradient reaches the {name}: build the result from tensor operations alone")
        expect(theirs, ours, of=f"the gradient into the {name}")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **Cross-attention.** Four queries look at six keys that come from another sequence. Every row sums to one; a column
# need not, since a key may be popular with many queries or with none.

# %%
torch.manual_seed(4)
weights = softargmax(torch.randn(4, 8) @ torch.randn(6, 8).T, 1 / math.sqrt(8))
figure, panel = plt.subplots(figsize=(5, 2.6))
panel.imshow(weights, cmap="viridis", vmin=0, vmax=1)
for row in range(4):
    for column in range(6):
        color = "black" if weights[row, column] > 0.6 else "white"
        panel.text(column, row, f"{weights[row, column]:.2f}", ha="center", va="center", color=color, fontsize=8)
panel.set(xlabel="key", ylabel="query", title="columns sum to " + ", ".join(f"{x:.1f}" for x in weights.sum(0)))
regard.course.picture(
    figure,
    "A map of four queries and six keys, the weight written into each cell. Every row sums to one; the sums of the columns, "
    "in the title, do not.",
)

# %% [markdown]
# **A picture of what attention can say.** An output is an average, so it never leaves the convex hull of the values.
# At β = 0 it sits in their middle; as β grows it walks to the value of the best key. Each line below is one query.

# %%
values = torch.tensor([[0.0, 0.0], [4.0, 0.0], [3.0, 3.0], [0.5, 3.5]])
keys = torch.tensor([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]])
figure, panel = plt.subplots(figsize=(4.2, 3.6))
panel.fill(*values.T, alpha=0.12)
panel.scatter(*values.T, s=60, color="black", label="values", zorder=3)
for query in torch.tensor([[1.0, 0.8], [-1.0, 0.4], [0.6, -1.0], [-0.9, -0.5]]):
    path = torch.stack([attention(query[None], keys, values, float(beta))[0] for beta in torch.linspace(0, 12, 120)])
    panel.plot(*path.T, lw=2)
panel.set(title="The output from β = 0 to β = 12")
panel.legend()
regard.course.picture(
    figure,
    "Four values as dots and their convex hull. Four paths start at the mean of the values (β = 0), stay inside the hull "
    "and each end near one of the dots (β = 12).",
)

# %% [raw]
# # BEGIN QUESTION
# name: hard
# points: 3

# %% [markdown]
# ## 1.5 Hard attention
#
# The limit β → ∞ picks the best key and **preserves** its value exactly (*hard* attention); the other end, β = 0,
# **dilutes** all values to their mean, and whatever lies between mixes them (*soft* attention). Self or cross, hard or
# soft: that makes four kinds.
#
# Write the limit itself. One thing needs care: where several keys tie for the best score, every finite β shares the
# weight evenly among them, so the limit does, too.

# %% [raw]
# # BEGIN SOLUTION


# %%
def hard_attention(query, key, value):
    """As attention, with β = ∞: the value of the best key, or the mean of those that tie."""
    # BEGIN SOLUTION
    scores = query @ key.mT
    best = (scores == scores.max(dim=-1, keepdim=True).values).to(value.dtype)
    return best / best.sum(dim=-1, keepdim=True) @ value
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_best_key(hard_attention, NUMBERS):
    import torch

    from regard.course import by_hand, expect, numbers

    example = {name: torch.tensor(value).float() for name, value in numbers("1-attention-by-hand", NUMBERS).items()}
    query, key, value = (example["hidden"] @ example[name].T for name in ("w_query", "w_key", "w_value"))
    got = by_hand(hard_attention)(query, key, value)
    best = (query @ key.T).argmax(-1)
    mistakes = {"these are the best keys themselves; return their values": key[best]}
    expect(got, value[best], mistakes, of="hard attention of the worked example")


# %%
def test_ties_share(hard_attention):
    import torch

    from regard.course import by_hand, expect

    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0], [0.0, 5.0], [2.0, -1.0]])
    value = torch.tensor([[10.0], [20.0], [40.0]])
    mistakes = {
        "keys 0 and 2 tie, but only the first one counts: argmax hides ties; compare with the maximum instead": value[
            :1
        ],
        "keys 0 and 2 tie, and their values are added up; divide by how many tie": torch.tensor([[50.0]]),
    }
    expect(by_hand(hard_attention)(query, key, value), torch.tensor([[25.0]]), mistakes, of="the output with a tie")


# %%
# HIDDEN
def test_limit(hard_attention, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    query, key, value = (draw(2, 5, 3).mul(2).round() for _ in range(3))  # whole numbers: ties are frequent
    right, _ = regard.reference.attention(query, key, value, beta=torch.inf)
    expect(by_hand(hard_attention)(query, key, value), right, of="hard attention")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: dense
# points: 2

# %% [markdown]
# ## 1.6 The same with a dense layer
#
# A fully connected layer **across the tokens** multiplies the values by a matrix of its own: `output = W @ value`. It can
# preserve values, too, and it can dilute them. Write both matrices: one that copies value `choice[i]` to output $i$, and
# one that gives every output the mean of all values. (What it cannot do: choose by content, or take another number of
# tokens. Its $W$ is fixed.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def preserving(choice, keys):
    """choice (a list of key numbers, one for each output) -> (outputs, keys)."""
    # BEGIN SOLUTION
    matrix = torch.zeros(len(choice), keys)
    matrix[torch.arange(len(choice)), torch.tensor(choice)] = 1.0
    return matrix
    # END SOLUTION


def diluting(outputs, keys):
    """-> (outputs, keys)."""
    # BEGIN SOLUTION
    return torch.full((outputs, keys), 1 / keys)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_copies(preserving):
    import torch

    from regard.course import by_hand, expect

    right = torch.tensor([[0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    mistakes = {
        "outputs are rows and keys are columns": right.T,
        "a 1 is enough; equal weights dilute": torch.full((3, 4), 0.25),
    }
    expect(by_hand(preserving)([2, 0, 2], 4), right, mistakes, of="the matrix that copies values 2, 0 and 2")


# %%
def test_mean(diluting):
    import torch

    from regard.course import by_hand, expect

    mistakes = {
        "equal weights of 1 add the values up; their mean needs 1/keys": torch.ones(2, 5),
        "divide by the number of keys, not of outputs": torch.full((2, 5), 0.5),
    }
    expect(by_hand(diluting)(2, 5), torch.full((2, 5), 0.2), mistakes, of="the matrix that takes the mean")


# %%
# HIDDEN
def test_as_attention_does(preserving, diluting, SEED):
    from regard.course import Draw, by_hand, expect, expect_tensor

    draw = Draw(SEED)
    keys, outputs = draw.size(3, 7), draw.size(2, 6)
    choice = [draw.size(0, keys - 1) for _ in range(outputs)]
    value = draw(keys, 3)
    got = expect_tensor(by_hand(preserving)(choice, keys), outputs, keys, of="the matrix that copies values")
    expect(got @ value, value[choice], of="the values that should be copied")
    expect(by_hand(diluting)(outputs, keys) @ value, value.mean(0).expand(outputs, 3), of="the mean of the values")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: permutation
# points: 3

# %% [markdown]
# ## 1.7 Self-attention as identity and as permutation
#
# Let $W_k = W_v = I$ and attention be hard. If all tokens are different and have **length one**, each is its own best key,
# $x_i \cdot x_j < x_i \cdot x_i$: with $W_q = I$ self-attention is the **identity**. And with another $W_q$ it is any
# **permutation** you like. Return the $W_q$ (used as in 1.1, $q_i = W_q x_i$) for which token $i$ reads token `order[i]`.
# The tokens are linearly independent.
#
# (A large β alone does not make it a permutation: two tokens may have the same best key. With tokens of different lengths
# the longest one is often everybody's.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def permuting(tokens, order):
    """tokens (n, dim), rows of length one, linearly independent, n <= dim; order: a list -> w_query (dim, dim)."""
    # BEGIN SOLUTION
    return tokens[order].T @ torch.linalg.pinv(tokens).T
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_unit_vectors(permuting):
    import torch

    from regard.course import by_hand, expect, expect_tensor

    tokens, order = torch.eye(4), [1, 2, 3, 0]
    w_query = expect_tensor(by_hand(permuting)(tokens, order), 4, 4, of="W_q")
    picked = (tokens @ w_query.T @ tokens.T).argmax(-1)
    mistakes = {
        "this is the inverse: token order[i] reads token i; q_i = W_q x_i should be x_order[i]": torch.tensor(
            [3, 0, 1, 2]
        ),
        "this is the identity: every token reads itself": torch.arange(4),
    }
    expect(picked, torch.tensor(order), mistakes, of="the token that each token reads")


# %%
# HIDDEN
def test_any_tokens(permuting, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    count = draw.size(4, 6)
    order = simple = draw.order(count).tolist()
    while simple == order:  # until the tokens are far enough from orthogonal
        tokens = draw(count, count + draw.size(0, 3))
        tokens = tokens / tokens.norm(dim=-1, keepdim=True)
        simple = (tokens @ (tokens[order].T @ tokens).T @ tokens.T).argmax(-1).tolist()
    w_query = by_hand(permuting)(tokens, order)
    picked = (tokens @ w_query.T @ tokens.T).argmax(-1)
    mistakes = {
        "it works for unit vectors alone: other tokens are not orthogonal, so Σ x_order[i] x_iᵀ is not enough": (
            torch.tensor(simple)
        )
    }
    expect(picked, torch.tensor(order), mistakes, of="the token that each token reads")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: running
# points: 2

# %% [markdown]
# ## 1.8 Self-attention as a layer that runs over the tokens
#
# Where every token attends to itself alone, the output at token $i$ is $W_o W_v x_i$: the same linear map at every place.
# Its proper name is a convolution with **kernel size 1** (a 1 × 1 convolution, or a position-wise linear layer). Return
# its kernel, as `torch.nn.functional.conv1d` takes it: `(out, in, 1)`.
#
# (At β = 0 it is something else: every place gets the *same* output, the projection of the mean.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def pointwise_kernel(w_value, w_out):
    """w_value (width, dim), w_out (out, width) -> kernel (out, dim, 1)."""
    # BEGIN SOLUTION
    return (w_out @ w_value)[:, :, None]
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_kernel(pointwise_kernel):
    import torch

    from regard.course import by_hand, expect

    w_value, w_out = torch.tensor([[1.0, 2.0, 0.0], [0.0, -1.0, 1.0]]), torch.tensor([[3.0, 0.0], [0.0, 1.0]])
    right = torch.tensor([[[3.0], [6.0], [0.0]], [[0.0], [-1.0], [1.0]]])
    mistakes = {
        "the output matrix is not used": w_value[..., None],
        "the kernel size is the last axis": right[..., 0][:, None],
    }
    expect(by_hand(pointwise_kernel)(w_value, w_out), right, mistakes, of="the kernel")


# %%
# HIDDEN
def test_as_a_convolution(pointwise_kernel, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    dim, width, out = draw.size(2, 5), draw.size(2, 5), draw.size(2, 5)
    x, w_value, w_out = draw(7, dim), draw(width, dim), draw(out, width)
    kernel = by_hand(pointwise_kernel)(w_value, w_out)
    expect(F.conv1d(x.T[None], kernel)[0].T, x @ w_value.T @ w_out.T, of="the layer, run over seven tokens")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: keep
# points: 3

# %% [markdown]
# ## 1.9 Leaving keys out
#
# Padding, the future, another document: some keys must not be seen. `keep` is `(queries, keys)` and True where a
# query may attend. The others get weight 0, and **the rest is normalized without them**. A query that may see nothing
# gets zeros, not NaN.

# %% [raw]
# # BEGIN SOLUTION


# %%
def masked_attention(query, key, value, keep):
    """As attention with β = 1/√d, over the keys where keep is True."""
    # BEGIN SOLUTION
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    scores = scores.masked_fill(~keep, -1e9)
    weights = softargmax(scores) * keep
    return weights @ value
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_some_keys(masked_attention):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(3)
    query, key, value = draw(3, 4), draw(3, 4), draw(3, 2)
    keep = torch.tensor([[True, False, False], [True, True, False], [True, False, True]])
    scores = query @ key.T / 2
    right = scores.masked_fill(~keep, -torch.inf).softmax(-1) @ value
    mistakes = {
        "keep is not used": scores.softmax(-1) @ value,
        "nothing is left: the keys that should be kept are masked, too (True means attend)": torch.zeros(3, 2),
        "True means attend; you leave out the keys that should be kept": (
            scores.masked_fill(keep, -1e9).softmax(-1) @ value
        ),
        "the masked weights are zero, but the rest no longer sums to one: mask the scores, before the softargmax": (
            scores.softmax(-1) * keep @ value
        ),
        "a score of 0 is not a weight of 0: masked scores must go toward −∞": (scores * keep).softmax(-1) @ value,
        "the scores are not divided by √d": (scores * 2).masked_fill(~keep, -torch.inf).softmax(-1) @ value,
    }
    expect(
        by_hand(masked_attention, without="softmax")(query, key, value, keep), right, mistakes, of="masked attention"
    )


# %%
# HIDDEN
def test_nothing_to_see(masked_attention, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    query, key, value = draw(4, 3), draw(6, 3), draw(6, 5)
    keep = draw.coin(4, 6)
    keep[draw.size(0, 3)] = False
    right, _ = regard.reference.attention(query, key, value, keep=keep)
    got = by_hand(masked_attention, without="softmax")(query, key, value, keep)
    if isinstance(got, torch.Tensor) and got.isnan().any():
        raise AssertionError("a query that may see nothing gives NaN (0/0); it should give zeros")
    mean = torch.where(keep.any(-1, keepdim=True), right, value.mean(0))
    mistakes = {"a query that may see nothing gets the mean of all values; it should get zeros": mean}
    expect(got, right, mistakes, of="masked attention")


# %%
def test_a_query_that_sees_nothing(masked_attention):
    import torch

    from regard.course import by_hand, expect

    query, key, value = torch.ones(2, 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[4.0], [6.0]])
    keep = torch.tensor([[True, True], [False, False]])
    got = by_hand(masked_attention, without="softmax")(query, key, value, keep)
    if isinstance(got, torch.Tensor) and got.isnan().any():
        raise AssertionError("a query that may see nothing gives NaN (0/0); it should give zeros")
    mistakes = {
        "a query that may see nothing gets the mean of all values; it should get zeros": torch.tensor([[5.0], [5.0]])
    }
    expect(got, torch.tensor([[5.0], [0.0]]), mistakes, of="masked attention where the second query sees nothing")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: perturbed
# points: 3

# %% [markdown]
# ## 1.10 Perturbed keys
#
# One key moves a little: $k_a \to k_a + \varepsilon$. Only its own score changes, by $q \cdot \varepsilon$. But the
# weights share a sum of one, so all of them change. To first order,
#
# $$
# \Delta w_j \approx \beta\, w_j\,(\delta_{ja} - w_a)\; q \cdot \varepsilon,
# \qquad \delta_{ja} = 1 \text{ where } j = a, \text{ else } 0.
# $$
#
# Derive it (the derivative of softargmax), then write it for all queries at once.

# %% [raw]
# # BEGIN SOLUTION


# %%
def change_of_weights(weights, query, which, noise, beta):
    """weights (queries, keys), query (queries, d), noise (d,) added to key `which` -> first-order change (queries, keys)."""
    # BEGIN SOLUTION
    change_of_score = query @ noise
    is_moved = torch.zeros(weights.shape[-1])
    is_moved[which] = 1.0
    return beta * weights * (is_moved - weights[:, which, None]) * change_of_score[:, None]
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_change_is_shared(change_of_weights):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(4)
    query, key, noise, beta = draw(3, 4), draw(5, 4), draw(4), 0.5
    weights = (beta * query @ key.T).softmax(-1)
    got = by_hand(change_of_weights)(weights, query, 2, noise, beta)
    moved = torch.eye(5)[2]
    step = (query @ noise)[:, None]
    right = beta * weights * (moved - weights[:, 2:3]) * step
    mistakes = {
        "the factor β is missing": right / beta,
        "only the moved key's weight changes; the others give way so that the sum stays one": right * moved,
        "the bracket (δ − w_a) is missing: the weights would not sum to one any more": beta * weights * step,
        "the bracket is (δ − w_a): the weight of the moved key, not of key j": beta
        * weights
        * (moved - weights)
        * step,
    }
    expect(got, right, mistakes, of="the change of the weights")
    expect(got.sum(-1), torch.zeros(3), of="the sum of the changes of a row")


# %%
# HIDDEN
def test_against_a_small_step(change_of_weights, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    query, key, noise = draw(2, 3).double(), draw(6, 3).double(), draw(3).double()
    which, beta, small = draw.size(0, 5), 0.3 + 0.1 * draw.size(1, 9), 1e-4
    weights = (beta * query @ key.T).softmax(-1)
    moved = key.clone()
    moved[which] += small * noise
    right = ((beta * query @ moved.T).softmax(-1) - weights) / small
    expect(by_hand(change_of_weights)(weights, query, which, noise, beta), right, of="the change", tolerance=2e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# With noise of mean zero the first order averages out; what remains is the second order,
# $\tfrac12 \beta^2 \lVert q\rVert^2\sigma^2\, w_a (1-w_a)(1-2w_a)$. So noise on a key *raises* its mean weight where
# $w_a < \tfrac12$ and lowers it where $w_a > \tfrac12$: it does not simply scale it down. And stretching a key,
# $k_a \to \alpha k_a$, multiplies its **score**: what that does to its weight depends on the score's sign.
#
# The pictures: left, zero-mean noise on a key; right, a key made longer, for four scores.

# %%
torch.manual_seed(0)
others = torch.zeros(3)
figure, panels = plt.subplots(1, 2, figsize=(9, 3))
start = torch.linspace(-4, 4, 41)
before = torch.stack([softargmax(torch.cat([z[None], others]))[0] for z in start])
noisy = start[:, None] + 0.8 * torch.randn(1, 4000)
after = softargmax(torch.stack([noisy, *(torch.zeros_like(noisy),) * 3], -1))[..., 0].mean(1)
panels[0].plot(before, after - before)
panels[0].axhline(0, color="gray", lw=0.8)
panels[0].axvline(0.5, color="gray", lw=0.8, ls=":")
panels[0].set(xlabel="weight of the key before", ylabel="mean change", title="Zero-mean noise on one key")
stretch = torch.linspace(1, 4, 60)
for score in (1.0, 0.3, -0.3, -1.0):
    path = [softargmax(torch.cat([(a * score)[None], others]))[0] for a in stretch]
    panels[1].plot(stretch, path, label=f"score {score:+}")
panels[1].set(xlabel="stretch α", ylabel="weight of the key", title="A key made longer")
panels[1].legend()
regard.course.picture(
    figure,
    "Left: the mean change of a key's weight under noise, against its weight: above zero below one half, below zero above. "
    "Right: the weight of a key against its stretch: it rises for positive scores and falls for negative ones.",
)

# %% [raw]
# # BEGIN QUESTION
# name: stretched
# points: 3

# %% [markdown]
# ## 1.11 A stretched key
#
# Key $a$ becomes $\alpha k_a$. Its score $z_a$ becomes $\alpha z_a$, so of all exponentials only its own changes, by the
# factor $r = e^{\beta(\alpha - 1) z_a}$. Write the new weights of **all** keys from the old ones, $w_a$ and $r$, without
# computing any other score. Do the others change by a common factor? Does the key gain?

# %% [raw]
# # BEGIN SOLUTION


# %%
def stretched(weights, score, which, factor, beta):
    """weights (queries, keys) before, score (queries,) of key `which` before, factor α -> weights (queries, keys) after."""
    # BEGIN SOLUTION
    ratio = torch.exp(beta * (factor - 1) * score)
    after = weights / (1 + weights[:, which] * (ratio - 1))[:, None]
    return torch.where(torch.arange(weights.shape[1]) == which, after * ratio[:, None], after)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_two_keys(stretched):
    import torch

    from regard.course import by_hand, expect

    scores, beta = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), 0.5
    before = (beta * scores).softmax(-1)
    right = (beta * torch.tensor([[3.0, 0.0], [-3.0, 0.0]])).softmax(-1)
    raised = before * torch.stack([torch.exp(beta * 2 * scores[:, 0]), torch.ones(2)], -1)
    mistakes = {
        "nothing has changed": before,
        "the key's weight is multiplied, but the row no longer sums to one: the sum of all exponentials changes, too": raised,
        "the weight itself is multiplied by α, and normalized; it is the score that is multiplied": (
            before * torch.tensor([3.0, 1.0]) / (before * torch.tensor([3.0, 1.0])).sum(-1, keepdim=True)
        ),
        "β is missing in the exponent": torch.tensor([[3.0, 0.0], [-3.0, 0.0]]).softmax(-1),
        "the exponent has α − 1: e^{βαz} = e^{βz} · e^{β(α−1)z}": (
            beta * torch.tensor([[4.0, 0.0], [-4.0, 0.0]])
        ).softmax(-1),
    }
    expect(by_hand(stretched)(before, scores[:, 0], 0, 3.0, beta), right, mistakes, of="the weights after α = 3")


# %%
# HIDDEN
def test_by_computing_again(stretched, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    keys = draw.size(3, 7)
    query, key, which = draw(8, 3), draw(keys, 3), draw.size(0, keys - 1)
    factor, beta = 1 + 0.2 * draw.size(1, 10), 0.1 * draw.size(2, 9)
    before = (beta * query @ key.T).softmax(-1)
    after = key.clone()
    after[which] *= factor
    got = by_hand(stretched)(before, query @ key[which], which, factor, beta)
    expect(got, (beta * query @ after.T).softmax(-1), of="the weights after stretching")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: kernel
# points: 4

# %% [markdown]
# ## 1.12 Kernel regression is attention
#
# To predict $y$ at $x$, average what was seen nearby (Nadaraya and Watson, 1964):
#
# $$\hat y(x) = \sum_i \frac{K(x, x_i)}{\sum_j K(x, x_j)}\, y_i, \qquad K(x, x_i) = e^{-\lVert x - x_i\rVert^2 / 2h^2}$$
#
# Queries, keys, values: they are all there, only the similarity is a distance instead of a dot product. Find `query`,
# `key` and β such that `attention(query, key, y_train, beta)` **is** this estimator. Hint: expand the square. What
# depends on $x$ alone cancels in the softargmax; what depends on $x_i$ alone can travel in one more feature of the
# key, which meets a 1 in the query.

# %% [raw]
# # BEGIN SOLUTION


# %%
def as_attention(x, x_train, bandwidth):
    """x (queries, d), x_train (samples, d) -> query (queries, d + 1), key (samples, d + 1), beta (a number)."""
    # BEGIN SOLUTION
    query = torch.cat([x, torch.ones(len(x), 1)], -1)
    key = torch.cat([x_train, -0.5 * x_train.square().sum(-1, keepdim=True)], -1)
    return query, key, 1 / bandwidth**2
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_dimension(as_attention):
    import torch

    from regard.course import by_hand, expect, expect_parts, expect_tensor

    x, x_train, bandwidth = torch.tensor([[0.5], [2.0]]), torch.tensor([[0.0], [1.0], [3.0]]), 0.7
    query, key, beta = expect_parts(by_hand(as_attention)(x, x_train, bandwidth), "query", "key", "beta")
    query, key = expect_tensor(query, 2, 2, of="query"), expect_tensor(key, 3, 2, of="key")
    scores = -(x - x_train.T).square() / (2 * bandwidth**2)
    got = (beta * query @ key.T).softmax(-1)
    mistakes = {
        "key i needs a feature −‖x_i‖²/2, or long keys win everywhere": (x @ x_train.T / bandwidth**2).softmax(-1),
        "β should be 1/h²: the factor 2 of 2h² goes with the square's 2 x·x_i": (scores / 2).softmax(-1),
        "β should be 1/h², not 1/h": (scores * bandwidth).softmax(-1),
        "the square of the key comes with the wrong sign": (
            (x @ x_train.T + x_train.T.square() / 2) / bandwidth**2
        ).softmax(-1),
    }
    expect(got, scores.softmax(-1), mistakes, of="the weight of each sample")


# %%
# HIDDEN
def test_several_dimensions(as_attention, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    x, x_train, y_train = draw(4, 3), draw(9, 3), draw(9, 2)
    bandwidth = 0.5 + 0.1 * draw.size(1, 9)
    query, key, beta = by_hand(as_attention)(x, x_train, bandwidth)
    right = regard.reference.kernel_regression(x, x_train, y_train, regard.reference.gaussian_kernel(bandwidth))
    expect((beta * query @ key.T).softmax(-1) @ y_train, right, of="the prediction")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
torch.manual_seed(1)
x_train = torch.rand(40, 1) * 6
y_train = torch.sin(x_train) + 0.25 * torch.randn(40, 1)
x = torch.linspace(0, 6, 200)[:, None]
figure, panel = plt.subplots(figsize=(6, 3))
panel.scatter(x_train, y_train, s=14, color="gray")
for bandwidth in (0.08, 0.4, 2.0):
    query, key, beta = as_attention(x, x_train, bandwidth)
    panel.plot(x, attention(query, key, y_train, beta), label=f"h = {bandwidth}, β = {beta:.3g}")
panel.set(xlabel="query x", ylabel="output", title="Attention as a smoother: sharp, right, diluted")
panel.legend(fontsize=8)
regard.course.picture(
    figure,
    "Forty noisy samples of a sine and three curves through them: a small bandwidth (large β) follows every sample, a "
    "medium one follows the sine, a large one is nearly flat.",
)

# %% [raw]
# # BEGIN QUESTION
# name: graph
# points: 3

# %% [markdown]
# ## 1.13 Messages on a graph
#
# A graph network updates a node from its neighbors: it weighs every edge, normalizes the weights **over the
# neighbors**, and adds up the messages. Write this node by node, with a loop. `neighbors[i]` lists the nodes that
# node $i$ hears from; an edge's raw weight is $e^{\,q_i \cdot k_j / \sqrt d}$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def message_passing(query, key, value, neighbors):
    """query, key (nodes, d), value (nodes, dv), neighbors: a list of node numbers for each node -> (nodes, dv)."""
    # BEGIN SOLUTION
    updated = []
    for node, heard in enumerate(neighbors):
        edges = torch.exp(key[heard] @ query[node] / math.sqrt(query.shape[-1]))
        updated.append((edges / edges.sum()) @ value[heard])
    return torch.stack(updated)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_complete_graph(message_passing):
    from regard.course import Draw, by_hand, expect

    draw = Draw(5)
    query, key, value = draw(4, 3), draw(4, 3), draw(4, 2)
    scores = query @ key.T / 3**0.5
    mistakes = {
        "the edges of a node must be divided by their sum": scores.exp() @ value,
        "an edge's weight is e^{q_i·k_j/√d}: node i asks with its query, neighbor j answers with its key": (
            scores.T.softmax(-1) @ value
        ),
        "the scores are not divided by √d": (query @ key.T).softmax(-1) @ value,
    }
    got = by_hand(message_passing, without="softmax")(query, key, value, [list(range(4))] * 4)
    expect(got, scores.softmax(-1) @ value, mistakes, of="messages on the complete graph")


# %%
# HIDDEN
def test_any_graph(message_passing, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    query, key, value = draw(6, 4), draw(6, 4), draw(6, 3)
    keep = draw.coin(6, 6) | torch.eye(6, dtype=torch.bool)
    neighbors = [keep[node].nonzero()[:, 0].tolist() for node in range(6)]
    right, _ = regard.reference.attention(query, key, value, keep=keep)
    everyone, _ = regard.reference.attention(query, key, value)
    edges = (query @ key.T / 2).softmax(-1) * keep
    mistakes = {
        "each node hears all the others; use its neighbors alone": everyone,
        "normalize over the neighbors, not over all nodes": edges @ value,
    }
    got = by_hand(message_passing, without="softmax")(query, key, value, neighbors)
    expect(got, right, mistakes, of="messages on a graph with fewer edges")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# On the **complete** graph, where everyone hears everyone *and itself*, that is attention; on any other graph it is
# attention with a mask. The picture draws the weights of one attention layer as edges (without those to itself).

# %%
torch.manual_seed(7)
nodes = 7
query, key, value = (torch.randn(nodes, 4) for _ in range(3))
same = message_passing(query, key, value, [list(range(nodes))] * nodes)
print("the same as attention:", torch.allclose(same, attention(query, key, value), atol=1e-5))
angle = 2 * math.pi * torch.arange(nodes) / nodes
place = torch.stack([angle.cos(), angle.sin()], -1)
weights = softargmax(query @ key.T, 0.5)
figure, panel = plt.subplots(figsize=(3.6, 3.6))
for i in range(nodes):
    for j in range(nodes):
        if i != j:
            start, way = place[i], 0.93 * (place[j] - place[i])
            strength = float(weights[i, j])
            panel.arrow(*start, *way, width=0.03 * strength, alpha=min(1.0, 1.5 * strength), length_includes_head=True)
panel.scatter(*place.T, s=250, zorder=3)
for i in range(nodes):
    panel.text(*place[i], str(i), ha="center", va="center", color="white", zorder=4)
panel.set_axis_off()
panel.set_title("who listens to whom")
regard.course.picture(
    figure, "Seven nodes on a circle with arrows between all of them; thick arrows are large weights, thin ones small."
)

# %% [raw]
# # BEGIN QUESTION
# name: own_words
# points: 4
# manual: true

# %% [markdown]
# ## 1.14 In your own words
#
# In five to eight sentences: what are queries, keys and values, and what does an attention map show (which shape has it, and
# what can be read off a row and off a column)? When does attention preserve a value, when does it dilute values, and which
# β is each? Why is the attention update called message passing on a fully connected graph?

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (4 points).** 1: queries seek, keys are compared with them, values are what is returned; all three are projections
# of tokens. 1: the map is queries × keys per item (and head), rows are weights that sum to one; a row says what one query
# reads, a column how much a key is read; columns have no fixed sum. 1: preserve needs β → ∞ and one best key (hard), dilute
# is β = 0, each key 1/m (soft in between). 1: every token is a node, the weights are edges from everyone to everyone, itself
# included, normalized over the incoming edges; the update is the weighted sum of messages.
#
# **Model answer.** A query says what a token looks for, a key what it is compared with, a value what is passed on; each is a
# learned projection of a token. The map has a row for each query and a column for each key: row $i$ holds the weights with
# which query $i$ mixes the values, and sums to one; a column shows how much a key is used by all queries, and may sum to
# anything. As β grows the weight gathers on the best key and its value comes through unchanged; at β = 0 all keys weigh
# $1/m$ and the output is the mean. Seen as a graph, tokens are nodes, weights are edges between all pairs including
# self-loops, and each node replaces itself by the weighted sum of what its neighbors send.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## What you have now
#
# | | |
# |---|---|
# | query, key, value | what is looked for, what it is compared with, what is returned |
# | attention map | one row of weights per query, one column per key; rows sum to one |
# | self, cross | queries from the same tokens as keys and values, or from others |
# | β = 0 | every key weighs $1/m$: the mean of the values (*dilute*) |
# | β = $1/\sqrt d$ | the usual choice |
# | β = ∞ | the best key's value, unchanged (*preserve*) |
# | masked | the same over the keys that are kept; message passing on a graph |
# | kernel regression | the same with the kernel $e^{\beta q\cdot k}$ |
#
# The library decides such statements by evidence: `regard verify temperature` on the command line, or here:

# %%
print(regard.verify("hw4-key-noise"))
