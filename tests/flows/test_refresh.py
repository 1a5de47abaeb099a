"""Refreshes against a real Prefect server, with stages that do no arithmetic."""

from __future__ import annotations

import pytest

import infra.compute.factory
from configs.load import load_config
from flows.cli import running
from flows.cli.flow_runs import FlowDone
from flows.cli.running import refresh as refresh_command
from flows.cli.running import run as run_command
from flows.cli.terminal.options import RunOptions
from flows.pipeline import pipeline
from flows.refresh import refresh, refresh_after_rejection, refresh_with
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import InferInputs, ValidateInputs
from tasks.contracts.references import FeedRef
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.monitoring.spending import budgets_of, budgets_seen
from tasks.monitoring.work_sums import sum_up
from tasks.running.lineage_lock import hold_lineage
from tasks.runs import ledger, releases
from tasks.runs.catalogues import plan_refresh
from tasks.runs.rollback import rollback
from tasks.runs.run import read_runs
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, ingest_feed
from tests.support.fakes.stages import refreshed
from tests.support.workspace.adding import Killed, die, serving
from tests.support.workspace.stores import count_requests

OVERRIDES = ("model.scratch.layers=1",)


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, without_pages: None, monkeypatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def current(store: DirectoryStore) -> Release:
    release = releases.current(store)
    assert release is not None
    return release


def test_new_items_are_released_with_the_same_model(prefect, store, runner):
    pipeline(store.uri, overrides=OVERRIDES)
    first = current(store)
    ingest_feed(store, "2021-01")
    second = refresh(store.uri, overrides=OVERRIDES)
    assert runner.stages[7:] == [Stage.validate, Stage.infer, Stage.release]
    validated, inferred = (spec.inputs for spec in runner.specs[7:9])
    assert isinstance(validated, ValidateInputs)
    assert (validated.window, validated.feeds) == ((), (FeedRef(name="2021-01", version=1),))
    assert validated.bases[0] == first.catalogue
    assert isinstance(inferred, InferInputs)
    assert (inferred.model, inferred.reuse) == (first.model.of_items, first.vectors_prefix)
    assert second is not None
    assert second == current(store)
    assert (second.number, second.refreshed, second.model, second.metrics) == (2, 1, first.model, first.metrics)
    assert second.catalogue != first.catalogue
    assert prefect.last_run().state_name == "Released"
    state = refresh(store.uri, overrides=OVERRIDES, return_state=True)
    assert (state.name, state.is_completed(), state.result()) == ("NothingToDo", True, None)
    assert current(store) == second


def test_an_hour_asks_for_as_much_after_many_hours_as_after_the_first(store, runner, monkeypatch):
    """Of the workspace as of a bucket, where each key of a listing counts."""
    pipeline(store.uri, overrides=OVERRIDES)
    asked = []
    for hours in ((1,), range(3, 33)):
        for hour in hours:
            ingest_feed(store, "2021-01", hour)
            refreshed(store)
        sum_up(store)
        ingest_feed(store, "2021-01", hours[-1] + 1)
        with monkeypatch.context() as patch:
            asked.append(count_requests(patch))
            assert refresh(store.uri, overrides=OVERRIDES) is not None
        del asked[-1]["read .locks"]  # by the clock
    assert asked[1] == asked[0]
    assert asked[0].total() < 225


def test_a_refresh_that_a_person_took_back_stays_so_until_there_are_other_items(store, runner):
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    refresh(store.uri, overrides=OVERRIDES)
    first, asked = rollback(store, 1), len(runner.stages)
    state = refresh(store.uri, overrides=OVERRIDES, return_state=True)
    assert (state.name, len(runner.stages)) == ("NothingToDo", asked)
    assert "millrace rollback --to 2" in str(state.message)
    assert current(store) == first
    ingest_feed(store, "2021-02")
    third = refresh(store.uri, overrides=OVERRIDES)
    assert third == current(store)
    assert third is not None
    assert (third.number, third.refreshed) == (3, 1)


@pytest.mark.parametrize("command", [refresh_command, run_command])
def test_the_commands_decide_a_release_whose_process_was_killed(prefect, store, runner, monkeypatch, command):
    """Killed before it moved the pointer: nothing is left to plan, but the release is to be made current."""
    pipeline(store.uri, overrides=OVERRIDES)
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    swap = DirectoryStore.swap

    def dies_at_the_decision(self, key, data, expected):
        if key == releases.CURRENT and expected is not None and releases.is_made(store, 3):
            die()
        swap(self, key, data, expected)

    monkeypatch.setattr(DirectoryStore, "swap", dies_at_the_decision)
    with pytest.raises(Killed):
        refreshed(store)
    monkeypatch.setattr(DirectoryStore, "swap", swap)
    assert (releases.numbers(store), serving(store)) == ([1, 2, 3], 2)
    flows = {"refresh": refresh, "pipeline": pipeline}
    monkeypatch.setattr(running, "begin_loading", lambda store, plan: None)
    monkeypatch.setattr(running, "run_flow", lambda name, _, *given: FlowDone(flows[name](*given), "", ""))
    asked = RunOptions(store, None, OVERRIDES)
    assert "release 3 waited" in command(asked).sentence
    assert serving(store) == 3
    assert "nothing to do" in command(asked).sentence


def test_a_training_goes_on_after_a_refresh(store, runner):
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    refreshed = refresh(store.uri, overrides=OVERRIDES)
    assert refreshed is not None
    report = pipeline(store.uri, overrides=OVERRIDES)
    assert (report.span, report.state, report.release) == ("2021-Q2", "Released", releases.read(store, 3))
    assert report.judgement is not None
    assert report.judgement.outcome.champion_version == refreshed.model.version
    assert pipeline(store.uri, "2021-Q1", overrides=OVERRIDES).release == releases.read(store, 1)


def test_a_rejected_span_gives_its_items_to_the_champion(store, runner):
    pipeline(store.uri, overrides=OVERRIDES)
    first = current(store)
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    for _ in range(2):  # the second time there is nothing left to do
        report = pipeline(store.uri, "2021-Q2", overrides=OVERRIDES)
        assert (report.state, report.release) == ("Rejected", None)
        second = current(store)
        assert (second.number, second.refreshed, second.model) == (2, 1, first.model)
    assert runner.stages[7:] == ["validate", "health", "warmup", "train", "evaluate", "validate", "infer", "release"]
    (inputs,) = [spec.inputs for spec in runner.specs[12:13]]
    assert isinstance(inputs, ValidateInputs)
    assert [rows.span.name for rows in inputs.history] == ["2021-Q1", "2021-Q2"]


def test_a_gate_of_the_release_refuses_a_run_and_a_refresh(prefect, store, runner):
    critical = "{metric: recall@10, direction: higher, threshold: -0.02, baseline: champion, severity: critical}"
    strict = (*OVERRIDES, f"release.gates=[{critical}]")
    pipeline(store.uri, overrides=strict)
    first, runner.recall = current(store), 0.3
    for _ in range(2):  # the second time its stages are done
        state = pipeline(store.uri, "2021-Q2", overrides=strict, return_state=True)
        report = state.result()
        assert (state.name, report.state, report.release) == ("Rejected", "Rejected", None)
        assert "0.3000 is 0.1000 below" in report.message
        assert report.judgement is not None
        assert report.judgement.all_verdicts[-1].passed is False
    assert runner.stages.count("train") == 2
    assert refresh(store.uri, overrides=strict, return_state=True).name in ("Rejected", "NothingToDo")
    assert current(store) == first
    ingest_feed(store, "2021-01")
    state = refresh(store.uri, overrides=strict, return_state=True)
    assert (state.name, state.is_completed()) == ("Rejected", True)
    assert current(store) == first
    runner.recall = 0.39
    ingest_feed(store, "2021-02")
    released = refresh(store.uri, overrides=strict)
    assert released == current(store)
    assert released is not None
    assert released.verdicts[0].passed


def test_a_conflict_in_a_stage_is_a_failure_and_not_nothing_to_do(store, runner):
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    runner.fail(Stage.infer, Conflict("the vectors are complete and hold something else"), times=6)
    state = refresh(store.uri, overrides=OVERRIDES, return_state=True)
    assert state.is_failed()
    assert current(store).number == 1


def test_a_refresh_closes_what_a_lost_one_left_open(store, runner, monkeypatch):
    """Its process died in a stage, and newer items came: nobody asks for the same refresh again."""
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    with monkeypatch.context() as patched:
        patched.setattr(ledger.OpenAttempt, "end", lambda *_: die())
        with pytest.raises(Killed):
            refresh(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-02")
    refresh(store.uri, overrides=OVERRIDES)
    records = [record for record in ledger.records(store) if record.run_key.startswith("refresh")]
    assert len({record.run_key for record in records}) == 2
    assert all(record.ended_at for record in records)
    assert ledger.marked_open(store) == []


def test_a_refresh_runs_next_to_a_training_but_not_next_to_another(store, runner, impatient):
    pipeline(store.uri, overrides=OVERRIDES)
    ingest_feed(store, "2021-01")
    with hold_lineage(store, "lineages/main.refresh", print):
        assert refresh(store.uri, overrides=OVERRIDES, return_state=True).name == "NothingToDo"
    with hold_lineage(store, "lineages/main.run", print):
        assert refresh(store.uri, overrides=OVERRIDES) == current(store)


def test_a_refresh_beyond_its_budget_is_refused_and_counts_in_the_week(store, runner):
    priced = (*OVERRIDES, "cost.dollars_per_worker_hour=1")
    pipeline(store.uri, overrides=priced)
    ingest_feed(store, "2021-01")
    state = refresh(store.uri, overrides=(*priced, "cost.budget_dollars_per_run=0.0001"), return_state=True)
    assert state.is_failed()
    assert "refresh of 2021-Q1" in str(state.message)
    tight = load_config(overrides=(*priced, "cost.budget_dollars_per_run=0.0001"))
    refresh_after_rejection(store, tight, "main")  # ends without an error: the rejection is the news
    assert "refresh of 2021-Q1" in refresh_with(store, tight, ())
    assert (len(runner.specs), store.list("refreshes")) == (7, [])
    weekly = load_config(overrides=(*priced, "cost.budget_dollars_per_week=1"))
    (before,) = budgets_seen(store, weekly, read_runs(Snapshot(store), ()), None)
    assert refresh(store.uri, overrides=(*priced, "cost.budget_dollars_per_run=1")) == current(store)
    (after,) = budgets_seen(store, weekly, read_runs(Snapshot(store), ()), None)
    assert after.spent > before.spent > 0
    ingest_feed(store, "2021-02")
    plan, _ = plan_refresh(store, weekly)
    (planned,) = budgets_of(store, plan)
    assert 0 < (planned.planned or 0) < 0.01, "three stages, by the refresh before"
