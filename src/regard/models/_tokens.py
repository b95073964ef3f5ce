"""Token numbers: argument checks, and greedy decoding."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from regard.support.checks import check_positive, check_tensor, describe, values_are_readable


def check_token_numbers(name: str, tokens: Any, vocab_size: int) -> None:
    """Whole numbers ``(batch, tokens)`` below ``vocab_size``. Values are read only on the CPU, to avoid a
    synchronization."""
    check_tensor(name, tokens)
    if tokens.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name} must be token numbers (int64 or int32), got {describe(tokens)}")
    if tokens.ndim != 2:
        raise ValueError(f"{name} has shape {tuple(tokens.shape)}, but must be (batch, tokens)")
    if not torch.compiler.is_compiling() and tokens.shape[1] < 1:
        raise ValueError(f"{name} has shape {tuple(tokens.shape)}, but must be (batch, tokens) with at least one token")
    if values_are_readable(tokens) and tokens.numel():
        low, high = (int(value) for value in tokens.aminmax())
        if low < 0 or high >= vocab_size:
            raise ValueError(f"{name} holds numbers from {low} to {high}, but the vocabulary has 0 to {vocab_size - 1}")


def check_keep(name: str, keep: Any, tokens: Tensor) -> None:
    """A mask ``(batch, tokens)`` of the tokens, True = a token, False = padding. The tokens are checked already."""
    if keep is None:
        return
    check_tensor(name, keep)
    if keep.dtype is not torch.bool:
        raise TypeError(f"{name} must be a boolean tensor (True = attend), got {describe(keep)}")
    if keep.shape != tokens.shape[:2]:
        raise ValueError(f"{name} has shape {tuple(keep.shape)}, but the tokens are {tuple(tokens.shape[:2])}")


def check_same_batch(name: str, tokens: Tensor, source_name: str, source: Tensor) -> None:
    """Both are checked to be tensors with a batch axis."""
    if tokens.shape[0] != source.shape[0]:
        raise ValueError(
            f"{name} has shape {tuple(tokens.shape)}, a batch of {tokens.shape[0]}, but {source_name} has a batch of "
            f"{source.shape[0]}"
        )


def check_no_keep(name: str, keep: Any) -> None:
    """A mask of the source, in a model that has none: it would be ignored."""
    if keep is not None:
        raise ValueError(
            f"{name} masks the source, but this call has no source: leave it out, got {describe(keep)}. Padding at the end of "
            f"the target does not change earlier outputs"
        )


def check_source(source: Any, source_keep: Any, target: Any, name: str) -> None:
    """The source of a decoder (None without an encoder), its mask, and the ``target`` of that ``name``: one batch."""
    if source is None:
        check_no_keep("source_keep", source_keep)
        return
    check_tensor("source", source)
    check_keep("source_keep", source_keep, source)
    check_tensor(name, target)
    if source.ndim and target.ndim:
        check_same_batch(name, target, "source", source)


def check_end(end: Any, vocab_size: int) -> None:
    """The number of the token that ends a row, or None."""
    if end is None:
        return
    if isinstance(end, bool) or not isinstance(end, int):
        raise TypeError(f"end must be the number of a token or None, got {describe(end)}")
    if not 0 <= end < vocab_size:
        raise ValueError(f"end is {end}, but the vocabulary has 0 to {vocab_size - 1}")


def as_attention_keep(keep: Bool[Tensor, "batch tokens"] | None) -> Bool[Tensor, "batch 1 1 tokens"] | None:
    """The mask with axes for heads and queries."""
    return None if keep is None else keep[:, None, None]


def greedy(
    next_scores: Callable[[Int[Tensor, "batch so_far"]], Float[Tensor, "batch vocab_size"]],
    prompt: Int[Tensor, "batch prompt"],
    tokens: int,
    end: int | None,
) -> Int64[Tensor, "batch new"]:
    """Append the best next token repeatedly. Returns the new tokens.

    Args:
        next_scores: from all tokens so far to the scores of the next one.
        prompt: ``(batch, prompt)``, at least one token each; checked already.
        tokens: the largest number of tokens to append.
        end: the token that ends a row: the row repeats it from then on. Decoding stops when every row has ended.

    >>> greedy(lambda so_far: torch.eye(5)[(so_far[:, -1] + 1) % 5], torch.tensor([[0], [2]]), 6, end=4)
    tensor([[1, 2, 3, 4],
            [3, 4, 4, 4]])
    """
    check_positive("tokens", tokens)
    so_far = prompt.long()
    done = torch.zeros(prompt.shape[0], dtype=torch.bool, device=prompt.device)
    for _ in range(tokens):
        chosen = next_scores(so_far).argmax(-1)
        if end is not None:
            chosen = torch.where(done, end, chosen)
            done = done | (chosen == end)
        so_far = torch.cat([so_far, chosen[:, None]], 1)
        if end is not None and bool(done.all()):
            break
    return so_far[:, prompt.shape[1] :]
