"""`millrace freshness` as people and scripts read it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import flows.cli.status
import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.planning.next_run import plan_run
from tasks.runs.plan import save_plan
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.golden import Golden
from tests.support.processes import command
from tests.support.processes.command import Command, CommandResult
from tests.support.workspace.invocations import write_invocation

SETTINGS = ("model.scratch.layers=1", "schedule.cron=0 6 * * *", "freshness.target_hours=72")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """One day released, the run of the next one lost, and the day after not there."""
    store = DirectoryStore(tmp_path / "workspace")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    config = small_config(*SETTINGS)
    ingest(store, "2026-11-11")
    carry_out(plan_run(store, config))
    ingest(store, "2026-11-12")
    plan = plan_run(store, config)
    save_plan(store, plan)
    write_invocation(store, plan)
    monkeypatch.setattr(flows.cli.status, "now", lambda: "2026-11-14T08:00:00+00:00")
    return store


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str], store: DirectoryStore) -> Command:
    def call(*arguments: str) -> CommandResult:
        settings = [word for one in SETTINGS for word in ("--set", one)]
        return command.call(capsys, "freshness", "--workspace", store.uri, *settings, *arguments)

    return call


def test_the_text_shows_age_spans_and_problems(millrace: Command, golden: Golden) -> None:
    result = millrace()
    assert result.code == 0
    golden(result.out, hide=r"(?<=Released ).*")
    assert re.findall(r"^(2026\S+) +(\w+)", result.out, re.M) == [
        ("2026-11-11", "Released"),
        ("2026-11-12", "Lost"),
        ("2026-11-13", "Absent"),
    ]


def test_without_problems_the_text_says_so(
    millrace: Command, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry_out(plan_run(store, small_config(*SETTINGS), "2026-11-12"))
    monkeypatch.setattr(flows.cli.status, "now", lambda: "2026-11-13T08:00:00+00:00")
    assert millrace().out.splitlines()[-1] == "nothing is wrong"


def test_a_workspace_without_spans_is_refused(millrace: Command, store: DirectoryStore, tmp_path: Path) -> None:
    result = millrace("--workspace", str(tmp_path / "typo"))
    assert (result.code, result.out) == (78, "")


def test_the_json_lists_missed_spans_and_gaps(millrace: Command) -> None:
    real = json.loads(millrace("--json").out)
    assert (real["missed"], real["gaps"], real["catch_up"]) == (["2026-11-12"], ["2026-11-13"], "2026-11-12")
