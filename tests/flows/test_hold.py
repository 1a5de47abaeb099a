"""Releases held by a person, against a real Prefect server, with stages that do no arithmetic."""

from __future__ import annotations

import datetime as dt

import pytest

import infra.compute.factory
from configs.load import load_config
from flows.cli import running
from flows.cli.flow_runs import FlowDone
from flows.cli.running import refresh as refresh_command
from flows.cli.terminal.options import RunOptions
from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import REPORT
from tasks.monitoring.freshness import freshness
from tasks.runs import releases, served_targets
from tasks.runs.holds import hold, lift
from tasks.runs.run import read_runs
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed

PUBLISHED = ("model.scratch.layers=1", "publish.targets=[{kind: lancedb, name: look, uri: l}]")


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, without_pages: None, monkeypatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def serving(store: DirectoryStore) -> int | None:
    current = releases.current(store)
    return current.number if current else None


def test_a_held_run_keeps_its_model_until_the_hold_is_lifted(prefect, store, runner):
    pipeline(store.uri, overrides=PUBLISHED)
    made = hold(store, "the shop is closing its books")

    state = pipeline(store.uri, overrides=PUBLISHED, return_state=True)
    assert (state.name, state.is_completed()) == ("Held", True)
    assert state.message is not None
    assert state.message.startswith(made.sentence)
    assert (state.result().state, serving(store), prefect.last_run().state_name) == ("Held", 1, "Held")
    assert [run.state for run in read_runs(Snapshot(store), ())] == ["Released", "Held"]

    ingest_feed(store, "2021-01")
    before = len(runner.specs)
    assert refresh(store.uri, overrides=PUBLISHED, return_state=True).name == "Held"
    assert refresh_command(RunOptions(store, None, PUBLISHED)).state == "Held"
    assert len(runner.specs) == before, "a held refresh makes nothing"

    report = freshness(store, load_config("", PUBLISHED), dt.datetime(2022, 1, 1, tzinfo=dt.UTC))
    assert report.hold == made
    assert {row.span: row.state for row in report.spans}["2021-Q2"] == "Held"
    assert [problem.sentence for problem in report.problems if problem.kind == "held"] == [made.sentence]
    (stale,) = (problem for problem in report.problems if problem.kind == "stale")
    assert "because releases are held" in stale.sentence

    lift(store)
    assert serving(store) == 1
    refreshed = refresh(store.uri, overrides=PUBLISHED)
    assert refreshed is not None
    assert b"Released as 2" in store.read(REPORT.key(run=releases.read(store, 2).run_key)), "it had said Held"
    assert (refreshed.number, refreshed.refreshed, serving(store)) == (3, 2, 3), "the held model, with the new items"
    assert [spec.run_key for spec in runner.specs if spec.stage is Chore.publish][1:] == [
        "publish-2-look",
        "publish-3-look",
    ]
    last = served_targets.of_target(store, "look")
    assert last is not None
    assert last.release == 3


def test_a_hold_that_comes_during_a_refresh_is_the_end_of_it(store, runner, monkeypatch):
    pipeline(store.uri, "2021-Q1", overrides=PUBLISHED)
    ingest_feed(store, "2021-01")
    infer = runner._infer
    monkeypatch.setattr(runner, "_infer", lambda *given: (hold(store, "why"), infer(*given))[1])
    monkeypatch.setattr(running, "run_flow", lambda name, _, *given: FlowDone(refresh(*given), "", "page"))
    ended = refresh_command(RunOptions(store, None, PUBLISHED))
    assert (ended.state, ended.run_url, serving(store)) == ("Held", "page", 1)
    assert "millrace hold --off" in ended.sentence
    assert releases.numbers(store) == [1, 2]


def test_the_next_run_compares_with_a_model_that_was_held(store, runner):
    pipeline(store.uri, overrides=PUBLISHED)
    hold(store, "why")
    pipeline(store.uri, overrides=PUBLISHED)
    lift(store)
    ingest(store, "2021-Q3")
    report = pipeline(store.uri, overrides=PUBLISHED)
    assert (report.state, report.release, serving(store)) == ("Released", releases.read(store, 3), 3)
    assert report.judgement is not None
    assert report.judgement.outcome.champion_version == releases.read(store, 2).model.version


def test_a_rejected_model_does_not_refresh_what_is_held(store, runner):
    pipeline(store.uri, overrides=PUBLISHED)
    hold(store, "why")
    runner.metrics["recall@10"] = 0.1
    assert pipeline(store.uri, overrides=PUBLISHED, return_state=True).name == "Rejected"
    assert (serving(store), len(releases.numbers(store))) == (1, 1)
    assert runner.stages[-1] == Stage.evaluate
