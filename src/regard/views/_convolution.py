"""Attention becomes a convolution as its heads sharpen. The browser computes; Python supplies images and kernels."""

from typing import Any

import torch
from torch import Tensor

from regard.support.checks import describe
from regard.views._payload import Payload

SIZE = 40  # pixels per side: small enough to compute all weights while a slider moves
KERNELS = {
    "blur": [[1 / 16, 2 / 16, 1 / 16], [2 / 16, 4 / 16, 2 / 16], [1 / 16, 2 / 16, 1 / 16]],
    "edge": [[-1.0, -1.0, -1.0], [-1.0, 8.0, -1.0], [-1.0, -1.0, -1.0]],
    "sharpen": [[0.0, -1.0, 0.0], [-1.0, 5.0, -1.0], [0.0, -1.0, 0.0]],
    "emboss": [[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]],
    "slope down": [[-1.0, -2.0, -1.0], [0.0, 0.0, 0.0], [1.0, 2.0, 1.0]],
    "shift": [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]],
}
_FASHION = (("ankle boot", 0), ("trouser", 2), ("bag", 18))


def payload(image: Any = None, kernel: Any = None) -> Payload:
    """Example images and kernels, and the user's own.

    Args:
        image: an image as for ``regard.show``; its central square is shown in gray, with 40 × 40 pixels.
        kernel: 3 × 3 numbers, as a tensor or lists.

    >>> sorted(payload().meta["kernels"])[:3]
    ['blur', 'edge', 'emboss']
    """
    kernels: dict[str, list[list[float]]] = dict(KERNELS)
    if kernel is not None:
        kernels = {"yours": _kernel(kernel), **kernels}
    images: dict[str, Tensor] = {"landscape": landscape(), "rings": rings()}
    images.update(_fashion())
    if image is not None:
        images = {"yours": _gray(image), **images}
    meta = {"images": list(images), "kernels": kernels, "size": SIZE}
    return Payload("convolution", meta, {"images": torch.stack(list(images.values()))})


def rings() -> Tensor:
    """Rings that get narrower outwards, with all frequencies and directions.

    >>> rings().shape
    torch.Size([40, 40])
    """
    rows, columns = _places()
    distance = (rows - 0.5) ** 2 + (columns - 0.5) ** 2
    return _bytes(0.5 + 0.5 * torch.cos(90 * distance))


def landscape() -> Tensor:
    """A sun over hills and water, with edges, gradients and flat areas."""
    rows, columns = _places()
    sky = 0.92 - 0.35 * rows
    sun = ((rows - 0.27) ** 2 + (columns - 0.68) ** 2).sqrt() < 0.11
    far = rows > 0.5 - 0.14 * torch.sin(3 * torch.pi * columns + 0.4).abs()
    near = rows > 0.72 - 0.3 * torch.exp(-(((columns - 0.22) / 0.19) ** 2))
    water = rows > 0.78
    picture = torch.where(sun, 1.0, sky)
    picture = torch.where(far, 0.46 - 0.12 * rows, picture)
    picture = torch.where(near, 0.2, picture)
    waves = 0.62 + 0.16 * torch.sin(2 * torch.pi * (9 * rows + 1.5 * columns))
    return _bytes(torch.where(water, waves, picture))


def _places() -> tuple[Tensor, Tensor]:
    """(row, column) of the center of every pixel, from 0 to 1."""
    at = (torch.arange(SIZE) + 0.5) / SIZE
    return at[:, None].expand(SIZE, SIZE), at[None].expand(SIZE, SIZE)


def _bytes(picture: Tensor) -> Tensor:
    return (picture.clamp(0, 1) * 255).round().to(torch.uint8)


def _fashion() -> dict[str, Tensor]:
    from regard.data import load

    images = load("fashion-mini", download=False).test().images
    border = (SIZE - images.shape[-1]) // 2
    return {name: torch.nn.functional.pad(images[number, 0], [border] * 4) for name, number in _FASHION}


def _gray(image: Any) -> Tensor:
    from regard.views._image_maps import as_pixels

    pixels = as_pixels(image).float().permute(2, 0, 1) / 255
    side = min(pixels.shape[1:])
    top, left = ((n - side) // 2 for n in pixels.shape[1:])
    middle = pixels[:, top : top + side, left : left + side]
    fitted = torch.nn.functional.interpolate(middle[None], (SIZE, SIZE), mode="bilinear", antialias=True)[0]
    return _bytes((fitted * torch.tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0))


def _kernel(kernel: Any) -> list[list[float]]:
    try:
        numbers = torch.as_tensor(kernel, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"kernel must be 3 × 3 numbers, got {describe(kernel)}") from error
    if numbers.shape != (3, 3) or not bool(numbers.isfinite().all()):
        raise ValueError(f"kernel must be 3 × 3 finite numbers, got {describe(kernel)}")
    return numbers.tolist()
