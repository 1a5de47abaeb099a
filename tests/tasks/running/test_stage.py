import asyncio
import json
import logging

import pytest
from prefect.exceptions import TerminationSignal

from infra.store.base import NoAnswer
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import (
    BatchAttempt,
    HealthInputs,
    JobSpec,
    Listener,
    Progress,
    TrainInputs,
    ValidateInputs,
    Waiter,
)
from tasks.contracts.outcomes import HealthOutcome, TrainOutcome, ValidateOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.foundation.errors import (
    CancelledError,
    CodeError,
    DataError,
    DiskError,
    FailureClass,
    HostError,
    OutOfMemoryError,
    SupersededError,
)
from tasks.planning.next_run import plan_run
from tasks.running.context import override_context
from tasks.running.stage import run_stage
from tasks.running.stage_output import StageOutput
from tasks.runs import ledger
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stand_ins import Heard


@pytest.fixture
def plan(store) -> RunPlan:
    return plan_run(store, small_config("train.workers=2"))


def health(plan: RunPlan, runner: FakeRunner, listener: Listener | None = None) -> HealthOutcome:
    return run_stage(plan, HealthInputs(), HealthOutcome, runner=runner, listener=listener)


def validate(plan: RunPlan, runner: FakeRunner) -> ValidateOutcome:
    inputs = ValidateInputs(window=plan.window, history=plan.history, feeds=(), bases=())
    return run_stage(plan, inputs, ValidateOutcome, runner=runner)


def train(plan: RunPlan, runner: FakeRunner, rows: ValidateOutcome) -> TrainOutcome:
    inputs = TrainInputs(rows=rows.rows, history=plan.history, parent=plan.parent)
    return run_stage(plan, inputs, TrainOutcome, runner=runner)


def with_fewer_rows(validated: ValidateOutcome) -> ValidateOutcome:
    return validated.model_copy(update={"rows": (validated.rows[0].model_copy(update={"rows": 3}),)})


def failures(store: DirectoryStore) -> list[FailureClass | None]:
    return [record.failure for record in ledger.records(store)]


def test_a_stage_runs_its_job_and_leaves_spec_result_and_ledger_record(store, runner, plan):
    outcome = health(plan, runner)
    assert outcome.device == "fake"
    (spec,) = runner.specs
    assert (spec.attempt, spec.workers, spec.config, spec.run_key) == (1, 2, plan.config, plan.run_key)
    assert (spec.workspace, spec.inputs) == (store.uri, HealthInputs())
    left = [key.removeprefix(f"runs/{plan.run_key}/") for key in store.list("runs")]
    assert left == ["health/attempt-1/ledger.json", "health/attempt-1/spec.json", "health/result.json"]
    assert failures(store) == [None]


def test_the_attempts_of_a_stage_are_listed_once(store, runner, plan, monkeypatch):
    listed, real = [], DirectoryStore.list
    monkeypatch.setattr(DirectoryStore, "list", lambda self, prefix: listed.append(prefix) or real(self, prefix))
    run_stage(plan, HealthInputs(), HealthOutcome, runner)
    assert listed.count(f"runs/{plan.run_key}/health") == 1


def test_a_done_stage_is_not_run_again(store, runner, plan):
    first = validate(plan, runner)
    assert validate(plan, runner) == first
    assert runner.stages == ["validate"]
    assert len(ledger.records(store)) == 1


def test_log_lines_and_progress_reach_the_listener_and_the_log(runner, plan, caplog):
    heard = Heard()
    with caplog.at_level(logging.INFO, "millrace"):
        health(plan, runner, heard)
    assert "fake health of 2021-Q1" in heard.lines
    assert heard.steps == [Progress(what="health", done=1, total=1)]
    assert "fake health of 2021-Q1" in caplog.messages


def test_a_listener_hears_all_stages_in_its_block(runner, plan):
    heard = Heard()
    with override_context(listener=heard):
        validate(plan, runner)
        validate(plan, runner)
    health(plan, runner)
    assert heard.lines[-1].endswith(f"runs/{plan.run_key}/validate")
    assert [step.what for step in heard.steps] == ["validate"]


def test_a_failed_attempt_is_recorded_and_the_next_call_is_a_new_attempt(store, runner, plan):
    runner.fail(Stage.health, HostError("the machine went away"))
    with pytest.raises(HostError, match="the machine went away"):
        health(plan, runner)
    health(plan, runner)
    assert [spec.attempt for spec in runner.specs] == [1, 2]
    assert failures(store) == [FailureClass.HOST, None]


@pytest.mark.parametrize(
    "interruption",
    [KeyboardInterrupt(), TerminationSignal(signal=15), asyncio.CancelledError(), SystemExit(143)],
    ids=lambda error: type(error).__name__,
)
def test_an_interruption_passes_through_and_is_recorded_as_cancelled(store, runner, plan, interruption):
    runner.fail(Stage.health, interruption)
    with pytest.raises(type(interruption)) as raised:
        health(plan, runner)
    assert raised.value is interruption
    assert failures(store) == [FailureClass.CANCELLED]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError("no more"), OutOfMemoryError),
        (OSError(28, "no space left"), DiskError),
        (ValueError("x"), CodeError),
    ],
)
def test_any_other_error_of_a_runner_gets_its_class(store, runner, plan, error, expected):
    runner.fail(Stage.health, error)
    with pytest.raises(expected, match=f"health: {type(error).__name__}: ") as raised:
        health(plan, runner)
    assert raised.value.__cause__ is error
    assert failures(store) == [expected.failure]


def test_workers_that_end_without_a_result_are_a_code_error(runner, plan, monkeypatch):
    monkeypatch.setattr(runner, "run", lambda spec, waiter, tries: None)
    with pytest.raises(CodeError, match=r"/health/result\.json"):
        health(plan, runner)


def test_a_full_disk_does_not_hide_the_first_error(store, runner, plan, monkeypatch, caplog):
    runner.fail(Stage.health, DataError("row 3 is bad"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ledger.OpenAttempt, "end", full)
    with pytest.raises(DataError, match="row 3 is bad"):
        health(plan, runner)
    assert "No space left on device" in caplog.text


def test_the_attempt_of_a_killed_orchestrator_is_closed_and_kept(store, runner, plan):
    class Killed(BaseException):
        pass

    runner.fail(Stage.health, Killed())
    with pytest.raises(Killed):
        health(plan, runner)
    key = f"runs/{plan.run_key}/health/attempt-1/ledger.json"
    as_if_killed = json.loads(store.read(key)) | {"ended_at": None, "failure": None}
    store.write(key, json.dumps(as_if_killed).encode())
    health(plan, runner)
    assert failures(store) == [FailureClass.HOST, None]
    assert [spec.attempt for spec in runner.specs] == [1, 2]


@pytest.mark.parametrize("damage", [b"", b"{", b'{"version": 1}'])
def test_a_damaged_result_is_set_aside_and_the_stage_runs_again(store, runner, plan, damage):
    first = health(plan, runner)
    key = f"runs/{plan.run_key}/health/result.json"
    for _ in range(2):
        store.write(key, damage)
        assert health(plan, runner) == first
    assert [spec.attempt for spec in runner.specs] == [1, 2, 3]
    assert [store.read(f"quarantine/{key}.{n}") for n in (1, 2)] == [damage, damage]


def test_a_result_that_could_not_be_read_stays_and_its_stage_is_not_done_again(store, runner, plan, monkeypatch):
    first = health(plan, runner)
    key = f"runs/{plan.run_key}/health/result.json"
    read, answers = type(store).read, iter([False])

    def overloaded(self: object, of: str) -> bytes:
        if of == key and not next(answers, True):
            raise NoAnswer("503")
        return read(self, of)

    monkeypatch.setattr(type(store), "read", overloaded)
    with pytest.raises(NoAnswer):
        health(plan, runner)
    assert health(plan, runner) == first
    assert len(runner.specs) == 1


def test_the_result_of_another_stage_is_not_taken(store, runner, plan):
    validate(plan, runner)
    health(plan, runner)
    prefix = f"runs/{plan.run_key}"
    store.write(f"{prefix}/health/result.json", store.read(f"{prefix}/validate/result.json"))
    assert isinstance(health(plan, runner), HealthOutcome)
    assert runner.stages == ["validate", "health", "health"]


@pytest.mark.parametrize("victim", ["MANIFEST.json", "part-0.parquet"])
def test_a_stage_whose_output_is_gone_runs_again(store, runner, plan, victim):
    rows = validate(plan, runner).rows[0]
    store.delete(f"{rows.prefix}/{victim}")
    heard = Heard()
    with override_context(listener=heard):
        again = validate(plan, runner).rows
    assert [each.prefix for each in again] == [rows.prefix.replace("attempt-1", "attempt-2")]
    assert runner.stages == ["validate", "validate"]
    assert any("relied on" in line and rows.prefix in line for line in heard.lines)
    assert validate(plan, runner).rows == again
    assert len(runner.specs) == 2


def test_a_stage_whose_manifest_is_damaged_sets_the_folder_aside_and_runs_again(store, runner, plan):
    rows = validate(plan, runner).rows[0]
    store.write(f"{rows.prefix}/MANIFEST.json", b"{")
    assert validate(plan, runner).rows[0].rows == rows.rows
    assert store.exists(f"quarantine/{rows.prefix}.1/part-0.parquet")


def test_a_result_made_from_other_inputs_is_not_taken(store, runner, plan):
    rows = validate(plan, runner)
    first = train(plan, runner, rows)
    fewer = with_fewer_rows(rows)
    store.delete(first.checkpoint.prefix)
    train(plan, runner, fewer)
    assert runner.stages == ["validate", "train", "train"]
    assert runner.specs[-1].inputs == TrainInputs(rows=fewer.rows, history=(), parent=None)


def test_a_checkpoint_with_another_checksum_than_the_results_is_not_taken(store, runner, plan):
    rows = validate(plan, runner)
    trained = train(plan, runner, rows)
    key = f"runs/{plan.run_key}/train/result.json"
    store.write(key, store.read(key).replace(trained.checkpoint.sha256.encode(), b"0" * 64))
    assert train(plan, runner, rows) == trained
    assert runner.stages == ["validate", "train", "train"]


class Rented(FakeRunner):
    """Loses `lose` hosts before each result, and retries by itself up to the limit."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store)
        self.lose = 0
        self.allowed: list[int] = []
        self.findable: set[int] = set()

    def found(self, spec: JobSpec) -> bool:
        return spec.attempt in self.findable

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.allowed.append(tries)
        for number in range(tries):
            last = spec.model_copy(update={"attempt": spec.attempt + number})
            lost = number < self.lose
            if not lost:
                self.store.write(f"{last.attempt_prefix}/spec.json", last.to_json())
                super().run(last, waiter, 1)
            waiter.tried(self.try_record(last.attempt, FailureClass.HOST if lost else None))
            if not lost:
                return
        raise HostError("the host went away")

    def try_record(self, attempt: int, failure: FailureClass | None) -> BatchAttempt:
        return BatchAttempt(
            attempt=attempt,
            failure=failure,
            message="the host went away" if failure else "",
            queued=0.0,
            booting=0.0,
            running=1.0,
            machines=1,
            billable_seconds=1.0,
            job="j",
            hosts=(),
        )


@pytest.fixture
def rented(store) -> Rented:
    return Rented(store)


def attempts(store: DirectoryStore) -> list[tuple[int, FailureClass | None]]:
    return sorted((record.attempt, record.failure) for record in ledger.records(store))


def test_a_runners_own_retries_are_attempts_in_the_ledger(store, rented, plan):
    rented.lose = 2
    assert health(plan, rented).device == "fake"
    assert rented.allowed == [plan.config.retry.attempts] == [5]
    assert attempts(store) == [(1, FailureClass.HOST), (2, FailureClass.HOST), (3, None)]


def test_a_failure_after_all_tries_is_recorded_once(store, rented, plan):
    rented.lose = 5
    with pytest.raises(HostError, match="the host went away"):
        health(plan, rented)
    assert attempts(store) == [(number, FailureClass.HOST) for number in (1, 2, 3, 4, 5)]
    rented.lose = 0
    health(plan, rented)
    assert attempts(store)[-1] == (6, None)


def test_a_cancellation_between_tries_is_a_separate_attempt(store, rented, plan, monkeypatch):
    def cancelled(spec: JobSpec, waiter: Waiter, tries: int) -> None:
        waiter.tried(rented.try_record(spec.attempt, FailureClass.HOST))
        raise CancelledError("cancelled")

    monkeypatch.setattr(rented, "run", cancelled)
    with pytest.raises(CancelledError):
        health(plan, rented)
    assert attempts(store) == [(1, FailureClass.HOST), (2, FailureClass.CANCELLED)]


def test_an_attempt_that_still_runs_elsewhere_is_found_and_not_started_twice(store, rented, plan):
    rented.fail(Stage.health, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        health(plan, rented)
    rented.findable = {1}
    heard = Heard()
    assert health(plan, rented, heard).device == "fake"
    assert any("attempt 1" in line and "waiting" in line for line in heard.lines)
    assert attempts(store) == [(1, None)]


def test_a_running_attempt_with_other_inputs_is_not_taken(store, rented, plan):
    rows = validate(plan, rented)
    first = train(plan, rented, rows)
    store.delete(first.checkpoint.prefix)
    rented.findable = {1}
    train(plan, rented, with_fewer_rows(rows))
    assert [spec.attempt for spec in rented.specs] == [1, 1, 2]


class TakenTurn:
    """A lineage that another process takes as soon as the first attempt may write."""

    fence = "the fence"
    admitted = ""

    def admit(self, attempt: str) -> None:
        self.admitted = attempt

    def check(self) -> None:
        if self.admitted:
            raise SupersededError("taken")

    def confirm(self) -> None:
        self.check()


def test_a_stage_whose_lineage_was_taken_meanwhile_ends_and_leaves_the_record_to_the_other_process(store, runner, plan):
    turn = TakenTurn()
    with override_context(lineages=(turn,)):
        with pytest.raises(SupersededError):
            health(plan, runner)
        with pytest.raises(SupersededError):
            StageOutput().pulse()  # as the runner does, which then ends its workers
    (spec,) = runner.specs
    assert (spec.fences, turn.admitted) == (("the fence",), spec.job_prefix)
    (record,) = ledger.records(store)
    assert record.ended_at is None
