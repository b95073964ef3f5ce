"""Groups the attention of a model into stacks of layers (encoder, decoder), and recognizes cross-attention."""

import re
from collections.abc import Iterable, Sequence

_HEAD = re.compile(r"(heads\.)\d+(?![^.])")  # one head of a module list
# Parts of the names that models give to cross-attention.
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec", "multihead_attn")


def is_cross_attention(name: str, queries: int | None = None, keys: int | None = None) -> bool:
    """Whether queries and keys are tokens of different sequences, by the name of the module or by their counts.

    >>> is_cross_attention("decoder.layers.0.encoder_attn"), is_cross_attention("decoder.layers.0.self_attn")
    (True, False)
    """
    lower = name.lower()
    return queries != keys or any(part in lower for part in _CROSS)


def heads_together(names: Sequence[str]) -> list[list[int]]:
    """The numbers of the names that are one attention: neighbors that are heads of one module list, as ``heads.0, heads.1``.

    >>> heads_together(["0.heads.0", "0.heads.1", "1.heads.0", "1.heads.1", "2.attn"])
    [[0, 1], [2, 3], [4]]
    """
    found: list[list[int]] = []
    for number, name in enumerate(names):
        pattern = _HEAD.sub(r"\1*", name)
        group = found[-1] if found else []
        among = [names[i] for i in group]
        if group and pattern != name and name not in among and _HEAD.sub(r"\1*", among[0]) == pattern:
            group.append(number)
        else:
            found.append([number])
    return found


def stack_of(name: str) -> str:
    """The stack of layers to which an attention belongs: its name up to the first digit.

    >>> stack_of("vision_model.encoder.layers.3.self_attn"), stack_of("block2.0.attn"), stack_of("attention")
    ('vision_model.encoder.layers', 'block', '')
    """
    path = name.partition("#")[0]  # without the number of a second attention
    found = re.search(r"\d", path)
    return "" if found is None else path[: found.start()].rstrip("._")


def stacks_in(names: Iterable[str]) -> dict[str, list[str]]:
    """The names by stack, in order.

    >>> stacks_in(["encoder.0.attn", "decoder.0.attn", "decoder.1.attn"])
    {'encoder': ['encoder.0.attn'], 'decoder': ['decoder.0.attn', 'decoder.1.attn']}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(stack_of(name), []).append(name)
    return found


def check_one_stack(names: Iterable[str], what: str, choose: str) -> None:
    """Raise an error unless these are self-attention of one stack of layers, so that their maps can be multiplied.

    Args:
        what: the analysis that needs it, for the message.
        choose: how to choose some, with ``{}`` for a pattern.
    """
    stacks = stacks_in(names)
    if len(stacks) > 1:
        shown = "; ".join(f"{stack or found[0]!r}: {len(found)}" for stack, found in stacks.items())
        first = next(iter(stacks))
        pattern = f"{first}.*" if first else stacks[first][0]
        raise ValueError(
            f"{what} goes through one stack of layers, but there are {len(stacks)}, of which the maps are not factors of one "
            f"product ({shown}): choose one, as in {choose.format(pattern)}"
        )
    crossing = next((name for found in stacks.values() for name in found if is_cross_attention(name)), None)
    if crossing is not None:
        raise ValueError(
            f"{crossing!r} is cross-attention, whose keys are tokens of another stack: {what} needs self-attention, as in "
            f"{choose.format('*self_attn')}"
        )
