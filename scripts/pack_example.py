"""Make a small run that comes with the package out of a finished one.

    regard train cifar10-small
    python scripts/pack_example.py runs/cifar10-small
    regard train case-transformer --task.shortest 1 --task.longest 32
    python scripts/pack_example.py runs/case-transformer
    regard train induction
    python scripts/pack_example.py runs/induction

The network's weights in float16, without what training alone needs; the heads' trajectory and the metrics thinned; and,
for CIFAR-10, one image of each class from the test set. Everything else stays as the run wrote it.
"""

import argparse
import json
import shutil
from pathlib import Path

import torch
from PIL import Image

from regard import recipes
from regard.data import load
from regard.training import Checkpoints, differences, encode, load_run

SHIPPED = Path(__file__).parent.parent / "src" / "regard" / "views" / "shipped"
MOMENTS, STEPS = 100, 400

NOTICE = """\
images/: one image of each class from the test set of CIFAR-10 (A. Krizhevsky, Learning Multiple Layers of Features from
Tiny Images, 2009), to look at the network with. The network was trained on that data set's training images.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--output", type=Path, help="default: the package's folder, by the name of the recipe")
    options = parser.parse_args()
    run = load_run(options.run)
    output: Path = options.output or SHIPPED / run.recipe.name
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    shutil.copy(run.folder / "recipe.json", output)
    summary = dict(run.summary or {})
    changes = differences(encode(recipes.get(run.recipe.name)), encode(run.recipe))
    fields = [f"--{text.partition(': ')[0]} {text.rpartition(' and ')[2]}" for text in changes]
    summary["command"] = " ".join([f"regard train {run.recipe.name}", *fields])
    (output / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")

    checkpoint = run.checkpoint("last")
    tensors = {name: tensor for name, tensor in checkpoint.tensors.items() if name.startswith("network.")}
    half = {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    kept = ("step", "seconds", "compile_seconds", "evaluation", "recipe", "versions", "score")
    state = {name: checkpoint.state[name] for name in kept if name in checkpoint.state}
    Checkpoints(output / "checkpoints").save(state["step"], half, state)

    trajectory = run.folder / "heads.jsonl"
    if trajectory.exists():
        first, *moments = trajectory.read_text().splitlines()
        (output / "heads.jsonl").write_text("\n".join([first, *thinned(moments, MOMENTS)]) + "\n")

    lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    steps = set(thinned([line for line in lines if "validation_accuracy" not in line], STEPS))
    (output / "metrics.jsonl").write_text(
        "\n".join(line for line in lines if "validation_accuracy" in line or line in steps) + "\n"
    )
    if run.recipe.name == "cifar10-small":
        save_images(output)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    print(f"{output}: {size / 1e6:.2f} MB")


def save_images(output: Path) -> None:
    """One image of each class."""
    images = load("cifar10").test()
    (output / "images").mkdir()
    for label, name in enumerate(images.classes):
        index = int((images.labels == label).nonzero()[0])
        pixels = images.images[index].permute(1, 2, 0).to(torch.uint8).numpy()
        Image.fromarray(pixels).save(output / "images" / f"{name}-{index}.png", optimize=True)
    (output / "NOTICE").write_text(NOTICE)


def thinned(lines: list[str], most: int) -> list[str]:
    """At most so many, evenly, the first and the last among them."""
    if len(lines) <= most:
        return lines
    return [lines[round(i * (len(lines) - 1) / (most - 1))] for i in range(most)]


if __name__ == "__main__":
    main()
