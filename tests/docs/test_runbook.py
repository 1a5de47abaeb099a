"""The runbook, run: each command of its code blocks as written, in their order, on an installation as it describes one.

Server, deployments and Prefect worker are real; only the pipeline's own workers do no arithmetic.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from prefect.states import Scheduled

import infra.compute.factory
from configs.load import load_config
from infra.prefect_server import Server, client_environment
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import POLICIES, CompileError
from tasks.planning.next_run import plan_run
from tasks.runs import branches, host_records, lineage, releases
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.processes.prefect_server import client_of
from tests.support.processes.services import FAKE_WORKERS, WORKER, running

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.M | re.S)
SECONDS = 240.0

# What is shown and can't be run here, by its first words, with the reason.
ELSEWHERE = {
    "export": "the environment of the services; the test has its own",
    "aws": "there is no account",
    "systemctl": "there are no services",
    "journalctl": "there are no services",
    "cd /opt/millrace": "there is no such installation, and nothing to fetch",
    ".venv/bin/pip": "it would install",
}


class Block(NamedTuple):
    line: int
    language: str
    commands: tuple[str, ...]


def blocks() -> list[Block]:
    found = []
    for match in BLOCK.finditer(RUNBOOK):
        lines = (line.removeprefix(match[1]) for line in match[3].splitlines())
        commands = tuple(line for line in lines if line.strip())
        found.append(Block(RUNBOOK[: match.start()].count("\n") + 1, match[2], commands))
    return found


class Installation(NamedTuple):
    workspace: Path
    folder: Path
    environment: dict[str, str]

    def bash(self, command: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment | more,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )


@pytest.fixture(scope="module")
def installation(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """What the runbook says about its examples: W44 rejected, W46 failed, W43 corrected; with a worker."""
    folder = tmp_path_factory.mktemp("runbook")
    store = DirectoryStore(folder / "workspace")
    for name, text in {"bin/millrace": _shim("tests.support.fakes.millrace"), "bin/prefect": _shim("prefect")}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    (folder / "team.yaml").write_text("model: {scratch: {layers: 1}}\n")
    rows = ({"id": n, "when": "2026-11-17", "query": f"red lamp {n}", "item": f"lamp no. {n}"} for n in range(40))
    (folder / "corrected.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with contextlib.ExitStack() as stack:
        installed = Installation(
            store.root,
            folder,
            {
                **os.environ,
                **client_environment(server),
                "PATH": f"{folder}/bin:{os.environ['PATH']}",
                "MILLRACE_WORKSPACE": store.uri,
                "MILLRACE_CONFIG": f"{folder}/team.yaml",
                "SOURCE": f"{folder}/corrected.jsonl",
            },
        )
        _history(store, folder / "team.yaml")
        deployed = installed.bash('millrace deploy --config "$MILLRACE_CONFIG"')
        assert deployed.returncode == 0, deployed.stderr
        stack.enter_context(_worker(installed))
        stack.enter_context(client_of(server))
        installed.environment["FLOW_RUN"] = _planned_run()
        yield installed


def _shim(module: str) -> str:
    """A command that runs a module of this checkout, wherever it is called."""
    return f'#!/bin/sh\nPYTHONPATH={ROOT}:$PYTHONPATH exec {sys.executable} -m {module} "$@"\n'


def _history(store: DirectoryStore, config_file: Path) -> None:
    """By the stages themselves, with no Prefect server: what the commands know, they know from the workspace."""
    runner, config = FakeRunner(store), load_config(config_file)

    def run(span: str, recall: float = 0.5) -> None:
        runner.metrics["recall@10"] = recall
        carry_out(plan_run(store, config, span))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
        ingest(store, *(f"2026-W{week}" for week in range(40, 48)))
        for span in ("2026-W41", "2026-W42", "2026-W43"):
            run(span)
        run("2026-W44", recall=0.1)
        run("2026-W45")
        runner.fail(Stage.warmup, CompileError("row 3 is bad"))
        with pytest.raises(CompileError):
            run("2026-W46")
    ingest(store, "2026-W43", version=2)
    store.write("quarantine/runs/cafe/train/result.json.1", b"{")
    host_records.exclude(store, "i-0abc1234", "ECC errors", "cafe", small_config().health, time.time())


@contextlib.contextmanager
def _worker(installed: Installation) -> Iterator[None]:
    """A Prefect worker of the pool, from its first heartbeat on; the watch runs by hand alone: it might interfere."""
    with get_client_of(installed) as client:
        client.pause_deployment(client.read_deployment_by_name("watch/workspace-watch").id)
        log = installed.folder / "worker.log"
        environment = installed.environment | {"PYTHONPATH": FAKE_WORKERS, "PREFECT_WORKER_QUERY_SECONDS": "1"}
        with running(WORKER, log, environment):
            deadline = time.monotonic() + SECONDS
            while not client.read_workers_for_work_pool("millrace"):
                assert time.monotonic() < deadline, log.read_text(encoding="utf-8")
                time.sleep(0.2)
            yield


@contextlib.contextmanager
def get_client_of(installed: Installation) -> Iterator[SyncPrefectClient]:
    url, password = (installed.environment[name] for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"))
    with (
        temporary_settings({PREFECT_API_URL: url, PREFECT_API_AUTH_STRING: password}),
        get_client(sync_client=True) as client,
    ):
        yield client


def _planned_run() -> str:
    """The id of a flow run that can be cancelled."""
    tomorrow = Scheduled(scheduled_time=dt.datetime.now(dt.UTC) + dt.timedelta(days=1))
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name("pipeline/workspace-pipeline").id
        return str(client.create_flow_run_from_deployment(deployment, state=tomorrow).id)


# --- the test ---------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_every_command_runs_as_written(installation: Installation) -> None:
    printed: dict[str, str] = {}
    for block in blocks():
        if block.language != "bash":
            continue
        for command in block.commands:
            done = installation.bash(command)
            where = f"docs/runbook.md, block at line {block.line}: {command}\n"
            assert done.returncode == 0, f"{where}ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
            printed[command] = done.stdout

    assert "FAIL" not in printed['millrace doctor --config "$MILLRACE_CONFIG"']
    assert "the champion stays" in printed["millrace report --span 2026-W44"]
    assert printed["millrace hosts --forgive i-0abc1234"].startswith("forgiven: i-0abc1234\n")
    assert all((installation.folder / name).stat().st_size > 1000 for name in ("run.html", "history.html"))

    # The corrected spans are in the weights that serve now, which the lineage goes on from.
    store = DirectoryStore(installation.workspace)
    head = lineage.head(store, branches.active(store, "main"))
    assert head is not None
    checkpoint, state = head
    versions = {rows.span.name: rows.span.version for rows in state.consumed}
    assert versions == {f"2026-W{week}": 2 if week in (43, 47) else 1 for week in range(40, 48)}
    current = releases.current(store)
    assert current is not None
    assert (current.span.name, current.model.checkpoint) == ("2026-W47", checkpoint)


def test_what_is_not_run_is_known_with_its_reason() -> None:
    commands = [command for block in blocks() if block.language != "bash" for command in block.commands]
    unknown = [command for command in commands if not command.startswith(tuple(ELSEWHERE))]
    assert unknown == []
    assert [known for known in ELSEWHERE if not any(command.startswith(known) for command in commands)] == []


def test_every_failure_class_has_a_section_and_the_table_is_right() -> None:
    sections = re.findall(r"^### ([A-Z]+)$", RUNBOOK, re.M)
    assert sorted(sections) == sorted(failure.value for failure in POLICIES)
    table = re.findall(r"^\| ([A-Z]+) \| (\d+) \| (?:(no)|yes, (\d+) s later) \|", RUNBOOK, re.M)
    assert {name: (int(code), not no, float(delay or 0)) for name, code, no, delay in table} == {
        failure.value: (policy.exit_code, policy.transient, policy.delay_seconds)
        for failure, policy in POLICIES.items()
    }


def test_links_within_the_page_lead_somewhere() -> None:
    def anchor(title: str) -> str:
        return re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-")

    anchors = {anchor(title) for title in re.findall(r"^#+ (.+)$", RUNBOOK, re.M)}
    assert set(re.findall(r"\]\(#([^)]+)\)", RUNBOOK)) <= anchors
