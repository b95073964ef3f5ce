"""Whatever is asked, within the API's own description and beyond it: never a failure of the server's."""

import pytest
import torch

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from regard.studio import OwnModel, create_app  # noqa: E402
from regard.views import show  # noqa: E402

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
KNOWN = {"id": ["gaussian", "vit", "case-rnn", "text"], "index": [0, 999], "source": ["test", "shipped"]}
BOUNDED = settings(
    max_examples=10, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)
OPERATIONS = [
    "GET /api/about",
    "GET /api/runs",
    "GET /api/runs/{id}",
    "GET /api/runs/{id}/metrics",
    "GET /api/runs/{id}/heads",
    "GET /api/runs/{id}/images",
    "GET /api/runs/{id}/images/{source}/{index}",
    "GET /api/runs/{id}/images/{source}/{index}/attention",
    "POST /api/runs/{id}/attention",
    "POST /api/runs/{id}/sentence",
    "GET /api/model/maps",
    "POST /api/model/text",
    "POST /api/model/image",
    "GET /api/pages/{name}",
    "POST /api/claims/{id}/evidence",
]


@pytest.fixture(scope="session")
def operations(trained):
    model = OwnModel("own", "text", None, lambda text: show(torch.full((1, 2, 2), 0.5)).payload)
    app = create_app(trained, names=("testserver", "localhost"), example=None, model=model)
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    return {operation.label: operation for operation in (found.ok() for found in schema.get_all_operations())}


def test_every_operation_is_tried(operations):
    assert sorted(operations) == sorted(OPERATIONS)


# What has no parameters cannot be asked for wrongly.
@pytest.mark.parametrize(
    ("label", "mode"),
    [(label, mode) for label in OPERATIONS for mode in GenerationMode if mode.is_positive or "{" in label],
)
def test_any_request_is_answered_as_described(operations, label, mode):
    """Also with ids that exist, so that what is behind them is asked as well; and with what the description forbids."""

    @BOUNDED
    @given(case=operations[label].as_strategy(generation_mode=mode), known=st.booleans(), which=st.integers(0, 11))
    def ask(case, known, which):
        if known and case.path_parameters:
            known_ids = ["hw4-beta-zero", "temperature"] if "claims" in label else KNOWN["id"]
            for name in set(case.path_parameters) & set(KNOWN):
                values = known_ids if name == "id" else KNOWN[name]
                case.path_parameters[name] = values[which % len(values)]
        case.validate_response(case.call(), checks=CHECKS)

    ask()
