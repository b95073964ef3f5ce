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

RELEASE = ""
if importlib.util.find_spec("regard") is None:
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
# train it here on six thousand small pictures of clothes, and look at what its heads look at.

# %%
data = regard.data.load("fashion-mini")
images = (data.train.images.float() / 255 - data.mean[0]) / data.std[0]
labels = data.train.labels
figure, panels = plt.subplots(1, 8, figsize=(10, 1.6))
for panel, image, label in zip(panels, data.train.images, labels, strict=False):
    panel.imshow(image[0], cmap="gray_r")
    panel.set_title(data.classes[label], fontsize=7)
    panel.set_axis_off()
plt.show()

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
    from regard.course import Draw, by_hand, expect

    weight = Draw(1)(4, 2 * 3 * 3)
    answer = by_hand(as_convolution)(weight, 2, 3)
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise AssertionError("return two things: the kernel and the stride")
    kernel, stride = answer
    right = weight.reshape(4, 2, 3, 3)
    mistakes = {
        "the kernel is flipped: PyTorch's conv2d does not turn it round, so do not either": right.flip(2, 3),
        "the numbers of a patch come in the order (channel, row, column)": weight.reshape(4, 3, 3, 2).permute(
            0, 3, 1, 2
        ),
        "rows and columns of the kernel are swapped": right.mT,
    }
    expect(kernel, right, mistakes, of="the kernel")
    expect(stride, 3, {"with stride 1 patches overlap; they should lie side by side": 1}, of="the stride")


# %%
# HIDDEN
def test_same_pixels(as_convolution, SEED):
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    channels, patch, dim = draw.size(1, 3), draw.size(2, 4), draw.size(3, 6)
    images, weight = draw(2, channels, 3 * patch, 2 * patch), draw(dim, channels * patch * patch)
    kernel, stride = by_hand(as_convolution)(weight, channels, patch)
    right = F.unfold(images, patch, stride=patch).mT @ weight.T
    expect(F.conv2d(images, kernel, stride=stride).flatten(2).mT, right, of="the embedded patches")


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
    import torch

    from regard.course import Draw, by_hand, expect

    torch.manual_seed(0)
    layer, x = Block(6, 2), Draw(2)(2, 5, 6)
    parts = layer.qkv(x).unflatten(-1, (3, 2, 3)).permute(2, 0, 3, 1, 4)

    def attend(query, key, value, scale, axis=-1):
        mixed = (query @ key.mT * scale).softmax(axis) @ value
        return layer.output(mixed.transpose(1, 2).flatten(2))

    right = attend(*parts, 3**-0.5)
    mistakes = {
        "the scores are not divided by √(width of a head)": attend(*parts, 1.0),
        "divide by the root of a head's width, not of dim": attend(*parts, 6**-0.5),
        "softmax must run over the keys, the last axis": attend(*parts, 3**-0.5, -2),
        "queries and keys are swapped": attend(parts[1], parts[0], parts[2], 3**-0.5),
    }
    expect(by_hand(layer.attention)(x), right, mistakes, of="the attention of the block")


# %%
def test_residual(Block):
    import torch

    from regard.course import Draw, by_hand, expect

    torch.manual_seed(1)
    layer, x = Block(6, 2), Draw(3)(1, 4, 6)
    for last in (layer.output, layer.mlp[2]):
        torch.nn.init.zeros_(last.weight), torch.nn.init.zeros_(last.bias)
    got = by_hand(layer)(x)
    mistakes = {"nothing is left of x: both sub-layers are added to it": torch.zeros_like(x)}
    expect(got, x, mistakes, of="a block whose sub-layers return zero (only the residual is left)")


# %%
# HIDDEN
def test_order(Block, SEED):
    import torch

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    torch.manual_seed(SEED)
    heads = draw.size(2, 4)
    dim = heads * draw.size(2, 4)
    layer, x = Block(dim, heads), 3 * draw(2, 6, dim)

    def attend(x):
        query, key, value = layer.qkv(x).unflatten(-1, (3, heads, dim // heads)).permute(2, 0, 3, 1, 4)
        mixed = (query @ key.mT / (dim // heads) ** 0.5).softmax(-1) @ value
        return layer.output(mixed.transpose(1, 2).flatten(2))

    middle = x + attend(layer.norm1(x))
    right = middle + layer.mlp(layer.norm2(middle))
    after = layer.norm1(x + attend(x))
    plain = x + attend(x)
    mistakes = {
        "this is the post-norm order; here the norm goes in front of each sub-layer": layer.norm2(
            after + layer.mlp(after)
        ),
        "the norms are missing": plain + layer.mlp(plain),
        "the MLP must work on the result of the attention": x + attend(layer.norm1(x)) + layer.mlp(layer.norm2(x)),
    }
    expect(by_hand(layer)(x), right, mistakes, of="the block")


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
plt.show()

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
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    torch.manual_seed(0)
    model, images = VisionTransformer(size=12, depth=2), Draw(4)(3, 1, 12, 12)
    got = by_hand(model)(images)

    def run(first, positions=1, read="class", norm=True):
        x = model.embedding(F.unfold(images, 4, stride=4).mT)
        token = model.class_token.expand(3, -1, -1)
        x = torch.cat([token, x] if first else [x, token], 1) + positions * model.positions
        for layer in model.blocks:
            x = layer(x)
        x = model.norm(x) if norm else x
        return model.head({"class": x[:, 0], "last": x[:, -1], "mean": x.mean(1)}[read])

    mistakes = {
        "the positions are not added": run(True, positions=0),
        "the class is read off the last patch; the class token is token 0": run(True, read="last"),
        "this is the average of all tokens; read the class token alone": run(True, read="mean"),
        "the class token belongs in front of the patches": run(False, read="last"),
        "the class token stands behind the patches, and token 0 is read": run(False),
        "the last norm is missing": run(True, norm=False),
    }
    expect(got, run(True), mistakes, of="the scores of the classes")


# %%
# HIDDEN
def test_other_sizes(VisionTransformer, SEED):
    import torch
    import torch.nn.functional as F

    from regard.course import Draw, by_hand, expect

    draw = Draw(SEED)
    torch.manual_seed(SEED)
    patch, channels, depth = draw.size(2, 4), draw.size(2, 3), draw.size(1, 3)
    size = patch * draw.size(2, 4)
    model = VisionTransformer(size=size, patch=patch, channels=channels, classes=7, dim=16, depth=depth, heads=2)
    images = draw(2, channels, size, size)
    x = model.embedding(F.unfold(images, patch, stride=patch).mT)
    x = torch.cat([model.class_token.expand(2, -1, -1), x], 1) + model.positions
    for layer in model.blocks:
        x = layer(x)
    expect(by_hand(model)(images), model.head(model.norm(x)[:, 0]), of=f"the scores with {depth} blocks")


# %% [raw]
# # END TESTS

# %% [raw]
# # END QUESTION

# %% [markdown]
# ## Train it
#
# Half a minute on a laptop. A vision transformer this small, on so little data, is no match for a convolutional
# network: it has to learn from pictures that neighboring patches belong together, which a convolution knows from the
# start.

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
plt.show()

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
regard.show(maps, image=data.validation.images[0], grid=model.grid, prefix=1)

# %% [raw]
# # BEGIN QUESTION
# name: class_attention
# points: 3

# %% [markdown]
# ## 4.5 What the class token looks at
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
plt.show()

# %% [raw]
# # BEGIN QUESTION
# name: rollout
# points: 4

# %% [markdown]
# ## 4.6 Through all blocks
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
plt.show()

# %% [markdown]
# **Where did the positions go?** Nobody told the model that patches lie on a grid. Compare the learned positions with
# each other: each small picture shows how alike one patch's position is to all the others'.

# %%
regard.figures.absolute_positions(model.positions.detach()[0, 1:], grid=model.grid)

# %% [markdown]
# An attention map says where information *came from*, not what it was good for. `regard.relevance` weighs maps with
# the gradient of a class. `regard.locality` asks which heads look at a fixed place, whatever is there: `fit` is 1 for a
# head that does, and near 0 for one that goes by content, as the heads here do. A head with a good fit could have been
# part of a convolution: notebook 5.

# %%
print(regard.locality(maps, grid=model.grid, prefix=1))
