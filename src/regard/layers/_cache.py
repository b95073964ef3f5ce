"""Keys and values of earlier tokens, for decoding token by token."""

import torch
from jaxtyping import Float
from torch import Tensor

from regard.support.checks import check_positive


class KeyValueCache:
    """Keys and values of the tokens so far. Each call of a layer appends those of its new tokens.

    Without gradients, tokens are written into a buffer that doubles when it is full, so the cost of a step depends only
    on its own tokens. With gradients, they are concatenated.

    Args:
        capacity: initial size of the buffer in tokens. Pass the final length if you know it.

    >>> from regard.layers import KeyValueCache
    >>> layer = regard.MultiHeadAttention(8, 2).eval()
    >>> x, cache = torch.randn(1, 5, 8), KeyValueCache()
    >>> steps = [layer(x[:, i : i + 1], causal=True, cache=cache) for i in range(5)]
    >>> cache.tokens, torch.allclose(torch.cat(steps, 1), layer(x, causal=True), atol=1e-6)
    (5, True)
    """

    def __init__(self, capacity: int = 16) -> None:
        check_positive("capacity", capacity)
        self.capacity = capacity
        self.tokens = 0
        self._key: Tensor | None = None
        self._value: Tensor | None = None

    @property
    def key(self) -> Float[Tensor, "batch heads tokens width"] | None:
        return None if self._key is None else self._key[:, :, : self.tokens]

    @property
    def value(self) -> Float[Tensor, "batch heads tokens width"] | None:
        return None if self._value is None else self._value[:, :, : self.tokens]

    def extend(
        self, key: Float[Tensor, "batch heads new width"], value: Float[Tensor, "batch heads new width"]
    ) -> tuple[Float[Tensor, "batch heads tokens width"], Float[Tensor, "batch heads tokens width"]]:
        """Append, and return everything so far."""
        if self._key is not None and key.shape[:2] != self._key.shape[:2]:
            raise ValueError(
                f"cache holds (batch, heads) = {tuple(self._key.shape[:2])} but the new keys have "
                f"{tuple(key.shape[:2])}: use one cache for each layer and each batch"
            )
        self._key, self._value = self._append(self._key, key), self._append(self._value, value)
        self.tokens += key.shape[2]
        return self._key[:, :, : self.tokens], self._value[:, :, : self.tokens]

    def _append(self, held: Tensor | None, new: Tensor) -> Tensor:
        past = 0 if held is None else self.tokens
        if torch.is_grad_enabled():
            # Writing into a buffer would change tensors that earlier steps saved for their backward passes.
            return new if held is None else torch.cat([held[:, :, :past], new], 2)
        total = past + new.shape[2]
        if held is None or held.shape[2] < total:
            room = max(self.capacity, total) if held is None else max(2 * past, total)
            grown = new.new_empty(*new.shape[:2], room, new.shape[3])
            if held is not None:
                grown[:, :, :past] = held[:, :, :past]
            held = grown
        held[:, :, past:total] = new
        return held

    def __repr__(self) -> str:
        return f"KeyValueCache(tokens={self.tokens}, capacity={self.capacity})"
