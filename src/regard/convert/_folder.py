"""Converted networks in folders: the source network, the conversion's settings and report, and the current weights."""

import json
import os
from pathlib import Path

import torch
from torch import nn

from regard.convert._network import convert_network
from regard.convert._report import ConversionReport
from regard.models import Pretrained
from regard.support.building import differing_shapes, shapes_of
from regard.support.checks import check_path
from regard.support.files import write_atomic
from regard.support.reading import read_object

CONVERSION, CONVERTED = "conversion.json", "converted.safetensors"


def save_converted(
    source: Pretrained, converted: nn.Module, report: ConversionReport, folder: str | os.PathLike[str]
) -> None:
    """Write a converted network to a folder that :func:`load_converted` reads. Nothing is pickled.

    The folder holds the source as ``save_pretrained`` writes it, ``conversion.json`` (what was done, and the report) and
    the converted network's own weights, which may have been trained further.
    """
    from safetensors.torch import save

    path = Path(folder)
    source.save_pretrained(path)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in converted.state_dict().items()}
    write_atomic(path / CONVERTED, save(state))
    write_atomic(path / CONVERSION, json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")


def load_converted(folder: str | os.PathLike[str]) -> nn.Module:
    """The network that :func:`save_converted` wrote, in evaluation mode."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    check_path("folder", folder)
    path = Path(folder)
    for name in (CONVERSION, CONVERTED):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} holds no converted network: {name} is missing")
    done = read_object(path / CONVERSION, finite=False)
    if missing := {"to", "tolerance"} - done.keys():
        raise ValueError(f"{path / CONVERSION} does not say {', '.join(sorted(missing))}")
    with torch.no_grad():
        network, _ = convert_network(Pretrained.from_pretrained(path), done["to"], tolerance=done["tolerance"])
    try:
        state = load_file(path / CONVERTED)
    except SafetensorError as error:
        raise ValueError(f"{path / CONVERTED} is damaged: {error}") from None
    if wrong := differing_shapes(shapes_of(state), shapes_of(network.state_dict())):
        raise ValueError(f"{path / CONVERTED} does not fit the network that was converted: {wrong}")
    network.load_state_dict(state)
    return network.eval()
