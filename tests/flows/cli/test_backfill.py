"""`millrace backfill` and its sisters as people and scripts use them; killed, interrupted, and asked again.

The command runs in its own process, under a real server; only its workers are fakes.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from infra.prefect_server import Server, client_environment
from infra.store.directory import DirectoryStore
from tasks.runs import ledger, releases
from tests.flows.cli.test_cli import SMALL
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import forked
from tests.support.processes.command import CommandResult, as_documented

SPANS = ["2026-01", "2026-02", "2026-03", "2026-04"]
RANGE = ("--from", SPANS[0], "--to", SPANS[-1])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    ingest(DirectoryStore(tmp_path), *SPANS)
    return tmp_path


def millrace(server: Server | None, workspace: Path, *arguments: str, **environment: str) -> CommandResult:
    """The command in a process of its own, with fake workers; without a server it must not look for one."""
    url = client_environment(server) if server else {"PREFECT_API_URL": "http://127.0.0.1:1/api"}
    words = (*arguments, "--workspace", str(workspace))
    environment = {**os.environ, **url, **environment}
    done = forked.module("tests.support.fakes.millrace", *words, environment=environment, seconds=240)
    return as_documented(done, *arguments)


def backfill(server: Server | None, workspace: Path, *arguments: str, **environment: str) -> CommandResult:
    return millrace(server, workspace, "backfill", *RANGE, *SMALL, *arguments, **environment)


def attempts(workspace: Path) -> Counter[tuple[str, str]]:
    return Counter((record.span, record.stage.value) for record in ledger.records(DirectoryStore(workspace)))


def test_a_backfill_is_planned_fails_is_listed_and_finishes(server: Server, workspace: Path) -> None:
    planned = backfill(None, workspace, "--dry-run", "--reason", "it's new", "--parallel", "3")
    assert planned.code == 0, planned.err
    lines = planned.out.splitlines()
    assert lines[0].split() == ["span", "version", "train", "evaluate", "infer", "release", "expected", "why"]
    assert lines[1].split()[:6] == ["2026-01", "v1", "to", "do", "to", "do"]
    assert "4 with work left" in lines[5]
    assert lines[-1] == (
        f"To start it: millrace backfill --from 2026-01 --to 2026-04 --parallel 3 --reason 'it'\"'\"'s new' "
        f"--workspace {workspace} --set model.scratch.layers=1"
    )
    assert not (workspace / "campaigns").exists()
    assert millrace(None, workspace, "backfill", "list").out == "no backfill yet\n"

    failed = backfill(server, workspace, FAKE_FAIL="infer@2026-02:DATA")
    assert (failed.code, failed.out) == (65, "")
    last = failed.err.splitlines()[-1]
    assert last.startswith("DATA: backfill ")
    assert "2026-02 (DATA: infer: " in last
    assert "backfill: " in failed.err  # its progress
    assert "Traceback" not in failed.err
    seen = millrace(None, workspace, "backfill", "list")
    assert re.search(r"^\w{16} +Failed +2026-01 to 2026-04 +11 of 13 +2026-02 +1 ", seen.out, re.M)

    over = json.loads(millrace(None, workspace, "backfill", "list", "--json").out)["backfills"][0]["id"]
    asked = millrace(server, workspace, "backfill", "pause", over[:6])
    assert asked.code == 78
    assert f"backfill {over} " in asked.err

    again = backfill(server, workspace)
    assert again.code == 0, again.err
    assert re.search(r"^2026-04 +v1 +done +done +done +done +\w{16} *$", again.out, re.M)
    assert again.out.splitlines()[-1].startswith("Released: 2026-04")
    assert {job for job, count in attempts(workspace).items() if count > 1} == {("2026-02", "infer")}

    nothing = backfill(None, workspace)
    assert nothing.out.splitlines()[-1].startswith("Done: ")


def test_a_killed_backfill_continues_with_what_is_left(server: Server, workspace: Path) -> None:
    killed = backfill(server, workspace, FAKE_FAIL="train@2026-03:SIGKILL")
    assert killed.code == -9
    before = attempts(workspace)
    assert before["2026-03", "train"] == 1
    (seen,) = json.loads(millrace(None, workspace, "backfill", "list", "--json").out)["backfills"]
    assert (seen["state"], seen["ended_at"]) == ("Lost", None)

    again = json.loads(backfill(server, workspace, "--json").out)
    assert (again["backfill"]["state"], again["backfill"]["attempt"]) == ("Released", 2)
    records = ledger.records(DirectoryStore(workspace))
    done = Counter((record.span, record.stage.value) for record in records if record.failure is None)
    assert set(done.values()) == {1}
    assert len(done) == 4 * 6 + 1
    lost = {(record.span, record.stage.value) for record in records if record.failure is not None}
    assert ("2026-03", "train") in lost
    assert lost <= {("2026-03", "train"), *((span, stage) for span in SPANS[:2] for stage in ("evaluate", "infer"))}
    assert releases.current(DirectoryStore(workspace)) is not None


def test_an_interrupted_backfill_is_cancelled(server: Server, workspace: Path) -> None:
    stopped = backfill(server, workspace, FAKE_FAIL="train@2026-02:SIGINT")
    assert stopped.code == 76, stopped.err
    assert stopped.err.splitlines()[-1].startswith("CANCELLED: ")
    assert "Traceback" not in stopped.err
    (seen,) = json.loads(millrace(None, workspace, "backfill", "list", "--json").out)["backfills"]
    assert seen["state"] == "Cancelled"
    assert seen["ended_at"] is not None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "2026-04", "--to", "2026-01"), "did you mean --from 2026-01 --to 2026-04?"),
        (("--from", "2026-01", "--to", "2027-01"), "'2027-01'"),
        ((*RANGE, "--stages", "train,deploy"), "'deploy'"),
        ((*RANGE, "--stages", "train,release"), "release needs evaluate and infer"),
        ((*RANGE, "--stages", "infer"), "add train to --stages"),
        ((*RANGE, "--set", "train.lerning_rate=1"), "did you mean 'train.learning_rate'?"),
        ((*RANGE, "--set", "model.pretrained=/nowhere"), "there is no folder /nowhere"),
    ],
)
def test_a_wrong_range_stage_or_setting_is_refused_without_a_server(
    workspace: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = millrace(None, workspace, "backfill", *SMALL, *arguments)
    assert (result.code, result.out) == (78, "")
    assert message in result.err
    assert not (workspace / "campaigns").exists()


def test_an_unknown_backfill_or_action_is_refused(workspace: Path) -> None:
    result = millrace(None, workspace, "backfill", "cancel", "cafe")
    assert result.code == 78
    assert "'cafe'" in result.err
    assert millrace(None, workspace, "backfill", "stop", "cafe").code == 2
