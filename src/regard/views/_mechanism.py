"""Queries, keys and values of a few tokens, to move by hand. The browser computes; Python supplies the examples."""

from typing import Any

import torch
from torch import Tensor

from regard.reference import worked_example
from regard.support.checks import check_beta, check_shapes
from regard.views._payload import Payload

MOST = 6  # tokens; more would be hard to follow


def payload(
    query: Tensor | None = None, key: Tensor | None = None, value: Tensor | None = None, *, beta: float | None = None
) -> Payload:
    """Some small examples, and the user's own.

    Args:
        query, key, value: ``(tokens, 2)``, vectors in the plane, at most six of each; as many values as keys.
        beta: the initial inverse temperature, in [0, ∞]; default 1/√2.

    >>> [example["name"] for example in payload().meta["examples"]]
    ['worked', 'compass', 'lookup', 'tie']
    """
    examples = [_worked(), _compass(), _lookup(), _tie()]
    if query is not None or key is not None or value is not None:
        examples.insert(0, _given(query, key, value, beta))
    return Payload("mechanism", {"examples": examples})


def _worked() -> dict[str, Any]:
    found = worked_example()
    query, key, value = (found.hidden @ w.mT for w in (found.w_query, found.w_key, found.w_value))
    note = (
        "Question 2 of discussion 8 of EECS 182: three tokens h = (5, 1), (4, 3), (−2, 6); token 2 is the query. The scores "
        "differ by 202 or more, so β = 1 is practically hard attention. Make β small to give the other tokens weight."
    )
    return _example("worked", "the worked example (EECS 182)", note, query, key, value, beta=1.0, asks=1)


def _compass() -> dict[str, Any]:
    corners = [[1.0, 0.0], [0.5, 0.87], [-0.5, 0.87], [-1.0, 0.0], [-0.5, -0.87], [0.5, -0.87]]
    around = torch.tensor(corners, dtype=torch.float64)
    query = torch.tensor([[1.6, 0.6], [-0.4, 1.5]], dtype=torch.float64)
    note = "Six keys of equal length: only the direction of the query matters. Drag the query, and the output follows."
    return _example("compass", "keys all around", note, query, around, 3 * around, beta=1.0)


def _lookup() -> dict[str, Any]:
    key = torch.tensor([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], dtype=torch.float64)
    value = torch.tensor([[4.0, 1.0], [-1.0, 4.0], [-3.0, -3.0]], dtype=torch.float64)
    note = "A lookup table: each query equals a key. The larger β, the closer the output is to the value of that key."
    return _example("lookup", "a lookup table", note, key.clone(), key, value, beta=0.3)


def _tie() -> dict[str, Any]:
    key = torch.tensor([[2.0, 1.0], [2.0, -1.0], [-1.5, 0.5]], dtype=torch.float64)
    value = torch.tensor([[3.0, 2.0], [3.0, -2.0], [-3.0, 1.0]], dtype=torch.float64)
    query = torch.tensor([[1.5, 0.0]], dtype=torch.float64)
    note = "Two keys have the same score, so they share the weight, even at β = ∞. Move one a little, and hard attention jumps."
    return _example("tie", "a tie", note, query, key, value, beta=1.0)


def _given(query: Any, key: Any, value: Any, beta: float | None) -> dict[str, Any]:
    if query is None or key is None or value is None:
        raise ValueError("query, key and value must be passed together, each (tokens, 2)")
    sizes = check_shapes(query=(query, "queries width"), key=(key, "keys width"), value=(value, "keys value_width"))
    if sizes["width"] != 2 or sizes["value_width"] != 2:
        raise ValueError(
            f"query, key and value must be (tokens, 2), but key has shape {tuple(key.shape)} "
            f"and value {tuple(value.shape)}"
        )
    if not 1 <= sizes["queries"] <= MOST or not 1 <= sizes["keys"] <= MOST:
        raise ValueError(
            f"query has {sizes['queries']} and key {sizes['keys']} tokens, but 1 to {MOST} of each can be shown"
        )
    if beta is not None:
        check_beta(beta)
    return _example("yours", "yours", "", query, key, value, beta=2**-0.5 if beta is None else float(beta))


def _example(
    name: str, title: str, note: str, query: Tensor, key: Tensor, value: Tensor, *, beta: float, asks: int = 0
) -> dict[str, Any]:
    lists = {"query": query.double().tolist(), "key": key.double().tolist(), "value": value.double().tolist()}
    # JSON has no infinity.
    return {
        "name": name,
        "title": title,
        "note": note,
        **lists,
        "beta": None if beta == torch.inf else beta,
        "asks": asks,
    }
