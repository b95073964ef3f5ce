"""Kernel regression: predict an average of nearby samples. With an exponential kernel it is attention."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Kernel = Callable[[Tensor, Tensor], Tensor]


def kernel_regression(
    x: Float[Tensor, "queries dim"],
    x_train: Float[Tensor, "samples dim"],
    y_train: Float[Tensor, "samples width"],
    kernel: Kernel,
) -> Float[Tensor, "queries width"]:
    r"""The estimator of Nadaraya and Watson.

    .. math:: \hat y(x) = \sum_i \frac{K(x, x_i)}{\sum_j K(x, x_j)}\, y_i

    With :math:`K(q, k) = e^{\beta q \cdot k}` (:func:`exponential_kernel`) this is attention with queries x, keys
    ``x_train`` and values ``y_train``.

    Args:
        x, x_train, y_train: where to predict, and the samples.
        kernel: ``(queries, 1, dim)`` and ``(1, samples, dim)`` to ``(queries, samples)``, 0 or more everywhere. A
            query whose weights are all zero gets 0.

    >>> x_train, y_train = torch.tensor([[0.0], [1.0]]), torch.tensor([[10.0], [20.0]])
    >>> kernel_regression(torch.tensor([[0.5], [5.0]]), x_train, y_train, gaussian_kernel(0.5))
    tensor([[15.],
            [20.]])
    """
    similarity = kernel(x[:, None, :], x_train[None, :, :])
    wanted = (len(x), len(x_train))
    if similarity.shape != wanted:
        raise ValueError(f"kernel gave shape {tuple(similarity.shape)} but must give (queries, samples) = {wanted}")
    total = similarity.sum(1, keepdim=True)
    return similarity / torch.where(total == 0, 1.0, total) @ y_train


def gaussian_kernel(bandwidth: float) -> Kernel:
    r""":math:`K(x, y) = e^{-\|x - y\|^2 / (2\,\mathrm{bandwidth}^2)}`

    >>> gaussian_kernel(1.0)(torch.tensor([0.0]), torch.tensor([2.0]))
    tensor(0.1353)
    """
    return lambda x, y: torch.exp(-(x - y).square().sum(-1) / (2 * bandwidth**2))


def exponential_kernel(beta: float) -> Kernel:
    r""":math:`K(q, k) = e^{\beta q \cdot k}`, the kernel of attention.

    >>> exponential_kernel(1.0)(torch.tensor([1.0]), torch.tensor([0.0]))
    tensor(1.)
    """
    return lambda x, y: torch.exp(beta * (x * y).sum(-1))
