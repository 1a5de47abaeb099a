"""`millrace serve` in the background: real processes, each ended by its pid."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli.serving import background_pages
from flows.cli.serving.background_pages import down, up
from infra import background
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import HostError
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import command


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    yield tmp_path / "home"
    down(tmp_path / "home")


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def workspace(folder: Path) -> DirectoryStore:
    store = DirectoryStore(folder)
    ingest(store, "2026-01")
    return store


def shown(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return answer.read().decode()


def test_the_pages_of_one_workspace_are_served_until_down(
    tmp_path: Path, home: Path, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    stores = [workspace(tmp_path / name) for name in ("one", "two")]
    url = up(stores[0], home, port)
    first = background_pages._read(home)
    assert first is not None
    assert stores[0].uri in shown(url)
    assert up(stores[0], home, port) == url
    assert background_pages._read(home) == first
    assert stores[1].uri in shown(up(stores[1], home, port))
    second = background_pages._read(home)
    assert second is not None
    assert [background.is_running(each.pid, *each.words) for each in (first, second)] == [False, True]
    assert "pages stopped\n" in command.call(capsys, "down").out
    assert not background.command_line(second.pid)
    assert down(home) is False


def test_a_port_that_is_taken_is_named_and_leaves_nothing(tmp_path: Path, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HostError, match=rf":{port}: .*--port 4281"):
            up(workspace(tmp_path / "one"), home, port)
    assert background_pages._read(home) is None


def test_a_process_that_got_the_same_id_is_not_ended(home: Path) -> None:
    entry = background_pages._Entry(pid=1, port=4280, workspace="/data")
    DirectoryStore(home).write(background_pages.RECORD, entry.to_json())
    assert down(home) is False
