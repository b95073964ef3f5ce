# %% [raw]
# # ASSIGNMENT CONFIG
# name: 5-attention-and-convolution
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
grader = regard.course.Notebook("5-attention-and-convolution")

# %% [markdown]
# # 5 · Attention and convolution
#
# A convolution looks at fixed places around each pixel. An attention head looks wherever its scores say. Let the
# scores depend on the *place* alone, make them sharp, and one is a special case of the other. You will prove it by
# building it, see at which borders it holds, and then let heads find their places by training.
#
# %%
regard.course.diagram("convolution")

# %% [markdown]
# Drag the heads in the view below: nine of them, sharp, on a grid of places, are a 3 × 3 convolution.

# %%
figure, panels = plt.subplots(1, 3, figsize=(8, 2.6))
offsets = torch.cartesian_prod(torch.arange(-3, 4), torch.arange(-3, 4)).float()
for panel, sharpness in zip(panels, (0.3, 1.0, 5.0), strict=True):
    bump = torch.softmax(-sharpness * (offsets - torch.tensor([1.0, 1.0])).square().sum(-1), 0)
    panel.imshow(bump.reshape(7, 7), cmap="viridis", vmin=0, vmax=1, extent=(-3.5, 3.5, 3.5, -3.5))
    panel.set(title=f"α = {sharpness}", xlabel="column offset")
panels[0].set_ylabel("row offset")
regard.course.picture(
    figure,
    "Where one head looks, around its query, at three sharpnesses: a broad spot around the offset (1, 1), a smaller one, and "
    "at α = 5 nearly a single pixel.",
    shown=regard.show("convolution"),
)

# %% [raw]
# # BEGIN QUESTION
# name: place_scores
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
regard.course.picture(
    regard.figures.relative_positions(
        torch.tensor([[0.0, 2.0], [-1.5, -1.5]]), torch.tensor([0.3, 3.0]), (8, 8), queries=[(4, 3), (0, 0), (7, 7)]
    ),
    "Two Gaussian heads on an 8 by 8 grid, from three queries: a broad spot two columns to the right of the query, and a sharp "
    "one up and to the left; at the border they slide along the edge.",
)

# %% [raw]
# # BEGIN QUESTION
# name: encoding
# points: 3

# %% [markdown]
# ## 5.2 The same as a dot product
#
# A *relative encoding* gives every offset a vector $r_\delta$ and every head a vector $v$; the score is $v \cdot
# r_\delta$. Three numbers are enough:
#
# $$r_\delta = (\lVert\delta\rVert^2,\ \delta_1,\ \delta_2), \qquad v = -\alpha\,(1,\ -2\Delta_1,\ -2\Delta_2).$$
#
# (It is what is left of the general relative score, content with content, content with place, and so on, where $W_q = W_k =
# 0$.) Expand the square of 5.1: the two scores differ by something that does not depend on the key, so the softmax is the
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
# name: embeddings
# points: 4

# %% [markdown]
# ## 5.3 Two positional embeddings
#
# Write both kinds as modules. The **absolute** one holds a learned vector for each pixel (`weight`, row by row) and adds it to
# the pixel's features. The **relative** one holds a center and a sharpness per head and returns the scores of all pairs, as the
# dot product of 5.2: $v \cdot r_\delta$ with $\delta = k - q$, key minus query.

# %% [raw]
# # BEGIN SOLUTION


# %%
class AbsolutePositionalEmbedding(nn.Module):
    def __init__(self, rows, columns, dim):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(rows * columns, dim))

    def forward(self, z):
        """(batch, rows, columns, dim) -> the same with every pixel's vector added."""
        # BEGIN SOLUTION
        return z + self.weight.reshape(z.shape[1:])
        # END SOLUTION


class RelativePositionalEmbedding(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.center = nn.Parameter(torch.randn(heads, 2))
        self.sharpness = nn.Parameter(torch.ones(heads))

    def forward(self, grid):
        """grid (rows, columns) -> scores v · r (heads, tokens, tokens), queries in rows."""
        rows, columns = grid
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
        # BEGIN SOLUTION
        offset = place[None, :, :] - place[:, None, :]
        features = torch.cat([offset.square().sum(-1, keepdim=True), offset], -1)  # r, (tokens, tokens, 3)
        vectors = torch.stack([encoding(c, a) for c, a in zip(self.center, self.sharpness, strict=True)])
        return torch.einsum("qkf,hf->hqk", features, vectors)
        # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_absolute(AbsolutePositionalEmbedding):
    from regard.course import Draw, by_hand, expect

    draw = Draw(8)
    weight, z = draw(6, 4), draw(2, 2, 3, 4)
    layer = by_hand(AbsolutePositionalEmbedding).build(2, 3, 4, state={"weight": weight})
    mistakes = {
        "the positions are multiplied; add them": z * weight.reshape(2, 3, 4),
        "these are the positions alone; add them to z": weight.reshape(1, 2, 3, 4).expand(2, 2, 3, 4),
        "rows and columns are swapped: pixels go row by row": z + weight.reshape(3, 2, 4).transpose(0, 1),
    }
    expect(layer(z), z + weight.reshape(2, 3, 4), mistakes, of="the absolute embedding")


# %%
def test_relative(RelativePositionalEmbedding):
    import torch

    import regard
    from regard.course import by_hand, expect

    center, sharpness, grid = torch.tensor([[1.0, -0.5], [0.0, 2.0]]), torch.tensor([0.7, 1.5]), (3, 4)
    layer = by_hand(RelativePositionalEmbedding).build(2, state={"center": center, "sharpness": sharpness})

    def scores(center):
        constant = sharpness * center.square().sum(-1)
        return regard.reference.gaussian_scores(center, sharpness, grid) + constant[:, None, None]

    mistakes = {
        "δ is key − query; yours is query − key": scores(-center),
        "this is −α‖δ − Δ‖² itself; v · r differs from it by α‖Δ‖² (the softmax does not see it, the check does)": (
            regard.reference.gaussian_scores(center, sharpness, grid)
        ),
        "these are probabilities; the scores are asked for": scores(center).softmax(-1),
    }
    expect(layer(grid), scores(center), mistakes, of="the relative scores of two heads", tolerance=1e-3)


# %%
# HIDDEN
def test_other_grids(AbsolutePositionalEmbedding, RelativePositionalEmbedding, SEED):
    import regard
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    rows, columns, heads = draw.size(2, 4), draw.size(3, 5), draw.size(1, 4)
    weight, z, center, sharpness = draw(rows * columns, 5), draw(1, rows, columns, 5), draw(heads, 2), draw(heads).abs()
    layer = by_hand(AbsolutePositionalEmbedding).build(rows, columns, 5, state={"weight": weight})
    expect(layer(z), z + weight.reshape(rows, columns, 5), of="the absolute embedding")
    layer = by_hand(RelativePositionalEmbedding).build(heads, state={"center": center, "sharpness": sharpness})
    right = regard.reference.gaussian_scores(center, sharpness, (rows, columns))
    right = right + (sharpness * center.square().sum(-1))[:, None, None]
    expect(layer((rows, columns)), right, of="the relative scores", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: visualize
# points: 4

# %% [markdown]
# ## 5.4 Seeing them
#
# Draw what you have built, each time as a figure that the function **returns** (make it with `plt.subplots`, show pictures with
# `imshow`, one for each panel):
#
# * of the absolute embedding, one picture: how alike the vectors of any two pixels are, `weight @ weight.T`;
# * of the relative one, a picture for each head: the attention **probabilities** of one query pixel, over the grid.

# %% [raw]
# # BEGIN SOLUTION


# %%
def visualize_abs_positional_embedding(embedding):
    """An AbsolutePositionalEmbedding -> a figure with one picture (tokens, tokens)."""
    figure, panel = plt.subplots(figsize=(3, 3))
    # BEGIN SOLUTION
    weight = embedding.weight.detach()
    panel.imshow(weight @ weight.T)
    # END SOLUTION
    return figure


def visualize_rel_positional_embedding(embedding, grid, query):
    """A RelativePositionalEmbedding, grid (rows, columns), query (row, column) -> a figure with a picture for each head."""
    heads = len(embedding.center)
    figure, panels = plt.subplots(1, heads, figsize=(2 * heads, 2), squeeze=False)
    # BEGIN SOLUTION
    weights = torch.softmax(embedding(grid).detach(), dim=-1)
    row = weights[:, query[0] * grid[1] + query[1]].reshape(heads, *grid)
    for panel, picture in zip(panels[0], row, strict=True):
        panel.imshow(picture)
    # END SOLUTION
    return figure


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_absolute_picture(AbsolutePositionalEmbedding, visualize_abs_positional_embedding):
    from regard.course import Draw, by_hand, expect, pictures_of

    weight = Draw(9)(6, 4)
    layer = by_hand(AbsolutePositionalEmbedding).build(2, 3, 4, state={"weight": weight})
    (shown,) = pictures_of(by_hand(visualize_abs_positional_embedding, draws=True)(layer), 1)
    mistakes = {"these are the vectors themselves; draw weight @ weight.T": weight}
    expect(shown, weight @ weight.T, mistakes, of="the picture")


# %%
def test_relative_pictures(RelativePositionalEmbedding, visualize_rel_positional_embedding):
    import torch

    import regard
    from regard.course import by_hand, expect, pictures_of

    center, sharpness, grid = torch.tensor([[1.0, 0.0], [0.0, -1.0]]), torch.tensor([0.8, 2.0]), (4, 5)
    layer = by_hand(RelativePositionalEmbedding).build(2, state={"center": center, "sharpness": sharpness})
    shown = pictures_of(by_hand(visualize_rel_positional_embedding, draws=True)(layer, grid, (1, 2)), 2)
    scores = regard.reference.gaussian_scores(center, sharpness, grid)
    right = scores.softmax(-1)[:, 7].reshape(2, 4, 5)
    raw = (scores + (sharpness * center.square().sum(-1))[:, None, None])[:, 7].reshape(2, 4, 5)
    for head in range(2):
        mistakes = {
            "these are scores; the probabilities are asked for (softmax)": raw[head],
            "this is a column: who looks at the query pixel; take what it looks at": scores.softmax(-1)[
                head, :, 7
            ].reshape(4, 5),
        }
        expect(shown[head], right[head], mistakes, of=f"the picture of head {head}")


# %%
# HIDDEN
def test_other_sizes(
    AbsolutePositionalEmbedding,
    RelativePositionalEmbedding,
    visualize_abs_positional_embedding,
    visualize_rel_positional_embedding,
    SEED,
):
    import regard
    from regard.course import Draw, by_hand, expect, pictures_of

    draw = Draw(SEED)
    heads, grid = draw.size(1, 4), (draw.size(3, 5), draw.size(3, 6))
    query = (draw.size(0, grid[0] - 1), draw.size(0, grid[1] - 1))
    center, sharpness, weight = draw(heads, 2), draw(heads).abs() + 0.2, draw(grid[0] * grid[1], 3)
    layer = by_hand(RelativePositionalEmbedding).build(heads, state={"center": center, "sharpness": sharpness})
    shown = pictures_of(by_hand(visualize_rel_positional_embedding, draws=True)(layer, grid, query), heads)
    right = regard.reference.gaussian_scores(center, sharpness, grid).softmax(-1)[:, query[0] * grid[1] + query[1]]
    for head in range(heads):
        expect(shown[head], right[head].reshape(grid), of=f"the picture of head {head}")
    layer = by_hand(AbsolutePositionalEmbedding).build(*grid, 3, state={"weight": weight})
    (picture,) = pictures_of(by_hand(visualize_abs_positional_embedding, draws=True)(layer), 1)
    expect(picture, weight @ weight.T, of="the picture")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
torch.manual_seed(0)
heads = RelativePositionalEmbedding(3)
regard.course.picture(
    visualize_rel_positional_embedding(heads, (8, 8), (4, 4)),
    "Your pictures of three random heads on an 8 by 8 grid, seen from pixel (4, 4): a spot for each, near the query.",
)

# %% [raw]
# # BEGIN QUESTION
# name: peak
# points: 3

# %% [markdown]
# ## 5.5 The limit
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
regard.course.picture(
    regard.figures.limit(center=(1, 1)),
    "A head's weights over the grid as α grows: a broad spot that shrinks to the one pixel at the center.",
)

# %% [markdown]
# On one axis, with $T = 2\sum_{r \ge 1} e^{-\alpha r^2}$, the target has at least $1/(1+T)$ of its row. So at most $T/(1+T)$ of
# the attention lies elsewhere, and the row is at most $2T/(1+T)$ from the shift in $L_1$: what is missing at the target is
# found elsewhere. The library's `.leak` is the latter.

# %% [raw]
# # BEGIN QUESTION
# name: verify_limit
# points: 3

# %% [markdown]
# ## 5.6 The limit, seen
#
# Show it: one head of a `RelativePositionalEmbedding` with this center, one query, and its probabilities over the grid at each
# of several sharpnesses, a picture for each, in order. At δ = Δ the probability goes to 1, everywhere else to 0. Where Δ
# would leave the image, or lies between pixels, the nearest pixels share. Use what you have written above.

# %% [raw]
# # BEGIN SOLUTION


# %%
def verify_limit(center, grid, query, sharpnesses):
    """center (2,), grid (rows, columns), query (row, column), sharpnesses: a list -> a figure, a picture for each."""
    figure, panels = plt.subplots(1, len(sharpnesses), figsize=(2 * len(sharpnesses), 2), squeeze=False)
    # BEGIN SOLUTION
    embedding = RelativePositionalEmbedding(1)
    for panel, sharpness in zip(panels[0], sharpnesses, strict=True):
        with torch.no_grad():
            embedding.center.copy_(center[None])
            embedding.sharpness.fill_(sharpness)
            weights = torch.softmax(embedding(grid)[0, query[0] * grid[1] + query[1]], dim=-1)
        panel.imshow(weights.reshape(grid), vmin=0, vmax=1)
        panel.set_title(f"α = {sharpness:g}")
    # END SOLUTION
    return figure


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_goes_to_one(verify_limit):
    import torch

    import regard
    from regard.course import by_hand, expect, pictures_of

    center, grid, sharpnesses = torch.tensor([1.0, -1.0]), (4, 5), [0.5, 2.0, 20.0]
    shown = pictures_of(by_hand(verify_limit, draws=True)(center, grid, (1, 2), sharpnesses), 3)
    for picture, sharpness in zip(shown, sharpnesses, strict=True):
        right = regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0].softmax(-1)[7]
        mirrored = regard.reference.gaussian_scores(-center[None], torch.tensor([sharpness]), grid)[0].softmax(-1)[7]
        mistakes = {"the head looks the other way: δ is key − query": mirrored.reshape(grid)}
        expect(picture, right.reshape(grid), mistakes, of=f"the picture at α = {sharpness:g}")


# %%
# HIDDEN
def test_other_places(verify_limit, SEED):
    import torch

    import regard
    from regard.course import Draw, by_hand, expect, pictures_of

    draw = Draw(SEED)
    grid = (draw.size(3, 6), draw.size(3, 6))
    query, center = (draw.size(0, grid[0] - 1), draw.size(0, grid[1] - 1)), draw(2)
    sharpnesses = [0.3 * draw.size(1, 5), 1.0 * draw.size(2, 9), 1.0 * draw.size(20, 40)]
    shown = pictures_of(by_hand(verify_limit, draws=True)(center, grid, query, sharpnesses), 3)
    for picture, sharpness in zip(shown, sharpnesses, strict=True):
        right = regard.reference.gaussian_scores(center[None], torch.tensor([sharpness]), grid)[0].softmax(-1)
        expect(picture, right[query[0] * grid[1] + query[1]].reshape(grid), of="a picture", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
regard.course.picture(
    verify_limit(torch.tensor([1.0, 1.0]), (7, 7), (3, 3), [0.3, 1.0, 4.0]),
    "Your pictures of the limit: the probabilities of one query over a 7 by 7 grid at three sharpnesses, a spot that shrinks to "
    "one pixel below and to the right of the query.",
)

# %% [raw]
# # BEGIN QUESTION
# name: factors
# points: 3

# %% [markdown]
# ## 5.7 One axis at a time
#
# The score is a sum of a row part and a column part, so its exponential is a product, and so is the sum of all
# exponentials over a full grid. The map **factorizes exactly**, borders included: $A = A_{\text{rows}} \otimes
# A_{\text{columns}}$ with $A_{\text{axis}}[i, j] = \mathrm{softmax}_j\bigl(-\alpha\,(j - i -
# \Delta_{\text{axis}})^2\bigr)$. Instead of one matrix of $(HW)^2$ numbers, two with $H^2 + W^2$.
#
# Write the map of one axis, and apply two of them to values on a grid **without** ever building the large matrix: no
# `torch.kron`, and one product after the other (an `einsum` of all three at once may build it behind your back).

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
    mixed = column_map @ value  # along the columns, (rows, columns, dv)
    return torch.einsum("ij,jkd->ikd", row_map, mixed)
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
    expect(
        by_hand(attend_by_axis, without="kron")(value, row_map, column_map),
        right,
        mistakes,
        of="the output on a 3 × 3 grid",
    )


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
    got = by_hand(attend_by_axis, without="kron")(value, *maps)
    expect(got, right.reshape(rows, columns, 3), of="attention by axis beside attention with the large map")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: kernel_from_beta
# points: 2

# %% [markdown]
# ## 5.8 A convolution with a kernel larger than 1
#
# Let a head's score depend on the offset alone, $s(k - q)$, for offsets $-r \dots r$. Away from the ends every query has the
# same weights, so the head **is** a convolution, and its kernel is $\mathrm{softargmax}_\beta$ of the scores: one tap at
# β = ∞, equal taps at β = 0, and in between a kernel larger than 1. (Scores by content would not do, at any β: they change with
# the input, and a convolution is linear.) Return the kernel as `F.conv1d` takes it. Mind that PyTorch does not flip kernels:
# tap $i$ reads offset $i - r$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def kernel_of(scores, beta):
    """scores (2r + 1,) of the offsets -r ... r -> kernel (1, 1, 2r + 1)."""
    # BEGIN SOLUTION
    return torch.softmax(beta * scores, dim=0)[None, None]
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_three_taps(kernel_of):
    import torch

    from regard.course import by_hand, expect

    scores = torch.tensor([0.0, 1.0, -1.0])
    right = (0.5 * scores).softmax(0)[None, None]
    mistakes = {
        "the kernel is flipped; PyTorch does not flip it, so do not either": right.flip(-1),
        "β is not used": scores.softmax(0)[None, None],
        "these are the scores; the kernel is their softargmax": (0.5 * scores)[None, None],
    }
    expect(by_hand(kernel_of)(scores, 0.5), right, mistakes, of="the kernel of three taps")


# %%
# HIDDEN
def test_is_the_attention(kernel_of, SEED):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect, expect_tensor

    draw = Draw(SEED)
    radius, beta = draw.size(1, 3), 0.3 * draw.size(1, 9)
    scores, x = draw(2 * radius + 1), draw(15)
    offset = torch.arange(15)[None] - torch.arange(15)[:, None]
    inside = offset.abs() <= radius
    full = torch.where(inside, scores[(offset + radius).clamp(0, 2 * radius)], -torch.inf)
    right = ((beta * full).softmax(-1) @ x)[radius : 15 - radius]
    kernel = expect_tensor(by_hand(kernel_of)(scores, beta), 1, 1, 2 * radius + 1, of="the kernel")
    expect(F.conv1d(x[None, None], kernel)[0, 0], right, of="the convolution beside the attention, away from the ends")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: place_cost
# points: 3

# %% [markdown]
# ## 5.9 What places cost
#
# Count multiply-adds of **one** head with all widths equal, for $N$ tokens of width $D$ and no output projection:
#
# * `absolute`: positions are added to the tokens (they are there already, and additions are not counted), then queries, keys,
#   values, scores, weighted sums;
# * `gaussian`: no queries and keys; scores $v \cdot r_\delta$ of width 3 for every pair; values; weighted sums.
#
# Which order, in big-O, do they share, and which part became cheaper? (And what does 5.7 save on top?)

# %% [raw]
# # BEGIN SOLUTION


# %%
def place_costs(tokens, dim):
    """-> (absolute, gaussian), whole numbers."""
    # BEGIN SOLUTION
    absolute = 3 * tokens * dim**2 + 2 * tokens**2 * dim
    gaussian = tokens * dim**2 + 3 * tokens**2 + tokens**2 * dim
    return absolute, gaussian
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_small(place_costs):
    from regard.course import by_hand, expect, expect_parts

    answer = expect_parts(by_hand(place_costs)(10, 8), "absolute", "gaussian")
    mistakes = {
        "scores and weighted sums both take N²·D": 3 * 640 + 800,
        "three projections: queries, keys and values": 640 + 1600,
        "there is no output projection here": 4 * 640 + 1600,
    }
    expect(answer[0], 3 * 640 + 1600, mistakes, of="absolute, 10 tokens of width 8", tolerance=1e-9)
    mistakes = {
        "the values are still projected": 300 + 800,
        "the values are still averaged: N²·D": 640 + 300,
        "scores of width 3 take 3 N²": 640 + 100 + 800,
        "only N²·3 is left of the scores, but values are projected and averaged as before": 300,
    }
    expect(answer[1], 640 + 300 + 800, mistakes, of="gaussian, 10 tokens of width 8", tolerance=1e-9)


# %%
# HIDDEN
def test_any(place_costs, SEED):
    import torch

    from regard.course import Draw, by_hand, expect, expect_numbers

    draw = Draw(SEED)
    n, d = draw.size(3, 40), draw.size(3, 40)
    right = torch.tensor([3.0 * n * d * d + 2 * n * n * d, n * d * d + 3.0 * n * n + n * n * d])
    expect(expect_numbers(by_hand(place_costs)(n, d), 2), right, of="the two costs", tolerance=1e-6)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: sum_of_heads
# points: 3

# %% [markdown]
# ## 5.10 Heads add up
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
# name: theorem_one
# points: 4

# %% [markdown]
# ## 5.11 Theorem 1, by construction
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

    from regard.course import Draw, by_hand, expect, expect_parts

    kernel = Draw(4)(2, 3, 3, 3)
    center, matrices = expect_parts(by_hand(heads_of)(kernel), "the centers", "the matrices")
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
# name: theorem_two
# points: 4

# %% [markdown]
# ## 5.12 Theorem 2: Gaussian heads do it
#
# Put it together: the centers and matrices of the exercise before, the scores of 5.1 with a sharpness as large as you like,
# a softmax, and the sum over heads. Nothing is trained. No convolution is called.

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

    from regard.course import Draw, by_hand, expect, expect_tensor

    draw = Draw(5)
    x, kernel, bias = draw(6, 7, 2), draw(3, 2, 3, 3), draw(3)
    right = F.conv2d(x.movedim(-1, 0)[None], kernel, bias, padding=1)[0].movedim(0, -1)[1:-1, 1:-1]
    got = by_hand(convolve_by_attention, without="convolution")(x, kernel, bias, 30.0)
    got = expect_tensor(got, 6, 7, 3, of="the output")
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
regard.course.picture(
    figure,
    "The difference between attention and convolution over a 12 by 12 image, for padding with zeros, by repeating the border "
    "and by reflection: zero inside for all three; at the border zero only where the border is repeated.",
)

# %% [markdown]
# A stride is a choice of queries, a dilation is a choice of centers, and other paddings are keys that are folded back home.
# Three exercises around that, and then the library, which does all of it exactly and bounds the error for your input.

# %% [raw]
# # BEGIN QUESTION
# name: padding
# points: 2

# %% [markdown]
# ## 5.13 Padding
#
# Heads attend to the pixels that exist, one output for each. For which padding of a convolution with a kernel of `size` taps
# (shifts $-\lfloor K/2 \rfloor \dots \lfloor (K-1)/2 \rfloor$) do the two agree everywhere, in the sharp limit? Return how many
# pixels go before and after an axis, and which value they have: `"zero"`, `"nearest"` or `"mirrored"`. (Other values need
# padded pixels among the keys.)

# %% [raw]
# # BEGIN SOLUTION


# %%
def agreeing_padding(size):
    """-> (before, after, value)."""
    # BEGIN SOLUTION
    return size // 2, (size - 1) // 2, "nearest"
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_three(agreeing_padding):
    import torch

    from regard.course import by_hand, expect, expect_numbers, expect_parts

    answer = expect_parts(by_hand(agreeing_padding)(3), "before", "after", "value")
    if answer[2] not in ("zero", "nearest", "mirrored"):
        raise AssertionError('value must be "zero", "nearest" or "mirrored"')
    expect(expect_numbers(answer[:2], 2), torch.tensor([1.0, 1.0]), of="the pixels before and after, for 3 taps")


# %%
# HIDDEN
def test_value(agreeing_padding):
    from regard.course import Advice, by_hand

    if by_hand(agreeing_padding)(5)[2] != "nearest":
        raise Advice("where does a head's weight go when its pixel is outside? The weights still sum to one")


# %%
# HIDDEN
def test_sizes(agreeing_padding, SEED):
    import torch

    from regard.course import Draw, by_hand, expect, expect_numbers

    size = Draw(SEED).size(2, 5) * 2
    right = torch.tensor([size // 2, (size - 1) // 2]).float()
    mistakes = {
        "an even kernel reaches one pixel further to one side": torch.tensor([size // 2, size // 2]).float(),
        "the longer side of an even kernel comes first": right.flip(0),
    }
    expect(
        expect_numbers(by_hand(agreeing_padding)(size)[:2], 2), right, mistakes, of=f"before and after for {size} taps"
    )


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: dilation
# points: 2

# %% [markdown]
# ## 5.14 Dilation
#
# A convolution with dilation $D$ reads $D\,\delta$ instead of $\delta$. Nothing in the construction needs neighboring shifts.
# Return the centers of the heads, in the order of `heads_of`. For PyTorch's padding `dilation * (size // 2)`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def dilated_centers(size, dilation):
    """-> center (size * size, 2)."""
    # BEGIN SOLUTION
    tap = torch.arange(size)
    return dilation * (torch.cartesian_prod(tap, tap).float() - size // 2)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_two_sizes(dilated_centers):
    import torch

    from regard.course import by_hand, expect

    right = torch.tensor([[-3.0, -3.0], [-3.0, 0.0], [0.0, -3.0], [0.0, 0.0]])
    mistakes = {
        "these are the shifts of the undilated kernel": right / 3,
        "the shift of the middle is dilated, too: D · (i − K//2)": right + 2,
    }
    expect(by_hand(dilated_centers)(2, 3), right, mistakes, of="the centers of a 2 × 2 kernel with dilation 3")
    right = 2 * torch.cartesian_prod(torch.arange(-1, 2), torch.arange(-1, 2))
    mistakes = {"the middle tap of an odd kernel looks at the query itself: K//2, without a fraction": right - 1}
    expect(by_hand(dilated_centers)(3, 2), right, mistakes, of="the centers of a 3 × 3 kernel with dilation 2")


# %%
# HIDDEN
def test_is_the_convolution(dilated_centers, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect, expect_tensor

    draw = Draw(SEED)
    for size in (2 * draw.size(1, 2), 2 * draw.size(1, 2) + 1):
        dilation = draw.size(2, 3)
        kernel, x = draw(1, 1, size, size), draw(1, 1, 9, 9)
        margin = dilation * size
        padded = F.pad(x, (margin,) * 4)
        center = expect_tensor(by_hand(dilated_centers)(size, dilation), size * size, 2, of="the centers")
        total = 0
        for place, weight in zip(center.round().int().clamp(-margin, margin), kernel.flatten(), strict=True):
            row, column = (place + margin).tolist()
            total = total + weight * padded[0, 0, row : row + 9, column : column + 9]
        right = F.conv2d(x, kernel, padding=dilation * (size // 2), dilation=dilation)[0, 0, :9, :9]
        expect(total, right, of="the dilated convolution made of your heads", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: stride
# points: 3

# %% [markdown]
# ## 5.15 Stride
#
# Self-attention has one output for each pixel and cannot skip any. But every query's output is computed by itself: take **every
# $s$-th pixel as a query**, leave all keys, and it is the convolution with stride $s$. Return the coordinates of these queries,
# row by row. And a count: a line of **«size»** pixels, **«kernel»** taps, dilation **«dilation»**, stride
# **«stride»**, no padding. How many outputs (`my_outputs`)?

# %% [raw]
# # BEGIN SOLUTION


# %%
def strided_queries(rows, columns, stride):
    """-> (queries, 2), the (row, column) of every query."""
    # BEGIN SOLUTION
    return torch.cartesian_prod(torch.arange(0, rows, stride), torch.arange(0, columns, stride))
    # END SOLUTION


my_outputs = (NUMBER_size - NUMBER_dilation * (NUMBER_kernel - 1) - 1) // NUMBER_stride + 1  # SOLUTION

# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_queries(strided_queries):
    import torch

    from regard.course import by_hand, expect

    right = torch.tensor([[0, 0], [0, 2], [0, 4], [2, 0], [2, 2], [2, 4]])
    mistakes = {
        "the stride counts on both axes": torch.cartesian_prod(torch.arange(3), torch.tensor([0, 2, 4])),
        "go along the rows": torch.tensor([[0, 0], [2, 0], [0, 2], [2, 2], [0, 4], [2, 4]]),
        "start at the first pixel": torch.tensor([[1, 1], [1, 3]]),
    }
    expect(by_hand(strided_queries)(3, 5, 2), right, mistakes, of="the queries of a 3 × 5 image with stride 2")


# %%
# HIDDEN
def test_my_outputs(my_outputs, NUMBERS):
    from regard.course import expect, numbers

    sizes = numbers("5-attention-and-convolution", NUMBERS)
    span = sizes["dilation"] * (sizes["kernel"] - 1)
    right = (sizes["size"] - span - 1) // sizes["stride"] + 1
    mistakes = {
        "the first output counts, too": right - 1,
        "the kernel spans D·(K − 1) + 1 pixels; you left out the last 1": (sizes["size"] - span) // sizes["stride"] + 1,
        "dilation spreads the taps: the kernel spans D·(K − 1) + 1 pixels": (
            (sizes["size"] - sizes["kernel"]) // sizes["stride"] + 1
        ),
        "this is without the stride": sizes["size"] - span,
    }
    expect(my_outputs, right, mistakes, of="the number of outputs", tolerance=1e-9)


# %%
# HIDDEN
def test_strided_convolution(strided_queries, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    rows, columns, stride = draw.size(5, 9), draw.size(5, 9), draw.size(2, 4)
    x, kernel = draw(1, 1, rows, columns), draw(1, 1, 3, 3)
    place = by_hand(strided_queries)(rows, columns, stride).long()
    plain = F.conv2d(x, kernel, padding=1)[0, 0]
    right = F.conv2d(x, kernel, padding=1, stride=stride)[0, 0].flatten()
    inside = (place >= 0).all() and (place[:, 0] < rows).all() and (place[:, 1] < columns).all()
    if not inside:
        raise AssertionError("some of the queries are outside the image")
    expect(plain[place[:, 0], place[:, 1]], right, of="the outputs at your queries", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION
# %% [markdown]
# The library does all of that at once:

# %%
convolution = nn.Conv2d(3, 4, 3, stride=2, dilation=2, padding=2, padding_mode="reflect")
layer = regard.conv_to_attention(convolution)
image = torch.randn(1, 3, 16, 16)
print(f"difference {(layer(image) - convolution(image)).abs().max():.1e}, bound {layer.error_bound(image):.1e}")

# %% [raw]
# # BEGIN QUESTION
# name: gelu
# points: 4

# %% [markdown]
# ## 5.16 GELU
#
# Now the rest of an encoder, from scratch. Where the original Transformer has a ReLU, BERT has a GELU, which multiplies an
# input by the probability that a standard normal number lies below it:
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


def visualize_gelu(x):
    """x (n,) -> a figure: both forms as lines in the first panel, exact minus tanh as a line in the second."""
    figure, panels = plt.subplots(1, 2, figsize=(7, 2.4))
    # BEGIN SOLUTION
    panels[0].plot(x, gelu(x), label="exact")
    panels[0].plot(x, gelu_tanh(x), label="tanh")
    panels[0].legend()
    panels[1].plot(x, gelu(x) - gelu_tanh(x))
    # END SOLUTION
    return figure


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


# %%
def test_picture(visualize_gelu):
    import torch

    from regard.course import by_hand, expect, lines_of

    x = torch.linspace(-4, 4, 33)
    panels = lines_of(by_hand(visualize_gelu, without="gelu", draws=True)(x), 2)
    if len(panels[0]) != 2 or len(panels[1]) != 1:
        raise AssertionError(
            f"the panels have {len(panels[0])} and {len(panels[1])} lines; they should have two and one"
        )
    for line in (*panels[0], *panels[1]):
        mistakes = {"a line is drawn against the numbers of its points; pass x to plot, too": torch.arange(33)}
        expect(line[:, 0], x, mistakes, of="the places of a line on the x axis")
    exact, tanh = torch.nn.functional.gelu(x), torch.nn.functional.gelu(x, approximate="tanh")
    heights = torch.stack([line[:, 1] for line in panels[0]])
    both = min(
        (torch.stack([exact, tanh]), torch.stack([tanh, exact])), key=lambda two: float((heights - two).abs().max())
    )
    expect(heights, both, of="the two lines", tolerance=1e-5)
    mistakes = {"this is tanh minus exact": tanh - exact}
    expect(
        panels[1][0][:, 1] * 1e3,
        (exact - tanh) * 1e3,
        {words: wrong * 1e3 for words, wrong in mistakes.items()},
        of="1000 times the difference",
        tolerance=1e-3,
    )


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
regard.course.picture(
    regard.figures.gelu(),
    "The two forms of GELU beside ReLU, on top of each other at this scale; and their difference, an even function that is "
    "largest near |x| = 2.7, where it is 0.00047.",
)

# %% [raw]
# # BEGIN QUESTION
# name: layer_norm
# points: 3

# %% [markdown]
# ## 5.17 Layer norm
#
# Each token by itself: subtract the mean of its features, divide by their standard deviation, then scale and shift
# each feature.
#
# $$\mathrm{norm}(x) = \frac{x - \bar x}{\sqrt{\mathrm{Var}(x) + \varepsilon}} \odot w + b$$
#
# The variance divides by the number of features (not by one less), and ε goes under the root. It is used around every
# sub-layer: whatever is added to a token, the next sub-layer sees features of mean 0 and variance 1 (then scaled and shifted),
# so sizes neither explode nor vanish with depth; and since each token is normalized by itself, neither the batch nor the
# length matters.

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
# name: bert_ffn
# points: 3

# %% [markdown]
# ## 5.18 The second half of a BERT block
#
# The first half of an encoder's block is attention, a residual and a norm. The second, which we call `BertFFN`: widen with
# `up`, GELU, narrow with `down`, add the input, normalize (post-norm): $\mathrm{norm}(x + W_2\,\mathrm{gelu}(W_1 x + b_1) +
# b_2)$. Use your own functions.

# %% [raw]
# # BEGIN SOLUTION


# %%
class BertFFN(nn.Module):
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
def test_second_half(BertFFN):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(7)
    state = {"up.weight": draw(8, 4), "up.bias": draw(8), "down.weight": draw(4, 8), "down.bias": draw(4)}
    state |= {"weight": draw(4), "bias": draw(4)}
    x = draw(2, 3, 4)

    def up(x):
        return F.linear(x, state["up.weight"], state["up.bias"])

    def down(x):
        return F.linear(x, state["down.weight"], state["down.bias"])

    def norm(x):
        return F.layer_norm(x, (4,), state["weight"], state["bias"])

    inside = down(F.gelu(up(x)))
    mistakes = {
        "the residual is missing: add x before the norm": norm(inside),
        "the norm goes around the sum, x included": x + norm(inside),
        "the norm goes last: norm(x + …)": x + down(F.gelu(up(norm(x)))),
        "GELU is missing between up and down": norm(x + down(up(x))),
        "this is the original Transformer's ReLU; BERT has a GELU": norm(x + down(torch.relu(up(x)))),
        "the norm is missing": x + inside,
        "weight and bias of the norm are not used": F.layer_norm(x + inside, (4,)),
    }
    half = by_hand(BertFFN, without=("gelu", "layer_norm")).build(4, 8, state=state)
    expect(half(x), norm(x + inside), mistakes, of="the second half", tolerance=1e-3)


# %%
# HIDDEN
def test_other_widths(BertFFN, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    dim, hidden = draw.size(3, 7), draw.size(4, 12)
    state = {"up.weight": draw(hidden, dim), "up.bias": draw(hidden), "down.weight": draw(dim, hidden)}
    state |= {"down.bias": draw(dim), "weight": draw(dim), "bias": draw(dim)}
    x = 2 * draw(2, 5, dim)
    inside = F.linear(
        F.gelu(F.linear(x, state["up.weight"], state["up.bias"])), state["down.weight"], state["down.bias"]
    )
    right = F.layer_norm(x + inside, (dim,), state["weight"], state["bias"])
    half = by_hand(BertFFN, without=("gelu", "layer_norm")).build(dim, hidden, state=state)
    expect(half(x), right, of="the second half", tolerance=1e-3)


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
regard.course.picture(
    figure,
    "The paths of nine heads in training: they start scattered around the query (gray) and end, colored, on the nine offsets "
    "of a 3 by 3 kernel.",
    shown=regard.show(trajectory),
)

# %% [raw]
# # BEGIN QUESTION
# name: covered
# points: 2

# %% [markdown]
# ## 5.19 How much of a kernel is covered?
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
    import torch

    from regard.course import Draw, by_hand, expect

    center = torch.cat([1.3 * Draw(SEED)(12, 2), torch.tensor([[0.2, 2.1], [-2.4, 1.0]])])  # two are surely outside
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
        self.halves = nn.ModuleList(BertFFN(dim, 2 * dim) for _ in range(depth))
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

# %%
for name, center, sharpness in zip(trajectory.layers, trajectory.center, trajectory.sharpness, strict=True):
    for moment, time in ((0, "at first"), (-1, "at the end")):
        apart = torch.cdist(center[moment], center[moment]).fill_diagonal_(torch.inf).amin(1).mean()
        print(
            f"{name} {time:10}: {covered(center[moment])} of the nine places, nearest other head {apart:.1f} patches away, "
            f"sharpness {sharpness[moment].mean():.2f}"
        )
regard.course.picture(
    regard.figures.heads(
        [center[-1] for center in trajectory.center], [s[-1] for s in trajectory.sharpness], grid=(7, 7)
    ),
    "Where the nine heads of both blocks look after training, as circles around the query: in the first block near it and "
    "small (sharp), in the second far and wide.",
    shown=regard.show(trajectory),
)

# %% [raw]
# # BEGIN QUESTION
# name: heads_moved
# points: 5
# manual: true

# %% [markdown]
# ## 5.20 What did the heads do?
#
# Look at both runs, at the beginning and at the end of training (move the slider of the view, or compare the printed lines).
# What movements do you see: do heads move toward the query or away, together or apart, do they sharpen? What would you have
# to see for the statement that attention *becomes* a convolution, and which of it do you see? What does the main theorem say
# about training?

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (5 points).** 1: describes the imitation run: heads spread from near the query to distinct offsets, one each, and
# sharpen. 1: describes the image run: heads move apart, first block nearer and sharper, second farther and broader (or what
# that run shows, with its numbers). 1: what would support the theorem: nine heads on the nine shifts of a 3 × 3 kernel, one
# each, on whole pixels, with a large sharpness. 1: compares: seen in the imitation, only in part on images. 1: the theorem is
# about what *can* be expressed; it does not say that training finds it, nor that the task asks for it.
#
# **Model answer.** In the imitation run the centers leave the middle and end on the nine offsets of the kernel, one head on
# each, while the sharpness grows: that is just what the theorem needs. On clothes the heads move apart as well, but they do
# not settle on whole pixels; in the first block they stay near the query and sharpen, in the second they look far and stay
# broad. For “attention becomes a convolution” I would have to see every layer's heads at distinct, whole, neighboring offsets
# and very sharp. The theorem says that such heads exist for every kernel, with their values chosen to match. Whether
# gradients lead there depends on the task.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION

# %% [markdown]
# Imitating a convolution, the heads take their places one by one and grow sharp: what the theorem needs. (Not from every
# start: try `torch.manual_seed(4)`, where two of them fight for a place.) On the real task they move apart, too, but
# nothing forces them onto whole pixels. In this run the first block stays near the query and sharpens, while the second
# looks far and wide: the theorem says what attention *can* express, not what training wants. Where heads do become
# local, `regard.attention_to_conv` turns them into a convolution, with a bound.
#
# `regard verify convolution` checks every step of this notebook, and rejects a wrong variant of each.
