"""Pictures of what a network attends to, for TensorBoard and reports."""

import warnings
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from regard.maps import Maps, capture

if TYPE_CHECKING:
    from matplotlib.figure import Figure
else:
    Figure = Any

MOST_LAYERS, MOST_HEADS = 12, 12


@torch.no_grad()
def attention_of(network: nn.Module, *inputs: Any, **options: Any) -> Maps:
    """The attention maps of one pass in evaluation mode; the network is left in the mode it was in."""
    was_training = network.training
    network.eval()
    try:
        with warnings.catch_warnings():
            # A network without attention has no maps, which is no reason to warn here.
            warnings.filterwarnings("ignore", message="no attention was seen")
            with capture(network) as maps:
                network(*inputs, **options)
    finally:
        network.train(was_training)
    return maps


def image_attention(
    network: nn.Module,
    image: Float[Tensor, "1 channels height width"],
    pixels: UInt8[Tensor, "channels height width"],
    *,
    query: tuple[int, int] | None = None,
) -> Figure | None:
    """Where each head of each layer looks from one token of an image: a row per layer, a column per head.

    Args:
        network: any model that attends among the tokens of a grid; None comes back where none of it does.
        image: as the network takes it.
        pixels: as a person sees it.
        query: (row, column) of the token that looks, on the grid of the first layer; the middle one by default. In
            layers with fewer tokens the one at that place looks. Layers with a class token show where that looks
            instead, which is what the class is read from.
    """
    from matplotlib.patches import Rectangle

    from regard.figures.style import SEQUENTIAL, new_figure

    maps = attention_of(network, image)
    shown = [found for found in maps.values() if _on_grid(found)]
    if not shown:
        return None
    shown = shown[:MOST_LAYERS]
    first = shown[0].layout().grid
    heads = min(MOST_HEADS, max(found.shape[1] for found in shown))
    figure, panels = new_figure(len(shown), heads + 1, width=1.3, height=1.45)
    for panel in panels:
        panel.set_axis_off()
    for row, found in enumerate(shown):
        layout = found.layout()
        rows, columns = layout.grid
        at = (rows // 2, columns // 2)
        if query is not None:
            at = (query[0] * rows // first[0], query[1] * columns // first[1])
        line = panels[row * (heads + 1) : (row + 1) * (heads + 1)]
        _show_image(line[0], pixels)
        line[0].set_title(_short(found.name), fontsize=7)
        queries = found.shape[2]
        place = 0 if layout.prefix or queries == 1 else at[0] * columns + at[1]
        if not layout.prefix and queries > 1:
            height, width = pixels.shape[1] / rows, pixels.shape[2] / columns
            corner = (at[1] * width - 0.5, at[0] * height - 0.5)  # pixels are drawn around whole numbers
            line[0].add_patch(Rectangle(corner, width, height, facecolor="none", edgecolor="#D55E00"))
        for head in range(min(heads, found.shape[1])):
            weights = found.weights[0, head, place, layout.prefix :].reshape(rows, columns)
            line[head + 1].imshow(weights.cpu().float().numpy(), cmap=SEQUENTIAL, vmin=0)
            line[head + 1].set_title(f"head {head}", fontsize=7)
    seen = "the class token" if shown[0].layout().prefix else "the marked token"
    figure.suptitle(f"Where heads look from {seen} (each panel from 0 to its own maximum)", fontsize=9)
    return figure


def alignment(
    weights: Float[Tensor, "targets sources"], sources: list[str], targets: list[str], title: str = ""
) -> Figure:
    """An alignment: how much each token that is said (down) looks at each token that was read (across)."""
    from regard.figures.style import SEQUENTIAL, new_figure

    size = max(4.8, 0.16 * max(len(sources), len(targets)) + 1.6)  # the title fits
    figure, [panel] = new_figure(1, 1, width=size, height=size)
    panel.imshow(weights.detach().cpu().float().numpy(), cmap=SEQUENTIAL, vmin=0, vmax=1, aspect="equal")
    panel.set_xticks(range(len(sources)), labels=[_visible(token) for token in sources], fontsize=7)
    panel.set_yticks(range(len(targets)), labels=[_visible(token) for token in targets], fontsize=7)
    panel.xaxis.tick_top()
    panel.set_title(title, fontsize=9)
    panel.set_xlabel("read", fontsize=8)
    panel.set_ylabel("said", fontsize=8)
    return figure


def _on_grid(found: Any) -> bool:
    try:
        return len(found.layout().grid) == 2
    except ValueError:
        return False


def _show_image(panel: Any, pixels: Tensor) -> None:
    image = pixels.permute(1, 2, 0).cpu().numpy()
    panel.imshow(image if image.shape[2] == 3 else image[:, :, 0], cmap="gray", vmin=0, vmax=255)


def _short(name: str) -> str:
    return name.removesuffix(".inner").removesuffix(".attention")


def _visible(token: str) -> str:
    return "␣" if token == " " else token
