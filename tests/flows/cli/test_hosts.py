"""`millrace hosts` and what `millrace report` shows of machines that health refused."""

import json
import re
import time
from pathlib import Path

import pytest

from flows.cli import report
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Check
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import HostError
from tasks.planning.next_run import plan_run
from tasks.runs import host_records, ledger
from tasks.runs.host_records import Findings
from tasks.runs.plan import save_plan
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.processes import command
from tests.support.processes.command import Command, CommandResult
from tests.support.workspace.specs import spec_of

LIMITS = small_config("health.strikes=2", "health.exclude_hours=24").health


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Host i-1 excluded, i-2 suspected, and nothing of i-3 that has not expired."""
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01")
    now = time.time()
    host_records.exclude(store, "i-1", "ECC errors in the SRAM", "cafe", LIMITS, now)
    host_records.strike(store, "i-2", "the links are slow", "cafe", LIMITS, now)
    host_records.strike(store, "i-3", "was slow", "cafe", LIMITS, now - 25 * 3600)
    return store


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str], store: DirectoryStore) -> Command:
    def call(*arguments: str) -> CommandResult:
        return command.call(capsys, "hosts", "--workspace", store.uri, *arguments)

    return call


def test_excluded_and_suspected_hosts_are_listed_with_the_reason(millrace: Command) -> None:
    result = millrace()
    assert result.code == 0
    lines = re.findall(r"^(i-\d) +(\w+) +(\d) +\d{4}-\d\d-\d\d \d\d:\d\d +cafe +(.+?) *$", result.out, re.M)
    assert lines == [
        ("i-1", "excluded", "0", "ECC errors in the SRAM"),
        ("i-2", "suspected", "1", "the links are slow"),
    ]


def test_json_has_times_in_utc_and_nothing_that_has_expired(millrace: Command) -> None:
    found = json.loads(millrace("--json").out)
    assert found["forgiven"] is None
    assert [(host["host"], host["state"], len(host["strikes"])) for host in found["hosts"]] == [
        ("i-1", "excluded", 0),
        ("i-2", "suspected", 1),
    ]
    assert found["hosts"][0]["until"].endswith("+00:00")


def test_a_forgiven_host_is_not_excluded_any_more(millrace: Command, store: DirectoryStore) -> None:
    result = millrace("--forgive", "i-1")
    assert result.out.startswith("forgiven: i-1\n")
    assert "excluded" not in result.out
    assert host_records.excluded(store, "i-1", time.time()) is None
    assert json.loads(millrace("--forgive", "i-2", "--json").out) == {"forgiven": "i-2", "hosts": []}
    assert "no host" in millrace().out


def test_a_host_without_a_record_cannot_be_forgiven(millrace: Command) -> None:
    result = millrace("--forgive", "i-9")
    assert (result.code, result.out) == (78, "")
    assert "host 'i-9'" in result.err
    assert result.err.rstrip().endswith("i-1, i-2, i-3")


def test_the_report_shows_what_refused_the_machines_of_the_last_attempt(store: DirectoryStore) -> None:
    plan = plan_run(store, small_config(), "2026-01")
    save_plan(store, plan)
    sentence = "uncorrectable ECC errors: 1 in the SRAM of neuron5"
    check = Check(
        name="ecc",
        passed=False,
        severity="critical",
        observed=1.0,
        sentence=sentence,
        host="i-1",
        action="exclude host",
    )
    spec = spec_of(Stage.health, workspace=store.uri).model_copy(update={"run_key": plan.run_key})
    attempt = ledger.OpenAttempt.begin(store, spec)
    attempt.end(1.0, HostError(sentence))
    assert report.of_run(store, plan.run_key).checks == ()
    store.write(FINDINGS.of(spec), Findings(checks=(check,)).to_json())
    (shown,) = report.of_run(store, plan.run_key).checks
    assert (shown.stage, shown.host, shown.action, shown.sentence) == ("health", "i-1", "exclude host", sentence)
