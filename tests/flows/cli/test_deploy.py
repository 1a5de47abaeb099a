"""`millrace deploy` against a real server: what is there afterwards, what a second time changes, the alerts.

Each deployment takes some seconds, since each flow is imported for it.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.client.schemas.objects import FlowRun
from prefect.events import emit_event
from prefect.states import Failed
from pydantic import SecretStr

from flows.cli.deploying import DeployOutput
from infra import deployments, work_pool
from infra.deployments import Source
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError
from tests.support.fakes.fake_runner import ingest
from tests.support.processes import forked
from tests.support.processes.command import CommandResult
from tests.support.processes.prefect_server import PrefectServer

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 120.0
BERLIN = ZoneInfo("Europe/Berlin")
FLOWS = ["pipeline", "refresh", "backfill", "bakeoff", "parity", "watch", "report", "prune"]
NAMES = [f"{flow}/workspace-{flow}" for flow in FLOWS]


Deploy = Callable[..., CommandResult]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with two weeks, and a config file next to it."""
    folder = tmp_path_factory.mktemp("deployed")
    ingest(DirectoryStore(folder / "workspace"), "2026-W46", "2026-W47")
    (folder / "team.yaml").write_text("schedule: {cron: '30 4 * * 2', timezone: Europe/Berlin}\n")
    return folder


def millrace(prefect: PrefectServer, folder: Path, *arguments: str, **environment: str) -> CommandResult:
    """`millrace deploy`, called in `folder`."""
    environment = {**os.environ, "PREFECT_API_URL": prefect.url, "PREFECT_HOME": str(prefect.home), **environment}
    return forked.millrace("deploy", *arguments, environment=environment, folder=folder, seconds=SECONDS)


@pytest.fixture
def deploy(prefect: PrefectServer, folder: Path) -> Iterator[Deploy]:
    def call(*arguments: str, **environment: str) -> CommandResult:
        return millrace(prefect, folder, *arguments, **environment)

    with prefect.in_use():
        yield call


@pytest.fixture(scope="module")
def first(prefect: PrefectServer, folder: Path) -> DeployOutput:
    result = millrace(
        prefect, folder, "--workspace", "workspace", "--config", "team.yaml", "--set", "train.epochs=2", "--json"
    )
    assert result.code == 0, result.err
    return DeployOutput.model_validate_json(result.out)


def on_server(name: str) -> Any:
    with get_client(sync_client=True) as client:
        return client.read_deployment_by_name(name)


def test_all_deployments_are_there_with_schedule_pool_and_queue(
    first: DeployOutput, folder: Path, deploy: Deploy
) -> None:
    assert [line.name for line in first.deployments] == NAMES
    assert all(line.active for line in first.deployments)
    schedules = {line.name: (line.cron, line.timezone) for line in first.deployments if line.cron}
    assert schedules == {
        "pipeline/workspace-pipeline": ("30 4 * * 2", "Europe/Berlin"),
        "refresh/workspace-refresh": ("35 * * * *", "UTC"),
        "watch/workspace-watch": ("5 * * * *", "UTC"),
        "report/workspace-report": ("30 5 * * *", "Europe/Berlin"),
        "prune/workspace-prune": ("50 1-4 * * *", "Europe/Berlin"),
    }
    pipeline = first.deployments[0]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT04:30:00\+0[12]:00", pipeline.next_at or "")
    assert re.fullmatch(r"\d{4}-W\d\d", pipeline.next_span or "")
    assert (first.workspace, first.config_file) == (str(folder / "workspace"), str(folder / "team.yaml"))
    assert (first.left_over, first.alerts) == ((), ())
    assert (first.name, first.work_pool) == ("workspace", "millrace")
    with get_client(sync_client=True) as client:
        assert client.read_work_pool("millrace").type == "process"
        assert client.read_global_concurrency_limit_by_name(first.queue).limit == 1


def test_deployments_have_absolute_paths_of_config_and_code(first: DeployOutput, folder: Path, deploy: Deploy) -> None:
    """A worker has another working directory and another environment."""
    asked = {
        "workspace": str(folder / "workspace"),
        "config_file": str(folder / "team.yaml"),
        "overrides": ["train.epochs=2"],
    }
    for name in NAMES:
        deployment = on_server(name)
        assert deployment.parameters == (asked)
        assert deployment.pull_steps == [{"prefect.deployments.steps.set_working_directory": {"directory": str(ROOT)}}]
        assert deployment.global_concurrency_limit is None
    (schedule,) = on_server("pipeline/workspace-pipeline").schedules
    assert schedule.parameters == {"scheduled_in": "Europe/Berlin"}


def test_the_forms_have_dropdowns_bounds_and_help(first: DeployOutput, deploy: Deploy) -> None:
    fields = {name: on_server(name).parameter_openapi_schema["properties"] for name in NAMES}
    for name in NAMES:
        assert all(field["description"] for field in fields[name].values()), name
        assert all("anyOf" not in field for field in fields[name].values()), f"{name} would ask for a type first"
    assert fields["parity/workspace-parity"]["left"]["enum"] == ["cpu", "cuda", "neuron", "xla"]
    assert fields["backfill/workspace-backfill"]["stages"]["items"]["enum"] == ["train", "evaluate", "infer", "release"]
    parallel = fields["backfill/workspace-backfill"]["parallel"]
    assert (parallel["minimum"], parallel["maximum"]) == (1, 16)


def test_deploying_again_replaces_but_keeps_what_is_paused(first: DeployOutput, deploy: Deploy) -> None:
    (schedule,) = on_server("report/workspace-report").schedules
    with get_client(sync_client=True) as client:
        client.update_deployment_schedule(on_server("report/workspace-report").id, schedule.id, active=False)
        # as earlier versions did
        client.update_deployment(on_server("watch/workspace-watch").id, DeploymentUpdate(concurrency_limit=1))
        weekly = client.create_deployment(
            flow_id=on_server(NAMES[0]).flow_id, name="weekly", parameters={"workspace": first.workspace}
        )
    assert on_server("watch/workspace-watch").global_concurrency_limit is not None
    assert planned(at_least=1) == {"04:30"}
    result = deploy("--workspace", "workspace", "--set", "schedule.cron=0 3 * * 3", "--set", "lineage=other")
    assert result.code == 0, result.err
    assert "04:30" not in planned(at_least=0)
    again = result.out
    assert re.search(
        r"^pipeline/workspace-pipeline +0 3 \* \* 3 +UTC +\d{4}-\d\d-\d\d 03:00 +takes \d{4}-W\d\d", again, re.M
    )
    assert re.search(r"^report/workspace-report +30 5 \* \* \* .*paused in the UI", again, re.M)
    assert "start --pool millrace" in again
    assert "prefect deployment delete pipeline/weekly" in again  # an earlier version deployed it
    assert {line.url for line in first.deployments} == {
        f"{first.ui_url}/deployments/deployment/{on_server(name).id}" for name in NAMES
    }
    (schedule,) = on_server("pipeline/workspace-pipeline").schedules
    assert (schedule.schedule.cron, schedule.parameters) == ("0 3 * * 3", {"scheduled_in": "UTC"})
    assert on_server("pipeline/workspace-pipeline").parameters["config_file"] == ""
    assert on_server("watch/workspace-watch").global_concurrency_limit is None
    with get_client(sync_client=True) as client:
        client.delete_deployment(weekly)
        assert len(client.read_deployments()) == len(NAMES)
        assert {limit.limit for limit in client.read_global_concurrency_limits()} == {1}


def planned(at_least: int) -> set[str]:
    """The times of day in Berlin of the scheduled runs of the pipeline, once there are so many."""
    deadline = time.monotonic() + SECONDS
    while True:
        with get_client(sync_client=True) as client:
            runs = [run for run in client.read_flow_runs() if run.auto_scheduled and "scheduled_in" in run.parameters]
        times = {f"{run.expected_start_time.astimezone(BERLIN):%H:%M}" for run in runs if run.expected_start_time}
        if len(times) >= at_least:
            return times
        assert time.monotonic() < deadline, "the scheduler made no run"
        time.sleep(0.3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "schedule.cron=0 25 * * 1"), "CONFIG: schedule.cron '0 25 * * 1' is not a cron"),
        (("--set", "schedule.timezone=Berlin"), "'Berlin'"),
        (("--alert-url", "hooks.example.com/s3cret"), "CONFIG: --alert-url must begin with http:// or https://"),
    ],
)
def test_a_wrong_option_is_refused_without_its_secret(deploy: Deploy, arguments: tuple[str, ...], words: str) -> None:
    result = deploy("--workspace", "workspace", *arguments)
    assert (result.code, result.out) == (78, "")
    assert words in result.err
    assert "s3cret" not in result.err
    assert "Traceback" not in result.err


def source(uri: str, config_file: str = "") -> Source:
    return Source(uri, config_file, (), "millrace", "main", "0 6 * * 1", "UTC", on_batch=False)


def test_in_a_pool_of_containers_flows_run_the_image_and_need_a_bucket(deploy: Deploy, first: DeployOutput) -> None:
    """A directory of this machine would be empty there, and each run would begin a workspace of its own."""
    with get_client(sync_client=True) as client:
        client.delete_work_pool("millrace")
        client.create_work_pool(WorkPoolCreate(name="millrace", type="ecs"))
        refused = deploy("--workspace", "workspace")
        bucket = source("s3://acme/shop", str(ROOT / "configs/demo.yaml"))
        tree = deployments.rendered(bucket, "shop", work_pool.kind_of(client, "millrace"))
        client.delete_work_pool("millrace")  # the next deployment makes it again
    assert (refused.code, "workspace into a bucket" in refused.err.replace("\n", " ")) == (78, True)
    assert tree["pull"] == [{deployments.PULL: {"directory": "/opt/millrace"}}]
    assert tree["deployments"][0]["parameters"]["config_file"] == "/opt/millrace/configs/demo.yaml"
    with pytest.raises(ConfigError, match=r"/home/ann/team\.yaml"):
        deployments.rendered(bucket._replace(config_file="/home/ann/team.yaml"), "shop", "ecs")
    there = deployments.rendered(bucket._replace(config_file="s3://acme/settings/team.yaml"), "shop", "ecs")
    assert there["deployments"][0]["parameters"]["config_file"] == "s3://acme/settings/team.yaml"


# --- several workspaces on one server ---------------------------------------------------------------------------


def test_each_workspace_and_pipeline_has_its_own_deployments_and_takes_over_none(
    deploy: Deploy, first: DeployOutput, tmp_path: Path
) -> None:
    """A second person deploys; then a third, whose workspace has the same name."""
    for name in ("books", "workspace"):
        ingest(DirectoryStore(tmp_path / name), "2026-W46")
    second = deploy(
        "--workspace", str(tmp_path / "books"), "--set", "pipeline=offers", "--set", "compute=batch", "--json"
    )
    assert second.code == 0, second.err
    theirs = DeployOutput.model_validate_json(second.out)
    assert [line.name for line in theirs.deployments] == [f"{flow}/books-offers-{flow}" for flow in (*FLOWS, "reap")]
    assert (theirs.left_over, theirs.queue == first.queue) == ((), False)
    assert on_server(NAMES[0]).parameters["workspace"] == first.workspace
    assert {"millrace", "pipeline:offers", "lineage:main"} <= set(on_server(theirs.deployments[0].name).tags)

    third = deploy("--workspace", str(tmp_path / "workspace"))
    words = third.err.replace("\n", " ")
    assert (third.code, third.out) == (78, "")
    assert f"deployment {NAMES[0]} of {first.workspace}" in words
    assert "millrace deploy --name NAME" in words
    assert on_server(NAMES[0]).parameters["workspace"] == first.workspace

    named = deploy("--workspace", str(tmp_path / "workspace"), "--name", "ann", "--json")
    assert named.code == 0, named.err
    assert json.loads(named.out)["deployments"][0]["name"] == "pipeline/ann-pipeline"
    with get_client(sync_client=True) as client:
        for name in [*theirs.deployments, *DeployOutput.model_validate_json(named.out).deployments]:
            client.delete_deployment(on_server(name.name).id)


def test_prefect_deploy_all_works_in_a_clean_clone_and_millrace_deploy_takes_that_over(
    deploy: Deploy, prefect: PrefectServer, tmp_path: Path
) -> None:
    """Prefect's own command ended at the first schedule, with nothing deployed."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tmp_path / "clone")], check=True)
    shutil.copy(ROOT / "prefect.yaml", tmp_path / "clone")
    words = f"{sys.executable} -m prefect"
    environment = os.environ | client_environment(prefect.server)
    forget_deployments()
    with get_client(sync_client=True) as client:
        work_pool.make_pool(client, "millrace")
    done = subprocess.run(
        ["sh", "-c", f"cd {tmp_path}/clone && {words} deploy --all"],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        there = deployments.on_server(client)
    assert sorted(one.name for one in there) == sorted([*NAMES, "reap/workspace-reap"])
    assert {one.workspace for one in there} == {f"{tmp_path}/clone/workspace"}
    assert {deployments.directory(one.response) for one in there} == {tmp_path / "clone"}
    own = source(f"{tmp_path}/clone/workspace")
    assert deployments.left_over(NAMES, there, own) == [one for one in there if one.flow == "reap"]
    deployments.require_own(NAMES, there, own.uri)
    forget_deployments()  # of another workspace than those of the tests below


def forget_deployments() -> None:
    with get_client(sync_client=True) as client:
        for one in client.read_deployments():
            client.delete_deployment(one.id)


# --- alerts -----------------------------------------------------------------------------------------------------


class Chat:
    """A server that receives the webhook's posts, in order."""

    def __init__(self) -> None:
        self.posts: queue.Queue[dict[str, Any]] = queue.Queue()
        posts = self.posts

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.headers["Content-Type"] == "application/json"
                posts.put(json.loads(body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def chats() -> Iterator[tuple[Chat, Chat]]:
    with contextlib.ExitStack() as stack:
        pair = (Chat(), Chat())
        for chat in pair:
            stack.callback(chat.close)
        yield pair


def failed_run(message: str) -> FlowRun:
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(
            on_server("pipeline/workspace-pipeline").id, name="2026-W47 attempt 1"
        )
        client.set_flow_run_state(run.id, Failed(message=message), force=True)
    return run


def test_the_webhook_is_called_for_failures_lateness_staleness_and_releases(
    deploy: Deploy, first: DeployOutput, chats: tuple[Chat, Chat]
) -> None:
    before, chat = chats
    for address in (before.url, chat.url):  # the second replaces the first
        result = deploy("--workspace", "workspace", "--json", MILLRACE_ALERT_URL=address)
        assert result.code == 0, result.err
        assert address not in result.out + result.err
    alerts = json.loads(result.out)["alerts"]
    with get_client(sync_client=True) as client:
        names = [automation.name for automation in client.read_automations()]
    assert sorted(name for name in names if name.startswith("millrace: ")) == sorted(alerts)
    assert len(alerts) == 14

    message = 'DataError: span 2026-W47: "3 clean rows", at least 32 are needed'
    post = post_after(chat, lambda: failed_run(message))
    assert post["text"].endswith(f"pipeline 2026-W47 attempt 1, Failed: {message}")
    assert re.fullmatch(rf"{first.ui_url}/runs/flow-run/[0-9a-f-]{{36}}", post["page"])
    assert post["event"] == "prefect.flow-run.Failed"

    payload = {"lineage": "main", "sentence": "the vectors are 400 h old", "release": {"number": 4}}
    resource = {"prefect.resource.id": "millrace.lineage.main"}
    named = {"millrace.stale": "the vectors are stale", "millrace.run.late": "a run is late"}
    named |= {"millrace.release.released": "a release was made", "millrace.release.rejected": "a model was rejected"}
    named |= {"millrace.job.beyond-plan": "a job runs beyond its plan"}
    for event, name in named.items():
        post = post_after(chat, functools.partial(emit_event, event, resource, payload=payload))
        assert post["text"] == f"millrace: {name}: {payload['sentence']}"
        assert (post["event"], post["payload"]) == (event, payload)
    assert before.posts.empty()


def test_a_notification_block_of_the_server_alerts_beside_the_webhook(
    deploy: Deploy, first: DeployOutput, chats: tuple[Chat, Chat]
) -> None:
    hook, chat = chats
    texts = {"subject": "{{subject}}", "body": "{{body}}"}
    made: Any = CustomWebhookNotificationBlock
    made(name="c", url=chat.url, json_data=texts, allow_private_urls=True).save("team", overwrite=True)
    asked = ("--alert-block", "custom-webhook/team")
    result = deploy("--workspace", "workspace", "--json", *asked, MILLRACE_ALERT_URL=hook.url)
    assert result.code == 0, result.err
    payload = {"lineage": "main", "sentence": "it is late", "severity": "critical", "dedup_key": "w#main/late"}
    resource = {"prefect.resource.id": "millrace.run.abc"}
    post = post_after(chat, functools.partial(emit_event, "millrace.run.late", resource, payload=payload))
    assert post["subject"].startswith("[critical] millrace")
    assert post["body"] == f"it is late\n\n{first.ui_url}"
    beside = hook.posts.get(timeout=SECONDS)
    assert (beside["severity"], beside["dedup_key"]) == ("critical", "w#main/late")


@pytest.mark.parametrize(
    ("block", "why"),
    [
        ("slack-webhook", "must be TYPE/NAME, as in slack-webhook/team"),
        ("slack-webhook/nobody", "has no block slack-webhook/nobody; make it on the page Blocks"),
        ("webhook/millrace-plain", "the block webhook/millrace-plain sends no notifications"),
    ],
)
def test_a_block_that_can_not_alert_is_refused_before_anything_is_deployed(
    deploy: Deploy, first: DeployOutput, block: str, why: str
) -> None:
    made: Any = Webhook(url=SecretStr("http://127.0.0.1:9"))
    made.save("millrace-plain", overwrite=True)
    result = deploy("--workspace", "workspace", "--alert-block", block)
    assert (result.code, why in result.err.replace("\n", " ")) == (78, True), result.err


@pytest.mark.proof  # the server takes most of a minute to miss a worker
def test_the_webhook_is_called_for_a_lost_worker(deploy: Deploy, first: DeployOutput, chats: tuple[Chat, Chat]) -> None:
    chat = chats[0]
    result = deploy("--workspace", "workspace", "--json", MILLRACE_ALERT_URL=chat.url)
    assert result.code == 0, result.err
    post = post_after(chat, worker_that_dies)
    assert post["text"].startswith(json.loads(result.out)["alerts"][-1])
    assert post["text"].endswith(": millrace doctor")
    assert (post["event"], post["page"]) == ("prefect.work-pool.not-ready", f"{first.ui_url}/work-pools")


def worker_that_dies() -> None:
    """One heartbeat; the server looks every 15 s, and three missing ones mean that the worker is dead."""
    with get_client(sync_client=True) as client:
        client.send_worker_heartbeat("millrace", "w-1", heartbeat_interval_seconds=1)


def post_after(chat: Chat, act: Callable[[], object]) -> dict[str, Any]:
    """The post that an act causes. The server knows a new automation a moment late, so the act may be repeated."""
    deadline = time.monotonic() + SECONDS
    while True:
        act()
        with contextlib.suppress(queue.Empty):
            post = chat.posts.get(timeout=25)
            with contextlib.suppress(queue.Empty):
                while True:  # the posts of repeated acts
                    chat.posts.get(timeout=1)
            return post
        assert time.monotonic() < deadline, "the webhook was not called"
