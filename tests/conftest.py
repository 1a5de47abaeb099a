"""What holds for every test: nothing is reported to anybody, nothing is fetched, and no cloud account is found."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Before the imports below: Prefect reads its settings when it is imported.
os.environ.update(
    DO_NOT_TRACK="1",
    HF_HUB_OFFLINE="1",
    USE_TORCH_XLA="0",
    AWS_EC2_METADATA_DISABLED="true",
    AWS_ACCESS_KEY_ID="none",
    AWS_SECRET_ACCESS_KEY="none",
    AWS_ENDPOINT_URL="http://127.0.0.1:9",  # nobody listens there
    PREFECT_SERVER_ALLOW_EPHEMERAL_MODE="false",
    # Servers write events and the states of task runs after one second instead of five: tests wait for them.
    PREFECT_SERVER_SERVICES_EVENT_PERSISTER_FLUSH_INTERVAL="1",
    PREFECT_SERVER_SERVICES_TASK_RUN_RECORDER_FLUSH_INTERVAL="1",
    MILLRACE_CACHE="",  # commands keep no copies in the home folder
    OMP_THREAD_LIMIT="1",  # several tests share the cores; threads that wait for each other lose most of the time
    OMP_NUM_THREADS="1",  # with more than the limit, a product in bf16 lacks the part of the threads that never began
)
os.environ.pop("PREFECT_API_URL", None)
os.environ.pop("MILLRACE_CONFIG", None)

from infra.prefect_server import Server
from infra.store import base
from tasks.foundation.process import collect_rarely
from tests.support.cloud.s3 import S3Server
from tests.support.pages.golden import Golden
from tests.support.processes.prefect_server import PrefectServer

collect_rarely()
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_sessionstart() -> None:
    """Commands read `./millrace.yaml`, so a file in this folder would change what tests measure."""
    if Path("millrace.yaml").exists():
        pytest.exit("move millrace.yaml out of this folder: the tests' commands would read its settings", returncode=4)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-golden",
        action="store_true",
        help="write what is measured now as the golden values: pytest tests/golden --write-golden",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole pipelines begin first: with several processes, nobody waits for the longest file at the end."""
    items.sort(key=lambda item: item.get_closest_marker("pipeline") is None)


@pytest.fixture(autouse=True)
def _own_environment() -> Iterator[None]:
    """Undo what a test changes in the environment, as commands do that it calls in this process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that another process holds is not waited for."""
    monkeypatch.setattr(base, "PATIENCE_SECONDS", 0.0)


@pytest.fixture
def write_golden(request: pytest.FixtureRequest) -> bool:
    """Whether to write the golden values instead of comparing with them."""
    return bool(request.config.getoption("write_golden", default=False))


@pytest.fixture
def golden(request: pytest.FixtureRequest, write_golden: bool, tmp_path_factory: pytest.TempPathFactory) -> Golden:
    """Compares what people read with the texts on record, beside the test."""
    path = request.path.parent / "golden" / f"{request.path.stem}.txt"
    return Golden(path, request.node.name, tmp_path_factory.getbasetemp(), write_golden)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """The server, found by whatever looks for S3 during this test, in this process and in others."""
    s3_server.forget()
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server.url)
    return s3_server


@pytest.fixture(scope="session")
def prefect_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the tables of a new Prefect server, made by the first server that any process starts."""
    of_this_process = tmp_path_factory.getbasetemp()
    return (of_this_process.parent if "PYTEST_XDIST_WORKER" in os.environ else of_this_process) / "prefect-tables.db"


@pytest.fixture(scope="session")
def only_prefect(prefect_tables: Path) -> Iterator[PrefectServer]:
    """Its database is in memory if it can be: a write to a disk with gigabytes to write may take ten seconds."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="millrace-", dir=memory if memory.is_dir() else None) as home:
        server = PrefectServer(Path(home), prefect_tables)
        yield server
        server.stop()


@pytest.fixture(scope="module")
def prefect(only_prefect: PrefectServer) -> Iterator[PrefectServer]:
    """A real server, empty before the first test of a module."""
    only_prefect.wake()
    only_prefect.forget()
    yield only_prefect
    only_prefect.rest()


@pytest.fixture(scope="module")
def server(prefect: PrefectServer) -> Server:
    """The same for commands in processes of their own; this process does not talk to it."""
    return prefect.server
