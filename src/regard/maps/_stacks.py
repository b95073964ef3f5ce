"""Which attention of a model belongs together: the layers of one stack, and cross-attention between two."""

import re
from collections.abc import Iterable

# Parts of the names that models give to cross-attention.
_CROSS = ("cross", "encoder_attn", "encdec", "enc_dec", "multihead_attn")


def is_cross_attention(name: str, queries: int | None = None, keys: int | None = None) -> bool:
    """Whether its queries and keys are tokens of two sequences, by its name or by their numbers.

    >>> is_cross_attention("decoder.layers.0.encoder_attn"), is_cross_attention("decoder.layers.0.self_attn")
    (True, False)
    """
    lower = name.lower()
    return queries != keys or any(part in lower for part in _CROSS)


def stack_of(name: str) -> str:
    """The stack of layers that the attention is in: its name up to the first number.

    >>> stack_of("vision_model.encoder.layers.3.self_attn"), stack_of("block2.0.attn"), stack_of("attention")
    ('vision_model.encoder.layers', 'block', '')
    """
    found = re.search(r"\d", name)
    return "" if found is None else name[: found.start()].rstrip("._")


def stacks_in(names: Iterable[str]) -> dict[str, list[str]]:
    """Names by stack, in order.

    >>> stacks_in(["encoder.0.attn", "decoder.0.attn", "decoder.1.attn"])
    {'encoder': ['encoder.0.attn'], 'decoder': ['decoder.0.attn', 'decoder.1.attn']}
    """
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(stack_of(name), []).append(name)
    return found
