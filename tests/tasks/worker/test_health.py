import pytest

from infra.local_runner import LocalRunner
from infra.store import DirectoryStore
from tasks.contracts import HealthInputs, HealthOutcome, StageResult
from tasks.errors import HostError, StoreError
from tasks.worker import health
from tasks.worker.accelerators.cpu import CpuAccelerator
from tasks.worker.health import judge_space, judge_speed, probe_store, refuse, slowest_to_median
from tasks.worker.job import Rank
from tests.support.broken import break_product
from tests.support.jobs import make_job, tiny_config
from tests.support.stand_ins import Heard, health_spec, replace_health

SMALL = ("health.matmul_size=64", "health.all_reduce_mib=1")
LIMITS = tiny_config("health.matmul_size=1000", "health.min_memory_gib=2", "health.min_disk_gib=4").health
COLLECTIVES = ["all-reduce", "all-gather", "reduce-scatter", "gradient sum", "gradient of all-gather"]


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def alone() -> CpuAccelerator:
    return CpuAccelerator(Rank(0, 1, 0))


def run(store: DirectoryStore, *overrides: str) -> HealthOutcome:
    return health.run(make_job(store, tiny_config(*SMALL, *overrides), HealthInputs()))


# --- the stage --------------------------------------------------------------------------------------------------


def test_a_healthy_worker_tells_its_numbers_and_leaves_nothing_in_the_workspace(store):
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
def test_bf16_is_checked_where_it_is_fast(store, monkeypatch, fast):
    monkeypatch.setattr(CpuAccelerator, "fast_bf16", fast)
    outcome = run(store, "train.precision=auto")
    assert ("matmul bf16" in [check.name for check in outcome.checks]) is fast


@pytest.mark.parametrize(("precision", "told"), [("fp32", 1.0), ("bf16", 4.0)])
def test_the_speed_told_is_that_of_the_precision_in_training(store, monkeypatch, precision, told):
    monkeypatch.setattr(CpuAccelerator, "fast_bf16", True)
    seconds = {"fp32": 2 * 64**3 / 1e9, "bf16": 2 * 64**3 / 4e9}
    monkeypatch.setattr(health, "time_product", lambda accelerator, problem, precision: seconds[precision])
    assert run(store, f"train.precision={precision}").matmul_gflops == (pytest.approx(told, rel=1e-3),)


@pytest.mark.parametrize(("key", "error"), [("min_memory_gib", HostError), ("min_disk_gib", HostError)])
def test_a_worker_that_is_too_small_is_refused_with_number_and_limit(store, key, error):
    with pytest.raises(error, match=rf"worker 0 has [\d.]+ GiB .*free.*health.{key} is 1e\+09"):
        run(store, f"health.{key}=1e9")


def test_a_device_that_multiplies_wrong_is_refused(store, monkeypatch):
    break_product(monkeypatch, at_call=1, value=7.0)
    with pytest.raises(HostError, match=r"multiplies wrong in fp32: element \(3, 5\)"):
        run(store)
    assert store.list("runs") == []


# --- the store --------------------------------------------------------------------------------------------------


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
        (CreateReplaces, "create replaced an object"),
        (SwapIsBlind, "compare-and-swap replaced an object"),
        (SwapDoesNothing, "was read after a compare-and-swap"),
        (ForgetsWrites, "was read where .* had been written"),
        (MayNotWrite, "Permission denied.*writable"),
    ],
)
def test_a_store_that_does_not_hold_its_promises_is_refused(tmp_path, kind, complaint):
    store = kind(tmp_path / "workspace")
    with pytest.raises(StoreError, match=complaint):
        probe_store(store, "runs/run/health/attempt-1/probe-rank0")
    assert store.list("runs") == []


# --- judgements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "ratio", "slowest"),
    [([1.0, 1.0], 1.0, None), ([1.0, 4.0], 4.0, 1), ([4.0, 1.0, 1.1, 1.0], 4.0, 0), ([1.0, 2.0, 2.5], 1.25, None)],
)
def test_a_straggler_is_named_and_is_a_warning(seconds, ratio, slowest):
    assert slowest_to_median(seconds) == pytest.approx(ratio)
    check = judge_speed(seconds, LIMITS)
    assert (check.passed, check.severity, check.observed) == (slowest is None, "warning", pytest.approx(ratio))
    if slowest is not None:
        assert check.sentence.startswith(
            f"worker {slowest} is the slowest of {len(seconds)}, at 0.5 GFLOP/s 4.00 times"
        )
    refuse([check])


ROOMY = {"memory": 8.0, "disk": 80.0, "workspace": 800.0}


@pytest.mark.parametrize(
    ("ranks", "failed", "error", "sentence"),
    [
        ([ROOMY, ROOMY], [], None, ""),
        ([ROOMY, ROOMY | {"memory": 2.0}], [], None, ""),
        ([ROOMY, ROOMY | {"memory": 1.9}], ["free memory"], HostError, "worker 1 has 1.90 GiB of memory free"),
        ([ROOMY | {"disk": 0.0}, ROOMY], ["free disk"], HostError, "worker 0 has 0.00 GiB free on the disk of"),
        ([ROOMY | {"workspace": 3.0}], ["free workspace disk"], StoreError, "3.00 GiB free on the disk of /w.*move"),
        ([ROOMY | {"workspace": -1.0}], [], None, ""),
        ([{"memory": 1.0, "disk": 9.0, "workspace": 1.0}], ["free memory", "free workspace disk"], HostError, "memory"),
    ],
)
def test_the_worker_with_the_least_room_decides(ranks, failed, error, sentence):
    checks = judge_space(ranks, LIMITS, "/w")
    assert [check.name for check in checks if not check.passed] == failed
    if error is None:
        refuse(checks)
    else:
        with pytest.raises(error, match=sentence) as caught:
            refuse(checks)
        assert type(caught.value) is error


def test_a_store_without_a_disk_is_not_asked_for_room():
    checks = judge_space([ROOMY | {"workspace": -1.0}], LIMITS, "s3://bucket")
    assert [check.name for check in checks] == ["free memory", "free disk"]


# --- several workers --------------------------------------------------------------------------------------------


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


def test_workers_whose_collectives_do_nothing_never_get_to_train(store, tmp_path, monkeypatch):
    replace_health(
        monkeypatch,
        tmp_path / "site",
        """
        def run(job):
            del sys.modules["tasks.worker.health"]  # the stand-in steps aside
            from tasks.worker import health
            from tasks.worker.accelerators import Accelerator
            Accelerator.sum = lambda accelerator, tensor: tensor
            return health.run(job)
        """,
    )
    with pytest.raises(
        HostError, match=r"all-reduce over 2 workers, 1 elements .*: worker \d got \d at element 0, expected 3"
    ):
        LocalRunner(store).run(health_spec(store, 2, *SMALL), Heard(), tries=1)
    assert not store.exists("runs/run/health/result.json")
