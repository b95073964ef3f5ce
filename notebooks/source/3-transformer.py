# %% [raw]
# # ASSIGNMENT CONFIG
# name: 3-transformer
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
import torch.nn.functional as F
from torch import nn

import regard

# %matplotlib inline
grader = regard.course.Notebook("3-transformer")

# %% [markdown]
# # 3 · Heads, cost and the Transformer
#
# Notebook 1 built one attention. A Transformer has many, side by side (*heads*) and on top of each other (*blocks*),
# and nothing recurrent in between. You will find out why scores are scaled, build heads, count what they cost, put a
# block together, and train a text encoder that guesses missing words.

# %% [raw]
# # BEGIN QUESTION
# name: variance
# points: 4

# %% [markdown]
# ## 3.1 Why divide by √d
#
# Let all entries of a query $q$ and a key $k$ be independent, entry $i$ of both with mean $\mu_i$ and standard
# deviation $\sigma$. What are the mean and the variance of $q \cdot k$? And by which number must $q \cdot k$ be divided so
# that, for $\mu = 0$ and $\sigma = 1$, its variance is 1 at every width?
#
# For the variance start with one product: $\mathrm{Var}[q_i k_i] = \mathbb E[q_i^2]\,\mathbb E[k_i^2] - \mu_i^4$ with $\mathbb
# E[q_i^2] = \mu_i^2 + \sigma^2$; then add up. (Count carefully: $\mu^\top\mu$ is already a sum over $d$ entries.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def score_mean(mean):
    """mean (d,) -> the mean of q · k."""
    # BEGIN SOLUTION
    return mean @ mean
    # END SOLUTION


def score_variance(mean, deviation):
    """mean (d,), deviation a number -> the variance of q · k."""
    # BEGIN SOLUTION
    return 2 * deviation**2 * (mean @ mean) + len(mean) * deviation**4
    # END SOLUTION


def divisor(width):
    """-> the number to divide q · k by."""
    # BEGIN SOLUTION
    return math.sqrt(width)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_mean_zero(score_variance):
    import torch

    from regard.course import by_hand, expect

    got = by_hand(score_variance)(torch.zeros(7), 2.0)
    mistakes = {
        "this is the standard deviation; the variance is its square": (7 * 16.0) ** 0.5,
        "the variance of a product of two has σ⁴, not σ²": 7 * 4.0,
        "there are d products to add up": 16.0,
    }
    expect(got, 7 * 16.0, mistakes, of="the variance for μ = 0, σ = 2, d = 7")


# %%
# HIDDEN
def test_any_mean(score_mean, score_variance, divisor, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    width = draw.size(3, 12)
    mean, deviation = draw(width), 0.5 + 0.1 * draw.size(1, 9)
    square, four = float(mean @ mean), width * deviation**4
    mistakes = {
        "d is counted twice: μᵀμ is a sum over d entries already, so there is no further factor d in front of it": (
            2 * width * deviation**2 * square + four
        ),
        "the cross term is missing a factor 2: both q and k vary around their means": deviation**2 * square + four,
        "the mean matters, too: there is a term with μᵀμ": four,
    }
    right = 2 * deviation**2 * square + four
    expect(by_hand(score_variance)(mean, deviation), right, mistakes, of="the variance", tolerance=1e-3)
    expect(by_hand(score_mean)(mean), square, of="the mean", tolerance=1e-3)
    expect(by_hand(divisor)(width), width**0.5, of="the divisor", tolerance=1e-3)


# %%
def test_a_mean_counts_once(score_mean, score_variance):
    import torch

    from regard.course import by_hand, expect

    mean, deviation = torch.tensor([1.0, 2.0, 0.0, -1.0]), 3.0
    expect(
        by_hand(score_mean)(mean),
        6.0,
        {"this is (Σμ)²; add the squares up instead": 4.0, "this is the length of μ; its square is asked": 6.0**0.5},
        of="the mean",
    )
    mistakes = {
        "d is counted twice: μᵀμ is a sum over d entries already, so there is no further factor d in front of it": (
            2 * 4 * 9.0 * 6 + 4 * 81.0
        ),
        "the cross term is missing a factor 2: both q and k vary around their means": 9.0 * 6 + 4 * 81.0,
        "the mean matters, too: there is a term with μᵀμ": 4 * 81.0,
    }
    expect(
        by_hand(score_variance)(mean, deviation),
        2 * 9.0 * 6 + 4 * 81.0,
        mistakes,
        of="the variance for μ = (1, 2, 0, −1), σ = 3",
    )


# %%
def test_divisor(divisor):
    from regard.course import by_hand, expect

    mistakes = {
        "dividing by d makes the variance 1/d: divide by the standard deviation": 64,
        "multiply by 1/√d, divide by √d": 0.125,
    }
    expect(by_hand(divisor)(64), 8, mistakes, of="the divisor at d = 64")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# With mean zero the standard deviation of a score is $\sigma^2\sqrt d$. Without scaling, wide keys make scores so
# large that softmax puts everything on one key, where its gradient is almost zero:

# %%
torch.manual_seed(0)
widths = [2**i for i in range(1, 11)]
figure, panels = plt.subplots(1, 2, figsize=(8.5, 2.8))
for scaled in (False, True):
    largest, slope = [], []
    for width in widths:
        scores = (torch.randn(400, 16, width) * torch.randn(400, 1, width)).sum(-1)
        weights = torch.softmax(scores / math.sqrt(width) if scaled else scores, -1)
        largest.append(weights.amax(-1).mean())
        slope.append((weights * (1 - weights)).sum(-1).mean())
    label = "q·k / √d" if scaled else "q·k"
    panels[0].semilogx(widths, largest, "o-", label=label)
    panels[1].semilogx(widths, slope, "o-", label=label)
panels[0].set(xlabel="d", ylabel="largest of 16 weights", ylim=(0, 1))
panels[1].set(xlabel="d", ylabel="sensitivity Σ w(1 − w)", ylim=(0, 1))
panels[0].legend()
regard.course.picture(
    figure,
    "Left: the largest of 16 weights against the width d: unscaled it grows to nearly one, scaled it stays level. Right: "
    "the softmax's sensitivity, which falls to nearly zero without scaling and stays level with it.",
)

# %% [raw]
# # BEGIN QUESTION
# name: heads
# points: 3

# %% [markdown]
# ## 3.2 Split and merge
#
# A layer of width `dim` with `heads` heads gives each head a slice of `dim // heads` features: head 0 the first ones,
# head 1 the next, and so on. Turn `(batch, tokens, dim)` into `(batch, heads, tokens, dim // heads)`, and back. Mind
# that a reshape never moves a number past another one: axes have to be swapped.

# %% [raw]
# # BEGIN SOLUTION


# %%
def split_heads(x, heads):
    """(batch, tokens, dim) -> (batch, heads, tokens, dim // heads)."""
    # BEGIN SOLUTION
    batch, tokens, dim = x.shape
    return x.reshape(batch, tokens, heads, dim // heads).transpose(1, 2)
    # END SOLUTION


def merge_heads(x):
    """(batch, heads, tokens, width) -> (batch, tokens, heads * width), the inverse of split_heads."""
    # BEGIN SOLUTION
    batch, heads, tokens, width = x.shape
    return x.transpose(1, 2).reshape(batch, tokens, heads * width)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_split(split_heads):
    import torch

    from regard.course import by_hand, expect

    x = torch.arange(24.0).reshape(1, 4, 6)
    right = x.unflatten(-1, (2, 3)).transpose(1, 2)
    mistakes = {
        "a head got some tokens with all their features; it should get all tokens with some features: "
        "split the last axis, then swap": x.reshape(1, 2, 4, 3),
        "head h should have the features h·w … h·w + w − 1 side by side; yours takes every second one": (
            x.unflatten(-1, (3, 2)).permute(0, 3, 1, 2)
        ),
    }
    expect(by_hand(split_heads)(x, 2), right, mistakes, of="the heads")


# %%
def test_merge(merge_heads):
    import torch

    from regard.course import by_hand, expect

    x = torch.arange(24.0).reshape(1, 2, 4, 3)
    right = x.transpose(1, 2).flatten(2)
    mistakes = {"swap heads and tokens back before you join the features": x.reshape(1, 4, 6)}
    expect(by_hand(merge_heads)(x), right, mistakes, of="the merged heads")


# %%
# HIDDEN
def test_there_and_back(split_heads, merge_heads, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    heads, width = draw.size(2, 4), draw.size(2, 5)
    x = draw(draw.size(2, 3), draw.size(3, 7), heads * width)
    parts = by_hand(split_heads)(x, heads)
    expect(parts, x.unflatten(-1, (heads, width)).transpose(1, 2), of="the heads")
    expect(by_hand(merge_heads)(parts), x, of="split and merged")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: multi_head
# points: 4

# %% [markdown]
# ## 3.3 Multi-head attention
#
# Project queries from `x` and keys and values from `context` (the same as `x` in self-attention), split, attend **in
# every head on its own** with β = $1/\sqrt{\text{width of a head}}$, merge, and project once more. Weights are as in
# `nn.Linear`: `x @ w.T`. `keep`, if there is one, is True where a query may attend; its shape broadcasts to that of the
# weights, `(batch, heads, queries, keys)`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def multi_head_attention(x, context, w_query, w_key, w_value, w_out, heads, keep=None):
    """x (batch, queries, dim), context (batch, keys, dim), all weights (dim, dim) -> (batch, queries, dim)."""
    query = split_heads(x @ w_query.T, heads)  # SOLUTION
    key = split_heads(context @ w_key.T, heads)  # SOLUTION
    value = split_heads(context @ w_value.T, heads)  # SOLUTION
    scores = query @ key.mT / math.sqrt(query.shape[-1])  # SOLUTION
    if keep is not None:
        scores = scores.masked_fill(~keep, -torch.inf)  # SOLUTION
    output = merge_heads(torch.softmax(scores, dim=-1) @ value) @ w_out.T  # SOLUTION
    return output


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_self_attention(multi_head_attention):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(1)
    x, weights = draw(2, 5, 6), [draw(6, 6) for _ in range(4)]
    right, _ = regard.reference.multi_head_attention(x, x, *weights, heads=2)
    attend = regard.reference.multi_head_attention

    def mixed(axis, merged=True):
        query, key, value = ((x @ w.T).unflatten(-1, (2, 3)).transpose(1, 2) for w in weights[:3])
        output = (query @ key.mT / 3**0.5).softmax(axis) @ value
        return (output.transpose(1, 2) if merged else output).reshape(2, 5, 6) @ weights[3].T

    mistakes = {
        "divide by the root of a head's width (dim / heads), not of dim": attend(x, x, *weights, heads=2, beta=6**-0.5)[
            0
        ],
        "the scores are not divided by √(width of a head)": attend(x, x, *weights, heads=2, beta=1.0)[0],
        "this is one head of full width; split before attending": attend(x, x, *weights, heads=1)[0],
        "the last projection w_out is missing": attend(x, x, *weights[:3], torch.eye(6), heads=2)[0],
        "the softmax runs over the queries; it should run over the keys, the last axis": mixed(-2),
        "heads are joined without swapping heads and tokens back: merge them first": mixed(-1, merged=False),
    }
    expect(by_hand(multi_head_attention)(x, x, *weights, 2), right, mistakes, of="multi-head self-attention")


# %%
# HIDDEN
def test_cross_attention(multi_head_attention, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    heads = draw.size(2, 4)
    dim = heads * draw.size(2, 4)
    x, context, weights = draw(2, 3, dim), draw(2, 7, dim), [draw(dim, dim) for _ in range(4)]
    keep = draw.coin(2, 1, 3, 7) | torch.eye(3, 7, dtype=torch.bool)
    attend = regard.reference.multi_head_attention
    right, _ = attend(x, context, *weights, heads=heads, keep=keep)
    mistakes = {
        "keep is not used": attend(x, context, *weights, heads=heads)[0],
        "True means attend; yours leaves out what should be kept": attend(
            x, context, *weights, heads=heads, keep=~keep
        )[0],
    }
    got = by_hand(multi_head_attention)(x, context, *weights, heads, keep)
    expect(got, right, mistakes, of="multi-head cross-attention")


# %%
def test_other_keys_and_a_mask(multi_head_attention):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(9)
    x, context, weights = draw(1, 3, 4), draw(1, 5, 4), [draw(4, 4) for _ in range(4)]
    attend = regard.reference.multi_head_attention
    mistakes = {"keys and values come from context; here they come from x": attend(x, x, *weights, heads=2)[0]}
    got = by_hand(multi_head_attention)(x, context, *weights, 2)
    expect(got, attend(x, context, *weights, heads=2)[0], mistakes, of="3 queries that look at 5 keys")
    keep = torch.tensor(
        [[True, True, False, False, True], [False, True, True, False, False], [True, False, False, True, False]]
    )
    mistakes = {
        "keep is not used": attend(x, context, *weights, heads=2)[0],
        "True means attend; yours leaves out what should be kept": attend(x, context, *weights, heads=2, keep=~keep)[0],
    }
    got = by_hand(multi_head_attention)(x, context, *weights, 2, keep)
    expect(got, attend(x, context, *weights, heads=2, keep=keep)[0], mistakes, of="the same with a mask")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: one_pixel
# points: 3

# %% [markdown]
# ## 3.4 For one pixel alone
#
# Nothing in a row of attention needs the other rows. Write multi-head self-attention of an *image* for a single query pixel
# `place`: its scores with all pixels, one softmax per head, the sum over all pixels, and then the concatenated heads times
# `w_out`, plus the bias. Here matrices stand on the right, `z @ w`, each head has its own, and nothing is scaled:
#
# $$\Bigl(\mathrm{concat}_h \sum_k \mathrm{softmax}\bigl(Z_q W_q^{(h)} W_k^{(h)\top} Z^\top\bigr)_k\,
# Z_k W_v^{(h)}\Bigr)\, W_{out} + b_{out}$$

# %% [raw]
# # BEGIN SOLUTION


# %%
def attend_at(z, place, w_query, w_key, w_value, w_out, b_out):
    """z (rows, columns, dim), place (row, column), w_query and w_key (heads, dim, hidden), w_value (heads, dim, width),
    w_out (heads * width, out), b_out (out,) -> (out,)."""
    # BEGIN SOLUTION
    pixels = z.flatten(0, 1)
    query = z[place] @ w_query  # (heads, hidden)
    scores = torch.einsum("hd,hnd->hn", query, pixels @ w_key)
    heads = torch.softmax(scores, dim=-1)[:, None, :] @ (pixels @ w_value)  # (heads, 1, width)
    return heads.flatten() @ w_out + b_out
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_pixel(attend_at):

    from regard.course import Draw, by_hand, expect

    draw = Draw(4)
    z, w_query, w_key, w_value = draw(2, 3, 4), draw(2, 4, 3), draw(2, 4, 3), draw(2, 4, 2)
    w_out, b_out, pixels = draw(4, 5), draw(5), z.flatten(0, 1)

    def at(query, axis=-1):
        scores = (query @ w_query) @ (pixels @ w_key).mT
        return (scores.softmax(axis) @ (pixels @ w_value)).transpose(0, 1).flatten(1) @ w_out

    right = at(pixels)[5] + b_out
    mistakes = {
        "the bias is missing": right - b_out,
        "this is another pixel's output: place is (row, column)": at(pixels)[4] + b_out,
        "the softmax must run over all pixels k, for this one query": at(pixels, -2)[5] + b_out,
        "the softmax of a single number is 1: run it over the pixels": at(pixels[5:], -2)[0] + b_out,
    }
    got = by_hand(attend_at)(z, (1, 2), w_query, w_key, w_value, w_out, b_out)
    expect(got, right, mistakes, of="the output at pixel (1, 2)")


# %%
# HIDDEN
def test_every_pixel(attend_at, SEED):
    import torch

    from regard.course import Draw, by_hand, expect, expect_tensor

    draw = Draw(SEED)
    rows, columns, heads, width = draw.size(2, 4), draw.size(2, 4), draw.size(1, 3), draw.size(2, 4)
    z, w_out, b_out = draw(rows, columns, 3), draw(heads * width, 4), draw(4)
    w_query, w_key, w_value = draw(heads, 3, 5), draw(heads, 3, 5), draw(heads, 3, width)
    pixels = z.flatten(0, 1)
    weights = ((pixels @ w_query) @ (pixels @ w_key).mT).softmax(-1)
    right = (weights @ (pixels @ w_value)).transpose(0, 1).flatten(1) @ w_out + b_out
    attend = by_hand(attend_at)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    got = [
        expect_tensor(attend(z, place, w_query, w_key, w_value, w_out, b_out), 4, of="an output") for place in places
    ]
    expect(torch.stack(got), right, of="the output at every pixel")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: parameters
# points: 3

# %% [markdown]
# ## 3.5 How many numbers it learns
#
# Such a layer (3.4) has `heads` heads with $W_q, W_k$ of `dim × hidden` and $W_v$ of `dim × value` each, and one
# $W_{out}$ and one bias for all. Write the number of its parameters. And for *your* layer, **«heads» heads, dim
# «in», hidden «hidden», value «value», out «out»**: how many are there?

# %% [raw]
# # BEGIN SOLUTION


# %%
def parameters(heads, dim, hidden, value, out):
    """-> a whole number."""
    # BEGIN SOLUTION
    return heads * dim * (2 * hidden + value) + heads * value * out + out
    # END SOLUTION


my_layer = parameters(NUMBER_heads, NUMBER_in, NUMBER_hidden, NUMBER_value, NUMBER_out)  # SOLUTION

# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_count(parameters):
    from regard.course import by_hand, expect

    mistakes = {
        "the output matrix has a block of rows for every head": 2 * 3 * (2 * 4 + 5) + 5 * 7 + 7,
        "the bias is missing": 2 * 3 * (2 * 4 + 5) + 2 * 5 * 7,
        "every head has its own W_q, W_k and W_v": 3 * (2 * 4 + 5) + 2 * 5 * 7 + 7,
        "queries and keys have a matrix each": 2 * 3 * (4 + 5) + 2 * 5 * 7 + 7,
        "the bias is shared by all heads": 2 * 3 * (2 * 4 + 5) + 2 * 5 * 7 + 2 * 7,
    }
    expect(
        by_hand(parameters)(2, 3, 4, 5, 7),
        2 * 3 * 13 + 70 + 7,
        mistakes,
        of="2 heads, dim 3, hidden 4, value 5, out 7",
        tolerance=1e-9,
    )


# %%
# HIDDEN
def test_my_layer(my_layer, NUMBERS):
    from regard.course import expect, numbers

    sizes = numbers("3-transformer", NUMBERS)
    heads, dim, hidden = sizes["heads"], sizes["in"], sizes["hidden"]
    value, out = sizes["value"], sizes["out"]
    right = heads * dim * (2 * hidden + value) + heads * value * out + out
    expect(my_layer, right, {"the bias is missing": right - out}, of="the parameters of your layer", tolerance=1e-9)


# %%
# HIDDEN
def test_any_sizes(parameters, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    heads, dim, hidden, value, out = (draw.size(2, 30) for _ in range(5))
    right = heads * dim * (2 * hidden + value) + heads * value * out + out
    expect(by_hand(parameters)(heads, dim, hidden, value, out), right, of="the number of parameters", tolerance=1e-9)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **Why several?** One head has one set of weights, and they share a sum of one. Below, a token needs what stands at
# two places. One head can only return a blend of the two; two heads return both, side by side. They play the part
# that several kernels play in a convolution, each with a field of view as large as the sequence.

# %%
place = torch.arange(24.0)
near, far = -0.5 * (place - 5) ** 2, -0.5 * (place - 17) ** 2
signal = torch.where(place < 11, 1.0, -1.0)
figure, panels = plt.subplots(1, 2, figsize=(8.5, 2.4), sharey=True)
for panel, scores, title in (
    (panels[0], [torch.maximum(near, far)], "one head"),
    (panels[1], [near, far], "two heads"),
):
    said = []
    for score in scores:
        weights = torch.softmax(score, -1)
        panel.bar(place, weights, alpha=0.7)
        said.append(f"{round(float(weights @ signal), 1) + 0.0:+}")
    panel.set(title=f"{title}: reads {', '.join(said)}", xlabel="token (signal +1 on the left, −1 on the right)")
regard.course.picture(
    figure,
    "Weights over 24 tokens. Left: one head with two equal bumps, at tokens 5 and 17; it reads their blend, zero. Right: two "
    "heads with one bump each; they read +1 and −1.",
)

# %% [raw]
# # BEGIN QUESTION
# name: heads_words
# points: 3
# manual: true

# %% [markdown]
# ## 3.6 Several heads, in words
#
# Why several heads, and not one that is wider? What are they in a convolutional network, how far does the likeness go, and
# what does it leave out?

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (3 points).** 1: one softmax has one set of weights that sums to one, so large scores mute the others; several heads
# look at several places or features at once and in different subspaces. 1: like several kernels (output channels): each reads
# the same input with weights of its own and the results are stacked, then mixed. 1: a difference: attention weights depend on
# the input and reach everywhere, kernels are fixed and local; or: a head at a fixed place is like one *tap* of a kernel.
#
# **Model answer.** The weights of one head share a sum of one, so a strong feature crowds others out, and what several tokens
# say is only available as a blend. Several heads keep several readings apart, at the same cost. They play the part of several
# kernels: each has its own weights on the same input, outputs are stacked and then mixed linearly. But a kernel's weights are
# the same for every input and reach a few neighbors, while a head's weights are computed from the input and reach everything;
# a head that always looks at one offset is the counterpart of a single tap.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: cost
# points: 3

# %% [markdown]
# ## 3.7 What it costs
#
# Multiplying `(a, b)` by `(b, c)` takes $a\,b\,c$ multiply-adds. Count those of one multi-head self-attention layer
# for a sequence of `tokens` tokens: four projections, the scores of all heads, and the weighted sums of all heads.
# Softmax is not counted.

# %% [raw]
# # BEGIN SOLUTION


# %%
def multiply_adds(tokens, dim, heads):
    """-> a whole number."""
    width = dim // heads  # SOLUTION
    projections = 4 * tokens * dim * dim  # SOLUTION
    scores = heads * tokens * width * tokens  # SOLUTION
    sums = heads * tokens * tokens * width  # SOLUTION
    total = projections + scores + sums  # SOLUTION
    return total


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_size(multiply_adds):
    from regard.course import by_hand, expect

    got = by_hand(multiply_adds)(10, 8, 2)
    mistakes = {
        "the projection at the end is missing: queries, keys, values and output make four": 3 * 10 * 64 + 2 * 100 * 8,
        "each head has width dim / heads; with the full width you count heads times too much": 4 * 10 * 64
        + 2 * 2 * 100 * 8,
        "only one of the two products with tokens² is there: scores, and weighted sums": 4 * 10 * 64 + 100 * 8,
    }
    expect(got, 4 * 10 * 64 + 2 * 100 * 8, mistakes, of="multiply-adds for 10 tokens, dim 8, 2 heads", tolerance=1e-9)


# %%
# HIDDEN
def test_as_counted(multiply_adds, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    heads = draw.size(1, 6)
    dim, tokens = heads * draw.size(2, 9), draw.size(5, 60)
    counted = regard.cost(regard.MultiHeadAttention(dim, heads), (1, tokens, dim)).multiply_adds
    got = by_hand(multiply_adds)(tokens, dim, heads)
    expect(got, counted, of=f"multiply-adds for {tokens} tokens, dim {dim}, {heads} heads", tolerance=1e-9)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# The number of heads cancels: $4nd^2 + 2n^2d$. Projections rule for short sequences, the $n^2$ terms from $n = 2d$ on. With
# $h$ heads each is $1/h$ as wide (queries and keys must be equally wide, $d_k = d_q$; values may differ), so there is nothing
# to gain in multiplications; what is gained is several maps at once, computed in parallel.

# %%
lengths = [2**i for i in range(5, 15)]
figure, panel = plt.subplots(figsize=(5.5, 3))
panel.loglog(lengths, [multiply_adds(n, 512, 8) for n in lengths], label="all")
panel.loglog(lengths, [4 * n * 512**2 for n in lengths], ls="--", label="projections")
panel.loglog(lengths, [2 * n**2 * 512 for n in lengths], ls="--", label="scores and sums")
panel.axvline(1024, color="gray", lw=0.8)
panel.set(xlabel="tokens n", ylabel="multiply-adds", title="d = 512: the square takes over at n = 2d")
panel.legend()
regard.course.picture(
    figure,
    "Multiply-adds against the number of tokens, both axes logarithmic, at d = 512: projections grow in proportion, scores "
    "and sums with the square; the lines cross at 1024 tokens.",
)

# %% [raw]
# # BEGIN QUESTION
# name: causal
# points: 2

# %% [markdown]
# ## 3.8 Not looking ahead
#
# A decoder writes from left to right: query $i$ may see keys up to its own place. When the first tokens are kept in a
# cache there are fewer queries than keys, and the queries are the **last** tokens: query $i$ stands at place $i +
# (\text{keys} - \text{queries})$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def causal_keep(queries, keys):
    """-> (queries, keys), True where query i may see key j."""
    # BEGIN SOLUTION
    place = torch.arange(queries)[:, None] + keys - queries
    return torch.arange(keys) <= place
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_square(causal_keep):
    import torch

    from regard.course import by_hand, expect

    right = torch.ones(4, 4).tril()
    mistakes = {
        "a token may see itself: ≤, not <": torch.ones(4, 4).tril(-1),
        "True means attend; yours is True on the future": 1 - right,
        "this looks ahead: query i (row) may see key j (column) where j ≤ i": right.T,
    }
    got = by_hand(causal_keep)(4, 4)
    if isinstance(got, torch.Tensor) and got.dtype != torch.bool:
        raise AssertionError("keep must be a tensor of True and False, this one holds numbers")
    expect(got, right, mistakes, of="keep for 4 queries and 4 keys")


# %%
# HIDDEN
def test_with_a_cache(causal_keep, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    queries, keys = draw.size(1, 4), draw.size(5, 9)
    mistakes = {
        "the queries are the last tokens: with fewer queries than keys, the first query may see keys − queries + 1 keys": (
            torch.ones(queries, keys).tril()
        )
    }
    right = regard.reference.causal_keep(queries, keys)
    expect(by_hand(causal_keep)(queries, keys), right, mistakes, of=f"keep for {queries} queries and {keys} keys")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: paths
# points: 3

# %% [markdown]
# ## 3.9 Why not recurrence?
#
# Two numbers say how a layer treats a sequence of $n$ tokens: how many steps have to be computed **one after the other**, and
# how many steps a signal takes from the first token to the last at most, its **path**. A recurrent layer (an RNN or an LSTM)
# needs the state $t - 1$ before the state $t$. Self-attention compares all pairs at once. A stack of convolutions with kernel
# size $K$ (no stride) reaches $K - 1$ tokens further with every layer; count its layers as steps, as many as the path needs.
#
# Short paths carry gradients well, and few steps keep a parallel machine busy: that is why the Transformer has attention in
# place of recurrence. (Its price was 3.7's $n^2$.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def steps_and_path(kind, tokens, kernel=3):
    """kind "recurrence", "attention" or "convolution" -> (steps one after the other, longest path), for tokens > 1."""
    # BEGIN SOLUTION
    if kind == "attention":
        return 1, 1
    if kind == "recurrence":
        return tokens, tokens - 1
    layers = math.ceil((tokens - 1) / (kernel - 1))
    return layers, layers
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_kinds(steps_and_path):
    import torch

    from regard.course import by_hand, expect, expect_numbers

    answer = by_hand(steps_and_path)
    got = expect_numbers(answer("attention", 50), 2, of="attention")
    expect(got, torch.tensor([1.0, 1.0]), {"all pairs meet at once": torch.tensor([50.0, 50.0])}, of="attention")
    got = expect_numbers(answer("recurrence", 50), 2, of="recurrence")
    mistakes = {
        "from token 1 to token n are n − 1 steps": torch.tensor([50.0, 50.0]),
        "n states have to be computed, the first one, too": torch.tensor([49.0, 49.0]),
    }
    expect(got, torch.tensor([50.0, 49.0]), mistakes, of="recurrence over 50 tokens")
    got = expect_numbers(answer("convolution", 9, 5), 2, of="convolution")
    expect(got, torch.tensor([2.0, 2.0]), of="convolutions with kernel size 5 over 9 tokens")
    got = expect_numbers(answer("convolution", 10, 5), 2, of="convolution")
    mistakes = {
        "two layers reach from token 1 to token 9; round up, so that the last token is reached": torch.full((2,), 2.0)
    }
    expect(got, torch.tensor([3.0, 3.0]), mistakes, of="convolutions with kernel size 5 over 10 tokens")


# %%
# HIDDEN
def test_any_length(steps_and_path, SEED):
    import torch

    from regard.course import Draw, by_hand, expect, expect_numbers

    draw = Draw(SEED)
    layers, kernel = draw.size(5, 12), draw.size(4, 7)
    reach = 1 + layers * (kernel - 1)  # what these layers just reach; one token more takes one layer more
    answer = by_hand(steps_and_path)
    for tokens, needed in ((reach, layers), (reach + 1, layers + 1)):
        got = [expect_numbers(answer(kind, tokens, kernel), 2) for kind in ("recurrence", "attention", "convolution")]
        right = torch.tensor([[tokens, tokens - 1], [1, 1], [needed, needed]]).float()
        expect(torch.stack(got), right, of="steps and paths")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: block
# points: 4

# %% [markdown]
# ## 3.10 A block
#
# Attention moves information between tokens. A small network then works on **each token by itself**, with the same
# weights at every place: $\mathrm{ff}(x) = \max(0,\, x W_1^\top + b_1)\, W_2^\top + b_2$. (Attention only averages values;
# this is where a token is changed by itself, and nonlinearly.) Around both goes a residual connection, which keeps the input
# and a short way for gradients, and a **layer norm**: each token's features are brought to mean 0 and variance 1, then scaled
# and shifted by learned numbers, $\frac{x - \bar x}{\sqrt{\mathrm{Var}(x) + \varepsilon}} \odot w + b$. So sub-layers see
# inputs of one size however many updates were added before, which steadies training; and it needs no batch and no fixed
# length, as batch norm would. Both come in one of two orders:
#
# * **post** (the original Transformer): $x \leftarrow \mathrm{norm}(x + f(x))$
# * **pre** (most models since): $x \leftarrow x + f(\mathrm{norm}(x))$
#
# `attention`, `ff`, `norm1` and `norm2` are functions of `x`; attention comes first, with `norm1`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def feed_forward(x, w1, b1, w2, b2):
    """x (..., dim), w1 (hidden, dim), b1 (hidden,), w2 (dim, hidden), b2 (dim,) -> (..., dim)."""
    # BEGIN SOLUTION
    return torch.relu(x @ w1.T + b1) @ w2.T + b2
    # END SOLUTION


def block(x, attention, ff, norm1, norm2, order):
    """One block; order is "post" or "pre"."""
    # BEGIN SOLUTION
    for sublayer, norm in ((attention, norm1), (ff, norm2)):
        x = norm(x + sublayer(x)) if order == "post" else x + sublayer(norm(x))
    return x
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_feed_forward(feed_forward):
    from regard.course import Draw, by_hand, expect

    draw = Draw(3)
    x, w1, b1, w2, b2 = draw(2, 3, 4), draw(8, 4), draw(8), draw(4, 8), draw(4)
    inside = x @ w1.T + b1
    mistakes = {
        "without max(0, ·) in between, two linear maps are one linear map": inside @ w2.T + b2,
        "max(0, ·) belongs between the two maps, not at the end": (inside @ w2.T + b2).relu(),
        "b1 is missing": (x @ w1.T).relu() @ w2.T + b2,
        "b2 is missing": inside.relu() @ w2.T,
    }
    expect(by_hand(feed_forward)(x, w1, b1, w2, b2), inside.relu() @ w2.T + b2, mistakes, of="the feed-forward network")


# %%
def test_orders(block):
    import torch

    from regard.course import by_hand, expect

    def attention(x):
        return 2 * x + 1

    def ff(x):
        return x.square()

    def norm1(x):
        return x / 10

    def norm2(x):
        return x - 3

    x = torch.tensor([1.0, 2.0])
    post_middle, pre_middle = norm1(x + attention(x)), x + attention(norm1(x))
    post, pre = norm2(post_middle + ff(post_middle)), pre_middle + ff(norm2(pre_middle))
    mistakes = {
        "the orders are swapped: pre normalizes what goes into a sub-layer": pre,
        "the second sub-layer must work on the result of the first": norm2(norm1(x + attention(x)) + ff(x)),
        "the residual is missing: x + f(x)": norm2(ff(norm1(attention(x)))),
        "the norms are left out": x + attention(x) + ff(x + attention(x)),
        "the second norm is left out": post_middle + ff(post_middle),
    }
    expect(by_hand(block)(x, attention, ff, norm1, norm2, "post"), post, mistakes, of="post")
    mistakes = {
        "the orders are swapped: post normalizes the sum": post,
        "the residual carries the x that came in, not the normalized one": (
            norm2(norm1(x) + attention(norm1(x))) + ff(norm2(norm1(x) + attention(norm1(x))))
        ),
        "the norms are left out": x + attention(x) + ff(x + attention(x)),
    }
    expect(by_hand(block)(x, attention, ff, norm1, norm2, "pre"), pre, mistakes, of="pre")


# %%
# HIDDEN
def test_a_real_block(block, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    x, mix, change = draw(2, 5, 4), draw(5, 5).softmax(-1), draw(4, 4)
    norm = torch.nn.LayerNorm(4)
    order = "pre" if draw.size(0, 1) else "post"

    def attention(x):
        return mix @ x

    def ff(x):
        return (x @ change).relu()

    right = x
    for sublayer in (attention, ff):
        right = norm(right + sublayer(right)) if order == "post" else right + sublayer(norm(right))
    expect(by_hand(block)(x, attention, ff, norm, norm, order), right, of=f"a block in {order} order")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **The Transformer** stacks such blocks. Attention enters in three places:
#
# | where | queries from | keys and values from | mask |
# |---|---|---|---|
# | encoder, self-attention | source | source | none (padding) |
# | decoder, self-attention | target so far | target so far | causal |
# | decoder, cross-attention | target so far | **the encoder's output** | none (padding) |
#
# The picture shows one layer of each.

# %%
regard.course.diagram("transformer")

# %% [markdown]
# Here they are in a small model, untrained. `regard.capture` reads the maps off any PyTorch model.

# %%
torch.manual_seed(0)
model = regard.models.Transformer(30, dim=32, depth=1, heads=4, dropout=0.0).eval()
with torch.no_grad(), regard.capture(model) as maps:
    model(torch.randint(30, (1, 8)), torch.randint(30, (1, 6)))
print(maps)
figure, panels = plt.subplots(1, len(maps), figsize=(8.5, 2.6))
for panel, (name, found) in zip(panels, maps.items(), strict=True):
    panel.imshow(found.weights[0, 0], vmin=0, cmap="viridis")
    panel.set_title(name, fontsize=8)
    panel.set(xlabel="key", ylabel="query")
regard.course.picture(
    figure,
    "Three maps of an untrained Transformer: encoder self-attention, 8 by 8; decoder self-attention, 6 by 6 with an empty "
    "upper right half; cross-attention, 6 queries by 8 keys.",
)

# %% [raw]
# # BEGIN QUESTION
# name: recurrence_words
# points: 4
# manual: true

# %% [markdown]
# ## 3.11 The Transformer and what came before, in words
#
# How does the Transformer differ from earlier sequence-to-sequence models (RNN, LSTM): in how tokens exchange information, in
# what can be computed in parallel, in the length of paths, in how order is known? Where in the encoder and in the decoder is
# self-attention, what does the encoder's output give to the decoder, and what do layer norm and the feed-forward network do?

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (4 points).** 1: no recurrence (and no convolution but of kernel size 1); all tokens of a layer at once instead of
# step by step. 1: constant path length instead of one that grows with the distance; so long dependencies are easier to learn,
# at a cost of n². 1: order comes from positional encodings, and in the decoder from the causal mask. 1: self-attention in every
# layer of both, causal in the decoder; the encoder's output gives keys and values to cross-attention in every decoder layer;
# layer norm keeps the size of features steady around each sub-layer; the feed-forward network changes each token by itself.
#
# **Model answer.** An RNN hands a state from token to token: n steps in a row, and a signal between distant tokens passes
# through all states in between. The Transformer compares all pairs of tokens in each layer: one step, path length one, in
# parallel, at the price of n² scores. It has no order of its own, so positions are added to the tokens, and the decoder's
# mask hides the future. Each encoder layer has self-attention and a feed-forward network; each decoder layer has causal
# self-attention, cross-attention with keys and values from the encoder's output, and a feed-forward network. Residuals keep
# gradients flowing, layer norm brings the sums back to one size, and the feed-forward network works on every token alone.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: pool
# points: 2

# %% [markdown]
# ## 3.12 One vector for a sentence
#
# An **encoder** alone turns tokens into as many vectors. To classify, one vector is needed. Flattening all of them
# would fix the number of tokens once and for all. Three ways do not: read off a special *class token*, let a learned
# query attend (*attention pooling*), or take the average. Write the average, over tokens alone: sentences in a batch
# are padded to the same length, and padding does not count.

# %% [raw]
# # BEGIN SOLUTION


# %%
def average(vectors, keep):
    """vectors (batch, tokens, dim), keep (batch, tokens), True on tokens -> (batch, dim)."""
    # BEGIN SOLUTION
    keep = keep[..., None]
    return (vectors * keep).sum(1) / keep.sum(1)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_padding_does_not_count(average):
    import torch

    from regard.course import by_hand, expect

    vectors = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [9.0, 9.0]], [[5.0, 0.0], [7.0, 7.0], [8.0, 8.0]]])
    keep = torch.tensor([[True, True, False], [True, False, False]])
    kept = vectors * keep[..., None]
    mistakes = {
        "padding is averaged in: use keep": vectors.mean(1),
        "padding is set to zero, but you still divide by the full length; divide by the number of tokens": kept.mean(1),
        "this is the sum; divide by the number of tokens": kept.sum(1),
    }
    expect(by_hand(average)(vectors, keep), torch.tensor([[2.0, 3.0], [5.0, 0.0]]), mistakes, of="the average")


# %%
# HIDDEN
def test_any_lengths(average, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    vectors = draw(4, 7, 3)
    lengths = [draw.size(1, 7) for _ in range(4)]
    keep = torch.arange(7) < torch.tensor(lengths)[:, None]
    right = torch.stack([vectors[row, :length].mean(0) for row, length in enumerate(lengths)])
    expect(by_hand(average)(vectors, keep), right, of="the average")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## A text encoder that guesses missing words
#
# Now put your own functions to work: embedding and positions, two blocks, and a score for every word. A share of the
# words is masked; the model sees both sides and guesses. The text is the diary of a village that comes with the
# library.


# %%
class TextEncoder(nn.Module):
    def __init__(self, vocabulary, length, dim=64, heads=4, depth=2):
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, dim)
        nn.init.normal_(self.embedding.weight, std=0.1)  # as large as the positions, so that both are heard
        self.positions = nn.Parameter(0.1 * torch.randn(length, dim))
        self.projections = nn.ModuleList(nn.ModuleList(nn.Linear(dim, dim) for _ in range(4)) for _ in range(depth))
        self.hidden = nn.ModuleList(
            nn.ModuleList([nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)]) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)]) for _ in range(depth))
        self.output = nn.Linear(dim, vocabulary)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions
        for projections, (up, down), (norm1, norm2) in zip(self.projections, self.hidden, self.norms, strict=True):
            weights = [projection.weight for projection in projections]

            def attention(x, weights=weights):
                return multi_head_attention(x, x, *weights, self.heads)

            def ff(x, up=up, down=down):
                return feed_forward(x, up.weight, up.bias, down.weight, down.bias)

            x = block(x, attention, ff, norm1, norm2, "pre")
        return self.output(x)


torch.manual_seed(0)
text = regard.data.load_text("word")
samples = regard.data.MaskedText(text.train, text.vocabulary, length=24)
encoder = TextEncoder(len(text.vocabulary), 24)
steps = 400
optimizer = torch.optim.AdamW(encoder.parameters())
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps, pct_start=0.1)
losses = []
for step in range(steps):
    index = torch.randint(len(samples), (32,))
    batch = samples.batch(index, seed=0, epoch=step)
    loss = F.cross_entropy(encoder(batch.tokens).flatten(0, 1), batch.targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())

held_out = regard.data.MaskedText(text.validation, text.vocabulary, length=24)
batch = held_out.batch(torch.arange(len(held_out)), seed=1, epoch=0)
with torch.no_grad():
    said = encoder(batch.tokens).argmax(-1)
asked = batch.targets != -100
print(f"masked words of unseen pages guessed right: {(said == batch.targets)[asked].float().mean():.0%}")

# %%
words = text.vocabulary.tokens
row = int((asked & (said == batch.targets)).sum(1).argmax())
for place in asked[row].nonzero()[:, 0].tolist():
    print(f"place {place:2}: said {words[said[row, place]]!r}, it was {words[batch.targets[row, place]]!r}")
with torch.no_grad(), regard.capture(encoder) as maps:
    encoder(batch.tokens[row : row + 1])
figure, panels = plt.subplots(2, 4, figsize=(9, 4.6))
for panel, weights in zip(panels.flat, torch.cat([found.weights[0] for found in maps.values()]), strict=True):
    panel.imshow(weights, cmap="viridis", vmin=0)
    panel.set_axis_off()
figure.suptitle("eight heads of your encoder: above the first block, below the second", fontsize=10)
regard.course.picture(
    figure,
    "Eight maps of the trained encoder, four of each block: in the first block bright cells lie along the diagonal (a word and "
    "its neighbors), in the second in columns (particular words that many look at).",
    shown=regard.show(maps, tokens=[words[number] for number in batch.tokens[row].tolist()]),
)

# %% [markdown]
# Some heads look at a neighbor, some at particular words, some at everything. Heads do specialize, and often a part
# of them can be removed with little loss: `regard.analysis.importance` measures which, and `regard.prune_heads` removes
# them. `regard verify heads` and `regard verify scaling` decide what is said about all this.
