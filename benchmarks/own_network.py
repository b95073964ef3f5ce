"""Gaussian heads in an existing network: a timm ViT and ConvNeXt blocks on Fashion-MNIST, before and after.

    python benchmarks/own_network.py                     # all four, about ten minutes of one core
    python benchmarks/own_network.py --smoke             # the embedded images and a few steps

``before`` is timm's own network. ``after`` has one line changed: the attention of each ViT block, or the depthwise
convolution of each ConvNeXt block, is a regard.GaussianAttention. Data, seeds, optimizer, schedule and steps are the same.
Times are of the process itself (one thread), so that other programs on the machine do not count.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import regard
from _measure import RESULTS, hardware, import_timm, positive, print_table, write_rows
from regard.data import Augmentation, AugmentedImages, Loader, load
from regard.models import TimmGaussianAttention
from regard.training import parameter_groups

BATCH = 128
VIT_DIM, VIT_HEADS, VIT_DEPTH = 48, 4, 3
WIDTHS = (32, 64)  # of the two stages of ConvNeXt blocks, on 14 × 14 and 7 × 7 positions


def vit(attention: Any = None) -> nn.Module:
    """timm's vision transformer for 28 × 28 images: 7 × 7 tokens, average pooling."""
    from timm.models.vision_transformer import VisionTransformer

    options = {} if attention is None else {"attn_layer": attention}
    heads = VIT_HEADS if attention is None else 16
    return VisionTransformer(
        img_size=28, patch_size=4, in_chans=1, num_classes=10, embed_dim=VIT_DIM, depth=VIT_DEPTH, num_heads=heads,
        mlp_ratio=2.0, class_token=False, global_pool="avg", **options,
    )  # fmt: skip


def convnext() -> nn.Module:
    """timm's ConvNeXt blocks, two on each of two resolutions."""
    from timm.layers import LayerNorm2d
    from timm.models.convnext import ConvNeXtBlock

    first, second = WIDTHS
    return nn.Sequential(
        nn.Conv2d(1, first, 2, stride=2), LayerNorm2d(first),
        ConvNeXtBlock(first, ls_init_value=None, mlp_ratio=2), ConvNeXtBlock(first, ls_init_value=None, mlp_ratio=2),
        LayerNorm2d(first), nn.Conv2d(first, second, 2, stride=2),
        ConvNeXtBlock(second, ls_init_value=None, mlp_ratio=2), ConvNeXtBlock(second, ls_init_value=None, mlp_ratio=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(second), nn.Linear(second, 10),
    )  # fmt: skip


def convnext_with_heads() -> nn.Module:
    """The same with 16 heads in the place of each depthwise convolution. They take its channels-first images as they are."""
    from timm.models.convnext import ConvNeXtBlock

    network = convnext()
    for block in network.modules():
        if isinstance(block, ConvNeXtBlock):
            block.conv_dw = regard.GaussianAttention(block.conv_dw.in_channels, heads=16, init="grid")
    return network


NETWORKS: dict[str, dict[str, Callable[[], nn.Module]]] = {
    "ViT": {"before": vit, "after": lambda: vit(TimmGaussianAttention)},
    "ConvNeXt": {"before": convnext, "after": convnext_with_heads},
}


def schedule(step: int, total: int) -> float:
    """Linear warm-up over a tenth of the steps, then a cosine."""
    warm = max(1, total // 10)
    return (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * (step - warm) / (total - warm)))


def train(network: nn.Module, images: AugmentedImages, seed: int, epochs: int) -> float:
    """Train, and return the seconds of processor time that it took."""
    loader = Loader(images, BATCH, seed=seed)
    total = epochs * len(loader)
    optimizer = torch.optim.AdamW(parameter_groups(network, 2e-3, weight_decay=0.05, center_factor=5.0))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: schedule(step, total))
    network.train()
    start = time.process_time()
    for step in range(total):
        batch = loader.batch(*divmod(step, len(loader)))
        loss = F.cross_entropy(network(batch.images), batch.labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    return time.process_time() - start


@torch.no_grad()
def accuracy(network: nn.Module, images: AugmentedImages) -> float:
    network.eval()
    loader = Loader(images, 500, shuffle=False, drop_last=False)
    right: list[Tensor] = [(network(b.images).argmax(-1) == b.labels).sum() for b in loader.epoch(0)]
    return float(torch.stack(right).sum()) / len(images)


@torch.no_grad()
def milliseconds(network: nn.Module, batch: int = 100, calls: int = 20) -> float:
    """Processor time of inference per 100 images, the median of some calls."""
    x, times = torch.randn(batch, 1, 28, 28), []
    network.eval()
    for _ in range(calls):
        start = time.process_time()
        network(x)
        times.append(time.process_time() - start)
    return 1000 * statistics.median(times)


def heads_of(network: nn.Module) -> dict[str, float]:
    """How far the heads have moved from where they started, and how sharp they are."""
    layers = [module for module in network.modules() if isinstance(module, regard.GaussianAttention)]
    if not layers:
        return {}
    start = [regard.GaussianAttention(each.dim, each.heads, init="grid").center for each in layers]
    moved = torch.cat([(each.center - begin).norm(dim=-1) for each, begin in zip(layers, start, strict=True)])
    sharpness = torch.cat([each.sharpness for each in layers])
    return {"moved": round(moved.median().item(), 3), "sharpness": round(sharpness.median().item(), 3)}


def row(kind: str, state: str, data: Any, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    network = NETWORKS[kind][state]()
    train_set, test_set = data.train, data.test()
    if options.smoke:
        train_set, test_set = train_set.select(torch.arange(2 * BATCH)), test_set.select(torch.arange(200))
    augmentation = Augmentation(crop=1, border="zeros", flip="random")
    seconds = train(network, AugmentedImages(train_set, augmentation), seed, options.epochs)
    return {
        "network": kind,
        "state": state,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "accuracy": round(accuracy(network, AugmentedImages(test_set)), 4),
        "train_seconds": round(seconds, 1),
        "inference_ms_per_100": round(milliseconds(network), 2),
        **heads_of(network),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--epochs", type=positive, default=2)
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--smoke", action="store_true", help="256 embedded images, one epoch, nothing written")
    parser.add_argument("--output", type=Path, help="result file; default results/own-network-cpu-<date>.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if import_timm() is None:
        raise SystemExit("this benchmark needs timm: pip install 'regard[parity]'")
    if options.smoke:
        options.epochs = 1
    data = load("fashion-mini" if options.smoke else "fashion-mnist", validation=0)
    rows: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for kind in options.networks:
            for state in NETWORKS[kind]:
                rows.append(row(kind, state, data, options, seed))
                print(rows[-1], flush=True)
    columns = ("network", "state", "seed", "parameters", "accuracy", "train_seconds", "inference_ms_per_100")
    print_table(rows, columns)
    if not options.smoke or options.output:
        path = options.output or RESULTS / f"own-network-cpu-{date.today().isoformat()}.json"
        print(write_rows("own-network", path, rows, hardware("cpu", 1), data=data.name, epochs=options.epochs))


if __name__ == "__main__":
    main()
