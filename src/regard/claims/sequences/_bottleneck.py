"""One state for a whole sentence, and attention that does without: accuracy against length, trained here."""

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from regard import models
from regard.claims._claim import Effort, Evidence, holds
from regard.claims._pictures import curves
from regard.claims._training import fit


class BottleneckRuns(NamedTuple):
    """How large the runs are."""

    lengths: tuple[int, ...]
    steps: int
    tested: int


PLANS: dict[Effort, BottleneckRuns] = {
    "full": BottleneckRuns((2, 4, 8, 16, 24), 1500, 256),
    "smoke": BottleneckRuns((2, 3), 2, 8),
}


class Reading(NamedTuple):
    """What a trained model does at one length.

    Attributes: accuracy: share of letters that are right, decoding freely. alignment: where it looked while saying
    letter t, (steps, source tokens), averaged over sentences; None without attention. aligned: by shift s, the share
    of steps at which most weight lay on the source's letter t + s.
    """

    accuracy: float
    alignment: Tensor | None
    aligned: dict[int, float]


@cache
def read(attention: str, effort: Effort, hidden: int = 64) -> dict[int, Reading]:
    """Train a plain recurrent encoder–decoder for every length, on changing the case of sentences, and test it."""
    plan = PLANS[effort]
    return {length: _read(length, attention, hidden, plan) for length in plan.lengths}


def _read(length: int, attention: str, hidden: int, plan: BottleneckRuns) -> Reading:
    from regard.data import CaseTask

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(length)
        task = CaseTask(length)
        model = models.Seq2SeqRNN(len(task.vocabulary), dim=32, hidden=hidden, cell="rnn", attention=attention)

        def loss(step: int) -> Tensor:
            batch = task.batch(torch.arange(64), seed=length, epoch=step)
            return F.cross_entropy(model(batch.source, batch.target_input).flatten(0, 1), batch.target.flatten())

        fit(model, loss, steps=plan.steps, rate=3e-3)
    test = CaseTask(length, split="test").batch(torch.arange(plan.tested), seed=0, epoch=0)
    begin = test.target_input[:, :1]
    weights: Tensor | None = None
    decoded = model.generate(test.source, begin, tokens=length, return_weights=attention != "none")
    said, weights = decoded if isinstance(decoded, tuple) else (decoded, None)
    aligned = {}
    if weights is not None:
        first = test.source.shape[1] - length  # after the task's token and a space
        place = torch.arange(length) + first
        aligned = {shift: float((weights.argmax(-1) == place + shift).double().mean()) for shift in (-1, 0, 1)}
        weights = weights.mean(0)
    right = torch.eq(said, test.target[:, :length])
    return Reading(float(right.double().mean()), weights, aligned)


def _lines(effort: Effort) -> dict[str, tuple[list[float], list[float]]]:
    names = {"with attention": "dot", "one state, width 64": "none"}
    found = {name: read(attention, effort) for name, attention in names.items()}
    return {name: (list(map(float, by)), [x.accuracy for x in by.values()]) for name, by in found.items()}


@holds(
    "e182-bottleneck",
    "question 1 (b)",
    says="none",
    mutant=("it fails with attention, too", "dot"),
    slow=True,
)
def bottleneck(attention: str, effort: Effort = "full") -> Evidence:
    r"""A plain recurrent encoder–decoder has to squeeze the whole sentence into one state, and fails as sentences
    grow.

    The decoder starts from $h_T$ and sees nothing else of the source (e182-gradient-path). The state has a fixed
    width, but the sentence does not have a fixed length, and each step of the encoder overwrites part of the state.
    The check trains a model for each length, on changing the case of sentences, with the same budget, and decodes
    freely: nearly all letters are right at length 2, and no more than a fifth at the greatest length. (How far one
    state reaches depends on its width and on the training, which are the same for all lengths here.)
    """
    found = read(attention, effort)
    lengths = list(found)
    accuracies = [found[length].accuracy for length in lengths]
    falls = accuracies[0] > 0.9 and accuracies[-1] < 0.2 and accuracies[-1] < accuracies[len(lengths) // 2] + 0.02
    line = ", ".join(f"{a:.0%} at length {n}" for n, a in zip(lengths, accuracies, strict=True))
    numbers = {"lengths": lengths, "accuracy": accuracies, "steps": PLANS[effort].steps}
    title = "Letters right, decoding freely"
    return Evidence(
        falls, f"letters right: {line}", numbers, "" if falls else line,
        curves(title, "letters in a sentence", "accuracy", _lines(effort), marks=True),
    )  # fmt: skip


@holds(
    "e182-attention-bypass",
    "question 1 (d), ii and iii",
    says=0,
    mutant=("its scores find the next index", 1),
    slow=True,
)
def attention_bypass(shift: int, effort: Effort = "full") -> Evidence:
    r"""Attention removes that limit: the decoder looks the letter up, and its scores find the token at the same
    index.

    With attention the decoder mixes the encoder's states with weights of its own at every step, so no state has to
    hold more than its own letter and place. The check trains the same models with dot-product attention: at lengths
    where one state fails, most letters are right, and while saying letter $t$ most weight lies on the source's letter
    $t$. (Longer sentences need longer training to learn the alignment; the budget is the same for all.)
    """
    found, without = read("dot", effort), read("none", effort)
    lengths = list(found)
    # Where one state is enough, nothing asks for an alignment.
    hard = [n for n in lengths if without[n].accuracy < 0.75]
    wins = bool(hard) and all(found[n].accuracy > 0.9 for n in lengths)
    aligned = [found[n].aligned[shift] for n in lengths]
    same = min((found[n].aligned[shift] for n in hard), default=0.0) > 0.75
    at = f"index t{f' + {shift}' if shift else ''}"
    line = ", ".join(
        f"{found[n].accuracy:.0%} ({a:.0%} on {at}) at length {n}" for n, a in zip(lengths, aligned, strict=True)
    )
    numbers = {
        "lengths": lengths,
        "accuracy": [found[n].accuracy for n in lengths],
        "accuracy_with_one_state": [without[n].accuracy for n in lengths],
        "most_weight_on_that_index": aligned,
    }
    title = "Letters right, decoding freely"
    return Evidence(
        wins and same, f"letters right: {line}", numbers, "" if wins and same else line,
        curves(title, "letters in a sentence", "accuracy", _lines(effort), marks=True),
    )  # fmt: skip
