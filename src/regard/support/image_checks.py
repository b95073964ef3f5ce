"""The check of images that a network is called with."""

from torch import Tensor

from regard.support.checks import check_ndim


def check_images(images: Tensor, channels: int) -> None:
    """``images`` must be ``(batch, channels, height, width)``, with this number of channels."""
    check_ndim("images", images, "batch channels height width")
    if images.shape[1] != channels:
        count = "1 channel" if channels == 1 else f"{channels} channels"
        raise ValueError(f"images has shape {tuple(images.shape)}, but must have {count}")
