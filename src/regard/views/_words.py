"""Names of tokens from a tokenizer and ids, and subwords merged into words."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from regard.maps import AttentionRecord, Map, Maps
from regard.support.checks import describe, is_functional
from regard.views._byte_tokens import END, is_byte, is_byte_level, joined, readable
from regard.views._generations import shown_calls

_STARTS = ("Ġ", "▁", "Ċ")  # marks of the beginning of a word, in byte-level BPE and SentencePiece
_INSIDE = "##"  # the beginning of a token that continues a word, in WordPiece
_GOES_ON = "@@"  # the end of a token whose word goes on, in the BPE of subword-nmt


def tokens_of(tokenizer: Any, ids: Any, sample: int = 0) -> list[str]:
    """The tokens of one sample, with the tokenizer's marks of the beginning of words, and with characters instead of bytes."""
    numbers = one_sample(ids, sample)
    decode = getattr(tokenizer, "decode", None)
    decode = decode if callable(decode) else None
    spell = getattr(tokenizer, "convert_ids_to_tokens", None)
    single = getattr(tokenizer, "id_to_token", None)  # the tokenizers library
    if not callable(spell) and callable(single):
        spell = partial(map, single)
    if callable(spell):
        tokens = [str(token) for token in spell(numbers)]
        return readable(tokens, is_byte_level=is_byte_level(decode, numbers, tokens))
    if decode is not None:
        return [str(decode([number])) for number in numbers]
    raise TypeError(f"tokenizer must have convert_ids_to_tokens, id_to_token or decode, got {describe(tokenizer)}")


def one_sample(ids: Any, sample: int) -> list[int]:
    """The ids of one sample, from ``(tokens,)`` or ``(batch, tokens)``."""
    try:
        numbers = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"ids must be whole numbers (batch, tokens), got {describe(ids)}") from error
    if numbers.ndim not in (1, 2) or numbers.is_floating_point() or numbers.is_complex() or is_functional(numbers):
        raise ValueError(f"ids must be whole numbers (tokens,) or (batch, tokens), got {describe(ids)}")
    if numbers.ndim == 2:
        if not -len(numbers) <= sample < len(numbers):
            raise ValueError(f"ids has shape {tuple(numbers.shape)}, but sample is {sample}")
        numbers = numbers[sample]
    return [int(number) for number in numbers.tolist()]


def word_groups(tokens: Sequence[str]) -> list[list[int]]:
    """Which tokens make a word, by the marks of the tokenizer: ``##`` continues one (WordPiece), ``Ġ`` and ``▁`` begin
    one, ``</w>`` ends one (CLIP), and ``@@`` is where one goes on. Special tokens stay alone.

    >>> word_groups(["[CLS]", "un", "##believ", "##able", "story"])
    [[0], [1, 2, 3], [4]]
    >>> word_groups(["▁un", "believ", "able", "▁story", "</s>"])
    [[0, 1, 2], [3], [4]]
    >>> word_groups(["<|startoftext|>", "un", "believ", "able</w>", "story</w>"])
    [[0], [1, 2, 3], [4]]
    >>> word_groups(["un@@", "believ@@", "able", "story"])
    [[0, 1, 2], [3]]
    """
    goes_on = _continued(tokens)
    groups: list[list[int]] = []
    for place, token in enumerate(tokens):
        alone = not place or _is_special(token) or _is_special(tokens[place - 1])
        if groups and goes_on[place] and not alone:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _continued(tokens: Sequence[str]) -> list[bool]:
    """Whether each token continues the word of the token before it."""
    mark = _mark_of(tokens)
    if mark == _INSIDE:
        return [token.startswith(_INSIDE) for token in tokens]
    if mark == END:
        return [False, *(not token.endswith(END) for token in tokens[:-1])]
    if mark == _GOES_ON:
        return [False, *(token.endswith(_GOES_ON) for token in tokens[:-1])]
    return [not (token.startswith(_STARTS) or token[:1].isspace()) for token in tokens]


def _mark_of(tokens: Sequence[str]) -> str:
    """The subword mark of a tokenizer."""
    if any(token.startswith(_INSIDE) for token in tokens):
        return _INSIDE
    if any(token.startswith(_STARTS) for token in tokens):
        return _STARTS[0]
    for mark in (END, _GOES_ON):
        if any(token.endswith(mark) for token in tokens):
            return mark
    raise ValueError("words=True needs tokens with subword marks (##, Ġ, ▁, </w> or @@), but no token has one")


def _spelled(tokens: Sequence[str], mark: str) -> str:
    """A word of its tokens, without the marks inside of it."""
    if mark == _INSIDE:
        tokens = [token.removeprefix(_INSIDE) for token in tokens]
    if mark == _GOES_ON:
        tokens = [*(token.removesuffix(_GOES_ON) for token in tokens[:-1]), tokens[-1]]
    return joined(tokens)


def _is_special(token: str) -> bool:
    token = token.removesuffix(END)
    return len(token) > 2 and (token[0], token[-1]) in (("<", ">"), ("[", "]")) and not is_byte(token)


def merged_words(maps: Maps, tokens: Sequence[str]) -> tuple[Maps, list[str]]:
    """Maps between words: weights are summed over the keys of a word, and averaged over its queries."""
    tokens = tokens[:-1] if len(tokens) - 1 == _most_keys(maps) else tokens  # generation wrote one that it has not read
    groups = word_groups(tokens)
    into = torch.zeros(len(groups), len(tokens))
    for number, group in enumerate(groups):
        into[number, group] = 1.0
    merged = Maps((_merged(found, into) for found in maps.values()), maps.missed)
    merged.notes = [*maps.notes, "subwords are merged: weights are summed over keys and averaged over queries"]
    mark = _mark_of(tokens)
    spelled = [_spelled([tokens[place] for place in group], mark) for group in groups]
    return merged, spelled


def _most_keys(maps: Maps) -> int:
    return max((found.shape[-1] for found in maps.values() if found.shape), default=0)


def _merged(found: Map, into: Tensor) -> Map:
    tokens = into.shape[1]
    call, chosen = found.latest, shown_calls(found)
    weights, calls = chosen.weights, chosen.calls
    queries, keys = weights.shape[2:]
    if found.over != "tokens":
        raise ValueError(
            f"words=True: {found.name!r} attends over {found.over}, which are no parts of words: leave it out"
        )
    if call.rows is not None or keys != tokens:
        raise ValueError(
            f"words=True: {found.name!r} attends from {queries} to {keys} tokens, but there are {tokens} tokens"
        )
    into = into.to(weights)
    rows = into / into.sum(-1, keepdim=True) if queries == tokens else None
    columns = weights @ into.mT
    record = AttentionRecord.given(
        columns if rows is None else rows @ columns,
        found.name,
        kind=call.kind,
        check=max(
            (each.check for each in calls), key=lambda check: -1.0 if check.error is None else float(check.error)
        ),
        kernel=call.kernel,
        heads=call.heads,
    )
    return Map(found.name, [record])
