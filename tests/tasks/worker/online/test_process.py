"""`millrace serve --online` as a process: a swap under load, the end at SIGTERM, and what it never loads."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.runs import releases
from tasks.worker.online.__main__ import _bound
from tasks.worker.online.exported import FOLDER, Exported
from tests.tasks.worker.online.conftest import point_to

SECONDS = 120.0
PAGE = (Path(__file__).resolve().parents[4] / "docs/online.md").read_text()
LINES = PAGE.partition("```python\n")[2].partition("```")[0]  # that a consumer needs
TEXTS = ("want a red shoe 3 please", "lamp", "a blue bag and one more word about it")


class Process:
    """A server on a free port of loopback."""

    def __init__(self, store: DirectoryStore, *options: str) -> None:
        millrace = str(Path(sys.executable).with_name("millrace"))
        command = [millrace, "serve", "--online", "--workspace", store.uri, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.said)
        assert found, self.process.communicate()
        self.port = int(found[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def running(store: DirectoryStore, *options: str) -> Iterator[Process]:
    process = Process(store, *options)
    try:
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.communicate()


class Client(threading.Thread):
    """Asks without a pause, in turn for vectors and for hits, until it is ended."""

    def __init__(self, url: str, ended: threading.Event) -> None:
        super().__init__()
        self.url, self.ended = url, ended
        self.answers: list[dict[str, Any]] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        with httpx.Client(base_url=self.url, timeout=SECONDS) as client:
            while not self.ended.is_set():
                for path, body in (("/embed", {"queries": TEXTS}), ("/search", {"query": TEXTS[0], "k": 5})):
                    try:
                        answer = client.post(path, json=body)
                    except httpx.HTTPError as error:
                        self.wrong.append(repr(error))
                        continue
                    if answer.status_code == 200:
                        self.answers.append(answer.json())
                    else:
                        self.wrong.append(answer.text)


def wait_for(process: Process, release: int) -> None:
    until = time.monotonic() + SECONDS
    while httpx.get(f"{process.url}/healthz").json()["release"] != release:
        assert time.monotonic() < until, f"release {release} never served"
        time.sleep(0.1)


def test_swaps_under_load_fail_nobody_and_mix_no_models(store: DirectoryStore) -> None:
    of_release = {number: releases.read(store, number) for number in (1, 2, 3, 4)}
    vectors = {
        each.model.version: Exported(store.local(each.model_prefix) / FOLDER / "onnx", 1).embed(TEXTS, "query")
        for each in of_release.values()
    }
    assert len(vectors) == 2
    ended = threading.Event()
    with running(store) as process:
        names: dict[str, Any] = {}
        exec(compile(LINES.replace("4280", str(process.port)), "docs/online.md", "exec"), names)
        assert names["version"] == of_release[4].model.version
        assert len(names["vector"]) == 32
        clients = [Client(process.url, ended) for _ in range(4)]
        for client in clients:
            client.start()
        try:
            for number in (2, 3, 4):  # a rollback, a new model, its refresh
                point_to(store, number)
                wait_for(process, number)
        finally:
            ended.set()
            for client in clients:
                client.join(SECONDS)
        libraries = Path(f"/proc/{process.process.pid}/maps").read_text()
        code, errors = process.end()
    assert (code, [client.wrong for client in clients]) == (0, [[]] * 4)
    assert "onnxruntime" in libraries
    assert "torch" not in libraries
    assert re.findall(r"release (\d) serves", errors) == ["2", "3", "4"]
    seen = set()
    for answer in (answer for client in clients for answer in client.answers):
        release, version = answer["release"], answer["model_version"]
        assert version == of_release[release].model.version, "release and model of one another"
        seen.add(release)
        if "vectors" in answer:
            given = np.array(answer["vectors"])
            for other, theirs in vectors.items():
                assert ((given * theirs).sum(axis=1).min() > 0.9999) == (other == version)
    assert seen == {2, 3, 4}


def test_at_sigterm_it_answers_the_requests_that_it_has(store: DirectoryStore) -> None:
    body = json.dumps({"queries": TEXTS}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with running(store) as process, socket.create_connection(("127.0.0.1", process.port)) as connection:
        connection.settimeout(SECONDS)
        connection.sendall(f"{head}\r\n\r\n".encode() + body[:10])
        time.sleep(0.5)  # until it has read the head
        process.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + SECONDS
        while True:  # it takes no new connection from now on
            try:
                socket.create_connection(("127.0.0.1", process.port)).close()
            except ConnectionRefusedError:
                break
            assert time.monotonic() < until
            time.sleep(0.05)
        connection.sendall(body[10:])
        got = b""
        while part := connection.recv(65536):
            got += part
        _, errors = process.process.communicate(timeout=SECONDS)
    assert got.startswith(b"HTTP/1.1 200")
    assert json.loads(got.partition(b"\r\n\r\n")[2])["release"] == 4
    assert (process.process.returncode, errors.splitlines()[-1]) == (0, "stopped")


def test_answers_do_not_wait_for_acknowledgements() -> None:
    with _bound("127.0.0.1", 0) as listener:  # asyncio turns TCP_NODELAY on for this protocol alone
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--online", "--host", "0.0.0.0"], "--token-file FILE"),
        (["--online", "--release", "9"], "there is no release 9"),
        (["--online", "--token-file", "/dev/null"], "holds no token"),
        (["--release", "4"], "millrace serve --online"),
        (["--host", "0.0.0.0"], "ssh -L 4280:127.0.0.1:4280"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_listens(
    store: DirectoryStore, options: list[str], named: str
) -> None:
    millrace = str(Path(sys.executable).with_name("millrace"))
    command = [millrace, "serve", "--workspace", store.uri, "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == POLICIES[FailureClass.CONFIG].exit_code
    assert named in done.stderr
