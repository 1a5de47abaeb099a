"""Where runs, refreshes and publications lie."""

from infra.store.directory import DirectoryStore
from tasks.planning.next_run import plan_run
from tasks.publish import publish_to_all
from tasks.runs import ledger
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed

TARGET = "publish.targets=[{name: look, kind: lancedb, uri: s3://other/vectors}]"


def test_a_listing_of_the_runs_does_not_grow_with_refreshes_and_publications(
    store: DirectoryStore, runner: FakeRunner
) -> None:
    carry_out(plan_run(store, small_config()))
    of_the_run, attempts = store.list("runs"), len(ledger.records(store))
    ingest_feed(store, "2021-01")
    publish_to_all(store, small_config(TARGET), refreshed(store), True)
    assert store.list("runs") == of_the_run
    assert len(ledger.records(store)) == attempts + 4, "validate, infer, release and publish are on record"
