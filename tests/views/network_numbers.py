"""What torch computes with the shipped text networks, which the same networks in the browser are compared with.

``python tests/views/network_numbers.py`` writes ``frontend/test/networks.json`` anew.
"""

import json
from pathlib import Path
from typing import Any

import torch

from regard.training import load_run
from regard.views import shipped_run

FILE = Path(__file__).parents[2] / "frontend" / "test" / "networks.json"
SENTENCES = (("<U>", "I am a student"), ("<L>", "LOOK where You GO"), ("<U>", "x"))
TEXTS = ("the cat saw the c", "abcabcab", "z")


def numbers() -> dict[str, Any]:
    return {"case": [_case(*each) for each in SENTENCES], "induction": [_induction(text) for text in TEXTS]}


def _network(name: str) -> tuple[Any, Any]:
    run = load_run(shipped_run(name))
    return run.network().double().eval(), run.recipe.task


def _plain(tensor: torch.Tensor) -> Any:
    """Seven digits after the point: a thousandth of what the comparison allows."""
    return (tensor.mul(1e7).round() / 1e7).tolist()


@torch.no_grad()
def _case(marker: str, text: str) -> dict[str, Any]:
    """Scores and alignment where the decoder reads its own answer."""
    network, task = _network("case-transformer")
    sample = task.read_text(text, "upper" if marker == "<U>" else "lower")
    said = task.attend(network, sample).answer["said"]
    scores, maps = network(
        sample.batch.source, task.vocabulary.pad_together([said], begin=True)[0], return_weights=True
    )
    return {
        "marker": marker,
        "text": text,
        "said": said,
        "scores": _plain(scores[0, [0, -1]]),
        "encoder": _plain(maps.encoder[-1][0, :, -1]),
        "cross": _plain(maps.cross[-1][0, :, -1]),
    }


@torch.no_grad()
def _induction(text: str) -> dict[str, Any]:
    """Scores after the last letter and the map of the last layer, with all heads and with the first ones of both layers
    off: the columns of the output projection that read them are zero."""
    network, task = _network("induction")
    tokens = task.read_text(text, "").batch.tokens
    scores, maps = network(None, tokens, return_weights=True)
    for block in network.decoder:
        block.attention.output.weight[:, : block.attention.head_dim] = 0.0
    without = network(None, tokens)
    return {
        "text": text,
        "scores": _plain(scores[0, -1]),
        "without": _plain(without[0, -1]),
        "last": _plain(maps.decoder[-1][0, :, -1]),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(numbers(), ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    print("written to", FILE)
