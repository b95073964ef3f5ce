"""Converted networks in folders: the network they came from, what was done to it, and the weights since."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regard.convert._network import convert_network
from regard.convert._report import ConversionReport
from regard.models import Pretrained
from regard.support.files import write_atomic

CONVERSION, CONVERTED = "conversion.json", "converted.safetensors"


def save_converted(
    source: Pretrained, converted: nn.Module, report: ConversionReport, folder: str | os.PathLike[str]
) -> None:
    """Write a converted network to a folder that :func:`load_converted` reads. Nothing is pickled.

    The folder holds the source as ``save_pretrained`` writes it, ``conversion.json`` (what was done, and the report) and
    the converted network's own weights, which may have been trained on since.
    """
    from safetensors.torch import save

    path = Path(folder)
    source.save_pretrained(path)
    state = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in converted.state_dict().items()}
    write_atomic(path / CONVERTED, save(state))
    write_atomic(path / CONVERSION, json.dumps(report.to_dict(), indent=1, ensure_ascii=False) + "\n")


def load_converted(folder: str | os.PathLike[str]) -> nn.Module:
    """The network that :func:`save_converted` wrote, in evaluation mode."""
    from safetensors.torch import load_file

    path = Path(folder)
    for name in (CONVERSION, CONVERTED):
        if not (path / name).is_file():
            raise FileNotFoundError(f"{path} holds no converted network: {name} is missing")
    done: dict[str, Any] = json.loads((path / CONVERSION).read_text(encoding="utf-8"))
    with torch.no_grad():
        network, _ = convert_network(Pretrained.from_pretrained(path), done["to"], tolerance=done["tolerance"])
    network.load_state_dict(load_file(path / CONVERTED))
    return network.eval()
