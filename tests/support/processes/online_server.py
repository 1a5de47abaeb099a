"""`millrace serve --online` as a process on a free port of loopback."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import httpx

from infra.store.base import Store
from tests.support.processes.services import MILLRACE

SECONDS = 120.0  # that a loaded machine may take for anything


class OnlineServer:
    """A server that answers; `said` is the line that names its address."""

    def __init__(self, store: Store, *options: str) -> None:
        command = [str(MILLRACE), "serve", "--online", "--workspace", store.uri, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said)
        assert found, self.process.communicate()
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def wait_for(self, release: int) -> None:
        """Wait until it serves a release."""
        until = time.monotonic() + SECONDS
        while httpx.get(f"{self.url}/healthz").json()["release"] != release:
            assert time.monotonic() < until, f"release {release} never served"
            time.sleep(0.1)

    def end(self) -> tuple[int, str]:
        """Send SIGTERM; return the exit code and the lines for the person who runs it."""
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def running(store: Store, *options: str) -> Iterator[OnlineServer]:
    """Let a server run during the block."""
    server = OnlineServer(store, *options)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.communicate()
