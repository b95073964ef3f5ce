"""``regard convert``: convert a trained network from convolution to attention, or from attention to convolution."""

import argparse
import json
import sys
from pathlib import Path
from typing import cast

import torch

from regard.convert import convert_network, save_converted
from regard.models import Pretrained
from regard.support.checks import UnusableInputError


def run(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="regard convert",
        description="Convert a network in closed form. Print each layer's conversion, error bound, measured error and cost.",
    )
    parser.add_argument("checkpoint", type=Path, help="a folder written by save_pretrained or by training")
    parser.add_argument("--to", choices=("attention", "convolution"), default="attention")
    parser.add_argument(
        "--tolerance", type=float, help="largest leak of a layer (default 1e-9 to attention, 1e-3 to convolution)"
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
    options = parser.parse_args(arguments)
    try:
        model = load(options.checkpoint)
        example = None if options.input is None else torch.randn(1, *options.input)
        converted, report = convert_network(model, options.to, tolerance=options.tolerance, example=example)
    except UnusableInputError:
        raise
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        print(f"regard convert: {error}", file=sys.stderr)
        return 1
    print(report)
    if example is not None:
        with torch.no_grad():
            before, after = model(example), converted(example)
        apart = ((after - before).abs().max() / before.abs().max()).item()
        print(f"the output of the whole network differs by {apart:.1e}, relative to its largest value")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if options.output:
        save_converted(model, converted, report, options.output)
        print(f"saved to {options.output}; load it with regard.convert.load_converted({str(options.output)!r})")
    return 0


def load(folder: Path) -> Pretrained:
    """The model in a folder of save_pretrained, or the trained network of a run."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; pass a folder written by save_pretrained or by training")
    if (folder / "config.json").is_file():
        return Pretrained.from_pretrained(folder)
    from regard.training import load_run

    return cast(Pretrained, load_run(folder).network()).eval()
