"""Recipes on Fashion-MNIST, and the demo on the part of it that is inside the package."""

from dataclasses import replace
from typing import Any

from regard.data import Augmentation
from regard.recipes._names import recipe
from regard.training import (
    AdamWSettings,
    ImageEncoderSettings,
    ImageTask,
    Recipe,
    ScheduleSettings,
    VisionTransformerSettings,
)

AUGMENTATION = Augmentation(crop=2, border="zeros", flip="random")


@recipe
def demo() -> Recipe:
    """A small network of Gaussian heads on the 6,000 included images: what ``regard demo`` trains.

    Expected: test accuracy 81.0 % (1,000 images), with and without flip averaging; 50 s of training on two cores of an AMD
    EPYC, one seed (benchmarks/results/demo-cpu-2026-11-15.json).
    Command: ``regard demo``, or ``regard train demo`` for the training alone
    """
    return Recipe(
        "demo",
        ImageTask(
            "fashion-mini",
            validation=600,
            augmentation=Augmentation(crop=1, border="zeros", flip="random"),
            label_smoothing=0.1,
        ),
        ImageEncoderSettings(
            "gaussian", patch_size=4, dim=64, depth=3, heads=9, full_width=True, hidden=128, init="grid"
        ),
        AdamWSettings(4e-3, weight_decay=0.05, center_factor=5.0),
        ScheduleSettings(warm_up=0.1, decay="linear"),
        epochs=8,
        batch_size=64,
        clip=1.0,
    )


def _vit(pool: str, **network: Any) -> Recipe:
    return Recipe(
        f"fashion-vit-{pool}",
        ImageTask("fashion-mnist", augmentation=AUGMENTATION, label_smoothing=0.1),
        VisionTransformerSettings(patch_size=4, dim=64, depth=5, heads=4, hidden=128, pool=pool, **network),  # type: ignore[arg-type]
        AdamWSettings(1e-3, weight_decay=0.05),
        ScheduleSettings(warm_up=0.1, decay="cosine"),
        epochs=15,
        batch_size=128,
        clip=1.0,
    )


@recipe
def fashion_vit() -> Recipe:
    """A small vision transformer on Fashion-MNIST that computes the class from a class token.

    ``fashion-vit-average`` and ``fashion-vit-attention`` differ in the pooling alone.

    Expected: test accuracy 87.4 % (10,000 images), 87.6 % with flip averaging; 16 minutes on one thread of an AMD EPYC, one
    seed (benchmarks/results/fashion-vit-cpu-2026-11-15.json).
    Command: ``regard train fashion-vit``
    """
    return replace(_vit("class"), name="fashion-vit")


@recipe
def fashion_vit_average() -> Recipe:
    """``fashion-vit`` with the average of all tokens instead of a class token.

    Expected: test accuracy 86.4 % (10,000 images), 87.0 % with flip averaging; 17 minutes on one thread of an AMD EPYC, one
    seed (benchmarks/results/fashion-vit-average-cpu-2026-11-15.json).
    Command: ``regard train fashion-vit-average``
    """
    return _vit("average")


@recipe
def fashion_vit_attention() -> Recipe:
    """``fashion-vit`` with attention pooling, a learned query, instead of a class token.

    Expected: test accuracy 87.5 % (10,000 images), 87.6 % with flip averaging; 19 minutes on one thread of an AMD EPYC, one
    seed (benchmarks/results/fashion-vit-attention-cpu-2026-11-15.json).
    Command: ``regard train fashion-vit-attention``
    """
    return _vit("attention")


@recipe
def fashion_vit_placed() -> Recipe:
    """``fashion-vit`` with heads that look for content near a learned offset, instead of positions that are added.

    Expected: test accuracy 88.1 % (10,000 images), 88.4 % with flip averaging; 29 minutes of processor time on one thread
    of an AMD EPYC that other programs shared, one seed (benchmarks/results/fashion-vit-placed-cpu-2026-11-16.json).
    Command: ``regard train fashion-vit-placed``
    """
    return replace(_vit("class", positions="placed"), name="fashion-vit-placed")


@recipe
def fashion_gaussian() -> Recipe:
    """Gaussian heads that start at random positions, on Fashion-MNIST: watch them move.

    Expected: test accuracy 90.0 % (10,000 images), 90.2 % with flip averaging; 115 s of training on one NVIDIA H200
    that other runs shared, one seed (benchmarks/results/fashion-gaussian-h200-2026-11-15.json).
    Command: ``regard train fashion-gaussian``
    """
    return Recipe(
        "fashion-gaussian",
        ImageTask("fashion-mnist", augmentation=AUGMENTATION, label_smoothing=0.1),
        ImageEncoderSettings("gaussian", dim=72, depth=4, heads=9, full_width=True, hidden=144, init="normal"),
        AdamWSettings(2e-3, weight_decay=0.05, center_factor=5.0),
        ScheduleSettings(warm_up=0.1, decay="linear"),
        epochs=15,
        batch_size=128,
        clip=1.0,
    )
