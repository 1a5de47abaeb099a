"""A workspace with two spans, for flows in this process that talk to the real Prefect server."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import POLICIES
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import command
from tests.support.processes.command import Command
from tests.support.processes.prefect_server import PrefectServer


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path) -> Iterator[DirectoryStore]:
    store = DirectoryStore(tmp_path)
    ingest(store, "2021-Q1", "2021-Q2")
    with prefect.in_use():
        yield store


@pytest.fixture
def without_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """No run has pages or a report: making them takes longer than all else."""
    for name in ("make_stage_page", "write_run_report"):
        monkeypatch.setattr(f"flows.orchestration.recorded_invocation.{name}", lambda *_: None)


@pytest.fixture
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses before retries are a thousandth of the real ones."""
    for failure, policy in POLICIES.items():
        monkeypatch.setitem(POLICIES, failure, policy._replace(delay_seconds=policy.delay_seconds / 1000))


@pytest.fixture
def millrace(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process, for all that needs no pipeline."""
    monkeypatch.delenv("MILLRACE_WORKSPACE", raising=False)
    return functools.partial(command.call, capsys)
