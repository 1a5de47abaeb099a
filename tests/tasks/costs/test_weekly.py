"""The decision about a span, over a lineage whose trainings were worth what a test says; the workers are fakes."""

from __future__ import annotations

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan
from tasks.costs import weekly
from tasks.foundation.errors import ConfigError
from tasks.planning.decisions import Action, Decision, keep, overrule
from tasks.planning.next_run import plan_run
from tasks.planning.scheduled_span import missed
from tasks.runs import holds
from tasks.runs.plan import NothingToDo
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.states import trained_only
from tests.support.workspace.worth import give_score

TRAINED = ("2026-01", "2026-02", "2026-03", "2026-04")
PRICED = "cost.dollars_per_worker_hour=3600"  # a dollar a second
SECONDS = 9.75  # that fake workers of a stage say they took
ON = "decide.scheduled=true"


@pytest.fixture
def store(tmp_path, monkeypatch) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    ingest(store, *TRAINED)
    return store


def train(store: DirectoryStore, *points: float, settings: tuple[str, ...] = ()) -> list[RunPlan]:
    """Train and release the months; from the third on, each has measured the release before it, worth `points`."""
    plans = []
    for number in range(len(TRAINED)):
        plan = plan_run(store, small_config(*settings))
        carry_out(plan)
        if number > 1 and number - 2 < len(points):
            give_score(store, plan.run_key, plan.span.name, number, points[number - 2])
        plans.append(plan)
    return plans


def decide(store: DirectoryStore, *overrides: str, span: str | None = None) -> Decision:
    return weekly.decide(store, small_config(*overrides), span)


def test_a_span_is_trained_for_the_mean_worth_of_the_last_trainings(store):
    train(store, 3.0, 1.0)
    ingest(store, "2026-05")
    made = decide(store)
    assert (made.action, made.window, made.arrived) == (Action.train, ("2026-05",), True)
    assert [(one.release, one.span, one.spans) for one in made.evidence] == [(2, "2026-03", 1), (3, "2026-04", 1)]
    assert made.points_per_span == pytest.approx(2.0)
    assert made.options[0].dollars is None
    assert "price is not known" in made.reason
    assert decide(store, "decide.scores=1", "decide.least_scores=1").points_per_span == pytest.approx(1.0)


def test_with_too_few_scores_it_is_trained_and_says_so(store):
    train(store, -5.0)
    ingest(store, "2026-05")
    made = decide(store)
    assert made.action is Action.train
    assert "Too little history: 1 forward score" in made.reason
    assert decide(store, "decide.least_scores=1").action is Action.refresh


def test_a_span_that_is_not_worth_it_waits_and_is_trained_with_the_next(store):
    """It is neither missed meanwhile, nor lost, nor trained twice."""
    train(store, 0.3, 0.3)
    ingest(store, "2026-05")
    made = decide(store, ON)
    assert (made.action, made.points_per_span) == (Action.refresh, pytest.approx(0.3))
    keep(store, made)
    assert missed(store, small_config(ON), "2026-05") == []
    assert missed(store, small_config(), "2026-05") == ["2026-05"]  # switched off, nothing waits
    with pytest.raises(NothingToDo, match="millrace run --span 2026-05"):
        plan_run(store, small_config(ON))
    assert [span.name for span in plan_run(store, small_config(ON), "2026-05").window] == ["2026-05"]
    assert decide(store, ON) == made
    ingest(store, "2026-06")
    later = decide(store, ON)
    assert (later.action, later.window) == (Action.train, ("2026-05", "2026-06"))
    assert later.options[0].points == pytest.approx(0.6)
    assert missed(store, small_config(ON), "2026-06") == ["2026-06"]
    plan = plan_run(store, small_config(ON))
    assert [span.name for span in plan.window] == ["2026-05", "2026-06"]
    carry_out(plan)
    give_score(store, plan.run_key, "2026-06", 4, 0.3)
    ingest(store, "2026-07")
    assert decide(store, ON).window == ("2026-07",)


def test_no_more_spans_wait_than_the_rule_allows(store):
    train(store, -1.0, -1.0)
    made = []
    for month in ("2026-05", "2026-06", "2026-07"):
        ingest(store, month)
        made.append(keep(store, decide(store, ON)))
    assert [one.taken.waits for one in made] == [True, True, False]
    assert made[-1].window == ("2026-05", "2026-06", "2026-07")
    assert "decide.most_waiting" in made[-1].reason
    assert decide(store, "decide.most_waiting=0", span="2026-05").action is Action.refresh  # on record


def test_points_are_set_against_the_dollars_above_a_refresh(store):
    train(store, 2.0, 2.0, settings=(PRICED,))
    ingest(store, "2026-05")
    made = decide(store, PRICED)
    by = {option.action: option.dollars for option in made.options}
    refresh = by[Action.refresh]
    assert refresh is not None
    assert refresh >= 2 * SECONDS - 1  # validate and release; no item was new in the last catalogue
    assert by[Action.train] == pytest.approx(7 * SECONDS, rel=0.3)
    extra = (by[Action.train] or 0) - refresh
    assert f"{2 / extra:.2f} points a dollar" in made.reason
    assert decide(store, PRICED, f"decide.least_points_per_dollar={1.9 / extra}").action is Action.train
    dear = decide(store, PRICED, f"decide.least_points_per_dollar={2.1 / extra}")
    assert dear.action is Action.refresh
    assert "below decide.least_points_per_dollar" in dear.reason


def test_a_span_that_has_not_arrived_is_forecast(store):
    train(store, 2.0, 2.0)
    made = decide(store)
    assert (made.span.name, made.arrived, made.action) == ("2026-05", False, Action.train)
    assert decide(store, span="2026-05").span == made.span
    with pytest.raises(ConfigError, match="2026-09"):
        decide(store, span="2026-09")


def test_a_person_overrules_the_rule_before_and_after_it_has_spoken(store):
    train(store, 2.0, 2.0)
    with pytest.raises(ConfigError, match="--reason"):
        overrule(store, decide(store), Action.skip, " ")
    overrule(store, decide(store), Action.skip, "the shop is closed")
    ingest(store, "2026-05")
    made = decide(store, ON)
    assert (made.arrived, made.action, made.taken) == (True, Action.train, Action.skip)
    assert "the shop is closed" in made.why
    keep(store, made)
    assert missed(store, small_config(ON), "2026-05") == []
    overrule(store, decide(store, ON), Action.train, "it is open again")
    assert missed(store, small_config(ON), "2026-05") == ["2026-05"]
    assert keep(store, made).taken is Action.train  # what a person said meanwhile stays


def test_while_releases_are_held_nothing_is_refreshed(store):
    train(store, 0.1, 0.1)
    ingest(store, "2026-05")
    holds.hold(store, "Ana looks at it")
    made = decide(store)
    assert made.action is Action.skip
    assert "Ana looks at it" in made.reason


def test_a_training_is_longer_while_its_last_steps_still_gain(store, monkeypatch):
    train(store, 2.0, 2.0)
    ingest(store, "2026-05")
    longer = "decide.longer_least_points=1"
    assert "No curve" in decide(store, longer).reason
    monkeypatch.setattr(weekly, "points_of_more_steps", lambda runs, most: 1.5)
    made = decide(store, longer)
    assert (made.action, made.options[1].points) == (Action.longer, pytest.approx(3.5))
    assert decide(store, "decide.longer_least_points=2").action is Action.train
    plan = plan_run(store, small_config(ON))
    keep(store, made)
    twice = plan_run(store, small_config(ON))
    assert twice.config.train.epochs == 2 * plan.config.train.epochs
    assert twice.run_key != plan.run_key
    trained_only(store, twice)  # an interrupted run goes on with its epochs, named or not
    assert plan_run(store, small_config(ON)).run_key == plan_run(store, small_config(ON), "2026-05").run_key
    assert plan_run(store, small_config(ON)).run_key == twice.run_key
