# %% [raw]
# # ASSIGNMENT CONFIG
# name: 4-vision-transformer
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
grader = regard.course.Notebook("4-vision-transformer")

# %% [markdown]
# # 4 · The vision transformer
#
# Cut an image into patches, call each patch a token, and let a Transformer's encoder do the rest. You will build it,
# train it here on 5,400 small pictures of clothes, and look at what its heads look at.

# %%
regard.course.diagram("vision")

# %% [markdown]
# **How it differs from the original Transformer.** It is an encoder alone: nothing is generated, so there is no decoder, no
# cross-attention and no causal mask. Its tokens are patches, projected linearly, instead of words from a table. Its positions
# are learned vectors, one for each patch, instead of fixed sinusoids. A class token is added, and a head reads the class off
# it. The norm goes before each sub-layer instead of after the sum, and the feed-forward network has a GELU instead of a ReLU.
#
# **How it differs from a convolutional network.** A convolution looks at neighbors, the same way everywhere, and widens its
# view layer by layer: locality and translation are built in. Here every patch can look at every other in the first layer, and
# what is near what has to be learned.

# %%
data = regard.data.load("fashion-mini")
images = (data.train.images.float() / 255 - data.mean[0]) / data.std[0]
labels = data.train.labels
figure, panels = plt.subplots(1, 8, figsize=(10, 1.6))
for panel, image, label in zip(panels, data.train.images, labels, strict=False):
    panel.imshow(image[0], cmap="gray_r")
    panel.set_title(data.classes[label], fontsize=7)
    panel.set_axis_off()
regard.course.picture(figure, "Eight small gray pictures of clothes, the name of its class above each.")

# %% [raw]
# # BEGIN QUESTION
# name: patches
# points: 3

# %% [markdown]
# ## 4.1 Patches
#
# Cut images into squares of `patch` × `patch` pixels, row by row from the top left. Each patch becomes one row of
# numbers, in the order (channel, row, column). Reshape can split an axis in two (a row of the image is a row of
# patches × a row inside the patch) but cannot reorder: split, permute, join.

# %% [raw]
# # BEGIN SOLUTION


# %%
def patches(images, patch):
    """(batch, channels, height, width) -> (batch, number of patches, channels * patch * patch)."""
    batch, channels, height, width = images.shape
    rows, columns = height // patch, width // patch
    # BEGIN SOLUTION
    x = images.reshape(batch, channels, rows, patch, columns, patch)
    x = x.permute(0, 2, 4, 1, 3, 5)
    return x.reshape(batch, rows * columns, channels * patch * patch)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_one_channel(patches):
    import torch
    import torch.nn.functional as F

    from regard.course import by_hand, expect

    images = torch.arange(24.0).reshape(1, 1, 4, 6)
    right = F.unfold(images, 2, stride=2).mT
    mistakes = {
        "these are strips of pixels that follow each other in memory; a patch has pixels of several image rows": (
            images.reshape(1, 6, 4)
        ),
        "the patches are counted down the columns; go along the rows": (
            right.reshape(1, 2, 3, 4).transpose(1, 2).reshape(1, 6, 4)
        ),
        "inside a patch, rows and columns are swapped": right.unflatten(-1, (2, 2)).mT.flatten(-2),
    }
    got = by_hand(patches)(images, 2)
    if isinstance(got, torch.Tensor) and got.shape == (1, 4, 6):
        raise AssertionError("shape (1, 4, 6): patches and pixels are swapped; it should be (batch, patches, pixels)")
    expect(got, right, mistakes, of="the patches of a 4 × 6 image")


# %%
# HIDDEN
def test_channels(patches, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    patch, channels = draw.size(2, 4), draw.size(2, 3)
    images = draw(2, channels, patch * draw.size(2, 4), patch * draw.size(2, 4))
    right = F.unfold(images, patch, stride=patch).mT
    mistakes = {
        "the numbers of a patch come in the order (row, column, channel); it should be (channel, row, column)": (
            right.unflatten(-1, (channels, -1)).mT.flatten(-2)
        )
    }
    expect(by_hand(patches)(images, patch), right, mistakes, of="the patches")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: patch_convolution
# points: 3

# %% [markdown]
# ## 4.2 There is a convolution in it
#
# Each patch is multiplied by the same matrix `weight` `(dim, channels · patch · patch)`. That *is* a convolution:
# with which kernel, and with which stride? Return both, such that `F.conv2d(images, kernel, stride=stride)` has the
# embedded patches as its pixels.

# %% [raw]
# # BEGIN SOLUTION


# %%
def as_convolution(weight, channels, patch):
    """weight (dim, channels * patch * patch) -> kernel (dim, channels, patch, patch), stride."""
    # BEGIN SOLUTION
    return weight.reshape(len(weight), channels, patch, patch), patch
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_kernel(as_convolution):
    import torch

    from regard.course import Draw, by_hand, expect, expect_numbers, expect_parts

    weight = Draw(1)(4, 2 * 3 * 3)
    kernel, stride = expect_parts(by_hand(as_convolution)(weight, 2, 3), "the kernel", "the stride")
    right = weight.reshape(4, 2, 3, 3)
    mistakes = {
        "the kernel is flipped: PyTorch's conv2d does not turn it round, so do not either": right.flip(2, 3),
        "the numbers of a patch come in the order (channel, row, column)": weight.reshape(4, 3, 3, 2).permute(
            0, 3, 1, 2
        ),
        "rows and columns of the kernel are swapped": right.mT,
    }
    expect(kernel, right, mistakes, of="the kernel")
    pair = stride if isinstance(stride, tuple) else (stride, stride)  # conv2d takes one number for each axis, too
    mistakes = {"with stride 1 patches overlap; they should lie side by side": torch.ones(2)}
    expect(expect_numbers(pair, 2, of="the stride"), torch.tensor([3.0, 3.0]), mistakes, of="the stride")


# %%
# HIDDEN
def test_same_pixels(as_convolution, SEED):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect, expect_numbers, expect_tensor

    draw = Draw(SEED)
    channels, patch, dim = draw.size(1, 3), draw.size(2, 4), draw.size(3, 6)
    images, weight = draw(2, channels, 3 * patch, 2 * patch), draw(dim, channels * patch * patch)
    kernel, stride = by_hand(as_convolution)(weight, channels, patch)
    pair = expect_numbers(stride if isinstance(stride, tuple) else (stride, stride), 2, of="the stride")
    expect(pair, torch.full((2,), patch), of="the stride")
    kernel = expect_tensor(kernel, dim, channels, patch, patch, of="the kernel")
    right = F.unfold(images, patch, stride=patch).mT @ weight.T
    expect(F.conv2d(images, kernel, stride=patch).flatten(2).mT, right, of="the embedded patches")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: vision_block
# points: 4

# %% [markdown]
# ## 4.3 The block
#
# $$x \leftarrow x + \mathrm{attention}(\mathrm{norm}_1(x)), \qquad x \leftarrow x + \mathrm{mlp}(\mathrm{norm}_2(x))$$
#
# Write self-attention with several heads yourself (notebook 3), with the layers given. `qkv` gives queries, keys and
# values side by side: the first `dim` features are the queries, then keys, then values; within each, head 0 comes
# first.

# %% [raw]
# # BEGIN SOLUTION


# %%
class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.output = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def attention(self, x):
        """(batch, tokens, dim) -> (batch, tokens, dim), the last step being self.output."""
        batch, tokens, dim = x.shape
        # BEGIN SOLUTION
        parts = self.qkv(x).reshape(batch, tokens, 3, self.heads, dim // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # each (batch, heads, tokens, dim // heads)
        weights = torch.softmax(query @ key.mT / math.sqrt(query.shape[-1]), dim=-1)
        return self.output((weights @ value).transpose(1, 2).reshape(batch, tokens, dim))
        # END SOLUTION

    def forward(self, x):
        """(batch, tokens, dim) -> (batch, tokens, dim)."""
        # BEGIN SOLUTION
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))
        # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_attention(Block):
    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(2)
    state, x = vision.block_state(draw, 6), draw(2, 5, 6)
    right = vision.block_attention(state, x, 2)
    mistakes = {
        "the scores are not divided by √(width of a head)": vision.block_attention(state, x, 2, scale=1.0),
        "divide by the root of a head's width, not of dim": vision.block_attention(state, x, 2, scale=6**-0.5),
        "softmax must run over the keys, the last axis": vision.block_attention(state, x, 2, axis=-2),
        "queries and keys are swapped": vision.block_attention(state, x, 2, swapped=True),
        "heads are joined without swapping heads and tokens back": vision.block_attention(state, x, 2, merged=False),
    }
    layer = by_hand(Block).build(6, 2, state=state)
    expect(layer.method("attention", x), right, mistakes, of="the attention of the block")


# %%
def test_order_of_a_block(Block):
    import torch

    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(3)
    state, x = vision.block_state(draw, 6), 2 * draw(1, 4, 6)

    def norm(number, x):
        return vision.block_norm(state, number, x)

    def attend(x):
        return vision.block_attention(state, x, 2)

    plain, after = x + attend(x), norm(1, x + attend(x))
    inside = attend(norm(1, x))
    mistakes = {
        "nothing is left of x: both sub-layers are added to it": vision.block_mlp(state, norm(2, inside)),
        "the first residual is missing: x + attention(…)": inside + vision.block_mlp(state, norm(2, inside)),
        "the second residual is missing: x + mlp(…)": vision.block_mlp(state, norm(2, x + inside)),
        "the norms are missing": plain + vision.block_mlp(state, plain),
        "the first norm is missing": plain + vision.block_mlp(state, norm(2, plain)),
        "the second norm is missing": x + inside + vision.block_mlp(state, x + inside),
        "this is the post-norm order; here the norm goes in front of each sub-layer": norm(
            2, after + vision.block_mlp(state, after)
        ),
        "the MLP must work on the result of the attention": x + inside + vision.block_mlp(state, norm(2, x)),
        "only x is left: the sub-layers are not called": torch.zeros_like(x) + x,
    }
    layer = by_hand(Block).build(6, 2, state=state)
    expect(layer(x), vision.block_output(state, x, 2), mistakes, of="the block")


# %%
# HIDDEN
def test_other_sizes(Block, SEED):
    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(SEED)
    heads = draw.size(2, 4)
    dim = heads * draw.size(2, 4)
    state, x = vision.block_state(draw, dim), 3 * draw(2, 6, dim)
    layer = by_hand(Block).build(dim, heads, state=state)
    expect(layer.method("attention", x), vision.block_attention(state, x, heads), of="the attention")
    expect(layer(x), vision.block_output(state, x, heads), of="the block")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# **What the residual is good for.** Twelve untrained blocks, with and without the `x +`: how much of the gradient
# arrives at the input, and how alike have all tokens become on the way?

# %%
torch.manual_seed(0)
figure, panels = plt.subplots(1, 2, figsize=(8.5, 2.8))
for residual in (True, False):
    x = torch.randn(8, 20, 48)
    start = x.requires_grad_()
    alike, kept = [], []
    for _ in range(12):
        layer = Block(48, 4)
        x = layer(x) if residual else layer.mlp(layer.norm2(layer.attention(layer.norm1(x))))
        alike.append(F.cosine_similarity(x[:, :1], x[:, 1:], dim=-1).mean().item())
        (slope,) = torch.autograd.grad(x.square().mean().sqrt(), start, retain_graph=True)
        kept.append(slope.norm().item())
    panels[0].plot(range(1, 13), kept, "o-", label="with x +" if residual else "without")
    panels[1].plot(range(1, 13), alike, "o-")
panels[0].set(xlabel="blocks", ylabel="gradient at the input", yscale="log")
panels[1].set(xlabel="blocks", ylabel="similarity of two tokens")
panels[0].legend()
regard.course.picture(
    figure,
    "Left: the gradient at the input against the number of blocks, on a logarithmic axis: it rises slowly with the residual and "
    "falls to about a tenth without. Right: the similarity of two tokens, low with the residual and near one without.",
)

# %% [raw]
# # BEGIN QUESTION
# name: vision_transformer
# points: 4

# %% [markdown]
# ## 4.4 The model
#
# Embed the patches; put the class token **in front** of them; add a learned position to each token (class token
# included); run the blocks; normalize; read the class off the **class token** with `self.head`.

# %% [raw]
# # BEGIN SOLUTION


# %%
class VisionTransformer(nn.Module):
    def __init__(self, size=28, patch=4, channels=1, classes=10, dim=48, depth=3, heads=4):
        super().__init__()
        self.patch, self.grid = patch, (size // patch, size // patch)
        self.embedding = nn.Linear(channels * patch * patch, dim)
        self.class_token = nn.Parameter(0.02 * torch.randn(1, 1, dim))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + self.grid[0] * self.grid[1], dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, images):
        """(batch, channels, height, width) -> (batch, classes)."""
        # BEGIN SOLUTION
        x = self.embedding(patches(images, self.patch))
        x = torch.cat([self.class_token.expand(len(x), -1, -1), x], dim=1) + self.positions
        for layer in self.blocks:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])
        # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_model(VisionTransformer):
    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(4)
    sizes = {"patch": 4, "channels": 1, "classes": 5, "dim": 8, "depth": 2}
    state, images = vision.vision_state(draw, size=12, **sizes), draw(3, 1, 12, 12)
    model = by_hand(VisionTransformer).build(size=12, heads=2, state=state, **sizes)

    def run(**slip):
        return vision.vision_output(state, images, patch=4, heads=2, depth=2, **slip)

    mistakes = {
        "the positions are not added": run(positions=False),
        "the class is read off the last patch; the class token is token 0": run(read="last"),
        "this is the average of all tokens; read the class token alone": run(read="mean"),
        "the class token belongs in front of the patches": run(first=False, read="last"),
        "the class token stands behind the patches, and token 0 is read": run(first=False),
        "the last norm is missing": run(norm=False),
    }
    expect(model(images), run(), mistakes, of="the scores of the classes", tolerance=1e-3)


# %%
# HIDDEN
def test_other_models(VisionTransformer, SEED):
    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(SEED)
    patch, channels, depth = draw.size(2, 4), draw.size(2, 3), draw.size(1, 3)
    size = patch * draw.size(2, 4)
    sizes = {"patch": patch, "channels": channels, "classes": 7, "dim": 8, "depth": depth}
    state, images = vision.vision_state(draw, size=size, **sizes), draw(2, channels, size, size)
    model = by_hand(VisionTransformer).build(size=size, heads=2, state=state, **sizes)
    right = vision.vision_output(state, images, patch=patch, heads=2, depth=depth)
    expect(model(images), right, of=f"the scores with {depth} blocks", tolerance=1e-3)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [raw]
# # BEGIN QUESTION
# name: vision_parameters
# points: 3

# %% [markdown]
# ## 4.5 How many numbers it learns
#
# Count the parameters of the model above, from its sizes alone: the embedding, the class token, the positions, `depth` blocks
# (two norms, `qkv`, `output`, and an MLP that is twice as wide inside), the last norm and the head. Linear layers and norms
# have biases. Does the number of heads matter?

# %% [raw]
# # BEGIN SOLUTION


# %%
def vision_parameters(size, patch, channels, classes, dim, depth):
    """-> a whole number."""
    embedding = channels * patch * patch * dim + dim  # SOLUTION
    tokens = 1 + (size // patch) ** 2  # SOLUTION
    block = 4 * dim + (3 * dim * dim + 3 * dim) + (dim * dim + dim) + (4 * dim * dim + 3 * dim)  # SOLUTION
    total = embedding + dim + tokens * dim + depth * block + 2 * dim + (dim * classes + classes)  # SOLUTION
    return total


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_small(vision_parameters):
    from regard.course import Draw, by_hand, expect, vision

    sizes = {"size": 8, "patch": 4, "channels": 1, "classes": 3, "dim": 6, "depth": 2}
    right = sum(part.numel() for part in vision.vision_state(Draw(0), **sizes).values())
    norm, qkv, mlp = 2 * 6, 3 * 36 + 18, 4 * 36 + 18
    mistakes = {
        "a position for the class token, too": right - 6,
        "the class token is a parameter, too": right - 6,
        "the last norm is missing": right - norm,
        "norms have a weight and a bias for each feature": right - 5 * 6,
        "each block has two norms": right - 2 * norm,
        "queries, keys and values each have a matrix": right - 2 * 2 * (qkv // 3),
        "linear layers have biases": right - (6 + 2 * (18 + 6 + 18) + 3),
        "every block counts": right - (2 * norm + qkv + 42 + mlp),
    }
    expect(
        by_hand(vision_parameters)(**sizes),
        right,
        mistakes,
        of="a model of 8 × 8 pixels, dim 6, 2 blocks",
        tolerance=1e-9,
    )


# %%
# HIDDEN
def test_any_sizes(vision_parameters, SEED):
    from regard.course import Draw, by_hand, expect, vision

    draw = Draw(SEED)
    patch = draw.size(2, 5)
    sizes = {"size": patch * draw.size(3, 6), "patch": patch, "channels": draw.size(2, 3), "classes": draw.size(2, 20)}
    sizes |= {"dim": draw.size(5, 20), "depth": draw.size(1, 6)}
    right = sum(part.numel() for part in vision.vision_state(draw, **sizes).values())
    expect(by_hand(vision_parameters)(**sizes), right, of="the number of parameters", tolerance=1e-9)


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## Train it
#
# Half a minute on a laptop. A vision transformer this small, on so little data, is no match for a convolutional
# network: it has to learn from pictures that neighboring patches belong together, which a convolution knows from the
# start. With very much data (the original was pretrained on 303 million pictures, more than twenty times ImageNet-21k and
# over two hundred times the usual ImageNet) that knowledge matters less, and seeing everything at once pays off.

# %%
torch.manual_seed(0)
model = VisionTransformer()
print(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters")
steps = 250
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.05)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps, pct_start=0.15)
losses = []
for _ in range(steps):
    chosen = torch.randint(len(images), (64,))
    loss = F.cross_entropy(model(images[chosen]), labels[chosen], label_smoothing=0.1)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())

model.eval()
held_out = (data.validation.images.float() / 255 - data.mean[0]) / data.std[0]
with torch.no_grad():
    right = model(held_out).argmax(-1) == data.validation.labels
print(f"{right.float().mean():.1%} of {len(right)} unseen pictures right")
smooth = torch.tensor(losses).unfold(0, 20, 5).mean(-1)
figure, panel = plt.subplots(figsize=(5, 2.6))
panel.plot(20 + 5 * torch.arange(len(smooth)), smooth)
panel.set(xlabel="step", ylabel="loss")
regard.course.picture(
    figure, "The training loss, smoothed, against the step: it falls quickly at first and then slowly."
)

# %% [markdown]
# ## Look at it
#
# `regard.capture` reads the maps of your own blocks while they run. Each map comes with a *residual*: how far the map
# times the values is from what the layer really computed.

# %%
few = held_out[:6]
with torch.no_grad(), regard.capture(model) as maps:
    model(few)
print(maps)
figure, panels = plt.subplots(len(maps), 4, figsize=(6, 4.6))
for row, found in zip(panels, maps.values(), strict=True):
    for panel, weights in zip(row, found.weights[0], strict=True):
        panel.imshow(weights, cmap="viridis")
        panel.set_axis_off()
figure.suptitle("the maps of the first picture: a row for each block, a column for each head", fontsize=9)
regard.course.picture(
    figure,
    "Twelve maps, 50 by 50 tokens each, of three blocks with four heads: bright columns are patches that many tokens look at.",
    shown=regard.show(maps, image=data.validation.images[0], grid=model.grid, prefix=1),
)

# %% [raw]
# # BEGIN QUESTION
# name: class_attention
# points: 3

# %% [markdown]
# ## 4.6 What the class token looks at
#
# A map is `(batch, heads, tokens, tokens)`, queries in rows; token 0 is the class token, the others are patches, row
# by row. Return what the class token attends to **among the patches**, as pictures `(batch, heads, rows, columns)`.

# %% [raw]
# # BEGIN SOLUTION


# %%
def class_attention(weights, grid):
    """weights (batch, heads, 1 + rows * columns, same), grid (rows, columns) -> (batch, heads, rows, columns)."""
    # BEGIN SOLUTION
    return weights[:, :, 0, 1:].unflatten(-1, grid)
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_row_of_the_class_token(class_attention):
    from regard.course import Draw, by_hand, expect

    weights = Draw(5)(2, 3, 7, 7).softmax(-1)
    right = weights[:, :, 0, 1:].reshape(2, 3, 2, 3)
    mistakes = {
        "this is who looks at the class token (a column); take what it looks at (a row)": weights[:, :, 1:, 0].reshape(
            2, 3, 2, 3
        ),
        "the class token's weight on itself is in the picture; leave key 0 out": weights[:, :, 0, :-1].reshape(
            2, 3, 2, 3
        ),
        "the class token comes first, not last": weights[:, :, -1, :-1].reshape(2, 3, 2, 3),
        "this is the first patch's row; the class token is token 0": weights[:, :, 1, 1:].reshape(2, 3, 2, 3),
    }
    expect(by_hand(class_attention)(weights, (2, 3)), right, mistakes, of="the pictures")


# %%
# HIDDEN
def test_grids(class_attention, SEED):
    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    rows, columns = draw.size(2, 4), draw.size(5, 7)
    weights = draw(2, 2, 1 + rows * columns, 1 + rows * columns).softmax(-1)
    right = weights[:, :, 0, 1:].reshape(2, 2, rows, columns)
    mistakes = {
        "rows and columns are swapped: tokens go along the rows": (weights[:, :, 0, 1:].reshape(2, 2, columns, rows).mT)
    }
    expect(by_hand(class_attention)(weights, (rows, columns)), right, mistakes, of="the pictures")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
last = class_attention(maps[-1].weights, model.grid)
figure, panels = plt.subplots(6, 5, figsize=(6.5, 7.5))
for row, (image, pictures) in enumerate(zip(data.validation.images[:6], last, strict=True)):
    panels[row, 0].imshow(image[0], cmap="gray_r")
    for panel, picture in zip(panels[row, 1:], pictures, strict=True):
        panel.imshow(image[0], cmap="gray_r", extent=(0, 28, 28, 0))
        panel.imshow(picture, cmap="viridis", alpha=0.65, extent=(0, 28, 28, 0), interpolation="bilinear")
for panel in panels.flat:
    panel.set_axis_off()
figure.suptitle("what the class token looks at, last block, head by head", fontsize=10)
regard.course.picture(
    figure,
    "Six pictures in rows; beside each, four copies with what the class token looks at laid over it, one for each head of "
    "the last block: mostly parts of the garment, different ones for different heads.",
)

# %% [raw]
# # BEGIN QUESTION
# name: rollout
# points: 4

# %% [markdown]
# ## 4.7 Through all blocks
#
# The last block attends to tokens that have mixed before. *Rollout* follows the attention down to the patches: in
# every block take the mean over heads, and half of the identity for the residual, $\tilde A_l = \tfrac12 \bar A_l +
# \tfrac12 I$; then multiply. A later block looks at what the earlier ones have made, so $\tilde A_L \cdots \tilde A_2
# \tilde A_1$.

# %% [raw]
# # BEGIN SOLUTION


# %%
def rollout(weights):
    """A list of (batch, heads, tokens, tokens), first block first -> (batch, tokens, tokens)."""
    # BEGIN SOLUTION
    total = torch.eye(weights[0].shape[-1])
    for layer in weights:
        total = (0.5 * layer.mean(1) + 0.5 * torch.eye(layer.shape[-1])) @ total
    return total
    # END SOLUTION


# %% [raw]
# # END SOLUTION

# %% [raw]
# # BEGIN TESTS


# %%
def test_two_blocks(rollout):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(6)
    first, second = draw(1, 2, 4, 4).softmax(-1), draw(1, 2, 4, 4).softmax(-1)
    one, two = (0.5 * layer.mean(1) + 0.5 * torch.eye(4) for layer in (first, second))
    mistakes = {
        "the order is turned round: the later block goes to the left": one @ two,
        "the residual is missing: half of the identity": second.mean(1) @ first.mean(1),
        "add the identity with weight one half, so that rows still sum to one": (second.mean(1) + torch.eye(4))
        @ (first.mean(1) + torch.eye(4)),
        "take the mean over the heads, not the largest": (0.5 * second.amax(1) + 0.5 * torch.eye(4))
        @ (0.5 * first.amax(1) + 0.5 * torch.eye(4)),
    }
    expect(by_hand(rollout)([first, second]), two @ one, mistakes, of="the rollout of two blocks")


# %%
# HIDDEN
def test_as_the_library_does(rollout, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    tokens = draw.size(3, 6)
    weights = [draw(2, 3, tokens, tokens).softmax(-1) for _ in range(draw.size(3, 5))]
    right = torch.eye(tokens)
    for layer in weights:
        right = (0.5 * layer.mean(1) + 0.5 * torch.eye(tokens)) @ right
    got = by_hand(rollout)(weights)
    expect(got, right, of=f"the rollout of {len(weights)} blocks")
    expect(got.sum(-1), torch.ones(2, tokens), of="the sums of its rows")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %%
mine = rollout([found.weights for found in maps.values()])
print("the same as regard.rollout:", torch.allclose(mine, regard.rollout(maps), atol=1e-5))
figure, panels = plt.subplots(1, 6, figsize=(9, 1.8))
for panel, image, total in zip(panels, data.validation.images, mine, strict=False):
    panel.imshow(image[0], cmap="gray_r", extent=(0, 28, 28, 0))
    picture = total[0, 1:].reshape(model.grid)
    panel.imshow(picture, cmap="viridis", alpha=0.65, extent=(0, 28, 28, 0), interpolation="bilinear")
    panel.set_axis_off()
figure.suptitle("rollout from the class token", fontsize=10)
regard.course.picture(
    figure, "The same six pictures with the rollout from the class token laid over: a smooth spot on each garment."
)

# %% [markdown]
# **Where did the positions go?** Nobody told the model that patches lie on a grid. Compare the learned positions with
# each other: each small picture shows how alike one patch's position is to all the others'.

# %%
regard.course.picture(
    regard.figures.absolute_positions(model.positions.detach()[0, 1:], grid=model.grid),
    "The learned positions, and for every patch of the 7 by 7 grid a small picture of how alike its position is to all the "
    "others.",
)

# %% [markdown]
# An attention map says where information *came from*, not what it was good for. `regard.relevance` weighs maps with
# the gradient of a class. `regard.locality` asks which heads look at a fixed place, whatever is there: `fit` is 1 for a
# head that does, and near 0 for one that goes by content, as the heads here do. A head with a good fit could have been
# part of a convolution: notebook 5.

# %%
print(regard.locality(maps, grid=model.grid, prefix=1))

# %% [raw]
# # BEGIN QUESTION
# name: vision_words
# points: 4
# manual: true

# %% [markdown]
# ## 4.8 In words
#
# 1. Name four differences between the vision transformer and the original Transformer.
# 2. What are positional embeddings for in the vision transformer, and how do they differ from the original Transformer's?
# 3. How does it compare with a convolutional network, on little and on much data, and why?
# 4. Besides a class token, how else can one vector be made of all tokens, and what is wrong with flattening them?

# %% [raw]
# # BEGIN SOLUTION

# %% [markdown]
# **Rubric (4 points, one for each).** 1: any four of: encoder only (no decoder, cross-attention, causal mask); patches projected
# linearly (a convolution with a stride) instead of word embeddings; learned instead of sinusoidal positions; class token and
# classification head; norm before instead of after; GELU instead of ReLU. 2: attention does not know order, so without them an
# image would be a bag of patches; they are one learned vector per patch (and class token), added to the tokens, and
# neighborhood is learned; the original's are fixed sinusoids of the place. 3: convolution has locality and translation built
# in, so it does better on little data and with small models; the vision transformer sees everything at once and overtakes
# with large-scale pretraining. 4: average pooling or attention pooling (a learned query); flattening fixes the number of
# patches, hence the resolution, and costs a weight for each.
#
# **Model answer.** (1) It has only an encoder, its tokens are linearly projected patches, positions are learned, a class token
# goes in front for a classification head; it also normalizes before each sub-layer and uses GELU. (2) Self-attention is
# equivariant to permutations, so the grid has to be told; each patch gets a learned vector, from which neighborhood emerges,
# while the original adds fixed sine waves. (3) A convolution assumes that near pixels belong together and that a pattern means
# the same everywhere; that helps when pictures are few. Attention must learn both, and with enough data is not held back by
# them. (4) The mean of all tokens or a learned query that attends to them; a dense layer on the flattened tokens works for one
# number of patches alone.

# %% [raw]
# # END SOLUTION

# %% [raw]
# # END QUESTION
