"""The Prefect server on a Postgres database, as in docs/operations.md."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from infra.prefect_server import Server, client_environment, down, up
from infra.store.directory import DirectoryStore
from tasks.doctor import prefect_api
from tests.support.fakes.fake_runner import ingest

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
PASSWORD = "of-your-own"


def binaries() -> Path | None:
    """The folder with initdb and its like; Debian does not put it on the PATH."""
    folders = [Path(found).resolve().parent] if (found := shutil.which("initdb")) else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return next((one for one in folders if all((one / name).exists() for name in ("initdb", "postgres", "psql"))), None)


def owner() -> str | None:
    """The user who runs Postgres: it refuses root."""
    if os.getuid():
        return pwd.getpwuid(os.getuid()).pw_name
    return next((user.pw_name for user in pwd.getpwall() if user.pw_name == "postgres"), None)


BIN, OWNER = binaries(), owner()
pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(BIN is None, reason="no Postgres here: neither initdb on the PATH nor /usr/lib/postgresql"),
    pytest.mark.skipif(OWNER is None, reason="Postgres refuses root, and there is no user postgres"),
]


class Postgres(NamedTuple):
    port: int
    user: str = "millrace"

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://{self.user}:{PASSWORD}@127.0.0.1:{self.port}/prefect"

    def ask(self, query: str, database: str = "prefect") -> str:
        assert BIN is not None
        where = ["-h", "127.0.0.1", "-p", str(self.port), "-U", self.user, "-d", database]
        command = [str(BIN / "psql"), *where, "-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", query]
        done = subprocess.run(command, env=os.environ | {"PGPASSWORD": PASSWORD}, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def as_owner(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command,
            cwd=folder,
            user=OWNER if not os.getuid() else None,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """A new cluster on a free port; ended by its pid."""
    assert BIN is not None
    assert OWNER is not None
    folder = Path(tempfile.mkdtemp(prefix="millrace-postgres-"))  # not pytest's, which is closed to other users
    try:
        (folder / "password").write_text(PASSWORD)
        folder.chmod(0o700)
        for path in (folder, folder / "password"):
            os.chown(path, pwd.getpwnam(OWNER).pw_uid, -1)
        options = ["--auth=scram-sha-256", "--username=millrace", f"--pwfile={folder}/password", "--no-sync"]
        made = as_owner([str(BIN / "initdb"), "-D", f"{folder}/data", *options], folder)
        assert made.wait(SECONDS) == 0, (folder / "log").read_text()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        listens = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1", "-F"]
        server = as_owner([str(BIN / "postgres"), "-D", f"{folder}/data", *listens], folder)
        try:
            wait_for(port, server, folder)
            database = Postgres(port)
            database.ask("CREATE DATABASE prefect", database="postgres")
            yield database
        finally:
            server.send_signal(signal.SIGINT)  # what Postgres calls a fast shutdown
            server.wait(SECONDS)
    finally:
        shutil.rmtree(folder)


def wait_for(port: int, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        assert server.poll() is None, (folder / "log").read_text()
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0 and "ready to accept" in (folder / "log").read_text():
                return
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)


@pytest.fixture
def server(postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_SERVER_DATABASE_CONNECTION_URL", postgres.url)
    home = tmp_path / "prefect"
    try:
        yield up(home)
    finally:
        down(home)


def test_a_run_leaves_its_history_in_postgres(postgres: Postgres, server: Server, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01")
    arguments = ["run", "--workspace", store.uri, "--set", "model.scratch.layers=1"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.fakes.millrace", *arguments],
        cwd=ROOT,
        env={**os.environ, **client_environment(server)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Released as 1" in done.stdout
    assert postgres.ask("SELECT name, state_type FROM flow_run") == "2026-01 attempt 1|COMPLETED"
    assert not (Path(server.home) / "prefect.db").exists()
    assert server.pid is not None
    address = prefect_api._address_of(server.pid)
    assert address is not None
    assert prefect_api._kind(address) == "PostgreSQL"

    # A server started again, from another directory, finds the history in the database.
    assert down(Path(server.home))
    again = up(tmp_path / "another")
    try:
        assert again.started
        assert postgres.ask("SELECT count(*) FROM flow_run") == "1"
    finally:
        down(tmp_path / "another")
