"""Scheduled runs that decide first, against a real Prefect server; the workers do no arithmetic."""

from __future__ import annotations

import pytest
from prefect import get_client
from prefect.client.schemas.objects import State

import infra.compute.factory
from flows.pipeline import pipeline
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs, ValidateInputs
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CodeError
from tasks.laboratory import weekly
from tasks.planning import decisions
from tasks.planning.decisions import Action, Decision
from tasks.runs import releases
from tasks.runs.run import Run
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.workspace.attempts import give_score

SETTINGS = ("model.scratch.layers=1", "decide.scheduled=true")


@pytest.fixture
def runner(
    store: DirectoryStore, without_pages: None, short_delays: None, monkeypatch: pytest.MonkeyPatch
) -> FakeRunner:
    """Four quarters are trained, and training was worth two points less than nothing."""
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    ingest(store, "2021-Q3", "2021-Q4")
    for number, quarter in enumerate(("2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4")):
        done = pipeline(store.uri, quarter, overrides=SETTINGS)
        if number > 1:
            give_score(store, done.run_key, quarter, number, -2.0)
    runner.specs.clear()
    return runner


def scheduled(store: Store, span: str, *overrides: str) -> State[Run]:
    return pipeline(store.uri, span, overrides=(*SETTINGS, *overrides), scheduled_in="UTC", return_state=True)


def trained(runner: FakeRunner) -> list[list[str]]:
    return [[r.span.name for r in spec.inputs.rows] for spec in runner.specs if isinstance(spec.inputs, TrainInputs)]


def recorded(store: Store, span: str) -> Decision | None:
    return decisions.find(store, "main", SpanRef(name=span, version=1))


def current(store: Store) -> Release:
    found = releases.current(store)
    assert found is not None
    return found


def test_a_span_not_worth_its_training_waits_its_items_are_released_and_the_next_run_trains_it(prefect, store, runner):
    ingest(store, "2022-Q1")
    before = current(store)
    state = scheduled(store, "2022-Q1")
    assert (state.name, state.is_completed()) == ("Postponed", True)
    assert "decide.least_points 0.5, " in str(state.message)
    assert "Refreshed as release 5" in str(state.message)
    assert runner.stages == [Stage.validate, Stage.infer, Stage.release]
    (inputs,) = [spec.inputs for spec in runner.specs if isinstance(spec.inputs, ValidateInputs)]
    assert inputs.window == (SpanRef(name="2022-Q1", version=1),)
    after = current(store)
    assert (after.number, after.model, after.rows) == (5, before.model, before.rows)
    made = recorded(store, "2022-Q1")
    assert made is not None
    assert made.action is Action.refresh
    with get_client(sync_client=True) as client:
        pages = {page.key for page in client.read_artifacts()}
    assert "decision-main" in pages
    ingest(store, "2022-Q2")
    state = scheduled(store, "2022-Q2", "decide.least_points=-9")
    assert state.name == "Released"
    assert trained(runner) == [["2022-Q1", "2022-Q2"]]
    assert [rows.span.name for rows in current(store).rows][-2:] == ["2022-Q1", "2022-Q2"]


def test_a_person_overrules_it_before_the_run_and_by_hand(store, runner):
    config = small_config(*SETTINGS)
    ingest(store, "2022-Q1", "2022-Q2")
    decisions.overrule(store, weekly.decide(store, config, "2022-Q1"), Action.train, "the winter catalogue")
    assert scheduled(store, "2022-Q1").name == "Released"
    assert scheduled(store, "2022-Q2").name == "Postponed"
    assert pipeline(store.uri, "2022-Q2", overrides=SETTINGS).state == "Released"
    assert trained(runner) == [["2022-Q1"], ["2022-Q2"]]


def test_after_a_refresh_that_failed_nothing_is_decided_yet(store, runner):
    ingest(store, "2022-Q1")
    runner.fail(Stage.infer, CodeError("broken"))
    assert scheduled(store, "2022-Q1").is_failed()
    assert recorded(store, "2022-Q1") is None
    assert scheduled(store, "2022-Q1").name == "Postponed"


def test_each_missed_span_is_decided(store, runner):
    ingest(store, "2022-Q1", "2022-Q2", "2022-Q3")
    state = scheduled(store, "2022-Q3")
    assert state.name == "Released"  # two wait, and no more may
    assert trained(runner) == [["2022-Q1", "2022-Q2", "2022-Q3"]]


def test_a_longer_training_that_broke_off_goes_on(store, runner, monkeypatch):
    ingest(store, "2022-Q1")
    decisions.overrule(store, weekly.decide(store, small_config(*SETTINGS)), Action.longer, "a new range of products")
    runner.fail(Stage.infer, CodeError("broken"))
    assert scheduled(store, "2022-Q1").is_failed()
    again = scheduled(store, "2022-Q1").result()
    assert again.plan is not None
    assert again.plan.config.train.epochs == 2 * small_config(*SETTINGS).train.epochs
    assert runner.stages.count("train") == 1
