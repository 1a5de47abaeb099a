import pytest


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
