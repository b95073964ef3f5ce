"""Where Gaussian heads look and how sharply, as parameters."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.support.checks import check_choice, check_floating, check_positive, describe, is_functional

Covariance = Literal["isotropic", "diagonal", "full"]
Init = Literal["normal", "grid"]


class GaussianHeads(nn.Module):
    r"""A learned center and sharpness for each head: where it looks, and how sharply.

    The sharpness is kept positive by construction: isotropic and diagonal heads learn :math:`\log\alpha`, full ones a
    root R with :math:`S = R R^\top`.

    Args:
        heads: number of heads.
        axes: 1 for sequences, 2 for images, 3 for volumes.
        covariance: ``isotropic`` (one α per head), ``diagonal`` (one per axis) or ``full`` (a matrix S).
        init: ``normal`` draws centers with standard deviation 2; ``grid`` puts k^axes heads on a k × k grid of shifts, so
            that the layer starts as a convolution with a k × k kernel.
        sharpness: the initial α; by default 0.5 for ``normal`` and 5 for ``grid``.

    >>> GaussianHeads(9, init="grid").center.detach()[:3]
    tensor([[-1., -1.],
            [-1.,  0.],
            [-1.,  1.]])
    """

    def __init__(
        self,
        heads: int,
        *,
        axes: int = 2,
        covariance: Covariance = "isotropic",
        init: Init = "normal",
        sharpness: float | None = None,
    ) -> None:
        super().__init__()
        check_positive("heads", heads)
        check_positive("axes", axes)
        check_choice("covariance", covariance, ("isotropic", "diagonal", "full"))
        check_choice("init", init, ("normal", "grid"))
        if sharpness is not None and (not isinstance(sharpness, int | float) or not 0 < sharpness < math.inf):
            raise ValueError(f"sharpness must be a positive number, got {describe(sharpness)}")
        self.heads, self.axes, self.covariance, self.init = heads, axes, covariance, init
        self.initial_sharpness = sharpness if sharpness is not None else (0.5 if init == "normal" else 5.0)
        self.center = nn.Parameter(torch.empty(heads, axes))
        if covariance == "full":
            self.root = nn.Parameter(torch.empty(heads, axes, axes))
        else:
            self.log_sharpness = nn.Parameter(torch.empty((heads,) if covariance == "isotropic" else (heads, axes)))
        self.reset_parameters()

    def no_weight_decay(self) -> set[str]:
        """Parameters that weight decay should exclude (timm calls a method of this name)."""
        return {name for name, _ in self.named_parameters(recurse=False)}

    @torch.no_grad()
    def reset_parameters(self) -> None:
        if self.init == "grid":
            self.center.copy_(shift_grid(self.heads, self.axes))
        else:
            self.center.normal_(0.0, 2.0)
        if self.covariance == "full":
            self.root.copy_(math.sqrt(self.initial_sharpness) * torch.eye(self.axes).expand_as(self.root))
        else:
            self.log_sharpness.fill_(math.log(self.initial_sharpness))

    @property
    def sharpness(self) -> Tensor:
        """α ``(heads,)`` or ``(heads, axes)``, or the matrices S ``(heads, axes, axes)``; in float32 or better.

        The product of the root is written out: autocast would lower a matrix product to half precision, and S would no
        longer be positive semi-definite.
        """
        if self.covariance != "full":
            return self.log_sharpness.to(torch.promote_types(self.log_sharpness.dtype, torch.float32)).exp()
        root = self.root.to(torch.promote_types(self.root.dtype, torch.float32))
        return (root.unsqueeze(-2) * root.unsqueeze(-3)).sum(-1)

    @torch.no_grad()
    def set(self, center: Tensor, sharpness: Tensor) -> None:
        """Set the centers and the sharpness, which is positive and has the shape of :attr:`sharpness`."""
        current = self.sharpness
        check_floating("center", center)
        check_floating("sharpness", sharpness)
        if tuple(center.shape) != tuple(self.center.shape) or tuple(sharpness.shape) != tuple(current.shape):
            raise ValueError(
                f"center and sharpness must have shapes {tuple(self.center.shape)} and {tuple(current.shape)}, got "
                f"{describe(center)} and {describe(sharpness)}"
            )
        for name, values in (("center", center), ("sharpness", sharpness)):
            if is_functional(values):
                raise ValueError(f"{name} must have values, got {describe(values)} on {values.device}")
            if not bool(values.isfinite().all()):
                raise ValueError(f"{name} must be finite, got {describe(values)} with NaN or infinity")
        self.center.copy_(center)
        if self.covariance == "full":
            values, vectors = torch.linalg.eigh(sharpness.double())
            if bool((values < -1e-6 * values.abs().amax()).any()):
                raise ValueError("sharpness must be positive semi-definite matrices")
            self.root.copy_(vectors @ torch.diag_embed(values.clamp_min(0).sqrt()))
        else:
            if not bool((sharpness > 0).all()):
                raise ValueError(f"sharpness must be positive, got values down to {sharpness.min().item():g}")
            self.log_sharpness.copy_(sharpness.log())

    def extra_repr(self) -> str:
        return f"heads={self.heads}, axes={self.axes}, covariance={self.covariance}, init={self.init}"


def shift_grid(heads: int, axes: int) -> Float[Tensor, "heads axes"]:
    """All shifts of a k^axes kernel around its middle, in the order of the kernel's taps.

    >>> shift_grid(4, 2).tolist()
    [[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]
    """
    size = round(heads ** (1 / axes))
    if size**axes != heads:
        raise ValueError(
            f"init 'grid' puts heads on a grid of k^axes shifts, but heads is {heads} and axes is {axes}: "
            f"heads must be such a number, for example {size**axes}"
        )
    steps = torch.arange(size, dtype=torch.get_default_dtype()) - (size - 1) // 2
    return torch.stack(torch.meshgrid(*[steps] * axes, indexing="ij"), -1).reshape(heads, axes)
