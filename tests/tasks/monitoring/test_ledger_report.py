"""The ledger added up, over a made-up past."""

import datetime as dt
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.kinds import run_folder
from tasks.contracts.stages import Chore
from tasks.foundation.errors import FailureClass
from tasks.monitoring.ledger_report import LedgerRun, read_ledger, read_run_ledger
from tasks.runs import ledger
from tasks.runs.sums import Sums
from tests.support.workspace.attempts import BEGAN, attempt
from tests.support.workspace.past import write_past, write_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


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
    assert [Sums.model_validate(week.model_dump(exclude={"week"})) for week in report.weeks] == [
        sums_in(run) for run in report.runs
    ]
    assert read_run_ledger(store, keys[0]).whole == sums_in(report.runs[0])


def sums_in(run: LedgerRun) -> Sums:
    return Sums.model_validate(run.model_dump(include=set(Sums.model_fields)))


def test_runs_before_a_time_are_left_out_and_other_work_is_apart(store: DirectoryStore) -> None:
    write_past(store, 3)
    for at, run_key in ((0, "refresh-1"), (60, "publish-1-look")):
        record = attempt(1, at, stage=Chore.publish, run_key=run_key, productive=30)
        store.write(f"{run_folder(run_key)}/publish/attempt-1/ledger.json", record.to_json())
        ledger.mark_open(store, run_key, "publish 1")
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
    ledger.mark_open(store, "refresh-1", "infer 1")
    report = read_ledger(store)
    assert report.whole.attempts == 6
    assert [problem.partition(" is not")[0] for problem in report.unreadable] == [
        f"{store.uri}/runs/{key}/health/attempt-1/ledger.json",
        f"{store.uri}/refreshes/refresh-1/infer/attempt-1/ledger.json",
    ]
