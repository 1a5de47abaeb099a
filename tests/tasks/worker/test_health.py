import errno
import os
import time

import pytest

from infra.compute.local import LocalRunner
from infra.store.directory import DirectoryStore
from infra.store.records import find_record
from tasks.contracts.jobs import HealthInputs
from tasks.contracts.outcomes import HealthOutcome, StageResult, WorkerFailure
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass, HostError, StoreError, classify
from tasks.runs import host_records
from tasks.runs.host_records import Findings
from tasks.runs.results import read_result
from tasks.worker import health
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.health import probe_store
from tests.support.fakes.broken import break_product
from tests.support.fakes.stand_ins import Heard, health_spec, replace_health
from tests.support.workspace.jobs import make_job, tiny_config

SMALL = ("health.matmul_size=64", "health.all_reduce_mib=1")
COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "gradient sum", "gradient of all-gather"]


def run(store: DirectoryStore, *overrides: str) -> HealthOutcome:
    return health.run(make_job(store, tiny_config(*SMALL, *overrides), HealthInputs()))


def test_a_healthy_worker_reports_its_numbers_and_leaves_no_files(store):
    outcome = run(store)
    assert outcome.device == "cpu"
    assert len(outcome.matmul_gflops) == len(outcome.free_memory_gib) == 1
    assert min(*outcome.matmul_gflops, *outcome.free_memory_gib, outcome.free_disk_gib) > 0
    assert outcome.slowest_to_median == 1.0
    assert outcome.collectives == {}
    assert all(check.passed for check in outcome.checks)
    names = [check.name for check in outcome.checks if check.name != "matmul bf16"]
    assert names == ["store", "matmul fp32", "free memory", "free disk", "free workspace disk"]
    assert store.list("runs") == []


@pytest.mark.parametrize("fast", [True, False])
def test_bf16_is_checked_if_it_is_fast(store, monkeypatch, fast):
    monkeypatch.setattr(CpuAccelerator, "fast_bf16", fast)
    outcome = run(store, "train.precision=auto")
    assert ("matmul bf16" in [check.name for check in outcome.checks]) is fast


@pytest.mark.parametrize(("precision", "gflops"), [("fp32", 1.0), ("bf16", 4.0)])
def test_the_reported_speed_is_in_the_precision_of_training(store, monkeypatch, precision, gflops):
    monkeypatch.setattr(CpuAccelerator, "fast_bf16", True)
    seconds = {"fp32": 2 * 64**3 / 1e9, "bf16": 2 * 64**3 / 4e9}
    monkeypatch.setattr(health, "time_product", lambda accelerator, problem, precision: seconds[precision])
    assert run(store, f"train.precision={precision}").matmul_gflops == (pytest.approx(gflops, rel=1e-3),)


@pytest.mark.parametrize("key", ["min_memory_gib", "min_disk_gib"])
def test_a_worker_that_is_too_small_is_refused_with_number_and_limit(store, key):
    with pytest.raises(HostError, match=rf"worker 0 .*{key} is 1e\+09"):
        run(store, f"health.{key}=1e9")


def test_a_device_that_multiplies_wrong_is_refused(store, monkeypatch):
    break_product(monkeypatch, at_call=1, value=7.0)
    monkeypatch.setenv("MILLRACE_HOST", "host-7")
    wrong = r"worker 0 on host-7 .* multiplies wrong in fp32: element \(3, 5\)(?s:.*)\[exclude host: host-7\]"
    with pytest.raises(HostError, match=wrong):
        run(store)
    assert store.list("runs") == ["runs/run/health/attempt-1/findings.json"]
    findings = find_record(store, "runs/run/health/attempt-1/findings.json", Findings)
    assert findings is not None
    (failed,) = (check for check in findings.checks if not check.passed)
    assert (failed.name, failed.host, failed.action) == ("matmul fp32", "host-7", "exclude host")
    assert {"store", "free memory"} < {check.name for check in findings.checks}
    assert "worker 0 on host-7" in (host_records.excluded(store, "host-7", time.time()) or "")


def test_a_machine_outside_of_batch_is_not_recorded(store, monkeypatch):
    monkeypatch.delenv("MILLRACE_HOST", raising=False)
    break_product(monkeypatch, at_call=1, value=7.0)
    with pytest.raises(HostError, match="multiplies wrong"):
        run(store)
    assert store.list("hosts") == []


class CreateReplaces(DirectoryStore):
    def create(self, key: str, data: bytes) -> None:
        self.write(key, data)


class SwapIsBlind(DirectoryStore):
    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self.write(key, data)


class SwapDoesNothing(DirectoryStore):
    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        if expected != self.read(key):
            super().swap(key, data, expected)


class ForgetsWrites(DirectoryStore):
    def read(self, key: str) -> bytes:
        return b""


class MayNotWrite(DirectoryStore):
    def write(self, key: str, data: bytes) -> None:
        raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (CreateReplaces, "created again"),
        (SwapIsBlind, "swapped although it had changed"),
        (SwapDoesNothing, "not read or listed as swapped"),
        (ForgetsWrites, "reads differently than it was written"),
        (MayNotWrite, "Permission denied.*writable"),
    ],
)
def test_a_store_that_breaks_its_guarantees_is_refused(tmp_path, kind, complaint):
    store = kind(tmp_path / "workspace")
    with pytest.raises(StoreError, match=complaint):
        probe_store(store, "runs/run/health/attempt-1/probe-rank0")
    assert store.list("runs") == []


def test_a_full_disk_of_the_workspace_is_no_error_of_the_store(tmp_path, monkeypatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = DirectoryStore(tmp_path / "workspace")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"{store.root}/runs/run/probe") as caught:
        probe_store(store, "runs/run")
    assert classify(caught.value) is FailureClass.DISK


def test_two_workers_are_checked_together(store):
    heard = Heard()
    LocalRunner(store).run(health_spec(store, 2, *SMALL), heard, tries=1)
    outcome = StageResult.model_validate_json(store.read("runs/run/health/result.json")).outcome
    assert isinstance(outcome, HealthOutcome)
    assert len(outcome.matmul_gflops) == len(outcome.free_memory_gib) == 2
    assert {"straggler", *COLLECTIVES} <= {check.name for check in outcome.checks}
    assert all(check.passed for check in outcome.checks if check.severity == "critical")
    assert set(outcome.collectives) == {
        "all_reduce_latency_us",
        *(f"{name}_{kind}" for name in ("all_reduce", "all_gather", "reduce_scatter") for kind in ("gb_s", "bus_gb_s")),
    }
    assert min(outcome.collectives.values()) > 0
    assert [(step.done, step.total) for step in heard.steps] == [(1, 3), (2, 3), (3, 3)]
    assert store.list("runs") == ["runs/run/health/attempt-1/spec.json", "runs/run/health/result.json"]


def test_workers_whose_collectives_do_nothing_are_refused(store, tmp_path, monkeypatch):
    replace_health(
        monkeypatch,
        tmp_path / "site",
        """
        def run(job):
            del sys.modules["tasks.worker.health"]  # the stand-in steps aside
            from tasks.worker import health
            from tasks.worker.devices.accelerators import Accelerator
            Accelerator.sum = lambda accelerator, tensor: tensor
            return health.run(job)
        """,
    )
    with pytest.raises(HostError, match=r"worker \d got .* 0, .* 3"):
        LocalRunner(store).run(health_spec(store, 2, *SMALL), Heard(), tries=1)
    assert not store.exists("runs/run/health/result.json")
    findings = find_record(store, "runs/run/health/attempt-1/findings.json", Findings)
    assert findings is not None
    # A busy machine may add a warning about a slow worker.
    failed = [check for check in findings.checks if not check.passed and check.severity == "critical"]
    assert [check.action for check in failed] == ["retry elsewhere"] * len(failed)
    sentences = " ".join(check.sentence for check in failed)
    assert "worker 0 got 1" in sentences
    assert "worker 1 got 2" in sentences
    assert "all-reduce" not in {check.name for check in findings.checks if check.passed}


def test_a_worker_that_multiplies_wrong_ends_all_with_its_name_and_host(store, tmp_path, monkeypatch):
    monkeypatch.setenv("MILLRACE_HOST", "host-7")
    replace_health(
        monkeypatch,
        tmp_path / "site",
        """
        def run(job):
            del sys.modules["tasks.worker.health"]
            from tasks.worker import health
            from tasks.worker.checks.known_answers import time_product
            def broken(accelerator, problem, precision):
                if job.rank.index == 1:
                    problem = type(problem)(problem.left, problem.right, problem.answer + 1)
                return time_product(accelerator, problem, precision)
            health.time_product = broken
            return health.run(job)
        """,
    )
    with pytest.raises(HostError, match=r"(?s)worker 1 .*host-7\]"):
        LocalRunner(store).run(health_spec(store, 2, *SMALL), Heard(), tries=1)
    errors = [WorkerFailure.model_validate_json(store.read(key)) for key in store.list("runs") if "error" in key]
    assert len(errors) == 2
    assert errors[0].message == errors[1].message
    assert not store.exists("runs/run/health/result.json")
    assert [record.host for record in host_records.known_hosts(store)] == ["host-7"]


def test_collectives_slower_than_the_table_expects_are_a_warning(store):
    floor = "devices: 0, efa_interfaces: 0, min_node_bus_gb_s: 0.0, min_bus_gb_s: 1.0e9, max_latency_us: 0.001"
    machine = ("health.machine=slow", f"health.machines={{slow: {{{floor}}}}}")
    LocalRunner(store).run(health_spec(store, 2, *SMALL, *machine), Heard(), tries=1)
    result = read_result(store, "run", Stage.health)
    assert result is not None
    assert isinstance(result.outcome, HealthOutcome)
    assert result.outcome.collectives["all_reduce_bus_gb_s"] > 0
    slow = [check.name for check in result.outcome.checks if not check.passed]
    assert slow == ["all-reduce bandwidth", "all-reduce latency"]
