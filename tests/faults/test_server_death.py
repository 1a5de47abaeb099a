"""The Prefect server is killed, or only stopped, in the middle of a run: what the command does about it.

The command, the server and the signals are real; only the workers are stand-ins, so that a stage can be held.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra import prefect_server
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs import releases
from tests.support.fakes.fake_runner import ingest
from tests.support.fakes.replacing import HOLDS
from tests.support.processes.services import ROOT

pytestmark = pytest.mark.proof

MOST_SECONDS = 120.0  # from the moment that only the server is missing
SPAN = "2021-Q1"


class Run:
    """`millrace run` with a stage that is held until `go_on`."""

    def __init__(self, folder: Path, stage: str, **environment: str) -> None:
        self.store = DirectoryStore(folder / "workspace")
        self.hold = folder / "holds" / f"{stage}-{SPAN}"
        self.hold.parent.mkdir(exist_ok=True)
        self.hold.touch()
        if not self.store.list("spans"):
            ingest(self.store, SPAN)
        command = [sys.executable, "-m", "tests.support.fakes.millrace", "run", "--workspace", self.store.uri]
        inherited = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
        self.process = subprocess.Popen(
            [*command, "--set", "model.scratch.layers=1"],
            cwd=ROOT,
            env={**inherited, HOLDS: str(self.hold.parent), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not self.hold.read_text() and self.process.poll() is None:
            time.sleep(0.1)

    def end(self) -> tuple[int, str, float]:
        """Let it go on; return its exit code, what it printed and the seconds until it ended."""
        self.hold.unlink()
        began = time.monotonic()
        said, _ = self.process.communicate(timeout=3 * MOST_SECONDS)
        return self.process.returncode, said, time.monotonic() - began


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "prefect"
    prefect_server.down(tmp_path / "prefect")


@pytest.mark.parametrize("stage", ["validate", "release"])
def test_a_server_of_this_machine_is_started_again_and_the_run_goes_on(tmp_path: Path, home: Path, stage: str) -> None:
    run = Run(tmp_path, stage, PREFECT_HOME=str(home))
    server = prefect_server.running(home)
    assert server is not None
    assert server.pid is not None
    os.killpg(server.pid, signal.SIGKILL)
    code, said, _ = run.end()
    assert code == 0, said
    assert "waiting for it" in said
    assert "answers again" in said
    assert releases.numbers(run.store) == [1]
    again = prefect_server.running(home)
    assert again is not None
    assert again.url == server.url


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_server_elsewhere_that_stays_away_ends_the_run_within_two_minutes(
    tmp_path: Path, home: Path, how: signal.Signals
) -> None:
    server = prefect_server.up(home)
    assert server.pid is not None
    run = Run(tmp_path, "health", **client_environment(server) | {"PREFECT_HOME": str(tmp_path / "client")})
    os.killpg(server.pid, how)
    code, said, seconds = run.end()
    assert code == POLICIES[FailureClass.SERVER].exit_code, said
    assert seconds < MOST_SECONDS
    assert said.count("SERVER: ") == 1
    assert "run the same command" in said
    if how is signal.SIGSTOP:
        os.killpg(server.pid, signal.SIGCONT)
    prefect_server.up(home)
    code, said, _ = Run(tmp_path, "train", PREFECT_HOME=str(home)).end()
    assert code == 0, said
    assert releases.numbers(run.store) == [1]
