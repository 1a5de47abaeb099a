"""Log lines as JSON: of a logger, of the command, of a flow run that a Prefect worker starts; with fake workers."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate

from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, DataError
from tasks.running import json_logs
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import forked
from tests.support.processes.command import CommandResult
from tests.support.processes.prefect_server import PrefectServer
from tests.support.processes.services import FAKE_WORKERS, running

ROOT = Path(__file__).resolve().parents[2]
OVERRIDE = "model.scratch.layers=1"
SECONDS = 240.0


# --- one line ---------------------------------------------------------------------------------------------------


def line(message: str, *args: object, error: Exception | None = None, **extra: object) -> dict[str, Any]:
    exc_info = (type(error), error, error.__traceback__) if error else None
    record = logging.LogRecord("prefect.task_runs", logging.INFO, "", 0, message, args, exc_info)
    record.__dict__.update(extra)
    text = json_logs.JsonLines().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_names_run_span_stage_and_attempt_where_they_are_known() -> None:
    plain = line("%d of %d", 1, 2)
    assert plain.pop("time").endswith("+00:00")
    assert plain == {"level": "INFO", "logger": "prefect.task_runs", "message": "1 of 2"}
    with json_logs.log_context(run="cafe", span="2026-W47"), json_logs.log_context(stage="train", attempt=2):
        inside = line("step", flow_run_id="f-1", task_run_id="t-1")
    assert list(inside)[4:] == ["run", "span", "stage", "attempt", "flow_run", "task_run"]
    assert (inside["span"], inside["attempt"], inside["task_run"]) == ("2026-W47", 2, "t-1")
    assert "span" not in line("afterwards")


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("[1] loss 1.9", "loss 1.9", {"rank": 1}),
        ("[node 3] [1] loss 1.9", "loss 1.9", {"node": 3, "rank": 1}),
        ("[node 3] ready", "ready", {"node": 3}),
        ("[CLS] is a token", "[CLS] is a token", {}),
        ("loss [1]", "loss [1]", {}),
    ],
)
def test_the_rank_of_a_worker_is_taken_from_its_line(text: str, message: str, place: dict[str, int]) -> None:
    with json_logs.log_context(stage="train"):
        found = line("%s", text)
    assert found["message"] == message
    assert {name: found[name] for name in ("node", "rank") if name in found} == place
    assert line("%s", text)["message"] == text  # no worker's: it belongs to no stage


def test_a_traceback_is_a_field() -> None:
    try:
        raise DataError("row 3\nis bad")
    except DataError as error:
        found = line("it ended", error=error)
    assert found["failure"] == "DATA"
    assert found["traceback"].startswith("Traceback ")
    assert found["traceback"].endswith("DataError: row 3\nis bad")


def test_only_known_forms_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for form, json_wanted in (("", False), ("text", False), ("json", True)):
        monkeypatch.setenv("MILLRACE_LOG", form)
        assert json_logs.json_enabled() is json_wanted
    monkeypatch.setenv("MILLRACE_LOG", "xml")
    with pytest.raises(ConfigError, match="MILLRACE_LOG is 'xml'"):
        json_logs.json_enabled()


# --- the command ------------------------------------------------------------------------------------------------


def environment(prefect: PrefectServer, **more: str) -> dict[str, str]:
    return {**os.environ, **client_environment(prefect.server), **more}


def run(prefect: PrefectServer, store: DirectoryStore, **more: str) -> CommandResult:
    words = ("run", "--workspace", store.uri, "--set", OVERRIDE, "--json")
    variables = environment(prefect, **more)
    return forked.module("tests.support.fakes.millrace", *words, environment=variables, seconds=SECONDS)


def test_every_line_of_a_run_on_standard_error_is_json(prefect: PrefectServer, store: DirectoryStore) -> None:
    done = run(prefect, store, MILLRACE_LOG="json", FAKE_FAIL="release:DATA")
    assert (done.code, done.out) == (65, ""), done.err
    lines = [json.loads(one) for one in done.err.splitlines()]
    assert lines[0]["message"].startswith("Prefect UI: http")
    (trained,) = [one for one in lines if one["message"] == "fake train of 2021-Q1"]
    expected = {"level": "INFO", "span": "2021-Q1", "lineage": "main", "stage": "train", "attempt": 1}
    assert expected.items() <= trained.items()
    assert store.exists(f"runs/{trained['run']}/train/result.json")
    assert {"flow_run", "task_run"} <= set(trained)
    (drift,) = [one for one in lines if one["message"].startswith("drift: ")]
    assert (drift["level"], drift["stage"]) == ("WARNING", "validate")
    expected = {"level": "ERROR", "logger": "millrace", "message": "row 3 is bad", "failure": "DATA"}
    assert expected.items() <= lines[-1].items()
    assert any(one.get("failure") == "DATA" and "Traceback" in one.get("traceback", "") for one in lines[:-1])


def test_an_unknown_form_is_refused_before_anything_is_done(prefect: PrefectServer, store: DirectoryStore) -> None:
    done = run(prefect, store, MILLRACE_LOG="yaml")
    assert (done.code, done.out) == (78, "")
    assert "MILLRACE_LOG is 'yaml'" in done.err
    assert store.list("runs") == []


# --- a Prefect worker -------------------------------------------------------------------------------------------


def test_a_worker_logs_its_flow_run_as_json(prefect: PrefectServer, store: DirectoryStore, tmp_path: Path) -> None:
    ingest(store, "2021-Q1")
    with get_client(sync_client=True) as client:
        client.create_work_pool(WorkPoolCreate(name="lines", type="process"))
        from flows.pipeline import pipeline

        deployment = client.create_deployment(
            flow_id=client.create_flow(pipeline),
            name="lines",
            # Not `path`: Prefect would copy all that lies there, the installed packages too.
            pull_steps=[{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}],
            entrypoint="flows/pipeline.py:pipeline",
            work_pool_name="lines",
            parameters={"workspace": store.uri, "overrides": [OVERRIDE]},
        )
        run_id = client.create_flow_run_from_deployment(deployment).id
    log = tmp_path / "worker.log"
    worker = (sys.executable, "-m", "prefect", "worker", "start", "--pool", "lines")
    variables = {"MILLRACE_LOG": "json", "PYTHONPATH": FAKE_WORKERS, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with running(worker, log, environment(prefect, **variables)):
        deadline = time.monotonic() + SECONDS
        while not (is_final(run_id) and "fake release" in log.read_text()):
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
    lines = [json.loads(one) for one in log.read_text().splitlines() if one.startswith("{")]
    by_stage = {one["stage"]: one for one in lines if one["message"].startswith("fake ")}
    assert list(by_stage) == ["validate", "health", "warmup", "train", "evaluate", "infer", "release"]
    assert {one["span"] for one in by_stage.values()} == {"2021-Q1"}
    assert not any("fake train" in one for one in log.read_text().splitlines() if not one.startswith("{"))


def is_final(run_id: UUID) -> bool:
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(run_id).state
    return state is not None and state.is_final()
