"""What a run's network attends to: one pass over an image or a sentence, captured and made into a view's payload."""

import dataclasses
from typing import Any

import torch
from torch import nn

from regard.data import CaseTask, normalize
from regard.data._case import LOWER, UPPER
from regard.maps import Maps, capture
from regard.studio._errors import Refused
from regard.studio._images import Pixels
from regard.studio._models import Sentence
from regard.training import CaseConversion, ImageTask, MaskedLanguage, Run
from regard.training._pictures import attention_of
from regard.views import Payload, show

MOST_GUESSES = 5


@torch.no_grad()
def look_at_image(run: Run, network: nn.Module, taken: Pixels, shown: Pixels, about: dict[str, Any]) -> Payload:
    """Where each head looks in an image, with what the network takes it for."""
    task = run.recipe.task
    if not isinstance(task, ImageTask):
        raise Refused(409, f"the network of {run.recipe.name} does not look at images")
    data = task.data_set
    inputs = normalize(taken[None], data.mean, data.std)
    with capture(network) as maps:
        chances = network(inputs).float().softmax(-1)[0]
    _check_any(maps, run)
    best = chances.topk(min(MOST_GUESSES, len(chances)))
    guesses = [
        {"label": data.classes[at], "chance": chance}
        for chance, at in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]
    return _with(show(maps, image=shown).payload, {**about, "guesses": guesses})


def read_sentence(run: Run, network: nn.Module, typed: Sentence, about: dict[str, Any]) -> Payload:
    """What the network makes of a sentence: written in another case, or with its masked words guessed."""
    task = run.recipe.task
    try:
        if isinstance(task, CaseConversion):
            return _write_in_case(run, network, typed, about)
        if isinstance(task, MaskedLanguage):
            return _guess_words(run, network, task, typed.text, about)
    except ValueError as error:  # a character that the network does not know, a sentence that is too long for it
        raise Refused(400, str(error)) from error
    raise Refused(409, f"the network of {run.recipe.name} does not read sentences")


@torch.no_grad()
def _write_in_case(run: Run, network: nn.Module, typed: Sentence, about: dict[str, Any]) -> Payload:
    """Where it looked for each character that it wrote by itself."""
    vocabulary = CaseTask.vocabulary
    sentence = f"{UPPER if typed.task == 'upper' else LOWER} {typed.text}"
    answer = CaseTask().answer(sentence)
    source = torch.tensor([vocabulary.encode(sentence)])
    keep = torch.ones_like(source, dtype=torch.bool)
    begin = torch.full_like(source[:, :1], vocabulary.begin)
    generate: Any = network.generate
    # It may say more than there is to say, but not without end.
    said = generate(source, begin, tokens=len(answer) + 8, end=vocabulary.end, source_keep=keep)[0].tolist()
    if vocabulary.end in said:
        said = said[: said.index(vocabulary.end) + 1]
    told = torch.tensor([[vocabulary.begin, *said[:-1]]])
    maps = attention_of(network, source, told, source_keep=keep)
    _check_any(maps, run)
    words = vocabulary.tokens
    read, spoken, heard = (
        [words[number] for number in numbers] for numbers in (source[0].tolist(), said, told[0].tolist())
    )
    payload = show(maps, tokens=(read, spoken)).payload
    payload.meta["tokens"]["told"] = heard
    for layer in payload.meta["layers"]:
        # A decoder that looks back at itself sees what it was told, which is a step behind what it says.
        if layer["reads"] == "target":
            layer["reads"] = "told"
    written = vocabulary.decode(said)
    return _with(payload, {**about, "said": written, "answer": answer, "right": written == answer})


@torch.no_grad()
def _guess_words(run: Run, network: nn.Module, task: MaskedLanguage, text: str, about: dict[str, Any]) -> Payload:
    """Where it looked, and what it would put in place of each ``<mask>``."""
    vocabulary = task.vocabulary
    numbers = vocabulary.encode(text)
    if not numbers:
        raise ValueError("the sentence has no words")
    if len(numbers) > task.length:
        raise ValueError(
            f"the sentence has {len(numbers)} tokens, but the network was trained on {task.length} at a time"
        )
    source = torch.tensor([numbers])
    with capture(network) as maps:
        chances = network(source).float().softmax(-1)[0]
    _check_any(maps, run)
    guesses = []
    for at, number in enumerate(numbers):
        if number == vocabulary.mask:
            best = chances[at].topk(MOST_GUESSES)
            pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
            guesses.append([{"label": vocabulary.tokens[word], "chance": chance} for chance, word in pairs])
    tokens = [vocabulary.tokens[number] for number in numbers]
    return _with(show(maps, tokens=tokens).payload, {**about, "masked": guesses})


def _check_any(maps: Maps, run: Run) -> None:
    if not maps:
        missed = "; ".join(map(str, maps.missed))
        raise Refused(
            409, f"no attention was seen in the network of {run.recipe.name}" + (f": {missed}" if missed else "")
        )


def _with(payload: Payload, about: dict[str, Any]) -> Payload:
    """The same, telling the page more."""
    return dataclasses.replace(payload, meta={**payload.meta, "studio": about})
