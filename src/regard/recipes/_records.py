"""CIFAR-10 from scratch, as fast as we could: one road, three lengths. They are meant for a GPU."""

from dataclasses import replace

from regard.data import Augmentation
from regard.recipes._names import recipe
from regard.training import ImageTask, Muon, Pyramid, Recipe, Schedule


@recipe
def cifar10_speedrun() -> Recipe:
    """94 %: six blocks of nine full-width Gaussian heads on coarser and coarser grids; Muon and AdamW.

    A token for each pixel, the whitened 2×2 square that starts there. Heads start as a 3×3 grid and are free to go.

    Expected: not measured yet.
    Command: ``regard train cifar10-speedrun``
    """
    return Recipe(
        "cifar10-speedrun",
        ImageTask("cifar10", validation=0, augmentation=Augmentation(crop=2, flip="alternate"), label_smoothing=0.2),
        Pyramid(widths=(128, 384, 384), depth=2, directions=8),
        Muon(
            2e-3,
            center_factor=5.0,
            betas=(0.9, 0.99),
            matrix_learning_rate=0.16,
            matrix_momentum=0.6,
            matrix_steps=3,
            keep_norm=True,
        ),
        Schedule(warm_up=0.0, decay="linear"),
        epochs=14,
        batch_size=1000,
        precision="bf16",
        compile=True,
        evaluate_every=14,
    )


def _longer(name: str, epochs: int, augmentation: Augmentation) -> Recipe:
    """More epochs ask for smaller steps and for images that differ more."""
    short = cifar10_speedrun()
    return replace(
        short,
        name=name,
        task=ImageTask("cifar10", validation=0, augmentation=augmentation, label_smoothing=0.2),
        optimizer=replace(short.optimizer, matrix_learning_rate=0.12),
        epochs=epochs,
        evaluate_every=epochs,
    )


@recipe
def cifar10_95() -> Recipe:
    """95 %: the network of ``cifar10-speedrun``, 40 epochs, squares cut out of the images.

    Expected: not measured yet.
    Command: ``regard train cifar10-95``
    """
    return _longer("cifar10-95", 40, Augmentation(crop=4, flip="alternate", cutout=8))


@recipe
def cifar10_96() -> Recipe:
    """96 %: three blocks a stage, the last of them around a residual path, 75 epochs, larger squares cut out.

    Expected: not measured yet.
    Command: ``regard train cifar10-96``
    """
    return replace(
        _longer("cifar10-96", 75, Augmentation(crop=4, flip="alternate", cutout=12)),
        network=Pyramid(widths=(128, 384, 512), depth=3, directions=8),
    )
