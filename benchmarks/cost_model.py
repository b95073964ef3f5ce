"""What would training cost on ImageNet-size and video-size grids, on 1, 8 and 64 GPUs? Predicted, not measured.

    python benchmarks/cost_model.py               # prints the table and writes results/cost-model.json
    python benchmarks/cost_model.py --check       # compares the model with measured rows that it was not made from

Multiply-adds come from ``regard.cost`` (on the meta device: nothing is computed), rates from measured rows under
results/, and all other values are in ``ASSUMPTIONS``. Seconds for one sample on one GPU, forward and backward:

    linear layers   6 · multiply-adds / (peak · efficiency of a measured training)
    dense           6 · multiply-adds / rate  +  bytes of the N×N matrices / rate, once per call   (two measured rows)
    separable       passes · bytes of the values / rate                                            (one measured row)
    content, fused  7 · multiply-adds / rate                                                       (one measured row)

For one step on n GPUs: the local samples one after the other, then the all-reduce of the gradients, without overlap.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

import regard
from _measure import RESULTS, print_table
from regard.functional import DENSE_TOKENS
from regard.layers import EncoderBlock, GaussianAttention, MultiHeadAttention

HEADS, WIDTH, DIM, HIDDEN, DEPTH, CLASSES = 9, 64, 384, 1536, 12, 1000
GPUS = (1, 8, 64)
CIFAR_IMAGES = 50_000
WAYS = ("separable", "dense", "content, fused")


@dataclass(frozen=True)
class Assumptions:
    """What is neither counted nor measured here.

    Attributes:
        peak: bfloat16 multiply-adds count as two operations; operations in a second of one H200, without sparsity.
        memory: bytes of one GPU.
        gpus_per_node: within a node gradients travel over NVLink, between nodes over one network card per GPU.
        node_bandwidth, network_bandwidth: bytes in a second and direction, of one GPU (450 GB/s, 400 Gbit/s).
        link_efficiency: the share of those that an all-reduce reaches.
        gradient_bytes: of one parameter (float32, as DDP sends them).
        tokens_per_call: samples are taken together until there are about so many tokens, as in the measured rows.
        matrix_bytes: kept for the backward pass for each entry of an N×N matrix: float32 and bfloat16.
    """

    peak: float = 989e12
    memory: float = 141e9
    gpus_per_node: int = 8
    node_bandwidth: float = 450e9
    network_bandwidth: float = 50e9
    link_efficiency: float = 0.7
    gradient_bytes: int = 4
    tokens_per_call: int = 131072
    matrix_bytes: int = 6


ASSUMPTIONS = Assumptions()


@dataclass(frozen=True)
class Workload:
    """Samples of an epoch, cut into a grid of tokens, and samples in a step over all GPUs together."""

    name: str
    samples: int
    grid: tuple[int, ...]
    batch: int

    @property
    def tokens(self) -> int:
        return math.prod(self.grid)


WORKLOADS = (
    Workload("ImageNet-size, 224² pixels in 16² squares", 1_281_167, (14, 14), 1024),
    Workload("ImageNet-size, 224² pixels in 4² squares", 1_281_167, (56, 56), 1024),
    Workload("ImageNet-size, 224² pixels in 2² squares", 1_281_167, (112, 112), 1024),
    Workload("video-size, 16 frames of 14² squares", 240_000, (16, 14, 14), 256),
    Workload("video-size, 16 frames of 56² squares", 240_000, (16, 56, 56), 256),
)


@dataclass(frozen=True)
class Rates:
    """What the measured rows say.

    Attributes:
        linear: operations in a second of the linear layers of a network in training, everything else included.
        dense_products: operations in a second of the dense way's products.
        dense_matrices: bytes of N×N matrices (float32) that the dense way builds and differentiates in a second.
        separable: bytes of values that one pass takes through forward and backward in a second.
        fused: operations in a second of the fused kernel without a bias.
    """

    linear: float
    dense_products: float
    dense_matrices: float
    separable: float
    fused: float


class Network(nn.Module):
    """Tokens of any grid through blocks of attention and feed-forward networks, as in the CIFAR recipes but deeper."""

    def __init__(self, grid: Sequence[int], way: str, depth: int = DEPTH) -> None:
        super().__init__()
        self.grid, self.by_place = tuple(grid), way != "content, fused"
        blocks = []
        for _ in range(depth):
            attention: Any
            if self.by_place:
                attention = GaussianAttention(DIM, HEADS, head_dim=WIDTH, axes=len(grid))
                attention.plan = way
            else:
                attention = MultiHeadAttention(DIM, HEADS, head_dim=WIDTH)
            blocks.append(EncoderBlock(DIM, hidden=HIDDEN, attention=attention))
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(DIM, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x, grid=self.grid) if self.by_place else block(x)
        return self.head(x.mean(1))


def count(grid: Sequence[int], way: str, depth: int = DEPTH) -> tuple[int, int, int]:
    """Multiply-adds of one sample's forward pass in all and in the mixing of tokens alone, and parameters.

    All blocks cost the same, so one of them is counted.
    """
    with torch.device("meta"):
        network = Network(grid, way, 1)
    found = regard.cost(network, (1, math.prod(grid), DIM))
    block, head = found["blocks.0"], found["head"]
    linear = sum(row.multiply_adds for row in found.rows if row.kind == "Linear") - head.multiply_adds
    return (
        depth * block.multiply_adds + head.multiply_adds,
        depth * (block.multiply_adds - linear),
        depth * block.parameters + head.parameters,
    )


# ---- rates, from measured rows


def measured(results: Path = RESULTS) -> tuple[dict[str, Any], dict[str, Any]]:
    """The latest measurement of Gaussian attention on all grids and the latest training run that fit, both on an H200."""
    files = [{**json.loads(path.read_text("utf-8")), "file": path.name} for path in sorted(results.glob("*.json"))]
    here = sorted((found for found in files if "H200" in found.get("hardware", "")), key=lambda found: found["date"])
    # Of runs over fewer grids there are too few rows left to check the rates with.
    gaussian = [found for found in here if found.get("benchmark") == "gaussian" and len(found["rows"]) >= 5]
    trained = [found for found in here if "recipe" in found and _same_network(found)]
    if not gaussian or not trained:
        raise FileNotFoundError(
            f"{results} needs a run of benchmarks/gaussian.py on an H200, and a training run there of a recipe whose "
            f"network is still the same: regard train cifar10-transformer --result FILE"
        )
    return gaussian[-1], trained[-1]


def _same_network(found: Mapping[str, Any]) -> bool:
    """Whether it is about CIFAR-10 and Gaussian heads, by a recipe that still makes the network that was trained, alone on
    its GPU. The post-norm blocks of the 2020 paper are left out: the model counts others."""
    if found["recipe"] not in regard.recipes.names() or None in found.get("train_seconds", [None]):
        return False
    network, parameters = _recipe_network(found["recipe"])
    data = getattr(regard.recipes.get(found["recipe"]).task, "data", "")
    gaussian = getattr(network, "attention_kind", "") == "gaussian" and hasattr(network.blocks[0].attention, "heads")
    return data == "cifar10" and gaussian and parameters == found["parameters"] and _images(found) > 0


def _images(found: Mapping[str, Any]) -> int:
    """How many images the network was shown in training, each time counted; 0 where the file does not say."""
    recipe = regard.recipes.get(found["recipe"])
    log = found.get("log") or [{}]
    lines = log[0] if isinstance(log[0], list) else log  # a log for each seed, or for the only one
    last = lines[-1] if lines else {}
    if "step" in last:
        return int(last["step"]) * recipe.batch_size
    return int(last.get("epoch", 0)) * (CIFAR_IMAGES - recipe.task.data_set.validation_count)


def _recipe_network(name: str) -> tuple[nn.Module, int]:
    recipe = regard.recipes.get(name)
    if recipe.task.image_shape is None:
        return nn.Identity(), 0
    network = recipe.network.build(recipe.task)
    return network, sum(parameter.numel() for parameter in network.parameters())


def rates(gaussian: Mapping[str, Any], trained: Mapping[str, Any]) -> Rates:
    """From the two largest grids that the dense way was measured on, and one for each of the others."""
    rows = {int(row["grid"][:-1]): row for row in gaussian["rows"]}
    tokens, features = gaussian["tokens_in_all"], gaussian["heads"] * gaussian["width"]

    def seconds(side: int, way: str) -> float:
        return rows[side][way] / 1000

    known = sorted(side for side, row in rows.items() if isinstance(row.get("dense"), int | float))[-2:]
    # seconds = products / x + matrices / y: two rows, two unknowns
    system = torch.tensor(
        [[6.0 * side**2 * tokens * features, 4.0 * gaussian["heads"] * side**4] for side in known], dtype=torch.float64
    )
    inverse = torch.linalg.solve(system, torch.tensor([seconds(side, "dense") for side in known], dtype=torch.float64))
    if not bool((inverse > 0).all()):
        raise ValueError(f"the rows {known} of {gaussian['file']} do not fit the model of the dense way")
    side = known[-1]
    fused = 14.0 * side**2 * tokens * features / seconds(side, "flash")
    separable = 2 * 2.0 * tokens * features / seconds(side, "ours")
    found = Rates(0.0, 1 / inverse[0].item(), 1 / inverse[1].item(), separable, fused)
    return Rates(**{**asdict(found), "linear": _linear_rate(trained, found)})


def _linear_rate(trained: Mapping[str, Any], found: Rates) -> float:
    """Of a network in training: what the attention of its grid takes, as predicted, is taken away first."""
    recipe = regard.recipes.get(trained["recipe"])
    network, _ = _recipe_network(trained["recipe"])
    cost = regard.cost(network, (1, *recipe.task.image_shape))
    linear = sum(row.multiply_adds for row in cost.rows if row.kind == "Linear")
    grid, depth = network.grid, len(network.blocks)
    heads, width = network.blocks[0].attention.heads, network.blocks[0].attention.head_dim
    attention = depth * min(
        attention_seconds(way, grid, heads * width, heads, found, recipe.batch_size) for way in ("separable", "dense")
    )
    each = sum(trained["train_seconds"]) / len(trained["train_seconds"]) / _images(trained)
    if each <= attention:
        raise ValueError(f"{trained['file']} leaves no time for linear layers: {each:.2e} s of {attention:.2e} s")
    return 6 * linear / (each - attention)


# ---- the model


def attention_seconds(way: str, grid: Sequence[int], features: int, heads: int, found: Rates, batch: int) -> float:
    """Mixing of tokens in one layer, forward and backward, for one sample of a batch on one GPU."""
    tokens = math.prod(grid)
    if way == "separable":
        passes = len(grid) * 2.0 * tokens * features  # bytes of bfloat16 values, once for each axis
        products = 6.0 * tokens * features * sum(grid)
        return max(passes / found.separable, products / ASSUMPTIONS.peak)
    if way == "content, fused":
        return 14.0 * tokens**2 * features / found.fused
    together = max(1, min(batch, ASSUMPTIONS.tokens_per_call // tokens))
    matrices = 4.0 * heads * tokens**2 / found.dense_matrices / together
    return 6.0 * tokens**2 * features / found.dense_products + matrices


def fits(way: str, grid: Sequence[int], depth: int = DEPTH) -> bool:
    """Whether the N×N matrices that a backward pass needs fit into one GPU. More GPUs do not help: each needs all."""
    matrices = depth * HEADS * math.prod(grid) ** 2 * ASSUMPTIONS.matrix_bytes if way == "dense" else 0
    return matrices < ASSUMPTIONS.memory


def all_reduce_seconds(parameters: int, gpus: int) -> float:
    """A ring within each node, then one between nodes in which every GPU has its own share of the gradients."""
    size = parameters * ASSUMPTIONS.gradient_bytes
    inside = min(gpus, ASSUMPTIONS.gpus_per_node)
    nodes = gpus // inside
    within = 2 * (inside - 1) / inside * size / ASSUMPTIONS.node_bandwidth
    between = 2 * (nodes - 1) / nodes * size / inside / ASSUMPTIONS.network_bandwidth
    return (within + between) / ASSUMPTIONS.link_efficiency


def predict(workload: Workload, way: str, found: Rates) -> dict[str, Any]:
    """One row of the table."""
    whole, mixing, parameters = count(workload.grid, way)
    row: dict[str, Any] = {
        "workload": workload.name, "samples": workload.samples, "batch": workload.batch, "grid": list(workload.grid),
        "tokens": workload.tokens, "attention": way, "multiply_adds": whole, "mixing_multiply_adds": mixing,
        "parameters": parameters, "epoch_seconds": {}, "all_reduce_seconds": {},
    }  # fmt: skip
    for gpus in GPUS:
        local = workload.batch // gpus
        mix = attention_seconds(way, workload.grid, HEADS * WIDTH, HEADS, found, local)
        sample = DEPTH * mix + 6 * (whole - mixing) / found.linear
        reduce = all_reduce_seconds(parameters, gpus)
        steps = workload.samples / workload.batch
        possible = fits(way, workload.grid)
        row["epoch_seconds"][str(gpus)] = round(steps * (local * sample + reduce), 2) if possible else None
        row["all_reduce_seconds"][str(gpus)] = round(reduce, 6)
        row["attention_share"] = round(DEPTH * mix / sample, 3)
    return row


def checks(gaussian: Mapping[str, Any], found: Rates) -> list[dict[str, Any]]:
    """Predicted beside measured milliseconds, on every grid; those the rates were taken from are marked."""
    tokens, features = gaussian["tokens_in_all"], gaussian["heads"] * gaussian["width"]
    used = sorted(int(row["grid"][:-1]) for row in gaussian["rows"] if isinstance(row.get("dense"), int | float))[-2:]
    names = {"dense": "dense", "separable": "ours", "content, fused": "flash"}
    rows = []
    for row in gaussian["rows"]:
        side = int(row["grid"][:-1])
        for way, column in names.items():
            plan_is_dense = (
                way == "separable" and side**2 <= DENSE_TOKENS["cuda"]
            )  # there plan="auto" takes the dense way
            if not isinstance(row.get(column), int | float) or plan_is_dense:
                continue
            batch = max(1, tokens // side**2)
            predicted = 1000 * batch * attention_seconds(way, (side, side), features, gaussian["heads"], found, batch)
            source = side in used if way == "dense" else side == used[-1]
            rows.append(
                {"grid": row["grid"], "way": way, "predicted": round(predicted, 3), "measured": row[column],
                 "ratio": round(predicted / row[column], 3), "used": source}
            )  # fmt: skip
    return rows


def result() -> dict[str, Any]:
    """Everything that goes into the file."""
    gaussian, trained = measured()
    found = rates(gaussian, trained)
    return {
        "benchmark": "cost-model",
        "date": max(gaussian["date"], trained["date"]),
        "hardware": "predicted, from NVIDIA H200",
        "command": "python benchmarks/cost_model.py",
        "rates_from": [gaussian["file"], trained["file"]],
        "rates": {name: float(f"{value:.5g}") for name, value in asdict(found).items()},
        "share_of_peak": {
            name: round(getattr(found, name) / ASSUMPTIONS.peak, 3) for name in ("linear", "dense_products", "fused")
        },
        "assumptions": asdict(ASSUMPTIONS),
        "network": {"dim": DIM, "depth": DEPTH, "heads": HEADS, "head_dim": WIDTH, "hidden": HIDDEN},
        "gpus": list(GPUS),
        "checks": checks(gaussian, found),
        "rows": [predict(workload, way, found) for workload in WORKLOADS for way in WAYS],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="print predicted next to measured milliseconds")
    parser.add_argument("--output", type=Path, default=RESULTS / "cost-model.json")
    options = parser.parse_args(arguments)
    made = result()
    if options.check:
        print_table(made["checks"], ["grid", "way", "predicted", "measured", "ratio", "used"])
        return
    rows = [
        {**row, "grid": "×".join(map(str, row["grid"])), "G multiply-adds": row["multiply_adds"] / 1e9,
         **{f"{n} GPU": row["epoch_seconds"][str(n)] for n in GPUS}}
        for row in made["rows"]
    ]  # fmt: skip
    print("seconds of one epoch, predicted")
    print_table(rows, ["workload", "grid", "attention", "G multiply-adds", *(f"{n} GPU" for n in GPUS)])
    options.output.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(options.output, f"({date.today().isoformat()})", file=sys.stderr)


if __name__ == "__main__":
    main()
