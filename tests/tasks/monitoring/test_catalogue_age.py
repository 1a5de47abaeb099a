"""How complete the current release is, and how long items wait for it."""

import datetime as dt

import pytest

from infra.store.directory import DirectoryStore
from tasks.monitoring.freshness import FreshnessReport, freshness
from tasks.monitoring.progress import CatalogueAge, WaitingSource, catalogue_age
from tasks.planning.next_run import plan_run
from tasks.runs import ledger, releases
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed, small_config
from tests.support.fakes.stages import Run, carry_out, refreshed

ARRIVED = "2021-12-01T06:00:00+00:00"


@pytest.fixture
def released(store: DirectoryStore, runner: FakeRunner) -> Run:
    return carry_out(plan_run(store, small_config(), "2021-Q3"))


def age(store: DirectoryStore) -> CatalogueAge:
    current = releases.current(store)
    assert current is not None
    return catalogue_age(Snapshot(store), current)


def look(store: DirectoryStore, at: str) -> FreshnessReport:
    config = small_config("freshness.target_hours=9000", "schedule.cron=0 6 1 1 *")
    return freshness(store, config, dt.datetime.fromisoformat(at))


def test_a_release_that_lacks_nothing_is_complete(store, released):
    found = age(store)
    assert (found.items, found.waiting, found.coverage, found.complete_until) == (30, (), 1.0, None)
    assert found.hours(dt.datetime.max.replace(tzinfo=dt.UTC)) == 0.0
    assert "all 30 items" in look(store, ARRIVED).sentence


def test_a_feed_waits_from_its_arrival_until_a_refresh(store, released, golden):
    ingest_feed(store, "2021-11", at="2021-12-01T07:30:00+00:00")
    ingest_feed(store, "2021-10", at=ARRIVED)
    found = age(store)
    assert found.waiting == (
        WaitingSource(source="items/2021-10/v1", records=3, since=ARRIVED),
        WaitingSource(source="items/2021-11/v1", records=3, since="2021-12-01T07:30:00+00:00"),
    )
    assert found.complete_until == ARRIVED
    golden(found.sentence)
    refreshed(store)
    assert age(store).waiting == ()


def test_items_that_wait_beyond_the_target_are_urgent(store, released):
    ingest_feed(store, "2021-11", at=ARRIVED)
    in_time = look(store, "2021-12-01T09:00:00+00:00")
    assert (in_time.catalogue_age_hours, in_time.catalogue_target_hours, in_time.problems) == (3.0, 3.0, ())
    late = look(store, "2021-12-01T09:01:00+00:00")
    (problem,) = late.urgent
    assert problem.kind == "catalogue stale"
    assert "3 h: items/2021-11/v1" in problem.sentence
    assert problem.way_out.endswith("millrace refresh")
    assert not late.stale, "the data of the model is another age"


def test_rows_of_a_rejected_run_wait_since_they_were_trained_on(store, runner):
    carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    plan = plan_run(store, small_config())
    (rows,) = carry_out(plan).validated.rows
    (trained,) = [each.ended_at for each in ledger.records(store, plan.run_key) if each.stage == "train"]
    assert age(store).waiting == (WaitingSource(source=rows.prefix, records=rows.rows, since=trained),)


def test_items_without_a_vector_are_not_covered(store, released, golden):
    current = releases.current(store)
    assert current is not None
    found = catalogue_age(Snapshot(store), current.model_copy(update={"vectors": 2999, "bad": 1}))
    assert found.coverage == pytest.approx(2999 / 3000)
    golden(found.sentence)
