"""Refreshes and publications, added up."""

from __future__ import annotations

import json

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import PACKED_SUMS
from tasks.foundation.errors import FailureClass, HostError
from tasks.monitoring.ledger_report import read_ledger
from tasks.monitoring.work_sums import Month, sum_up, sum_up_lost, work_sums
from tasks.planning.next_run import plan_run
from tasks.publish import publish_to_all
from tasks.runs import ledger, releases
from tasks.runs.sums import Sums, sums_of, total
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

TARGET = "publish.targets=[{name: look, kind: lancedb, uri: s3://other/vectors}]"


def published(store: DirectoryStore) -> None:
    release = releases.current(store)
    assert release is not None
    publish_to_all(store, small_config(TARGET), release, True)


@pytest.fixture
def hours(store: DirectoryStore, runner: FakeRunner) -> DirectoryStore:
    """A run, then two refreshes, the second of which is published; one attempt was lost."""
    carry_out(plan_run(store, small_config()))
    for version in (1, 2):
        ingest_feed(store, "2021-01", version)
        if version == 2:
            runner.fail(Stage.infer, HostError("lost"))
            with pytest.raises(HostError):
                refreshed(store)
        refreshed(store)
    published(store)
    return store


def sums(store: DirectoryStore) -> Sums:
    """All sums but those of runs."""
    return total(work_sums(store, [1], 3).rows.values())


def recorded(store: DirectoryStore) -> Sums:
    return sums_of(one for one in ledger.records(store) if one.run_key.startswith(("refresh-", "publish-")))


def test_sums_are_those_of_the_records_before_and_after_they_are_packed(hours: DirectoryStore) -> None:
    expected = recorded(hours)
    assert (expected.attempts, expected.attempts_by_class) == (8, {FailureClass.HOST: 1})
    for packed in (False, True):
        if packed:
            sum_up(hours)
            assert ledger.marked_open(hours) == []
        assert sums(hours).model_copy(update={"vectors": 0}) == expected
        other = read_ledger(hours).other
        assert other is not None
        assert (other.attempts, other.recoveries, other.unrecovered) == (8, 1, 0)


def test_what_is_packed_is_not_read_again(hours: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sum_up(hours)
    read: list[str] = []
    before = DirectoryStore.read
    monkeypatch.setattr(DirectoryStore, "read", lambda self, key: read.append(key) or before(self, key))
    sums(hours)
    assert read == hours.list(PACKED_SUMS.within())


def test_what_is_taken_up_again_is_added_up_again(hours: DirectoryStore, runner: FakeRunner) -> None:
    sum_up(hours)
    published(hours)
    assert ledger.marked_open(hours) == ["publish-3-look"]
    assert sums(hours).attempts == 9
    sum_up(hours)
    assert sums(hours).attempts == 9


def test_a_lost_month_hides_nothing_and_is_made_again(hours: DirectoryStore, caplog) -> None:
    sum_up(hours)
    expected = sums(hours)
    hours.delete(PACKED_SUMS.within())
    assert sums(hours) == expected
    assert "lacks months" in caplog.text
    sum_up_lost(hours, [1], 3)
    caplog.clear()
    assert (sums(hours), caplog.text) == (expected, "")


def test_an_attempt_that_goes_on_stays_open(hours: DirectoryStore, runner: FakeRunner) -> None:
    sum_up(hours)
    spec = next(one for one in reversed(runner.specs) if one.stage is Stage.release)
    ledger.OpenAttempt.begin(hours, spec.model_copy(update={"attempt": 2}))
    sum_up(hours)
    assert (sums(hours).running, ledger.marked_open(hours)) == (1, [spec.run_key])


def test_a_month_that_lists_its_recoveries_is_read() -> None:
    row = {"began_at": "2026-10-01T00:00:00+00:00", "attempts": 3, "recoveries": [1.5, 2.5], "unrecovered": True}
    read = Month.model_validate_json(json.dumps({"rows": {"refresh-2-1": row}})).rows["refresh-2-1"]
    assert (read.runs, read.recoveries, read.recovery_seconds, read.unrecovered) == (1, 2, 4.0, 1)
