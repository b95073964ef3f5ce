"""All quick claims, examined once for a session."""

import pytest

from regard.claims import Verification, verify


@pytest.fixture(scope="session")
def found() -> Verification:
    return verify()
