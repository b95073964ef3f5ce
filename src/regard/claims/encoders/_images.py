"""From patches to a class."""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import layers, models, reference
from regard.claims._claim import Evidence, holds, holds_under
from regard.claims._pictures import bars
from regard.claims._trials import Comparison, trials


@holds(
    "hw4-patch-is-conv",
    "question 1.5 (a)",
    says=lambda patch: patch,
    mutant=("a convolution with stride 1", lambda patch: 1),
)
def patch_is_conv(stride: Callable[[int], int]) -> Evidence:
    r"""The vision transformer's linear projection of patches is a convolution.

    Cutting an image into $P \times P$ patches and mapping each, flattened, by one matrix is a convolution with a $P
    \times P$ kernel and *stride* $P$: patches do not overlap, and the matrix is the kernel. The check cuts patches
    out by hand.
    """
    found = Comparison()
    for trial in trials(12):
        patch, dim, channels = 1 + trial.size(1, 3), trial.size(1, 4), trial.size(1, 3)
        rows, columns = trial.size(1, 3), trial.size(1, 3)
        layer = layers.PatchEmbedding(patch, dim, channels=channels).double()
        images = trial.normal(2, channels, rows * patch, columns * patch)
        pieces = images.unfold(2, patch, patch).unfold(
            3, patch, patch
        )  # (batch, channels, rows, columns, patch, patch)
        flat = pieces.permute(0, 2, 3, 1, 4, 5).reshape(2, rows * columns, -1)
        projected = F.linear(flat, layer.projection.weight.flatten(1), layer.projection.bias)
        found.same(layer(images), projected, f"{rows * columns} patches, the library")
        convolved = reference.convolution(images, layer.projection.weight, layer.projection.bias, stride=stride(patch))
        found.same(convolved.flatten(2).mT, projected, f"patches of {patch}×{patch}")
    return found.evidence("layers")


@holds(
    "hw4-class-token", "question 1.5 (d)", says="class token", mutant=("the head reads the mean of all tokens", "mean")
)
def class_token(read: str) -> Evidence:
    r"""The vision transformer's prediction is a classification head applied to $\text{layernorm}(z_0^L)$, the class
    token after the last layer.

    The class token is a learned vector that goes in front of the patches and gathers what it attends to; the other
    tokens' last states are not read. The head is an MLP with one hidden layer in the original's pre-training and a
    single linear layer in its fine-tuning; the library has the latter. The check takes the last tokens of a model,
    normalizes, reads token 0, and changes all the others, which must not matter.
    """
    found = Comparison()
    for trial in trials(6):
        depth = trial.size(1, 3)
        model = models.VisionTransformer(8, 4, 3, channels=1, dim=8, depth=depth, heads=2).double().eval()
        images = trial.normal(2, 1, 8, 8)
        with torch.no_grad():
            scores, tokens = model(images, return_intermediates=True)
            normed = model.norm(tokens[-1])
            vector = normed[:, 0] if read == "class token" else normed.mean(1)
            found.same(scores, model.head(vector), f"{depth} layers")
            changed = normed.clone()
            changed[:, 1:] += 1
            found.same(model.forward_head(changed), scores, "other tokens are read")
    return found.evidence("models")


@holds(
    "c182-pooling",
    "question 3 (a)",
    says={"flatten"},
    mutant=("a class token fixes it, too", {"flatten", "class token"}),
)
def pooling(fixed: set[str]) -> Evidence:
    r"""A fully connected head on all tokens fixes the number of patches; a class token, average and attention pooling
    do not.

    A linear layer on $n$ flattened tokens of width $d$ has a weight for each of $n d$ numbers. The others make one
    vector of width $d$ out of any number of tokens: one of them, their mean, or a mean weighted by a learned query's
    attention. The check builds each for one number of tokens and tries others. (A table of learned positions fixes
    the number, too, unless it is interpolated.)
    """
    found = Comparison()
    for trial in trials(8):
        dim, n = 2 * trial.size(1, 3), trial.size(2, 6)
        heads = _pooling_heads(n, dim)
        for name, classify in heads.items():
            found.same(len(classify(trial.normal(1, n, dim))[0]), 3.0, f"{name} does not classify")
            try:
                classify(trial.normal(1, n + 1, dim))
                refuses = False
            except RuntimeError:
                refuses = True
            found.true(
                refuses == (name in fixed),
                f"{name}, made for {n} patches: {n + 1} are {'refused' if refuses else 'taken'}",
            )
    return found.evidence("heads")


def _pooling_heads(tokens: int, dim: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """From tokens to three classes, made for so many tokens."""
    flatten, head = nn.Linear(tokens * dim, 3).double(), nn.Linear(dim, 3).double()
    token, attend = layers.ClassTokenPooling(dim).double(), layers.AttentionPooling(dim, 2).double()
    return {
        "flatten": lambda x: flatten(x.flatten(1)),
        "class token": lambda x: head(token(token.prepend(x))),
        "average": lambda x: head(layers.AveragePooling()(x)),
        "attention": lambda x: head(attend(x)),
    }


class Ratio(NamedTuple):
    """How many times larger JFT-300M is than a data set."""

    times: float
    against: tuple[str, ...]


# Images, as the data sets' makers and the vision transformer's paper give them.
IMAGES = {"ImageNet-1k (ILSVRC 2012, train)": 1_281_167, "ImageNet-21k (fall 2011)": 14_197_122}


JFT = 303_000_000


@holds_under(
    "c182-data-scale",
    "question 3 (b)",
    says=Ratio(20, against=tuple(IMAGES)),
    condition=(
        "ImageNet is ImageNet-21k; JFT is more than 200 times as large as the ImageNet of the usual benchmark",
        Ratio(20, against=("ImageNet-21k (fall 2011)",)),
    ),
    mutant=("200 times ImageNet-21k", Ratio(200, against=("ImageNet-21k (fall 2011)",))),
)
def data_scale(ratio: Ratio) -> Evidence:
    r"""JFT-300M is 20 times larger than ImageNet.

    The vision transformer's paper counts 303 million images in JFT. ImageNet-21k has 14.2 million and the ImageNet of
    the benchmark 1.28 million. So JFT is 21 times the one and 237 times the other in size. The paper's sentence on
    mid-sized data, which the source quotes, is about the latter. The check allows 10 %.
    """
    found = Comparison(tolerance=0.1, unit="relative")
    for name in ratio.against:
        actual = JFT / IMAGES[name]
        found.same(ratio.times / actual, 1.0, f"{name}: {IMAGES[name]:,} images, JFT has {actual:.0f} times as many")
    sizes = {**{name.split(" (")[0]: float(count) for name, count in IMAGES.items()}, "JFT-300M": float(JFT)}
    return found.evidence("data sets", draw=bars("Images", "images", sizes, log_y=True))
