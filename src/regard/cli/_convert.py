"""``regard convert``: convert a trained network from convolution to attention, or from attention to convolution."""

import argparse
import json
import sys
from pathlib import Path

import torch
from torch import nn

from regard.cli._moved_images import add_data_option, open_run
from regard.convert import convert_network, load_converted, save_converted
from regard.models import Pretrained
from regard.support.checks import check_positive
from regard.support.files import check_folder, check_writable, write_output


def run(arguments: list[str]) -> int:
    """Run the command and return its exit code: 1 also if a measured error is beyond its certified bound."""
    parser = argparse.ArgumentParser(
        prog="regard convert",
        description="Convert a network in closed form. Print each layer's conversion, error bound, measured error and cost.",
    )
    parser.add_argument(
        "checkpoint", type=Path, help="a folder written by save_pretrained, by training, or by an earlier conversion"
    )
    parser.add_argument(
        "--to", choices=("attention", "convolution"), default="attention", help="what to convert to; default attention"
    )
    parser.add_argument(
        "--tolerance",
        type=float,
        help="largest leak: how far, in L1, a head's row of weights may be from an exact shift (default 1e-9 to attention, "
        "1e-3 to convolution)",
    )
    parser.add_argument(
        "--input",
        type=int,
        nargs="+",
        metavar="SIZE",
        help="measure errors on a random input of this shape, such as 3 32 32",
    )
    parser.add_argument(
        "--output", type=Path, help="save the converted network here (load it with regard.convert.load_converted)"
    )
    parser.add_argument("--json", type=Path, help="write the report here as JSON")
    add_data_option(parser)
    options = parser.parse_args(arguments)
    for size in options.input or ():
        check_positive("--input", size)
    if options.json:
        check_writable("--json", options.json)
    if options.output:
        check_folder("--output", options.output)
    try:
        model = load(options.checkpoint, options.data)
        if options.output:
            check_output(options.checkpoint, model, options.output)
        example = None if options.input is None else torch.randn(1, *options.input)
        converted, report = convert_network(model, options.to, tolerance=options.tolerance, example=example)
    except (TypeError, RuntimeError) as error:  # from the network's own code
        print(f"regard convert: {error}", file=sys.stderr)
        return 1
    print(report)
    if example is not None:
        with torch.no_grad():
            before, after = model(example), converted(example)
        print(f"the output of the whole network differs by {apart(before, after)}")
    if options.json:
        write_output(options.json, json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")
    if options.output and isinstance(model, Pretrained):
        save_converted(model, converted, report, options.output)
        print(f"saved to {options.output}; load it with regard.convert.load_converted({str(options.output)!r})")
    return 1 if report.beyond else 0


def apart(before: torch.Tensor, after: torch.Tensor) -> str:
    """The largest difference in words, relative to the largest value unless all are zero."""
    difference, largest = (after - before).abs().max().item(), before.abs().max().item()
    if largest == 0:
        return f"{difference:.1e}; before, all its values were zero"
    return f"{difference / largest:.1e}, relative to its largest value"


def load(folder: Path, data: str | None = None) -> nn.Module:
    """The model in a folder of save_pretrained or of a conversion, or the trained network of a run."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; pass a folder written by save_pretrained or by training")
    if data is not None and not is_run(folder):
        raise ValueError(f"--task.data is for the folder of a run, which {folder} is not: leave it out")
    if is_converted(folder):
        return load_converted(folder)
    if (folder / "config.json").is_file() and not is_run(folder):
        return Pretrained.from_pretrained(folder)
    return open_run(folder, data).network().eval()


def is_converted(folder: Path) -> bool:
    return (folder / "conversion.json").is_file() and not is_run(folder)


def is_run(folder: Path) -> bool:
    return (folder / "recipe.json").is_file()


def check_output(source: Path, model: nn.Module, output: Path) -> None:
    """Refuse to save where it would take the place of something, or what no folder could bring back."""
    if is_run(output):
        raise ValueError(
            f"--output {output} is the folder of a run, which would then hold two networks: choose another"
        )
    if output.exists() and any(output.iterdir()) and not is_converted(output):
        raise ValueError(
            f"--output {output} holds something other than an earlier conversion, which would be overwritten: choose "
            "another folder"
        )
    if is_converted(source):
        raise ValueError(
            f"--output saves what a first conversion gives, but {source} holds a converted network already"
        )
    if not isinstance(model, Pretrained):
        raise ValueError(
            f"--output needs a network that can be saved without its code, a subclass of regard.models.Pretrained, but "
            f"that of {source} is a {type(model).__name__}; without --output the report is printed"
        )
