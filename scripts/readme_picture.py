"""Draw the picture at the top of the README: Gaussian heads, their maps, and a convolution made of them.

python scripts/readme_picture.py docs/images/regard.png
"""

import sys

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Circle

from regard import conv_to_attention, data
from regard.functional import gaussian_weights

GRID = (28, 28)


def main(path: str) -> None:
    train = data.load("fashion-mini").train
    boot = train.classes.index("Ankle boot")
    image = train.images[train.labels == boot][3].float().div(255)  # (1, 28, 28)
    edge = torch.nn.Conv2d(1, 1, 3, padding=1, bias=False)
    with torch.no_grad():
        edge.weight.copy_(torch.tensor([[-1.0, -2.0, -1.0], [0.0, 0.0, 0.0], [1.0, 2.0, 1.0]])[None, None])
    attention = conv_to_attention(edge)
    figure = Figure(figsize=(12, 5.4), layout="constrained")
    axes = figure.subplots(2, 5)

    query = (14, 12)
    sharpness = [0.02, 0.1, 0.5, 3.0]
    center = torch.tensor([[-4.0, 5.0]])
    for ax, alpha in zip(axes[0, :4], sharpness, strict=True):
        weights = gaussian_weights(center, torch.tensor([alpha]), GRID)[0, query[0] * 28 + query[1]].reshape(GRID)
        ax.imshow(image[0], cmap="gray", alpha=0.35)
        ax.imshow(weights.sqrt(), cmap="magma", alpha=0.75)
        ax.plot(query[1], query[0], "s", color="white", markeredgecolor="black", markersize=6)
        ax.annotate(
            "", (query[1] + 5, query[0] - 4), (query[1], query[0]), arrowprops={"arrowstyle": "->", "color": "white"}
        )
        ax.set_title(f"sharpness α = {alpha:g}", fontsize=10)
    limit = axes[0, 4]
    for row, column in attention.center.tolist():
        limit.add_patch(Circle((column, row), 0.33, color="#0072B2", alpha=0.75))
    limit.set(xlim=(-2, 2), ylim=(2, -2), aspect="equal")
    limit.set_title("nine sharp heads = a 3×3 kernel", fontsize=10)
    axes[0, 0].set_ylabel("one head, one query", fontsize=10)

    with torch.no_grad():
        expected = edge(image[None])[0, 0]
        shown = [("the image", image[0], "gray")]
        for alpha in (0.5, 2.0, attention.alpha):
            attention.alpha = alpha
            found = attention(image[None])[0, 0]
            error = (found - expected).abs().max().item()
            shown.append((f"nine heads, α = {alpha:.3g}\nlargest error {error:.1e}", found, "RdBu"))
        shown.append(("the convolution", expected, "RdBu"))
    top = expected.abs().max().item()
    for ax, (title, picture, colors) in zip(axes[1], shown, strict=True):
        ax.imshow(picture, cmap=colors, **({} if colors == "gray" else {"vmin": -top, "vmax": top}))
        ax.set_title(title, fontsize=10)
    axes[1, 0].set_ylabel("attention becomes convolution", fontsize=10)
    for ax in axes.flat:
        ax.set_xticks([])
        ax.set_yticks([])
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main(sys.argv[1])
