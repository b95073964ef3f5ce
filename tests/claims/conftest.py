"""The quick claims, each examined once in a process, when a test first asks for it."""

from collections.abc import Callable
from functools import cache

import pytest

from regard.claims import Row, Verification, all_claims, verify


@cache
def row_of(name: str) -> Row:
    return verify(name)[0]


@pytest.fixture(scope="session")
def examined() -> Callable[[str], Row]:
    """``examined("hw4-beta-zero")``: what the evidence says of one claim."""
    return row_of


@pytest.fixture(scope="session")
def found() -> Verification:
    """All of them."""
    return Verification([row_of(claim.id) for claim in all_claims()])
