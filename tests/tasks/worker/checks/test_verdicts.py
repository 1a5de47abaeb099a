import time

import pytest

from infra.store.records import find_record
from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import Action, Check
from tasks.foundation.errors import ConfigError, DiskError, HostError
from tasks.runs import host_records
from tasks.runs.host_records import Findings
from tasks.worker.checks.verdicts import (
    conclude,
    judge_product,
    judge_rates,
    judge_space,
    judge_speed,
    machine_of,
    refuse,
    slowest_to_median,
)
from tests.support.pages.golden import Golden
from tests.support.workspace.jobs import make_job, tiny_config

LIMITS = tiny_config("health.matmul_size=1000", "health.min_memory_gib=2", "health.min_disk_gib=4").health
HOSTS = ["a", "b", "c", "d"]
FINDINGS_KEY = "runs/run/health/attempt-1/findings.json"


def failed(action: Action, host: str = "", name: str = "check") -> Check:
    facts = {"severity": "critical", "observed": None, "sentence": f"{name} failed"}
    return Check.model_validate({"name": name, "passed": False, "host": host, "action": action, **facts})


@pytest.mark.parametrize(
    ("seconds", "ratio", "slowest"),
    [([1.0, 1.0], 1.0, None), ([1.0, 4.0], 4.0, 1), ([4.0, 1.0, 1.1, 1.0], 4.0, 0), ([1.0, 2.0, 2.5], 1.25, None)],
)
def test_a_straggler_is_named_and_is_a_warning(seconds, ratio, slowest):
    assert slowest_to_median(seconds) == pytest.approx(ratio)
    check = judge_speed(seconds, HOSTS, LIMITS)
    assert (check.passed, check.severity, check.observed) == (slowest is None, "warning", pytest.approx(ratio))
    assert check.action == "proceed"
    if slowest is not None:
        assert check.host == HOSTS[slowest]
        assert f"worker {slowest} is" in check.sentence
    refuse([check])


def test_a_product_that_one_worker_got_wrong_does_not_pass(golden: Golden):
    assert judge_product("fp32_seconds", [1.0, float("nan")], LIMITS) == []
    (check,) = judge_product("fp32_seconds", [1.0, 2.0], LIMITS)
    golden(check.sentence)


ROOMY = {"memory": 8.0, "disk": 80.0, "workspace": 800.0}


@pytest.mark.parametrize(
    ("ranks", "failed", "error", "sentence"),
    [
        ([ROOMY, ROOMY], [], None, ""),
        ([ROOMY, ROOMY | {"memory": 2.0}], [], None, ""),
        ([ROOMY, ROOMY | {"memory": 1.9}], ["free memory"], HostError, r"worker 1 has 1.90 GiB .*elsewhere: b\]"),
        ([ROOMY | {"disk": 0.0}, ROOMY], ["free disk"], HostError, "worker 0 has 0.00 GiB free on the disk of"),
        ([ROOMY | {"workspace": 3.0}], ["free workspace disk"], DiskError, "3.00 GiB free on the disk of /w.*move"),
        ([ROOMY | {"workspace": -1.0}], [], None, ""),
        ([{"memory": 1.0, "disk": 9.0, "workspace": 1.0}], ["free memory", "free workspace disk"], HostError, "memory"),
    ],
)
def test_the_worker_with_the_least_space_decides(ranks, failed, error, sentence):
    checks = judge_space(ranks, HOSTS, LIMITS, "/w")
    assert [check.name for check in checks if not check.passed] == failed
    if error is None:
        refuse(checks)
    else:
        with pytest.raises(error, match=sentence) as caught:
            refuse(checks)
        assert type(caught.value) is error


def test_a_store_without_a_disk_has_no_check_of_space():
    checks = judge_space([ROOMY | {"workspace": -1.0}], HOSTS, LIMITS, "s3://bucket")
    assert [check.name for check in checks] == ["free memory", "free disk"]


RATES = {"all_reduce_latency_us": 700.0, "all_reduce_bus_gb_s": 30.0, "all_gather_bus_gb_s": 20.0}


@pytest.mark.parametrize(
    ("changed", "slow"),
    [
        ({}, []),
        ({"all_reduce_bus_gb_s": 19.9}, ["all-reduce bandwidth"]),
        ({"all_reduce_latency_us": 1000.1}, ["all-reduce latency"]),
        ({"all_gather_bus_gb_s": 0.1}, []),
    ],
)
def test_slow_collectives_are_a_warning(changed, slow):
    machine = machine_of(tiny_config("health.machine=trn1.32xlarge").health)
    assert machine is not None
    failed = [check for check in judge_rates(RATES | changed, 64, "trn1.32xlarge", machine) if not check.passed]
    assert [check.name for check in failed] == slow
    assert {(check.severity, check.action) for check in failed} <= {("warning", "proceed")}
    assert all("health.machines.trn1.32xlarge" in check.sentence for check in failed)


def test_a_machine_without_a_name_has_no_limits():
    assert machine_of(LIMITS) is None


@pytest.mark.parametrize(
    ("checks", "error", "message"),
    [
        ([failed("exclude host", "h")], HostError, "check failed [exclude host: h]"),
        ([failed("retry elsewhere")], HostError, "check failed [retry elsewhere]"),
        (
            [failed("exclude host", "h", "ecc"), failed("stop", "i", "ls")],
            ConfigError,
            "ecc failed [exclude host: h]; ls failed [stop: i]",
        ),
    ],
)
def test_the_error_lists_every_finding_with_host_and_verdict(checks, error, message):
    with pytest.raises(error) as caught:
        refuse(checks)
    assert (type(caught.value), str(caught.value)) == (error, message)


def test_findings_are_written_and_each_host_gets_one_record(store, monkeypatch):
    monkeypatch.setenv("MILLRACE_HOST", "a")
    job = make_job(store, tiny_config("health.strikes=2"), HealthInputs())
    fine = failed("exclude host", "c").model_copy(update={"passed": True})
    checks = [
        fine,
        failed("retry elsewhere", "a", "busy"),
        failed("retry elsewhere", "a", "slow"),
        failed("exclude host", "b", "ecc"),
        failed("retry elsewhere", "", "all-reduce"),
        failed("proceed", "", "free workspace disk"),
    ]
    conclude(job, checks, ["a", "a", "b", "c"])
    findings = find_record(store, FINDINGS_KEY, Findings)
    assert findings is not None
    assert list(findings.checks) == checks
    a, b, c = host_records.known_hosts(store)
    assert [strike.reason for strike in a.strikes] == ["busy failed; slow failed; all-reduce failed"]
    assert (a.exclusion, b.strikes) == (None, ())
    assert b.exclusion is not None
    assert b.exclusion.reason == "ecc failed"
    assert [strike.reason for strike in c.strikes] == ["all-reduce failed"]
    assert a.strikes[0].until - time.time() == pytest.approx(24 * 3600, abs=60)


@pytest.mark.parametrize("checks", [[], [failed("exclude host", "a").model_copy(update={"severity": "warning"})]])
def test_findings_that_refuse_no_worker_are_not_written(store, monkeypatch, checks):
    monkeypatch.setenv("MILLRACE_HOST", "a")
    conclude(make_job(store, tiny_config(), HealthInputs()), checks, ["a"])
    refuse(checks)
    assert (store.list("runs"), store.list("hosts")) == ([], [])


def test_a_full_store_does_not_hide_the_finding(store, monkeypatch, capsys):
    def full(key: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "write", full)
    conclude(make_job(store, tiny_config(), HealthInputs()), [failed("exclude host", "a")], ["a"])
    assert "[Errno 28]" in capsys.readouterr().err
    assert not store.exists(FINDINGS_KEY)
