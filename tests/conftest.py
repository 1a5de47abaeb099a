"""What holds for every test: nothing is reported to anybody, nothing is fetched, and no cloud account is found."""

from __future__ import annotations

import os

import pytest

os.environ.update(
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    USE_TORCH_XLA="0",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_ACCESS_KEY_ID="none",
    AWS_SECRET_ACCESS_KEY="none",
    AWS_ENDPOINT_URL="http://127.0.0.1:9",  # nobody listens there
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write what is measured now as the golden values: pytest tests/golden --write-golden",
    )


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to write the golden values instead of comparing with them."""
    return bool(request.config.getoption("write_golden", default=False))
