"""The ledger added up, over a made-up past."""

import datetime as dt
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.kinds import run_folder
from tasks.contracts.results import Phases
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import FailureClass
from tasks.monitoring.ledger_report import read_ledger, read_run_ledger
from tasks.monitoring.outages import outages
from tasks.runs import ledger, open_work
from tasks.runs.ledger import LedgerRecord
from tests.support.workspace.past import write_past, write_run
from tests.support.workspace.specs import price_at

BEGAN = dt.datetime(2026, 11, 20, 7, tzinfo=dt.UTC)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def attempt(
    number: int,
    minute: float,
    failure: FailureClass | None = None,
    stage: Stage | Chore = Stage.train,
    run_key: str = "run",
    **seconds: float,
) -> LedgerRecord:
    """One that began at a minute and took these seconds."""
    began, phases = BEGAN + dt.timedelta(minutes=minute), Phases(**seconds)
    return LedgerRecord(
        run_key=run_key,
        span="2026-11-19",
        stage=stage,
        attempt=number,
        failure=failure,
        message="",
        started_at=began.isoformat(),
        ended_at=(began + dt.timedelta(seconds=phases.total)).isoformat(),
        seconds=phases,
        workers=1,
        machines=1,
        instance="trn1.32xlarge",
        price=price_at(1.0),
        billable_seconds=phases.paid,
    )


def test_an_outage_ends_when_a_later_attempt_works_again() -> None:
    attempts = [
        attempt(1, 0, FailureClass.HOST, productive=20, lost=40),
        attempt(2, 2, FailureClass.CAPACITY, queued=60),
        attempt(3, 10, queued=30, booting=20, compiling=6, restoring=4, productive=100),
    ]
    assert outages(reversed(attempts)) == ([9 * 60 + 60.0], set())


def test_an_outage_ends_with_the_next_stage_where_the_failed_one_turned_out_to_be_done() -> None:
    again = attempt(2, 2, stage=Stage.validate, productive=20)
    following = attempt(1, 3, stage=Stage.evaluate, booting=5, productive=60)
    assert outages([attempt(1, 0, FailureClass.STORE, lost=60), again, following]) == ([2 * 60 + 5.0], set())


def test_an_attempt_that_kept_work_ends_an_outage_though_it_failed_later() -> None:
    attempts = [
        attempt(1, 0, FailureClass.HOST, lost=60),
        attempt(2, 2, FailureClass.HANG, booting=10, productive=50, lost=60),
        attempt(3, 9, booting=30, productive=60),
    ]
    assert outages(attempts) == ([70.0, 5 * 60 + 30.0], set())


def test_nobody_waits_for_what_was_cancelled_and_an_outage_may_go_on() -> None:
    cancelled = attempt(1, 0, FailureClass.CANCELLED, lost=60)
    assert outages([cancelled, attempt(2, 500, productive=60)]) == ([], set())
    assert outages([attempt(1, 0, FailureClass.DATA, lost=60)]) == ([], {"run"})


def test_another_run_ends_no_outage() -> None:
    attempts = [attempt(1, 0, FailureClass.HOST, lost=60), attempt(2, 2, run_key="other", productive=60)]
    assert outages(attempts) == ([], {"run"})


def test_the_sums_are_those_of_the_runs_and_of_the_weeks(store: DirectoryStore) -> None:
    ends = {1: ("Failed", FailureClass.HOST), 2: ("Cancelled", FailureClass.CANCELLED), 3: ("Rejected", None)}
    keys = write_past(store, 5, ends)  # the first run is tried again too
    report = read_ledger(store)
    whole = report.whole
    assert [run.run_key for run in report.runs] == keys
    assert [run.runs_succeeded for run in report.runs] == [1, 0, 0, 1, 1]
    assert [run.runs_over for run in report.runs] == [1, 1, 0, 1, 1]
    assert (whole.runs_succeeded, whole.runs_over, whole.run_success_rate) == (3, 4, 0.75)
    assert whole.attempts == len(report.attempts) == sum(run.attempts for run in report.runs)
    assert whole.attempts_by_class == {FailureClass.HOST: 2, FailureClass.CANCELLED: 1}
    assert (whole.recoveries, whole.unrecovered) == (1, 1)
    assert whole.goodput == pytest.approx(whole.seconds.productive / (whole.seconds.total - whole.seconds.queued))
    assert whole.cost == pytest.approx(sum(run.cost or 0.0 for run in report.runs))
    assert [week.week for week in report.weeks] == [f"2026-W{number:02d}" for number in range(2, 7)]
    assert [week.model_dump(exclude={"week"}) for week in report.weeks] == [
        run.model_dump(include=set(type(whole).model_fields)) for run in report.runs
    ]
    assert read_run_ledger(store, keys[0]).whole == report.whole.model_validate(
        report.runs[0].model_dump(include=set(type(whole).model_fields))
    )


def test_runs_before_a_time_are_left_out_and_other_work_is_apart(store: DirectoryStore) -> None:
    write_past(store, 3)
    for at, run_key in ((0, "refresh-1"), (60, "publish-1-look")):
        record = attempt(1, at, stage=Chore.publish, run_key=run_key, productive=30)
        store.write(f"{run_folder(run_key)}/publish/attempt-1/ledger.json", record.to_json())
        open_work.mark(store, run_key, "publish 1")
    report = read_ledger(store, since="2026-01-12T00:00:00+00:00")
    assert [run.span for run in report.runs] == ["2026-W02", "2026-W03"]
    assert report.other is not None
    assert (report.other.attempts, report.other.seconds.productive) == (2, 60.0)
    late = read_ledger(store, since=(BEGAN + dt.timedelta(minutes=30)).isoformat())
    assert (late.runs, late.other and late.other.attempts) == ((), 1)


def test_a_cost_without_a_price_is_not_known(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    record = ledger.records(store, key)[0]
    free = record.model_copy(update={"price": None})
    store.write(f"runs/{key}/{record.stage}/attempt-1/ledger.json", free.to_json())
    assert read_ledger(store).whole.cost is None


def test_a_damaged_record_is_named_and_left_out(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    for damaged in (f"runs/{key}/health/attempt-1/ledger.json", "refreshes/refresh-1/infer/attempt-1/ledger.json"):
        store.write(damaged, b"{")
    open_work.mark(store, "refresh-1", "infer 1")
    report = read_ledger(store)
    assert report.whole.attempts == 6
    assert [problem.partition(" is not")[0] for problem in report.unreadable] == [
        f"{store.uri}/runs/{key}/health/attempt-1/ledger.json",
        f"{store.uri}/refreshes/refresh-1/infer/attempt-1/ledger.json",
    ]
