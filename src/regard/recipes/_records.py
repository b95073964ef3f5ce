"""CIFAR-10 from scratch in seconds and minutes: one kind of network, four lengths of training. They are meant for a GPU."""

from dataclasses import replace

from regard.data import Augmentation
from regard.recipes._names import recipe
from regard.training import AttentionPyramidSettings, ImageTask, MuonSettings, Recipe, ScheduleSettings


def _muon(learning_rate: float) -> MuonSettings:
    return MuonSettings(
        2e-3,
        center_factor=5.0,
        betas=(0.9, 0.99),
        matrix_learning_rate=learning_rate,
        matrix_momentum=0.6,
        matrix_steps=3,
        keep_norm=True,
        convolutions=True,  # there are no convolutions, unless network.mixing is set to convolution
    )


@recipe
def cifar10_speedrun() -> Recipe:
    """94 %: six blocks of nine full-width Gaussian heads on coarser and coarser grids; Muon and AdamW.

    One token for each pixel, a whitened 2×2 patch. Heads start on a 3×3 grid and move.

    Expected: test accuracy 94.50 ± 0.07 % in 8.4 s of training on one NVIDIA H200, five seeds
    (benchmarks/results/cifar10-speedrun-h200-2026-11-16.json). Compilation takes 33 s; from the command to the result it
    is 74 s for the first seed and 20 s for each further one.
    Command: ``regard train cifar10-speedrun``
    """
    return Recipe(
        "cifar10-speedrun",
        ImageTask("cifar10", validation=0, augmentation=Augmentation(crop=2, flip="alternate"), label_smoothing=0.2),
        AttentionPyramidSettings(widths=(128, 384, 384), depth=2, directions=8),
        _muon(0.16),
        ScheduleSettings(warm_up=0.0, decay="linear"),
        epochs=14,
        batch_size=1000,
        precision="bf16",
        compile=True,
        evaluate_every=14,
    )


def _longer(name: str, epochs: int, augmentation: Augmentation) -> Recipe:
    """Longer training, with smaller steps and stronger augmentation."""
    short = cifar10_speedrun()
    return replace(
        short,
        name=name,
        task=ImageTask("cifar10", validation=0, augmentation=augmentation, label_smoothing=0.2),
        optimizer=_muon(0.12),
        epochs=epochs,
        evaluate_every=epochs,
    )


@recipe
def cifar10_95() -> Recipe:
    """95 %: the network of ``cifar10-speedrun``, 40 epochs, cutmix.

    Expected: test accuracy 95.21 ± 0.17 % (95.68 % with flip averaging) in 25.8 s of training on one NVIDIA H200, five
    seeds (benchmarks/results/cifar10-95-h200-2026-11-16.json). Compilation takes 21 s.
    Command: ``regard train cifar10-95``
    """
    return _longer("cifar10-95", 40, Augmentation(crop=4, flip="alternate", cutmix=0.3))


@recipe
def cifar10_96() -> Recipe:
    """96 %: wider stages of three blocks each, with residuals, 75 epochs, TrivialAugment.

    Expected: test accuracy 96.53 ± 0.07 % (96.89 % with flip averaging) in 114 s of training on one NVIDIA H200, five
    seeds (benchmarks/results/cifar10-96-h200-2026-11-16.json). Compilation takes 41 s.
    Command: ``regard train cifar10-96``
    """
    return replace(
        _longer("cifar10-96", 75, Augmentation(crop=4, flip="alternate", trivial_augment=True)),
        network=AttentionPyramidSettings(widths=(256, 512, 768), depth=3, directions=8),
    )


@recipe
def cifar10_best() -> Recipe:
    """97 %: the network of ``cifar10-96``, 300 epochs, TrivialAugment and cutmix.

    Expected: test accuracy 97.23 ± 0.06 % (97.49 % with flip averaging) in 449 s of training on one NVIDIA H200, three
    seeds (benchmarks/results/cifar10-best-h200-2026-11-18.json). Compilation takes 35 s.
    Command: ``regard train cifar10-best``
    """
    return replace(
        _longer("cifar10-best", 300, Augmentation(crop=4, flip="alternate", cutmix=0.3, trivial_augment=True)),
        network=cifar10_96().network,
    )
