"""What follows a rejection, a skip and a small span, through the flow; the workers do no arithmetic."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import State

import infra.compute.factory
from flows import pipeline as flow
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.stages import Stage
from tasks.foundation.errors import DataError
from tasks.planning.decisions import skip
from tasks.runs import releases
from tasks.runs.branches import active
from tasks.runs.run import Run
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, small_config

ENCODER = "model.scratch.layers=1"
GOOD = {"recall@10": 0.5, "mrr@10": 0.3}
BAD = {"recall@10": 0.2, "mrr@10": 0.1}


@pytest.fixture
def runner(
    store: DirectoryStore, without_pages: None, short_delays: None, monkeypatch: pytest.MonkeyPatch
) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    ingest(store, "2021-Q3", "2021-Q4")
    return runner


def run(store: DirectoryStore, *overrides: str, span: str | None = None, scheduled_in: str = "") -> State[Run]:
    return pipeline(store.uri, span, overrides=(ENCODER, *overrides), scheduled_in=scheduled_in, return_state=True)


def trainings(runner: FakeRunner) -> list[tuple[str, list[str], int | None]]:
    """Of each training: the lineage without the hash in its name, the spans, and the step that it starts from."""
    inputs = [(spec.config.lineage, spec.inputs) for spec in runner.specs if isinstance(spec.inputs, TrainInputs)]
    return [
        (
            name.rpartition("-")[0] or name,
            [rows.span.name for rows in one.rows],
            one.parent.step if one.parent else None,
        )
        for name, one in inputs
    ]


def test_the_next_good_span_is_released_from_the_last_accepted_checkpoint_without_help(store, runner, golden):
    run(store)
    runner.metrics = BAD
    rejections = [run(store), run(store)]
    assert [state.name for state in rejections] == ["Rejected", "Rejected"]
    golden(str(rejections[1].message))
    runner.metrics = GOOD
    report = run(store).result()
    assert (report.state, report.span) == ("Released", "2021-Q4")
    assert trainings(runner) == [
        ("main", ["2021-Q1"], None),
        ("main", ["2021-Q2"], 10),
        ("main-after", ["2021-Q2", "2021-Q3"], 10),
        ("main-after", ["2021-Q2", "2021-Q3", "2021-Q4"], 10),
    ]
    current = releases.current(store)
    assert current is not None
    assert [rows.span.name for rows in current.rows] == ["2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4"]


def test_a_run_that_dies_before_its_branch_is_adopted_goes_on_where_it_was(store, runner, monkeypatch):
    run(store)
    runner.metrics = BAD
    run(store)
    runner.metrics = GOOD

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(flow, "adopt_branch", killed)
        with pytest.raises(KeyboardInterrupt):
            run(store)
    assert active(store, "main") == "main"
    report = run(store).result()
    assert (report.state, report.cached) == ("Released", (Stage.validate, Stage.health, Stage.warmup, Stage.train))
    assert active(store, "main") == report.lineage
    assert len(trainings(runner)) == 3


def test_a_run_on_the_branch_that_fails_is_run_again_with_both_spans(store, runner):
    run(store)
    runner.metrics = BAD
    run(store)
    runner.metrics = GOOD
    runner.fail(Stage.validate, DataError("row 3 is bad"))
    assert run(store).is_failed()
    assert run(store).result().state == "Released"
    assert trainings(runner)[-1][1] == ["2021-Q2", "2021-Q3"]


def test_with_challenger_the_lineage_goes_on_from_the_rejected_model_and_says_so(store, runner, golden):
    run(store)
    runner.metrics = BAD
    state = run(store, "train.after_rejection=challenger")
    golden(str(state.message))
    run(store, "train.after_rejection=challenger")
    assert trainings(runner)[-1] == ("main", ["2021-Q3"], 20)


def test_a_scheduled_run_of_a_skipped_span_has_nothing_to_do(store, runner):
    run(store)
    skip(store, small_config(), "2021-Q3", "nobody was there")
    state = run(store, span="2021-Q3", scheduled_in="UTC")
    assert (state.name, state.is_completed()) == ("NothingToDo", True)
    assert "2021-Q3 v1 is skipped" in str(state.message)
    assert trainings(runner)[-1][1] == ["2021-Q2"]  # which had been missed
    assert run(store, span="2021-Q4", scheduled_in="UTC").result().state == "Released"
    assert trainings(runner)[-1][1] == ["2021-Q4"]


def test_small_spans_wait_for_the_next_and_are_trained_with_it(store, runner):
    merge = "validate.small_spans=merge"
    run(store, merge)
    for name in ("2021-Q2", "2021-Q3"):
        commit_files(store, f"spans/{name}/v2", {"part-0.parquet": name}, "span", rows=5)
    assert run(store, merge, span="2021-Q2", scheduled_in="UTC").name == "NothingToDo"
    assert run(store, merge, span="2021-Q4", scheduled_in="UTC").result().state == "Released"
    assert trainings(runner)[-1][1] == ["2021-Q2", "2021-Q3", "2021-Q4"]
