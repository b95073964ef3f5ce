# %% [raw]
# # ASSIGNMENT CONFIG
# name: regard-5
# init_cell: false
# export_cell: false
# show_question_points: true
# tests:
#   files: true
#   ok_format: false
# seed:
#   variable: SEED
#   autograder_value: 0
#   student_value: 0
# generate:
#   show_hidden: true

# %%
# Run this first. It installs what is missing (in Colab: a minute, once per session).
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("regard") is None or importlib.util.find_spec("otter") is None:
    subprocess.check_call(
        [sys.executable, "-m", "pip", "install", "--quiet", "regard[notebook,train]", "otter-grader>=6"]
    )

import math

import matplotlib.pyplot as plt
import otter
import torch
import torch.nn.functional as F
from torch import nn

import regard

# %matplotlib inline
grader = otter.Notebook(tests_dir=regard.course.checks("5-attention-and-convolution"))
SEED = 0

# %% [markdown]
# # 5 · Attention and convolution
#
# A convolution looks at fixed places around each pixel. An attention head looks wherever its scores say. Let the
# scores depend on the *place* alone, make them sharp, and one is a special case of the other. You will prove it by
# building it, see at which borders it holds, and then let heads find their places by training.
#
# Drag the heads in the view below: nine of them, sharp, on a grid of places, are a 3 × 3 convolution.

# %%
regard.show("convolution")

# %% [raw]
# # BEGIN QUESTION
# name: q1_scores
# points: 3

# %% [markdown]
# ## 5.1 Scores by place
#
# A head with *Gaussian* encoding has a center Δ (where it looks from the query) and a sharpness α. With $\delta = k -
# q$, key minus query,
#
# $$s_{qk} = -\alpha\,\lVert \delta - \Delta \rVert^2 .$$
#
# Positions are (row, column); tokens of a grid go row by row. Return the scores of all queries with all keys. (Some
# texts write $\delta = q - k$; then Δ changes its sign. With key minus query it is the kernel offset of a
# convolution.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def gaussian_scores(center, sharpness, grid):
    """center (2,), sharpness a number, grid (rows, columns) -> scores (tokens, tokens), queries in rows."""
    rows, columns = grid
    place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()  # (tokens, 2)
    offset = place[None, :, :] - place[:, None, :]  # SOLUTION
    scores = -sharpness * (offset - center).square().sum(-1)  # SOLUTION
    return scores


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_small_grid(gaussian_scores):
    import torch

    import regard
    from regard.course import by_hand, expect

    center, sharpness, grid = torch.tensor([1.0, -0.5]), 0.7, (3, 4)

    def scores(center, sharpness=sharpness):
        return regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0]

    right = scores(center)
    mistakes = {
        "δ is key − query; yours is query − key": scores(-center),
        "rows and columns are swapped: center is (row, column)": scores(center.flip(0)),
        "the sharpness α is missing": scores(center, 1.0),
        "the minus sign is missing: the nearest key must score best": -right,
        "take the squared distance, not the distance": -sharpness * (-right / sharpness).sqrt(),
    }
    expect(by_hand(gaussian_scores)(center, sharpness, grid), right, mistakes, of="the scores on a 3 × 4 grid")


# %%
# HIDDEN
def test_any_grid(gaussian_scores, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    center, sharpness, grid = draw(2), 0.1 * draw.size(1, 20), (draw.size(2, 5), draw.size(3, 7))
    right = regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0]
    expect(by_hand(gaussian_scores)(center, sharpness, grid), right, of=f"the scores on a grid {grid}")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
regard.figures.relative_positions(
    torch.tensor([[0.0, 2.0], [-1.5, -1.5]]), torch.tensor([0.3, 3.0]), (8, 8), queries=[(4, 3), (0, 0), (7, 7)]
)

# %% [raw]
# # BEGIN QUESTION
# name: q2_encoding
# points: 3

# %% [markdown]
# ## 5.2 The same as a dot product
#
# A *relative encoding* gives every offset a vector $r_\delta$ and every head a vector $v$; the score is $v \cdot
# r_\delta$. Three numbers are enough:
#
# $$r_\delta = (\lVert\delta\rVert^2,\ \delta_1,\ \delta_2), \qquad v = -\alpha\,(1,\ -2\Delta_1,\ -2\Delta_2).$$
#
# Expand the square of 5.1: the two scores differ by something that does not depend on the key, so the softmax is the
# same. Write `v`, and find the constant $c$ with $v \cdot r_\delta = -\alpha\,(\lVert\delta - \Delta\rVert^2 + c)$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def encoding(center, sharpness):
    """center (2,) -> v (3,)."""
    # BEGIN SOLUTION
    return -sharpness * torch.stack([torch.tensor(1.0), -2 * center[0], -2 * center[1]])
    # END SOLUTION


def constant(center):
    """center (2,) -> c, a number."""
    # BEGIN SOLUTION
    return -center.square().sum()
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_encoding(encoding):
    import torch

    from regard.course import by_hand, expect

    got = by_hand(encoding)(torch.tensor([1.0, -3.0]), 0.5)
    mistakes = {
        "the factor −α is missing": torch.tensor([1.0, -2.0, 6.0]),
        "the factor −2 in front of Δ is missing": torch.tensor([-0.5, -0.5, 1.5]),
        "the sign in front of α is wrong": torch.tensor([0.5, -1.0, 3.0]),
    }
    expect(got, torch.tensor([-0.5, 1.0, -3.0]), mistakes, of="v for Δ = (1, −3), α = ½")


# %%
def test_constant(constant):
    import torch

    from regard.course import by_hand, expect

    mistakes = {
        "the sign: expand ‖δ − Δ‖² and see what is left over": 10.0,
        "this is ‖Δ‖; it should be its square": -(10**0.5),
    }
    expect(by_hand(constant)(torch.tensor([1.0, -3.0])), -10.0, mistakes, of="c for Δ = (1, −3)")


# %%
# HIDDEN
def test_together(encoding, constant, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    center, sharpness, offset = draw(2), 0.1 * draw.size(1, 20), draw(6, 2).mul(3).round()
    features = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)
    scores = features @ by_hand(encoding)(center, sharpness)
    right = -sharpness * ((offset - center).square().sum(-1) + by_hand(constant)(center))
    expect(scores, right, of="v · r beside −α(‖δ − Δ‖² + c)")
    expect(by_hand(constant)(center), -float(center.square().sum()), of="c")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: q3_limit
# points: 3

# %% [markdown]
# ## 5.3 The limit
#
# As α → ∞ the softmax puts all weight on the key at δ = Δ: the others lose a factor
# $e^{-\alpha\lVert\delta-\Delta\rVert^2}$ each. How fast? On a plane without borders, with Δ on a key, the weight of
# that key is one over the sum of all these factors. Return it. Hint: the sum over (row, column) is a product of two
# equal sums over whole numbers $\sum_r e^{-\alpha r^2}$; terms beyond $|r| = 200$ do not matter here.

# %% [raw]
# # BEGIN SOLUTION


# %%
def peak(sharpness):
    """-> the weight of the key at δ = Δ, a number between 0 and 1."""
    # BEGIN SOLUTION
    r = torch.arange(-200, 201)
    return 1 / torch.exp(-sharpness * r**2).sum() ** 2
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_peak(peak):
    import torch

    from regard.course import by_hand, expect

    line = float(torch.exp(-0.5 * torch.arange(-200, 201) ** 2).sum())
    half = float(torch.exp(-0.5 * torch.arange(201) ** 2).sum())
    mistakes = {
        "this is the weight on a line; on a plane the sum is squared": 1 / line,
        "r runs over negative numbers, too": 1 / half**2,
        "this is the sum of the factors; the weight is one over it": line**2,
        "the exponent is −α r², the square of the distance": float(
            1 / torch.exp(-0.5 * torch.arange(-200, 201).abs()).sum() ** 2
        ),
    }
    expect(by_hand(peak, without="softmax")(0.5), 1 / line**2, mistakes, of="the weight for α = ½")


# %%
# HIDDEN
def test_against_a_map(peak, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    sharpness = 0.2 + 0.1 * Draw(SEED).size(1, 20)
    middle = [torch.tensor([15.0])] * 2
    scores = regard.reference.gaussian_scores(torch.zeros(1, 2), torch.tensor([sharpness]), (31, 31), queries=middle)
    right = float(scores.softmax(-1).max())
    expect(by_hand(peak, without="softmax")(sharpness), right, of=f"the weight for α = {sharpness:.1f}")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
print({alpha: f"{float(peak(alpha)):.6f}" for alpha in (0.5, 1, 2, 5, 10)})
regard.figures.limit(center=(1, 1))

# %% [raw]
# # BEGIN QUESTION
# name: q4_factors
# points: 3

# %% [markdown]
# ## 5.4 One axis at a time
#
# The score is a sum of a row part and a column part, so its exponential is a product, and so is the sum of all
# exponentials over a full grid. The map **factorizes exactly**, borders included: $A = A_{\text{rows}} \otimes
# A_{\text{columns}}$ with $A_{\text{axis}}[i, j] = \mathrm{softmax}_j\bigl(-\alpha\,(j - i -
# \Delta_{\text{axis}})^2\bigr)$. Instead of one matrix of $(HW)^2$ numbers, two with $H^2 + W^2$.
#
# Write the map of one axis, and apply two of them to values on a grid **without** ever building the large matrix.

# %% [raw]
# # BEGIN SOLUTION


# %%
def axis_map(center, sharpness, size):
    """center and sharpness are numbers -> (size, size), queries in rows."""
    # BEGIN SOLUTION
    place = torch.arange(size)
    return torch.softmax(-sharpness * (place[None, :] - place[:, None] - center) ** 2, dim=-1)
    # END SOLUTION


def attend_by_axis(value, row_map, column_map):
    """value (rows, columns, dv), row_map (rows, rows), column_map (columns, columns) -> (rows, columns, dv)."""
    # BEGIN SOLUTION
    return torch.einsum("ij,kl,jld->ikd", row_map, column_map, value)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_axis_map(axis_map):
    import torch

    from regard.course import by_hand, expect

    place = torch.arange(5.0)
    offset = place[None, :] - place[:, None]
    right = (-0.5 * (offset - 1) ** 2).softmax(-1)
    mistakes = {
        "the head looks the wrong way: j − i − Δ with j the key, i the query": (-0.5 * (-offset - 1) ** 2).softmax(-1),
        "normalize over the keys, the last axis": (-0.5 * (offset - 1) ** 2).softmax(0),
        "these are the scores; softmax is missing": -0.5 * (offset - 1) ** 2,
    }
    expect(by_hand(axis_map)(1.0, 0.5, 5), right, mistakes, of="the map of an axis with 5 places")


# %%
def test_attend_by_axis(attend_by_axis):
    from regard.course import Draw, by_hand, expect

    draw = Draw(2)
    value, row_map, column_map = draw(3, 3, 2), draw(3, 3).softmax(-1), draw(3, 3).softmax(-1)
    right = (row_map @ (column_map @ value).flatten(1)).reshape(3, 3, 2)
    mistakes = {
        "rows and columns are swapped": (column_map @ (row_map @ value).flatten(1)).reshape(3, 3, 2),
        "the maps are transposed: queries are in their rows": (row_map.T @ (column_map.T @ value).flatten(1)).reshape(
            3, 3, 2
        ),
        "only the columns are mixed": column_map @ value,
        "only the rows are mixed": (row_map @ value.flatten(1)).reshape(3, 3, 2),
    }
    expect(by_hand(attend_by_axis)(value, row_map, column_map), right, mistakes, of="the output on a 3 × 3 grid")


# %%
# HIDDEN
def test_equals_the_large_map(axis_map, attend_by_axis, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    rows, columns, center, sharpness = draw.size(3, 6), draw.size(3, 6), draw(2), 0.1 * draw.size(2, 12)
    value = draw(rows, columns, 3)
    maps = [by_hand(axis_map)(float(c), sharpness, size) for c, size in zip(center, (rows, columns), strict=True)]
    right, _ = regard.reference.gaussian_attention(
        value.reshape(1, 1, -1, 3), center[None], torch.tensor([sharpness]), (rows, columns)
    )
    got = by_hand(attend_by_axis)(value, *maps)
    expect(got, right.reshape(rows, columns, 3), of="attention by axis beside attention with the large map")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: q5_sum_of_heads
# points: 3

# %% [markdown]
# ## 5.5 Heads add up
#
# Concatenating heads and multiplying by $W_{\text{out}}$ is a **sum over heads**: with $X$ the tokens, $\sum_h A_h X
# W_h^\top + b$. Which $W_h$? Head $h$ projects with `w_value[h]`, and its part of the concatenation meets its own
# columns of `w_out`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def head_matrices(w_value, w_out):
    """w_value (heads, width, dim), w_out (out, heads * width) -> (heads, out, dim)."""
    # BEGIN SOLUTION
    heads, width, _ = w_value.shape
    parts = w_out.reshape(len(w_out), heads, width).transpose(0, 1)
    return parts @ w_value
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_head_matrices(head_matrices):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(3)
    w_value, w_out = draw(2, 3, 4), draw(5, 6)
    right = torch.stack([w_out[:, :3] @ w_value[0], w_out[:, 3:] @ w_value[1]])
    wrong = torch.stack([w_out[:, ::2] @ w_value[0], w_out[:, 1::2] @ w_value[1]])
    mistakes = {"head h owns the columns h·width … h·width + width − 1 of w_out; yours takes every second one": wrong}
    expect(by_hand(head_matrices)(w_value, w_out), right, mistakes, of="W_h")


# %%
# HIDDEN
def test_same_output(head_matrices, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    heads, width, dim, out = draw.size(2, 4), draw.size(2, 4), draw.size(2, 5), draw.size(2, 5)
    x, maps = draw(6, dim), draw(heads, 6, 6).softmax(-1)
    w_value, w_out = draw(heads, width, dim), draw(out, heads * width)
    together = torch.cat([maps[h] @ x @ w_value[h].T for h in range(heads)], -1) @ w_out.T
    matrices = by_hand(head_matrices)(w_value, w_out)
    expect(sum(maps[h] @ x @ matrices[h].T for h in range(heads)), together, of="the sum over heads")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: q6_theorem_one
# points: 4

# %% [markdown]
# ## 5.6 Theorem 1, by construction
#
# If $K^2$ heads each put all weight on one offset, and the offsets are those of a $K \times K$ kernel, they **are**
# the convolution. PyTorch's convolution with `padding=K // 2` computes
#
# $$y_p = b + \sum_{i,j} W[:, :, i, j]\; x_{p + (i, j) - K /\!/ 2} .$$
#
# For each tap $(i, j)$, in row-by-row order, return the head's center and its matrix $W_h$. It works for odd and for
# even $K$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def heads_of(kernel):
    """kernel (out, in, K, K) -> center (K*K, 2), matrices (K*K, out, in)."""
    # BEGIN SOLUTION
    size = kernel.shape[-1]
    tap = torch.arange(size)
    center = torch.cartesian_prod(tap, tap).float() - size // 2
    return center, kernel.permute(2, 3, 0, 1).flatten(0, 1)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_three_by_three(heads_of):
    import torch

    from regard.course import Draw, by_hand, expect

    kernel = Draw(4)(2, 3, 3, 3)
    answer = by_hand(heads_of)(kernel)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise AssertionError("return two things: the centers and the matrices")
    center, matrices = answer
    right = torch.cartesian_prod(torch.arange(3), torch.arange(3)).float() - 1
    mistakes = {
        "the centers are mirrored: a center is key − query, and tap (0, 0) reads the pixel above and to the left": -right,
        "the centers count from 0; the middle tap looks at the query itself, (0, 0)": right + 1,
        "the taps go down the columns; go along the rows: (−1, −1), (−1, 0), …": right.flip(1),
    }
    expect(center, right, mistakes, of="the centers")
    right = kernel.flatten(2).permute(2, 0, 1)
    mistakes = {
        "out and in are swapped in the matrices": right.mT,
        "the kernel is turned round: PyTorch does not flip it": right.flip(0),
        "the matrices go down the columns of the kernel; the centers go along its rows": kernel.mT.flatten(2).permute(
            2, 0, 1
        ),
    }
    expect(matrices, right, mistakes, of="the matrices")


# %%
# HIDDEN
def test_gives_the_convolution(heads_of, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    for size in (2 * draw.size(1, 2), 2 * draw.size(1, 2) + 1):
        kernel, x = draw(3, 2, size, size), draw(1, 2, 9, 9)
        center, matrices = by_hand(heads_of)(kernel)
        padded = F.pad(x, (size,) * 4)
        total = 0
        for (row, column), matrix in zip(center.int().tolist(), matrices, strict=True):
            seen = padded[0, :, size + row : size + row + 9, size + column : size + column + 9]
            total = total + (matrix @ seen.flatten(1)).reshape(3, 9, 9)
        right = F.conv2d(x, kernel, padding=size // 2)[0, :, :9, :9]
        expect(total, right, of=f"the convolution with a {size} × {size} kernel made of your heads", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: q7_theorem_two
# points: 4

# %% [markdown]
# ## 5.7 Theorem 2: Gaussian heads do it
#
# Put it together: the centers and matrices of 5.6, the scores of 5.1 with a sharpness as large as you like, a
# softmax, and the sum of
# 5.5. Nothing is trained. No convolution is called.

# %% [raw]
# # BEGIN SOLUTION


# %%
def convolve_by_attention(x, kernel, bias, sharpness):
    """x (rows, columns, in), kernel (out, in, K, K), bias (out,) -> (rows, columns, out)."""
    # BEGIN SOLUTION
    rows, columns, _ = x.shape
    tokens = x.flatten(0, 1)
    total = bias
    for center, matrix in zip(*heads_of(kernel), strict=True):
        weights = torch.softmax(gaussian_scores(center, sharpness, (rows, columns)), dim=-1)
        total = total + weights @ tokens @ matrix.T
    return total.reshape(rows, columns, -1)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_inside(convolve_by_attention):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(5)
    x, kernel, bias = draw(6, 7, 2), draw(3, 2, 3, 3), draw(3)
    right = F.conv2d(x.movedim(-1, 0)[None], kernel, bias, padding=1)[0].movedim(0, -1)[1:-1, 1:-1]
    got = by_hand(convolve_by_attention, without="convolution")(x, kernel, bias, 30.0)
    if got is None:
        raise AssertionError("nothing there yet; replace every ... in the cell above by your own code")
    flipped = F.conv2d(x.movedim(-1, 0)[None], kernel.flip(2, 3), bias, padding=1)[0].movedim(0, -1)[1:-1, 1:-1]
    mistakes = {
        "the bias is missing": right - bias,
        "the bias is added once for each head; once is enough": right + 8 * bias,
        "the bias is added at the start and once more for each head; once is enough": right + 9 * bias,
        "every head looks at the mirrored place": flipped,
    }
    expect(got[1:-1, 1:-1], right, mistakes, of="the inside of the image", tolerance=1e-3)


# %%
# HIDDEN
def test_soft_heads(convolve_by_attention, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    size = draw.size(2, 3)
    x, kernel, bias, sharpness = draw(5, 4, 2), draw(3, 2, size, size), draw(3), 0.2 * draw.size(2, 9)
    tap = torch.arange(size)
    center = torch.cartesian_prod(tap, tap).float() - size // 2
    value = x.reshape(1, 1, 20, 2).expand(1, len(center), 20, 2)
    heads, _ = regard.reference.gaussian_attention(value, center, torch.full((len(center),), sharpness), (5, 4))
    right = torch.einsum("hnd,hod->no", heads[0], kernel.flatten(2).permute(2, 0, 1)) + bias
    got = by_hand(convolve_by_attention, without="convolution")(x, kernel, bias, sharpness)
    expect(got, right.reshape(5, 4, 3), of=f"the whole image with α = {sharpness:.1f}", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **At the border** a head would like to look outside the image. There are no keys there, so its weight goes to the
# nearest ones that exist: in the sharp limit, that is a convolution that *repeats* the border pixels, and no other.
# Inside, every padding agrees.

# %%
torch.manual_seed(0)
x, kernel, bias = torch.randn(12, 12, 3), torch.randn(4, 3, 3, 3), torch.randn(4)
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8))
for panel, mode in zip(panels, ("constant", "replicate", "reflect"), strict=True):
    padded = F.pad(x.movedim(-1, 0)[None], (1, 1, 1, 1), mode=mode)
    right = F.conv2d(padded, kernel, bias)[0].movedim(0, -1)
    gap = (convolve_by_attention(x, kernel, bias, 50.0) - right).abs().amax(-1)
    panel.imshow(gap, cmap="magma", vmin=0, vmax=6)
    panel.set_title(f"padding: {mode}\ninside {gap[1:-1, 1:-1].max():.0e}, border {gap.max():.0e}", fontsize=9)
    panel.set_axis_off()
plt.show()

# %% [markdown]
# A stride is a choice of queries, a dilation is a choice of centers, and other paddings are keys that are folded back
# home. The library does all of that, exactly, and bounds the error for your input:

# %%
convolution = nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2, padding_mode="reflect")
layer = regard.conv_to_attention(convolution)
image = torch.randn(1, 3, 16, 16)
print(f"difference {(layer(image) - convolution(image)).abs().max():.1e}, bound {layer.error_bound(image):.1e}")

# %% [raw]
# # BEGIN QUESTION
# name: q8_gelu
# points: 3

# %% [markdown]
# ## 5.8 GELU
#
# Now the rest of an encoder, from scratch. GELU lets an input through with the probability that a standard normal
# number lies below it:
#
# $$\mathrm{gelu}(x) = x\,\Phi(x) = \tfrac{x}{2}\Bigl(1 + \mathrm{erf}\bigl(x/\sqrt2\bigr)\Bigr), \qquad
# \mathrm{gelu}_{\tanh}(x) = \tfrac{x}{2}\Bigl(1 + \tanh\bigl(\sqrt{2/\pi}\,(x + 0.044715\,x^3)\bigr)\Bigr)$$

# %% [raw]
# # BEGIN SOLUTION


# %%
def gelu(x):
    """The exact one; torch.erf may be used."""
    # BEGIN SOLUTION
    return x / 2 * (1 + torch.erf(x / math.sqrt(2)))
    # END SOLUTION


def gelu_tanh(x):
    """The one with tanh."""
    # BEGIN SOLUTION
    return x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_exact(gelu):
    import torch

    from regard.course import by_hand, expect

    x = torch.linspace(-4, 4, 33)
    right = torch.nn.functional.gelu(x)
    mistakes = {
        "erf takes x/√2": x / 2 * (1 + torch.erf(x)),
        "this is Φ(x); multiply by x": right / torch.where(x == 0, 1.0, x) + (x == 0) * 0.5,
        "this is the approximation with tanh; here the exact one is asked for": torch.nn.functional.gelu(
            x, approximate="tanh"
        ),
        "the factor ½ is missing": 2 * right,
    }
    expect(by_hand(gelu, without="gelu")(x), right, mistakes, of="gelu", tolerance=1e-5)


# %%
def test_tanh(gelu_tanh):
    import torch

    from regard.course import by_hand, expect

    x = torch.linspace(-4, 4, 33)
    right = torch.nn.functional.gelu(x, approximate="tanh")
    scale = (2 / torch.pi) ** 0.5
    mistakes = {
        "the cubic term is missing": x / 2 * (1 + torch.tanh(scale * x)),
        "√(2/π) multiplies the whole bracket": x / 2 * (1 + torch.tanh(scale * x + 0.044715 * x**3)),
        "it is √(2/π), not 2/π": x / 2 * (1 + torch.tanh(2 / torch.pi * (x + 0.044715 * x**3))),
        "this is the exact one": torch.nn.functional.gelu(x),
    }
    expect(by_hand(gelu_tanh, without="gelu")(x), right, mistakes, of="gelu_tanh", tolerance=1e-5)


# %%
# HIDDEN
def test_anywhere(gelu, gelu_tanh, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    x = 3 * Draw(SEED)(50)
    expect(by_hand(gelu, without="gelu")(x), torch.nn.functional.gelu(x), of="gelu", tolerance=1e-5)
    right = torch.nn.functional.gelu(x, approximate="tanh")
    expect(by_hand(gelu_tanh, without="gelu")(x), right, of="gelu_tanh", tolerance=1e-5)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
regard.figures.gelu()

# %% [raw]
# # BEGIN QUESTION
# name: q9_layer_norm
# points: 3

# %% [markdown]
# ## 5.9 Layer norm
#
# Each token by itself: subtract the mean of its features, divide by their standard deviation, then scale and shift
# each feature.
#
# $$\mathrm{norm}(x) = \frac{x - \bar x}{\sqrt{\mathrm{Var}(x) + \varepsilon}} \odot w + b$$
#
# The variance divides by the number of features (not by one less), and ε goes under the root.

# %% [raw]
# # BEGIN SOLUTION


# %%
def layer_norm(x, weight, bias, epsilon=1e-5):
    """x (..., width), weight and bias (width,) -> (..., width)."""
    centered = x - x.mean(dim=-1, keepdim=True)  # SOLUTION
    variance = centered.square().mean(dim=-1, keepdim=True)  # SOLUTION
    normalized = centered / torch.sqrt(variance + epsilon) * weight + bias  # SOLUTION
    return normalized


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_layer_norm(layer_norm):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(6)
    x, weight, bias = 3 * draw(2, 4, 5) + 1, draw(5), draw(5)
    right = torch.nn.functional.layer_norm(x, (5,), weight, bias)
    centered = x - x.mean(-1, keepdim=True)
    plain = (right - bias) / weight
    mistakes = {
        "the variance must divide by the number of features, not by one less (unbiased=False)": (
            centered / (x.var(-1, keepdim=True) + 1e-5).sqrt() * weight + bias
        ),
        "normalize each token over its features, the last axis; yours runs over the tokens": (
            (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt() * weight + bias
        ),
        "normalize each token by itself, not the whole tensor at once": (x - x.mean())
        / (x.var(unbiased=False) + 1e-5).sqrt()
        * weight
        + bias,
        "divide by the standard deviation, not by the variance": (
            centered / (centered.square().mean(-1, keepdim=True) + 1e-5) * weight + bias
        ),
        "weight and bias are not used": plain,
        "the bias is missing": plain * weight,
    }
    expect(by_hand(layer_norm, without="layer_norm")(x, weight, bias), right, mistakes, of="layer norm")


# %%
# HIDDEN
def test_small_numbers(layer_norm, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    width = draw.size(3, 8)
    x, weight, bias, epsilon = 0.02 * draw(3, width), draw(width), draw(width), 1e-3
    right = torch.nn.functional.layer_norm(x, (width,), weight, bias, epsilon)
    centered = x - x.mean(-1, keepdim=True)
    spread = centered.square().mean(-1, keepdim=True).sqrt()
    mistakes = {
        "ε is added to the variance, under the root, not to the standard deviation": centered
        / (spread + epsilon)
        * weight
        + bias,
        "epsilon is not used": centered / spread * weight + bias,
        "epsilon is fixed at 1e-5; use the one that is passed": torch.nn.functional.layer_norm(
            x, (width,), weight, bias
        ),
    }
    got = by_hand(layer_norm, without="layer_norm")(x, weight, bias, epsilon)
    expect(got, right, mistakes, of="layer norm of small numbers with ε = 0.001")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: q10_second_half
# points: 3

# %% [markdown]
# ## 5.10 The second half of a block
#
# The first half of an encoder's block is attention, a residual and a norm. The second: widen with `up`, GELU, narrow
# with `down`, add the input, normalize (post-norm). Use your own functions.

# %% [raw]
# # BEGIN SOLUTION


# %%
class SecondHalf(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.weight, self.bias = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        # BEGIN SOLUTION
        return layer_norm(x + self.down(gelu(self.up(x))), self.weight, self.bias)
        # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_second_half(SecondHalf):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    torch.manual_seed(0)
    half, x = SecondHalf(4, 8), Draw(7)(2, 3, 4)

    def norm(x):
        return F.layer_norm(x, (4,), half.weight, half.bias)

    inside = half.down(F.gelu(half.up(x)))
    mistakes = {
        "the residual is missing: add x before the norm": norm(inside),
        "the norm goes around the sum, x included": x + norm(inside),
        "the norm goes last: norm(x + …)": x + half.down(F.gelu(half.up(norm(x)))),
        "GELU is missing between up and down": norm(x + half.down(half.up(x))),
        "the norm is missing": x + inside,
    }
    got = by_hand(half, without=("gelu", "layer_norm"))(x)
    expect(got, norm(x + inside), mistakes, of="the second half")


# %%
# HIDDEN
def test_other_widths(SecondHalf, SEED):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    torch.manual_seed(SEED)
    dim = draw.size(3, 7)
    half, x = SecondHalf(dim, draw.size(4, 12)), 2 * draw(2, 5, dim)
    with torch.no_grad():
        half.weight.copy_(draw(dim)), half.bias.copy_(draw(dim))
    right = F.layer_norm(x + half.down(F.gelu(half.up(x))), (dim,), half.weight, half.bias)
    expect(by_hand(half, without=("gelu", "layer_norm"))(x), right, of="the second half")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## Heads that move
#
# The theorem says that Gaussian heads *can* be a convolution. Do they become one? First the clean case: nine heads
# that start near the query learn to imitate a random 3 × 3 convolution. Where they look is learned with everything
# else.

# %%
torch.manual_seed(3)
goal = nn.Conv2d(4, 16, 3, bias=False).requires_grad_(False)
student = regard.GaussianAttention(4, 9, out_dim=16, full_width=True, bias=False)
nn.init.normal_(student.positions.center, std=1.0)
places = list(student.positions.parameters())
others = [p for p in student.parameters() if all(p is not place for place in places)]
steps = 400
optimizer = torch.optim.AdamW([{"params": others}, {"params": places, "weight_decay": 0.0}])
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [0.01, 0.05], total_steps=steps, pct_start=0.15)
moments = [(0, student.center.detach().clone(), student.sharpness.detach().clone())]
for step in range(1, steps + 1):
    x = torch.randn(4, 4, 10, 10)
    made = student(x.movedim(1, -1)).movedim(-1, 1)[:, :, 1:-1, 1:-1]
    wanted = goal(x)
    loss = F.mse_loss(made, wanted) / wanted.var() + 5e-3 * student.output.weight.square().sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 10 == 0:
        moments.append((step, student.center.detach().clone(), student.sharpness.detach().clone()))
print(f"of the convolution's output unexplained: {F.mse_loss(made, wanted) / wanted.var():.1%}")
trajectory = regard.training.HeadTrajectory(
    steps=tuple(step for step, _, _ in moments),
    layers=("nine heads",),
    grid=(10, 10),
    center=(torch.stack([center for _, center, _ in moments]),),
    sharpness=(torch.stack([sharpness for _, _, sharpness in moments]),),
)
regard.show(trajectory)

# %%
paths = trajectory.center[0]
figure, panel = plt.subplots(figsize=(4, 4))
for head in range(9):
    panel.plot(paths[:, head, 1], paths[:, head, 0], lw=1.2)
    panel.scatter(*paths[0, head].flip(0), s=14, color="gray", zorder=3)
    panel.scatter(*paths[-1, head].flip(0), s=50, zorder=4)
panel.set_xticks(range(-2, 3))
panel.set_yticks(range(-2, 3))
panel.grid(alpha=0.4)
panel.invert_yaxis()
panel.set(xlabel="column offset", ylabel="row offset", title="from gray to colored: nine heads find nine places")
plt.show()

# %% [raw]
# # BEGIN QUESTION
# name: q11_covered
# points: 2

# %% [markdown]
# ## 5.11 How much of a kernel is covered?
#
# Round each center to the nearest pixel. Return how many of the nine offsets of a 3 × 3 kernel, −1 … 1 in both
# directions, are taken by at least one head.

# %% [raw]
# # BEGIN SOLUTION


# %%
def covered(center):
    """center (heads, 2) -> a whole number from 0 to 9."""
    # BEGIN SOLUTION
    places = {(row, column) for row, column in center.round().int().tolist()}
    return len({place for place in places if max(abs(place[0]), abs(place[1])) <= 1})
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_covered(covered):
    import torch

    from regard.course import by_hand, expect

    center = torch.tensor([[0.2, -0.1], [0.4, 0.3], [0.1, 0.2], [-0.8, 1.2], [2.0, 0.0], [0.9, 0.9]])
    mistakes = {
        "heads at the same place count once": 5,
        "a head at (2, 0) is outside a 3 × 3 kernel": 4,
        "round to the nearest pixel; do not cut off the fraction": 2,
    }
    expect(by_hand(covered)(center), 3, mistakes, of="the places covered")


# %%
# HIDDEN
def test_random_heads(covered, SEED):
    from regard.course import Draw, by_hand, expect

    center = 1.3 * Draw(SEED)(12, 2)
    places = {tuple(place) for place in center.round().int().tolist()}
    right = len([place for place in places if max(map(abs, place)) <= 1])
    expect(by_hand(covered)(center), right, of="the places covered")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# Now a real task, with **your** second half in every block: classify clothes with heads that may look anywhere.
# Nobody asks for a convolution here. Do the heads still move toward distinct places, and do they become sharp?


# %%
class Encoder(nn.Module):
    def __init__(self, dim=36, heads=9, depth=2, patch=4):
        super().__init__()
        self.embedding = nn.Conv2d(1, dim, patch, stride=patch)
        self.attention = nn.ModuleList(
            regard.GaussianAttention(dim, heads, full_width=True, sharpness=1.0) for _ in range(depth)
        )
        for layer in self.attention:
            nn.init.normal_(layer.positions.center, std=0.7)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.halves = nn.ModuleList(SecondHalf(dim, 2 * dim) for _ in range(depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        x = self.embedding(images).movedim(1, -1)
        for attention, norm, half in zip(self.attention, self.norms, self.halves, strict=True):
            x = half(norm(x + attention(x)))
        return self.head(x.mean((1, 2)))


torch.manual_seed(0)
data = regard.data.load("fashion-mini")
images = (data.train.images.float() / 255 - data.mean[0]) / data.std[0]
model = Encoder()
places = [p for name, p in model.named_parameters() if "positions." in name]
others = [p for name, p in model.named_parameters() if "positions." not in name]
steps = 200
optimizer = torch.optim.AdamW([{"params": others}, {"params": places, "weight_decay": 0.0}])
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, [1e-2, 5e-2], total_steps=steps, pct_start=0.15)


def looks():
    """Where the heads of each layer look now, and how sharply."""
    return [(layer.center.detach().clone(), layer.sharpness.detach().clone()) for layer in model.attention]


moments = [(0, looks())]
for step in range(1, steps + 1):
    chosen = torch.randint(len(images), (32,))
    loss = F.cross_entropy(model(images[chosen]), data.train.labels[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 5 == 0:
        moments.append((step, looks()))
held_out = (data.validation.images.float() / 255 - data.mean[0]) / data.std[0]
with torch.no_grad():
    right = (model(held_out).argmax(-1) == data.validation.labels).float().mean()
print(f"{right:.1%} of {len(held_out)} unseen pictures right")
trajectory = regard.training.HeadTrajectory(
    steps=tuple(step for step, _ in moments),
    layers=("first block", "second block"),
    grid=(7, 7),
    center=tuple(torch.stack([now[block][0] for _, now in moments]) for block in range(2)),
    sharpness=tuple(torch.stack([now[block][1] for _, now in moments]) for block in range(2)),
)
regard.show(trajectory)

# %%
for name, center, sharpness in zip(trajectory.layers, trajectory.center, trajectory.sharpness, strict=True):
    for moment, time in ((0, "at first"), (-1, "at the end")):
        apart = torch.cdist(center[moment], center[moment]).fill_diagonal_(torch.inf).amin(1).mean()
        print(
            f"{name} {time:10}: {covered(center[moment])} of the nine places, nearest other head {apart:.1f} patches away, "
            f"sharpness {sharpness[moment].mean():.2f}"
        )
regard.figures.heads([center[-1] for center in trajectory.center], [s[-1] for s in trajectory.sharpness], grid=(7, 7))

# %% [markdown]
# Imitating a convolution, the heads take their places one by one and grow sharp: what the theorem needs. (Not from every
# start: try `torch.manual_seed(4)`, where two of them fight for a place.) On the real task they move apart, too, but
# nothing forces them onto whole pixels. In this run the first block stays near the query and sharpens, while the second
# looks far and wide: the theorem says what attention *can* express, not what training wants. Where heads do become
# local, `regard.attention_to_conv` turns them into a convolution, with a bound.
#
# `regard verify convolution` checks every step of this notebook, and rejects a wrong variant of each.
