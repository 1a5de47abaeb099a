"""Experiments beside a lineage that fake workers trained: their plan, names, reused rows, and their end by a prune."""

from __future__ import annotations

from pathlib import Path

import pytest

from configs.schema.operations import PruneConfig
from infra.store.directory import DirectoryStore
from tasks.campaigns import stored
from tasks.campaigns.campaign import BackfillPlan
from tasks.campaigns.stored import run_of
from tasks.campaigns.trying import begin, newest_trained, plan_experiment
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.evaluate import evaluate
from tasks.foundation.errors import ConfigError
from tasks.health import health
from tasks.prune.prune import prune
from tasks.runs import branches, lineage
from tasks.runs.experiments import Experiment, find, passed, read_all
from tasks.runs.plan import save_plan
from tasks.runs.results import read_result
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.workspace.backfills import fake_workers, run_spans

SPANS = ["2021-Q1", "2021-Q2"]
SLOWER = ("train.learning_rate=1e-5",)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = fake_workers(store, monkeypatch)
    ingest(store, *SPANS, "2021-Q3")
    run_spans(store, *SPANS)
    runner.specs.clear()
    return runner


def planned(
    store: DirectoryStore, *overrides: str, span: str = SPANS[-1], name: str = "slower", given: bool = True
) -> tuple[BackfillPlan, Experiment]:
    return plan_experiment(store, small_config(*overrides), span, name, given)


def carried_out(store: DirectoryStore, *overrides: str, **how: str) -> Experiment:
    """What the flow of the backfill does."""
    plan, experiment = planned(store, *overrides, **how)  # pyright: ignore[reportArgumentType]
    begin(store, experiment)
    assert plan.branch is not None
    branches.begin(store, plan.branch, plan.on, plan.base)
    stored.save(store, stored.begin(store, plan, "", "").model_copy(update={"state": "Done"}))
    run = run_of(store, plan, plan.spans[-1])
    save_plan(store, run)
    validated = validate.fn(run)
    warm = warmup.fn(run, validated, health.fn(run, validated))
    evaluate.fn(run, validated, warm, train.fn(run, validated, warm))
    return experiment


def test_it_starts_from_the_checkpoint_of_the_spans_own_run_and_names_what_differs(store, runner):
    plan, experiment = planned(store, *SLOWER)
    own = lineage.completed(store, "main")
    assert plan.base == own[0][0]
    assert (experiment.beside, experiment.span.name) == (own[1][1].run_key, SPANS[-1])
    assert [(each.key, each.now) for each in experiment.settings] == [("train.learning_rate", 1e-5)]
    assert plan.stages == ("train", "evaluate")
    assert read_all(store) == [], "planning writes nothing"


def test_the_settings_of_the_own_run_are_nothing_to_try(store, runner):
    with pytest.raises(ConfigError, match=r"run \w+ over 2021-Q2"):
        planned(store)
    with pytest.raises(ConfigError, match="millrace gate --run"):
        planned(store, "evaluate.min_slice_rows=7")


def test_a_name_belongs_to_one_experiment(store, runner):
    begin(store, planned(store, *SLOWER)[1])
    assert planned(store, *SLOWER)[1] == find(store, "slower"), "the same one goes on"
    with pytest.raises(ConfigError, match=r"slower .*learning_rate"):
        planned(store, "train.learning_rate=2e-5")
    with pytest.raises(ConfigError, match="by another process"):
        begin(store, planned(store, "train.epochs=3", name="other")[1].model_copy(update={"name": "slower"}))
    other = planned(store, "train.learning_rate=2e-5", given=False)[1]
    assert other.name == f"slower-{other.backfill[:4]}"
    for name in ("2026-02:slow", "../up", "", "a b", "x" * 81):
        with pytest.raises(ConfigError, match="--name"):
            planned(store, *SLOWER, name=name)


def test_rows_are_validated_again_only_for_settings_that_decide_them(store, runner):
    one = carried_out(store, *SLOWER)
    assert runner.stages == ["health", "warmup", "train", "evaluate"]
    own, copied = (read_result(store, key or "", Stage.validate) for key in (one.beside, one.run_key))
    assert own is not None
    assert copied is not None
    assert copied.outcome == own.outcome
    runner.specs.clear()
    carried_out(store, "validate.min_rows=2", name="rows")
    assert runner.stages[0] == "validate"


def test_rows_that_were_deleted_are_validated_again(store, runner):
    _, experiment = planned(store, *SLOWER)
    store.delete(f"runs/{experiment.beside}/validate/rows")
    begin(store, experiment)
    assert read_result(store, experiment.run_key, Stage.validate) is None


def test_the_lineage_goes_on_as_if_there_were_no_experiment(store, runner):
    before = {key: store.read(key) for key in store.list("") if key.startswith(("lineages/main/", "releases/"))}
    experiment = carried_out(store, *SLOWER)
    after = {key: store.read(key) for key in store.list("") if key.startswith(("lineages/main/", "releases/"))}
    assert after == before
    assert branches.active(store, "main") == "main"
    assert run_spans(store, "2021-Q3")[0].parent == lineage.completed(store, "main")[1][0]
    assert experiment.branch != "main"


def test_a_prune_keeps_it_until_the_lineage_has_trained_another_span(store, runner):
    experiment = carried_out(store, *SLOWER)
    weights = f"lineages/{experiment.branch}/step-00000020"
    assert weights not in {folder.folder for folder in prune(store, PruneConfig.newest(5), True, print).folders}
    run_spans(store, "2021-Q3")
    assert [each.name for each in passed(store)] == ["slower"]
    prune(store, PruneConfig.newest(5), False, print)
    assert not store.exists(f"{weights}/MANIFEST.json")
    assert store.exists(RESULT.key(run=experiment.run_key, stage=Stage.evaluate)), "its records stay"
    assert planned(store, *SLOWER)[0].to_do == (), "and nothing is trained again"


def test_an_adopted_experiment_is_kept_with_its_release(store, runner):
    experiment = carried_out(store, *SLOWER)
    branches.adopt(store, "main", experiment.branch, instead_of="main")
    assert list(passed(store)) == []
    assert newest_trained(store, "main") == SPANS[-1]
