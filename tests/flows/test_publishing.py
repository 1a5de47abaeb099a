"""Runs with targets, against a real Prefect server, with workers that do no arithmetic."""

from __future__ import annotations

import pytest

import infra.compute.factory
from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import CodeError, StoreError
from tasks.runs import releases, served_targets
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed

PLAIN = ("model.scratch.layers=1",)
PUBLISHED = (*PLAIN, "publish.targets=[{kind: lancedb, name: look, uri: l}]")


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, without_pages: None, monkeypatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def test_every_release_is_brought_to_the_targets(store, runner):
    pipeline(store.uri, overrides=PUBLISHED)
    ingest_feed(store, "2021-01")
    refresh(store.uri, overrides=PUBLISHED)
    pipeline(store.uri, overrides=PUBLISHED)
    assert [spec.run_key for spec in runner.specs if spec.stage is Chore.publish] == [
        "publish-1-look",
        "publish-2-look",
        "publish-3-look",
    ]
    last = served_targets.of_target(store, "look")
    assert last is not None
    assert last.release == 3


def test_a_release_that_does_not_become_current_is_not_published(store, runner):
    pipeline(store.uri, overrides=PLAIN)
    pipeline(store.uri, overrides=PLAIN)
    pipeline(store.uri, "2021-Q1", overrides=PUBLISHED)  # done before, and release 2 is current
    assert Chore.publish not in runner.stages


def test_a_failing_target_is_tried_again_and_then_fails_the_run_but_not_the_release(prefect, store, runner):
    pipeline(store.uri, overrides=PUBLISHED)
    runner.fail(Chore.publish, StoreError("no route to host"))
    pipeline(store.uri, overrides=PUBLISHED)
    last = served_targets.of_target(store, "look")
    assert last is not None
    assert last.release == 2
    ingest_feed(store, "2021-01")
    runner.fail(Chore.publish, CodeError("a bug"))
    state = refresh(store.uri, overrides=PUBLISHED, return_state=True)
    assert state.is_failed()
    with pytest.raises(CodeError, match=r"(?s)release 3 .*look \(lancedb\)"):
        state.result()
    current = releases.current(store)
    assert current is not None
    assert current.number == 3


def test_the_run_goes_on_with_publishing_alone_and_its_pages_follow(store, runner, monkeypatch):
    pages, reports = [], []

    def write(store: DirectoryStore, run_key: str) -> None:
        store.write(REPORT.key(run=run_key), b"")
        reports.append(run_key)

    monkeypatch.setattr(
        "flows.orchestration.recorded_invocation.make_stage_page", lambda plan, stage, value: pages.append(stage)
    )
    monkeypatch.setattr("flows.orchestration.recorded_invocation.write_run_report", write)
    runner.fail(Chore.publish, CodeError("a bug"))
    assert pipeline(store.uri, "2021-Q1", overrides=PUBLISHED, return_state=True).is_failed()
    assert pages == [*Stage, Stage.release]  # once more, with what became of it
    before = len(runner.specs)
    assert pipeline(store.uri, "2021-Q1", overrides=PUBLISHED).release == releases.read(store, 1)
    assert runner.stages[before:] == [Chore.publish]
    assert served_targets.of_target(store, "look") is not None
    assert pages == [*Stage, Stage.release, Stage.release]
    assert len(reports) == 2
