"""Plans of an import of weights, and of the runs after it."""

import json

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import CheckpointRef, CheckpointState, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError
from tasks.laboratory.import_checkpoint import plan_import
from tasks.planning.next_run import plan_run, plan_work
from tests.support.fakes.fake_runner import ingest, small_config, write_checkpoint
from tests.support.workspace.states import checkpoint_state, released, trained_only

QUARTERS = ("2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4")


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path)
    ingest(store, *QUARTERS)
    return store


def spans(*names: str) -> tuple[SpanRef, ...]:
    return tuple(SpanRef(name=name, version=1) for name in names)


def imported(store: DirectoryStore, plan: RunPlan) -> CheckpointRef:
    """Write what an import of weights leaves."""
    return write_checkpoint(store, checkpoint_state(0, lineage=plan.config.lineage, run_key=plan.run_key))


@pytest.mark.parametrize("span", [None, "2021-Q1", "2021-Q3"])
def test_weights_are_imported_into_the_model_of_the_first_run(store, span):
    plan = plan_import(store, small_config(), span)
    assert plan == plan_run(store, small_config(), span)
    imported(store, plan)
    assert plan_import(store, small_config(), span) == plan


@pytest.mark.parametrize(("span", "quarters"), [(None, 1), ("2021-Q1", 1), ("2021-Q3", 3)])
def test_the_run_after_an_import_is_a_first_run_from_the_imported_weights(store, span, quarters):
    for_import = plan_import(store, small_config(), "2021-Q2")
    checkpoint = imported(store, for_import)
    plan = plan_run(store, small_config(), span)
    assert plan.window == spans(*QUARTERS[:quarters])
    assert (plan.parent, plan.history) == (checkpoint, ())
    assert plan.run_key != for_import.run_key


def test_later_runs_after_an_import_follow_each_other_as_usual(store):
    beginning = imported(store, plan_import(store, small_config()))
    first = plan_run(store, small_config(), "2021-Q2")
    after_first = released(store, first)
    assert first.parent == beginning
    second = plan_run(store, small_config())
    assert (second.window, second.parent) == (spans("2021-Q3"), after_first)
    assert [rows.span.name for rows in second.history] == ["2021-Q1", "2021-Q2"]
    assert plan_run(store, small_config(), "2021-Q2") == first
    assert plan_work(store, small_config(), "2021-Q2") == first


def test_work_outside_an_imported_lineage_starts_from_its_weights(store):
    beginning = imported(store, plan_import(store, small_config()))
    assert plan_work(store, small_config("train.epochs=7"), "2021-Q1").parent == beginning


def test_a_trained_lineage_accepts_no_weights(store):
    released(store, plan_run(store, small_config()))
    with pytest.raises(ConfigError, match=r"step-00000010\).*--set line"):
        plan_import(store, small_config(), "2021-Q2")
    assert plan_import(store, small_config("lineage=other")).window == spans("2021-Q1")


def test_a_lineage_accepts_weights_for_one_first_run_only(store):
    imported(store, plan_import(store, small_config()))
    for config, span in ((small_config(), "2021-Q2"), (small_config("seed=4"), None)):
        with pytest.raises(ConfigError, match=r"lineages/main/step-00000000"):
            plan_import(store, config, span)


def test_a_lineage_with_an_interrupted_first_run_accepts_no_weights(store):
    plan = plan_run(store, small_config())
    checkpoint = trained_only(store, plan)
    state = json.loads(store.read(f"{checkpoint.prefix}/state.json")) | {"complete": False}
    store.delete(checkpoint.prefix)
    write_checkpoint(store, CheckpointState.model_validate(state))
    with pytest.raises(ConfigError, match=r"step-00000010 .*finished"):
        plan_import(store, small_config())


def test_only_imported_weights_leave_the_holdout_open(store: DirectoryStore):
    plan = plan_import(store, small_config())
    write_checkpoint(store, checkpoint_state(0, run_key=plan.run_key))
    assert plan_run(store, small_config("evaluate.group=query")).config.evaluate.group == "query"
