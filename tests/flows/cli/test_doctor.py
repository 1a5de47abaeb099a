"""`millrace doctor` with a real Prefect server, on which things are missing, paused, dead and late."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.schedules import CronSchedule
from prefect.flows import flow
from prefect.states import Scheduled

import infra.compute.factory
from infra import deployments
from infra.deployments import Source
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.doctor import prefect_api
from tasks.doctor.checks import CheckResult
from tasks.foundation.errors import CompileError
from tasks.foundation.process import ROOT
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.pages.golden import Golden
from tests.support.processes import command
from tests.support.processes.command import Command, CommandResult
from tests.support.processes.prefect_server import PrefectServer

SECONDS = 60.0


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    def call(*arguments: str) -> CommandResult:
        return command.call(capsys, "doctor", *arguments)

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return call


def found(report: str, name: str) -> tuple[str, str]:
    one = next(one for one in json.loads(report)["findings"] if one["name"] == name)
    return one["outcome"], one["found"]


# --- the command ------------------------------------------------------------------------------------------------


def test_nothing_fails_with_a_server_and_no_deployments(
    millrace: Command, prefect: PrefectServer, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(prefect.home))
    result = millrace("--workspace", store.uri)
    assert (result.code, result.err) == (0, "")
    assert re.search(rf"^ok +server +{prefect.url} answers \(process \d+\)$", result.out, re.M)
    assert re.search(r"^ok +prefect +server and client are \d", result.out, re.M)
    assert re.search(r"^ok +database +SQLite$", result.out, re.M)
    assert re.search(r"^ok +access ", result.out, re.M)
    assert "FAIL" not in result.out
    assert result.out.splitlines()[-1].startswith("nothing failed")


def test_failures_show_what_to_do_and_give_exit_code_78(
    millrace: Command, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    result = millrace("--workspace", store.uri, "--set", "seed=-1")
    assert (result.code, result.err) == (78, "")
    assert re.search(
        r"^FAIL +server +PREFECT_API_URL is http://127.0.0.1:1/api, but .*unset PREFECT_API_", result.out, re.M
    )
    assert re.search(r"^FAIL +configuration +configuration: seed: ", result.out, re.M)
    assert re.search(r"^ok +store ", result.out, re.M)
    assert re.fullmatch(r"2 of \d+ checks failed", result.out.splitlines()[-1])


def test_a_dead_server_is_a_failure_and_a_missing_one_a_warning(
    millrace: Command, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    assert found(millrace("--workspace", store.uri, "--json").out, "server")[0] == "warn"
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "server.json").write_text(json.dumps({"pid": os.getpid(), "port": 1}))
    died = millrace("--workspace", store.uri, "--json")
    outcome, text = found(died.out, "server")
    assert (died.code, outcome) == (78, "FAIL")
    assert f"{tmp_path}/home/server.log" in text


# --- deep checks ------------------------------------------------------------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(DirectoryStore(tmp_path / "new"))
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    return runner


def test_deep_checks_come_after_the_others_also_in_a_new_workspace(millrace: Command, fake: FakeRunner) -> None:
    done = millrace("--deep", "--workspace", fake.store.uri)
    assert done.code == 0, done.err
    assert re.search(r"^ok +store +written, read, .*^ok +a training step, 1 worker +10 step", done.out, re.M | re.S)
    assert re.search(
        r"^ok +time and price +\d+ s, cost unknown \(no price for local worker\); records: runs/deep-", done.out, re.M
    )
    assert "ok    a training step" in done.err, "each is shown as soon as it ended"


def test_a_failed_deep_check_gives_the_exit_code_of_its_class(millrace: Command, fake: FakeRunner) -> None:
    fake.fail(Stage.warmup, CompileError("graph MODULE_1 did not compile"), times=2)
    done = millrace("--deep", "--workspace", fake.store.uri)
    assert done.code == millrace("--deep", "--json", "--workspace", fake.store.uri).code == 73
    assert re.search(r"^FAIL +compilations, .*MODULE_1", done.out, re.M)
    assert "-> is compiler.target" in done.out


def test_no_deep_check_begins_with_a_wrong_configuration(millrace: Command, fake: FakeRunner) -> None:
    assert millrace("--deep", "--workspace", fake.store.uri, "--set", "seed=-1").code == 78
    assert fake.specs == []


# --- what the server knows --------------------------------------------------------------------------------------


@flow
def pipeline() -> None:
    """In place of the real one: only its name and its schedule matter."""


@pytest.fixture(scope="module")
def client(prefect: PrefectServer) -> Iterator[SyncPrefectClient]:
    with prefect.in_use(), get_client(sync_client=True) as client:
        yield client


SOURCE = Source("/srv/acme/shop", "", (), "millrace", "main", "0 6 * * 1", "UTC", False)


@pytest.fixture(scope="module")
def deployment(client: SyncPrefectClient) -> UUID:
    """The pipeline of a workspace, each Monday, in a pool without a worker."""
    client.create_work_pool(WorkPoolCreate(name="millrace", type="process"))
    return client.create_deployment(
        flow_id=client.create_flow(pipeline),
        name="shop-pipeline",
        entrypoint="flows/pipeline.py:pipeline",
        parameters={"workspace": SOURCE.uri, "config_file": "", "overrides": []},
        pull_steps=[{deployments.PULL: {"directory": str(ROOT)}}],
        work_pool_name="millrace",
        schedules=[DeploymentScheduleCreate(schedule=CronSchedule(cron="0 6 * * 1", timezone="UTC"))],
    )


def until(look: Callable[[], CheckResult], outcome: str) -> CheckResult:
    deadline = time.monotonic() + SECONDS
    while (seen := look()).outcome != outcome:
        assert time.monotonic() < deadline, f"after {SECONDS} s it is still {seen}"
        time.sleep(0.2)
    return seen


def test_a_deployment_fails_until_a_worker_sends_a_heartbeat(
    client: SyncPrefectClient, deployment: UUID, prefect: PrefectServer
) -> None:
    seen = prefect_api.workers(prefect.server)
    assert (seen.outcome, "pool millrace" in seen.found) == ("FAIL", True)
    # as `deploy` prints it: without the address it would start a worker of an empty server
    assert seen.mend == (
        f'PREFECT_API_AUTH_STRING="$(cat {prefect.server.password_file})" PREFECT_API_URL={prefect.url} '
        "prefect worker start --pool millrace --limit 6"
    )
    client.send_worker_heartbeat("millrace", "w-1", heartbeat_interval_seconds=30)
    seen = prefect_api.workers(prefect.server)
    assert (seen.outcome, "w-1, last seen " in seen.found) == ("ok", True)


def test_a_killed_worker_is_noticed(client: SyncPrefectClient, deployment: UUID, prefect: PrefectServer) -> None:
    client.request(
        "DELETE",
        "/work_pools/{work_pool_name}/workers/{name}",
        path_params={"work_pool_name": "millrace", "name": "w-1"},
    )
    client.send_worker_heartbeat("millrace", "w-2", heartbeat_interval_seconds=1)
    seen = until(lambda: prefect_api.workers(prefect.server), "FAIL")
    assert "w-2, last seen " in seen.found


def test_several_workers_on_sqlite_are_a_warning(
    client: SyncPrefectClient, deployment: UUID, prefect: PrefectServer
) -> None:
    server = prefect_api.Server(url=prefect.url, ui_url="", home=str(prefect.home), pid=None, started=False)
    assert prefect_api.database(server).found == "SQLite"
    for name in ("w-3", "w-4"):
        client.send_worker_heartbeat("millrace", name, heartbeat_interval_seconds=30)
    seen = prefect_api.database(server)
    assert (seen.outcome, seen.found[:6]) == ("warn", "SQLite")


def test_a_paused_pool_has_a_command_to_resume_it(
    client: SyncPrefectClient, deployment: UUID, prefect: PrefectServer
) -> None:
    client.update_work_pool("millrace", WorkPoolUpdate(is_paused=True))
    assert prefect_api.workers(prefect.server).mend == "prefect work-pool resume millrace"
    client.update_work_pool("millrace", WorkPoolUpdate(is_paused=False))


def test_deployments_show_the_next_run_or_a_pause(
    client: SyncPrefectClient, deployment: UUID, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = yaml.safe_load(deployments.FILE.read_text())
    tree["deployments"] = tree["deployments"][:1]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump(tree))
    monkeypatch.setattr(deployments, "FILE", tmp_path / "prefect.yaml")
    seen = until(lambda: prefect_api.deployments(SOURCE), "ok")  # the scheduler looks every few seconds
    monday = re.fullmatch(r"pipeline/shop-pipeline; next run of the pipeline: (\S+) 06:00 UTC", seen.found)
    assert monday
    assert dt.date.fromisoformat(monday[1]).weekday() == 0
    client.pause_deployment(deployment)
    seen = prefect_api.deployments(SOURCE)
    assert (seen.outcome, seen.found) == ("warn", "paused: pipeline/shop-pipeline (of pipeline/shop-pipeline)")
    client.resume_deployment(deployment)


def test_deployments_that_differ_from_what_this_workspace_would_deploy_are_a_warning(
    client: SyncPrefectClient, deployment: UUID, golden: Golden
) -> None:
    """A second person's settings, a change of the schedule without `deploy`, a folder of code that is no more."""
    until(lambda: prefect_api.deployments(SOURCE), "warn")
    theirs = SOURCE._replace(config_file="/srv/acme/team.yaml", overrides=("train.epochs=2",), cron="0 7 * * 2")
    seen = prefect_api.deployments(theirs)
    assert "not deployed: refresh/shop-refresh, backfill/shop-backfill, " in seen.found
    assert "reap" not in seen.found, "nothing of this configuration runs on AWS Batch"
    golden(seen.found)
    assert seen.mend.startswith("millrace deploy, ")
    other = prefect_api.deployments(SOURCE._replace(uri="/srv/acme/books"))
    assert (other.outcome, "nothing is deployed" in other.found) == ("ok", True)


def test_a_run_that_is_two_hours_late_is_a_failure(
    client: SyncPrefectClient, deployment: UUID, prefect: PrefectServer
) -> None:
    assert prefect_api.waiting(prefect.server).outcome == "ok"
    long_ago = dt.datetime.now(dt.UTC) - dt.timedelta(hours=2)
    run = client.create_flow_run_from_deployment(
        deployment, state=Scheduled(scheduled_time=long_ago), name="left-alone"
    )
    seen = prefect_api.waiting(prefect.server)
    assert (seen.outcome, "1 run" in seen.found, "left-alone" in seen.found) == ("FAIL", True, True)
    client.delete_flow_run(run.id)


def test_a_newer_client_is_a_failure_and_an_older_one_a_warning(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert prefect_api.versions().outcome == "ok"
    for ours, outcome in (("3.99.0", "FAIL"), ("3.1.0", "warn")):
        monkeypatch.setattr("importlib.metadata.version", lambda name, ours=ours: ours)
        assert prefect_api.versions().outcome == outcome
