"""The item feed that gives texts to rows of ids alone: an input that decides, and stays that of a finished stage."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import ValidateInputs
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import DataError
from tasks.planning.next_run import plan_run
from tasks.runs.results import read_result
from tasks.validate import validate
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.logs import click, item, write_feed, write_log

LOG = SpanRef(name="2021-Q4", version=1)
FIRST, LATER = FeedRef(name="2021-01", version=1), FeedRef(name="2021-11", version=1)


@pytest.fixture
def plan(store: DirectoryStore, tmp_path: Path) -> RunPlan:
    for name in ("2021-Q1", "2021-Q2", "2021-Q3"):
        store.delete(f"spans/{name}/v1")
    write_log(store, tmp_path, LOG, [click(number, "a", "2021-Q4") for number in range(40)])
    return plan_run(store, small_config())


def texts(runner: FakeRunner) -> list[tuple[FeedRef, ...]]:
    return [spec.inputs.texts for spec in runner.specs if isinstance(spec.inputs, ValidateInputs)]


def test_texts_come_from_the_newest_feed_and_the_outcome_names_it(
    store: DirectoryStore, runner: FakeRunner, plan: RunPlan, tmp_path: Path
):
    write_feed(store, tmp_path, FIRST, [item("a", "lamp")])
    assert validate.fn(plan).texts == (FIRST,)
    assert texts(runner) == [(FIRST,)]


def test_a_finished_stage_keeps_its_feed_when_a_newer_one_comes(
    store: DirectoryStore, runner: FakeRunner, plan: RunPlan, tmp_path: Path
):
    write_feed(store, tmp_path, FIRST, [item("a", "lamp")])
    first = validate.fn(plan)
    write_feed(store, tmp_path, LATER, [item("a", "new lamp")])
    assert validate.fn(plan) == first
    assert len(runner.specs) == 1
    store.delete(first.rows[0].prefix)  # its rows are lost, and made again of the same texts
    assert validate.fn(plan).texts == (FIRST,)
    assert texts(runner) == [(FIRST,), (FIRST,)]


def test_a_failed_stage_takes_the_feed_that_came_since(
    store: DirectoryStore, runner: FakeRunner, plan: RunPlan, tmp_path: Path
):
    write_feed(store, tmp_path, FIRST, [item("a", "lamp")])
    runner.fail(Stage.validate, DataError("too many unknown items"))
    with pytest.raises(DataError):
        validate.fn(plan)
    write_feed(store, tmp_path, LATER, [item("b", "mug")])
    assert validate.fn(plan).texts == (FIRST, LATER)


def test_another_feed_decides_for_ids_alone_and_not_for_texts(
    store: DirectoryStore, runner: FakeRunner, tmp_path: Path
):
    done = plan_run(store, small_config())
    first = validate.fn(done)
    write_feed(store, tmp_path, FIRST, [item("a", "lamp")])
    assert validate.fn(done) == first
    assert texts(runner) == [()]


def test_without_a_feed_the_run_is_refused_before_a_worker_starts(runner: FakeRunner, plan: RunPlan):
    with pytest.raises(DataError, match=r"2021-Q4 .*ingest --items"):
        validate.fn(plan)
    assert runner.specs == []


def test_features_may_come_from_the_feed(store: DirectoryStore, runner: FakeRunner, plan: RunPlan, tmp_path: Path):
    write_feed(store, tmp_path, FIRST, [item("a", "lamp")])
    settings = ("model.interaction.kind=both", "features.numeric=[price]", "evaluate.slices=[brand]")
    assert validate.fn(plan_run(store, small_config(*settings))).texts == (FIRST,)
    with pytest.raises(DataError, match="no column 'weight'"):
        validate.fn(plan_run(store, small_config("model.interaction.kind=both", "features.numeric=[weight]")))


def test_the_next_run_looks_up_the_rows_that_wait_since_its_parent(store: DirectoryStore, runner: FakeRunner):
    carry_out(plan_run(store, small_config()))
    first = plan_run(store, small_config(), "2021-Q1")
    result = read_result(store, first.run_key, Stage.validate)
    assert result is not None
    waits = result.outcome.model_copy(update={"waiting": "runs/k/validate/waiting/2021-Q1-0"})
    store.write(
        RESULT.key(run=first.run_key, stage=Stage.validate), result.model_copy(update={"outcome": waits}).to_json()
    )
    validate.fn(plan_run(store, small_config()))
    folders = [spec.inputs.waiting for spec in runner.specs if isinstance(spec.inputs, ValidateInputs)]
    assert folders == [None, "runs/k/validate/waiting/2021-Q1-0"]
