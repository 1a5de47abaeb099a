"""Runs judged from what was measured: at once, again by other rules, and by a human."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import (
    COLUMN,
    COMPETITORS,
    GROUP,
    ITEM_ID,
    LABEL_CLASS,
    PAIR,
    QUERY_KEY,
    QUERY_TRAINED,
    ROW_ID,
    SPAN,
    UNSEEN,
    Measurement,
    Role,
    held_of,
    probability_of,
    rank_of,
)
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import OLD_VERDICTS
from tasks.foundation.errors import ConfigError
from tasks.judging.judge_again import judge_again, let_pass, plan_again
from tasks.judging.judge_run import judge_evaluation
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tasks.runs.plan import save_plan
from tasks.runs.results import read_judgement
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.golden import Golden

ROWS = 40
FLOOR = "{{metric: recall@10, direction: higher, threshold: {}, baseline: none, severity: critical}}"


def measured(store: DirectoryStore, plan: RunPlan, rows: int = ROWS, **changed: Any) -> EvaluateOutcome:
    """The challenger finds half of the items, those of `de`; the champion finds all. `changed` are columns."""
    key, locale = f"runs/{plan.run_key}/evaluate/attempt-1/rows.parquet", ["de", "en"] * (rows // 2)
    ranks = {Role.challenger: [1 if each == "de" else 99 for each in locale], Role.champion: [1] * rows}
    columns: dict[str, Any] = {
        ROW_ID: [str(row) for row in range(rows)],
        SPAN: [plan.span.name] * rows,
        QUERY_KEY: pa.array(range(rows), pa.int64()),
        GROUP: pa.array(range(rows), pa.int64()),
        ITEM_ID: ["item"] * rows,
        UNSEEN: [False, True] * (rows // 2),
        QUERY_TRAINED: [True, False] * (rows // 2),
        PAIR: [True] * rows,
        COMPETITORS: pa.array([100] * rows, pa.int32()),
        LABEL_CLASS: pa.array([0, 0, 0, 1] * (rows // 4), pa.int8()),
        f"{COLUMN}locale": locale,
        **{rank_of(role): pa.array(values, pa.int32()) for role, values in ranks.items()},
        **changed,
    }
    path = store.path(key)
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), path)
    recalls = {Role.challenger: {"recall@10": 0.5}, Role.champion: {"recall@10": 1.0}}
    return EvaluateOutcome(
        holdout_rows=rows,
        corpus_items=99,
        challenger=recalls[Role.challenger],
        champion=recalls[Role.champion],
        champion_version="before",
        measured=tuple(
            Measurement(role=role, version=role, release=None, metrics=metrics, vectors={})
            for role, metrics in recalls.items()
        ),
        rows_key=key,
    )


def planned(store: DirectoryStore, *settings: str) -> RunPlan:
    plan = plan_run(store, small_config(*settings))
    save_plan(store, plan)
    return plan


def test_slices_are_measured_for_both_models_and_the_larger_class_is_known(store: DirectoryStore) -> None:
    plan = planned(store, "evaluate.slices=[locale]", "evaluate.min_slice_rows=20", "evaluate.gates=[]")
    judged = judge_evaluation(store, plan, measured(store, plan))
    assert [(each.value, each.rows, each.metrics["recall@10"]) for each in judged.slices] == [
        ("de", 20, 1.0),
        ("en", 20, 0.0),
    ]
    assert all(each.champion is not None and each.champion["recall@10"] == 1.0 for each in judged.slices)
    assert judged.larger_class == 0.75
    assert judged.auc_by_chance == pytest.approx(0.5 + 1.645 * (41 / (12 * 30 * 10)) ** 0.5, abs=1e-3)


def test_a_verdict_on_a_sample_says_what_it_is_a_sample_of(store: DirectoryStore, golden: Golden) -> None:
    sliced = "{metric: recall@10, direction: higher, threshold: 0.1, baseline: none, severity: critical, slice: locale}"
    plan = planned(store, f"evaluate.gates=[{FLOOR.format(0.4)}, {sliced}]", "evaluate.slices=[locale]")
    sample = measured(store, plan).model_copy(update={"holdout_there": 1_240_000, "rows_left_out": 3})
    over = [verdict.over for verdict in judge_evaluation(store, plan, sample).verdicts]
    golden(sorted(set(over)))


def test_newest_labels_that_are_the_contrary_of_what_the_champion_learned_are_refused(store: DirectoryStore) -> None:
    plan, half = planned(store), ROWS // 2
    bought = np.array([0, 0, 0, 1] * (ROWS // 4))
    probability = np.where(np.arange(ROWS) < half, bought, 1 - bought)
    columns = {SPAN: ["2020-Q4"] * half + [plan.span.name] * half,
               probability_of(Role.champion): pa.array(probability, pa.float32())}  # fmt: skip
    judged = judge_evaluation(store, plan, measured(store, plan, **columns))
    assert (judged.refused, judged.wrong_spans) == (True, (plan.span.name,))
    assert "AUC of the labels" in judged.why


def test_rows_on_which_the_champion_itself_falls_are_refused_unless_a_human_lets_them_pass(
    store: DirectoryStore,
) -> None:
    plan, half = planned(store, "evaluate.gates=[]"), 60
    columns = {SPAN: ["2020-Q4"] * half + [plan.span.name] * half, held_of(Role.champion): [True] * 2 * half,
               rank_of(Role.champion): pa.array([1] * half + [99] * half, pa.int32())}  # fmt: skip
    outcome = measured(store, plan, 2 * half, **columns)
    judged = judge_evaluation(store, plan, outcome)
    assert (judged.refused, judged.wrong_spans) == (True, (plan.span.name,))
    assert "recall@10 is 0.0000" in judged.why
    assert not let_pass(store, plan, judged, "Ada", "all customers use another language").refused
    lenient = planned(store, "evaluate.gates=[]", "evaluate.champion_loss={warn: 0.1, stop: null}")
    assert lenient.run_key == plan.run_key, "the bound is no part of the work"
    assert not judge_evaluation(store, lenient, outcome).refused


def test_other_rules_judge_again_and_every_judgement_stays_on_record(store: DirectoryStore) -> None:
    plan = planned(store, f"evaluate.gates=[{FLOOR.format(0.6)}]")
    outcome = measured(store, plan)
    first = judge_evaluation(store, plan, outcome)
    assert judge_evaluation(store, plan, outcome) == first, "the same rules"
    lower = planned(store, f"evaluate.gates=[{FLOOR.format(0.4)}]")
    assert lower.run_key == plan.run_key, "gates are no part of the work"
    second = judge_evaluation(store, lower, outcome)
    assert (first.refused, first.number, second.refused, second.number) == (True, 1, False, 2)
    assert read_judgement(store, plan.run_key) == second
    assert store.read(OLD_VERDICTS.key(run=plan.run_key, number=1)) == first.to_json()


def test_where_a_release_goes_to_is_not_taken_from_the_workspace(store: DirectoryStore) -> None:
    target = "publish.targets=[{{kind: lancedb, name: look, uri: {}}}]"
    plan = planned(store, target.format("recorded"))
    save_plan(store, plan)
    assert plan_again(store, plan.run_key, None, ()).config.publish.targets == ()
    (own,) = plan_again(store, plan.run_key, None, [target.format("own")]).config.publish.targets
    assert own.model_dump()["uri"] == "own"


def test_a_run_that_was_refused_passes_by_lower_gates_without_any_work(
    store: DirectoryStore, runner: FakeRunner
) -> None:
    run = carry_out(plan := plan_run(store, small_config(f"evaluate.gates=[{FLOOR.format(0.9)}]")))
    assert run.judged.refused
    work = len(runner.specs)
    again = plan_again(store, plan.run_key, None, [f"evaluate.gates=[{FLOOR.format(0.4)}]"])
    assert not judge_again(store, again).refused
    assert len(runner.specs) == work
    by_the_newest = plan_again(store, plan.run_key, None, ())
    assert by_the_newest.config.evaluate.gates == again.config.evaluate.gates, "without settings the rules stay"


def test_the_gates_of_the_release_stage_are_judged_again_too(store: DirectoryStore, runner: FakeRunner) -> None:
    gate = "{{metric: recall@10, direction: higher, threshold: {}, baseline: none, severity: critical}}"
    plan = plan_run(store, small_config(f"release.gates=[{gate.format(0.99)}]"))
    assert carry_out(plan).released is None
    stricter, lower = (plan_again(store, plan.run_key, None, [f"release.gates=[{gate.format(t)}]"]) for t in (0.98, 0))
    assert judge_again(store, stricter).refused
    assert not judge_again(store, lower).refused


def test_a_human_lets_a_refused_run_pass_and_the_release_says_so(store: DirectoryStore, runner: FakeRunner) -> None:
    settings = f"evaluate.gates=[{FLOOR.format(0.9)}]"
    plan = plan_run(store, small_config(settings))
    refused = carry_out(plan).judged
    passed = let_pass(store, plan, refused, "Ada", "the golden set is fine")
    assert not passed.refused
    assert passed.overrides[0].refusals == (refused.why,)
    released = carry_out(plan).released
    assert released is not None
    assert [(each.name, each.reason) for each in released.overrides] == [("Ada", "the golden set is fine")]
    assert releases.current(store) == released
    with pytest.raises(ConfigError, match="no gate refuses"):
        let_pass(store, plan, passed, "Ada", "again")


def test_a_release_stays_when_gates_become_stricter(store: DirectoryStore, runner: FakeRunner) -> None:
    plan = plan_run(store, small_config())
    released = carry_out(plan).released
    again = plan_again(store, plan.run_key, None, [f"evaluate.gates=[{FLOOR.format(0.9)}]"])
    judged = judge_again(store, again)
    assert judged.refused
    assert releases.current(store) == released
    with pytest.raises(ConfigError, match="is release 1 already"):
        let_pass(store, again, judged, "Ada", "it serves")


def test_a_run_that_is_not_there_or_was_not_evaluated_is_named(store: DirectoryStore) -> None:
    with pytest.raises(ConfigError, match=r"nothing; .*history"):
        plan_again(store, "nothing", None, ())
    plan = planned(store)
    with pytest.raises(ConfigError, match=f"run {plan.run_key} was"):
        judge_again(store, plan)
