"""`millrace serve --online` as a process: a swap under load, the end at SIGTERM, and what it never loads."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.cli import searching
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES, ConfigError, FailureClass, ServerError
from tasks.worker.online.__main__ import _bound
from tests.support.processes.online_clients import TEXTS, Client, Seen, Truth, direct
from tests.support.processes.online_server import SECONDS, running
from tests.support.processes.services import MILLRACE
from tests.support.workspace.served import point_to

PAGE = (Path(__file__).resolve().parents[4] / "docs/online.md").read_text()
LINES = PAGE.partition("```python\n")[2].partition("```")[0]  # that a consumer needs


def test_swaps_under_load_fail_nobody_and_mix_no_models(store: DirectoryStore) -> None:
    truth = Truth(store, 1, 2, 3, 4)
    assert len(truth.vectors) == 2
    ended = threading.Event()
    with running(store) as server:
        names: dict[str, Any] = {}
        exec(compile(LINES.replace("4280", str(server.port)), "docs/online.md", "exec"), names)
        assert names["version"] == truth.version_of[4]
        assert len(names["vector"]) == 32
        every = [Seen() for _ in range(4)]
        clients = [Client(direct(server.url, truth, seen), seen, ended) for seen in every]
        for client in clients:
            client.start()
        try:
            for number in (2, 3, 4):  # a rollback, a new model, its refresh
                point_to(store, number)
                server.wait_for(number)
        finally:
            ended.set()
            for client in clients:
                client.join(SECONDS)
        libraries = Path(f"/proc/{server.process.pid}/maps").read_text()
        code, errors = server.end()
    assert (code, [seen.failed for seen in every], [seen.mixed for seen in every]) == (0, [[]] * 4, [[]] * 4)
    assert "onnxruntime" in libraries
    assert "torch" not in libraries
    assert re.findall(r"release (\d) serves", errors) == ["2", "3", "4"]
    assert set.union(*(seen.releases for seen in every)) == {2, 3, 4}


def test_search_asks_a_running_server_for_the_same_hits(store: DirectoryStore, tmp_path: Path) -> None:
    (token := tmp_path / "token").write_text("abc\n")
    alone = searching.search(store, TEXTS[0], None, 5)
    with running(store, "--token-file", str(token)) as server:
        asked = searching.search(store, TEXTS[0], None, 5, server.url, token)
        with pytest.raises(ConfigError, match="`Authorization: Bearer"):
            searching.search(store, TEXTS[0], None, 5, server.url)
        with pytest.raises(ConfigError, match=r"release 4 .*release 2"):
            searching.search(store, TEXTS[0], 2, 5, server.url, token)
    assert asked.model_copy(update={"seconds": alone.seconds, "hits": ()}) == alone.model_copy(update={"hits": ()})
    assert [hit.item_id for hit in asked.hits] == [hit.item_id for hit in alone.hits]
    with pytest.raises(ServerError, match=f"{server.url} .*serve --online"):
        searching.search(store, TEXTS[0], None, 5, server.url, token)


def test_at_sigterm_it_answers_the_requests_that_it_has(store: DirectoryStore) -> None:
    body = json.dumps({"queries": TEXTS}).encode()
    head = f"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with running(store) as server, socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.settimeout(SECONDS)
        connection.sendall(f"{head}\r\n\r\n".encode() + body[:10])
        time.sleep(0.5)  # until it has read the head
        server.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + SECONDS
        while True:  # it takes no new connection from now on
            try:
                socket.create_connection(("127.0.0.1", server.port)).close()
            except ConnectionRefusedError:
                break
            assert time.monotonic() < until
            time.sleep(0.05)
        connection.sendall(body[10:])
        got = b""
        while part := connection.recv(65536):
            got += part
        _, errors = server.process.communicate(timeout=SECONDS)
    assert got.startswith(b"HTTP/1.1 200")
    assert json.loads(got.partition(b"\r\n\r\n")[2])["release"] == 4
    assert (server.process.returncode, errors.splitlines()[-1]) == (0, "stopped")


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
    command = [str(MILLRACE), "serve", "--workspace", store.uri, "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == POLICIES[FailureClass.CONFIG].exit_code
    assert named in done.stderr
