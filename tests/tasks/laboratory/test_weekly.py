"""The decision about a span, over a lineage whose trainings were worth what a test says; the workers are fakes."""

from __future__ import annotations

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError
from tasks.laboratory import weekly
from tasks.planning.decisions import Action, Decision, Finding, keep, overrule
from tasks.planning.next_run import missed, plan_run
from tasks.runs.holds import hold
from tasks.runs.plan import NothingToDo
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.workspace.attempts import give_score
from tests.support.workspace.states import trained_only

TRAINED = ("2026-01", "2026-02", "2026-03", "2026-04")
PRICED = "cost.dollars_per_worker_hour=3600"  # a dollar a second
SECONDS = 9.75  # that fake workers of a stage say they took
ON = "decide.scheduled=true"


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, *TRAINED)
    return store


@pytest.fixture(autouse=True)
def runner(store, monkeypatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


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


def test_a_span_is_trained_for_the_worth_of_the_last_trainings(store):
    train(store, 5.0, 4.0)
    ingest(store, "2026-05")
    made = decide(store)
    assert (made.action, made.finding) == (Action.train, Finding.worth)
    assert (made.window, made.arrived) == (("2026-05",), True)
    assert [(one.release, one.span, one.spans) for one in made.evidence] == [(2, "2026-03", 1), (3, "2026-04", 1)]
    assert made.gain.points == pytest.approx(4.5, abs=0.2)
    assert made.gain.probability > 0.95
    assert made.options[0].dollars is None
    assert "price is not known" in made.reason
    assert decide(store, "decide.scores=1").gain.points == pytest.approx(4.0, abs=0.2)


def test_a_gain_that_nobody_can_know_yet_is_trained_and_says_so(store):
    """A mean of noisy scores below least_points is no reason to wait."""
    for plan, points in zip(train(store)[2:], (-1.0, 0.0), strict=True):
        give_score(store, plan.run_key, plan.span.name, 2 if plan.span.name == "2026-03" else 3, points, error=6.0)
    ingest(store, "2026-05")
    made = decide(store)
    assert made.gain.points < 0.5 < made.gain.high
    assert (made.action, made.finding) == (Action.train, Finding.unknown)
    assert f"{made.gain.probability:.2f}" in made.reason
    assert decide(store, "decide.least_points=9").action is Action.refresh


def test_without_a_score_nobody_can_know(store):
    train(store)
    ingest(store, "2026-05")
    made = decide(store)
    assert (made.action, made.finding, made.evidence) == (Action.train, Finding.unknown, ())
    assert made.options[0].points is None
    assert "forward score" in made.reason


def test_a_refused_training_counts_as_no_gain(store, runner):
    """The scores are those of the released ones. Those of a branch that began instead of others are counted too."""
    train(store, 4.0, 4.0)
    ingest(store, "2026-05")
    before = decide(store).gain
    assert (before.released, before.refused) == (4, 0)
    good, runner.metrics = runner.metrics, {"recall@10": 0.1, "mrr@10": 0.1}
    for number, (month, later) in enumerate((("2026-05", "2026-06"), ("2026-06", "2026-07")), start=1):
        carry_out(plan_run(store, small_config(), month))
        ingest(store, later)
        made = decide(store)
        assert (made.gain.released, made.gain.refused) == (4, number)
        assert made.gain.points_per_span == pytest.approx(before.points_per_span)
        share = 4 / (4 + number)
        assert made.gain.points == pytest.approx(before.points * share * len(made.window))
        assert f"4 of {4 + number} " in made.reason
    runner.metrics = good
    carry_out(plan_run(store, small_config(), "2026-07"))
    ingest(store, "2026-08")
    made = decide(store)
    assert (made.window, made.gain.released, made.gain.refused) == (("2026-08",), 5, 2)


def test_a_span_that_is_not_worth_it_waits_and_is_trained_with_the_next(store):
    """It is neither missed meanwhile, nor lost, nor trained twice."""
    train(store, -1.5, -1.5)
    ingest(store, "2026-05")
    made = decide(store, ON)
    assert (made.action, made.finding) == (Action.refresh, Finding.waits)
    assert made.gain.high < 0.5
    keep(store, made)
    assert missed(store, small_config(ON), "2026-05") == []
    assert missed(store, small_config(), "2026-05") == ["2026-05"]  # switched off, nothing waits
    with pytest.raises(NothingToDo, match="millrace run --span 2026-05"):
        plan_run(store, small_config(ON))
    assert [span.name for span in plan_run(store, small_config(ON), "2026-05").window] == ["2026-05"]
    assert decide(store, ON) == made
    ingest(store, "2026-06")
    later = decide(store, ON, "decide.least_points=-4")
    assert (later.action, later.window) == (Action.train, ("2026-05", "2026-06"))
    assert later.options[0].points == pytest.approx(2 * made.gain.points)
    assert missed(store, small_config(ON), "2026-06") == ["2026-06"]
    plan = plan_run(store, small_config(ON))
    assert [span.name for span in plan.window] == ["2026-05", "2026-06"]
    carry_out(plan)
    give_score(store, plan.run_key, "2026-06", 4, -1.5)
    ingest(store, "2026-07")
    assert decide(store, ON).window == ("2026-07",)


def test_no_more_spans_wait_than_the_rule_allows(store):
    train(store, -2.0, -2.0)
    made = []
    for month in ("2026-05", "2026-06", "2026-07"):
        ingest(store, month)
        made.append(keep(store, decide(store, ON)))
    assert [one.taken.waits for one in made] == [True, True, False]
    assert made[-1].window == ("2026-05", "2026-06", "2026-07")
    assert "decide.most_waiting" in made[-1].reason
    assert decide(store, "decide.most_waiting=0", span="2026-05").action is Action.refresh  # on record


def test_points_are_set_against_the_dollars_above_a_refresh(store):
    train(store, 4.0, 4.0, settings=(PRICED,))
    ingest(store, "2026-05")
    made = decide(store, PRICED)
    by = {option.action: option.dollars for option in made.options}
    refresh = by[Action.refresh]
    assert refresh is not None
    assert refresh >= 2 * SECONDS - 1  # validate and release; no item was new in the last catalogue
    assert by[Action.train] == pytest.approx(7 * SECONDS, rel=0.3)
    extra = (by[Action.train] or 0) - refresh
    assert f"{made.gain.points / extra:.2f} points a dollar" in made.reason
    cheap = decide(store, PRICED, f"decide.least_points_per_dollar={0.9 * made.gain.low / extra}")
    assert (cheap.action, cheap.finding) == (Action.train, Finding.worth)
    unsure = decide(store, PRICED, f"decide.least_points_per_dollar={made.gain.points / extra}")
    assert (unsure.action, unsure.finding) == (Action.train, Finding.unknown)
    dear = decide(store, PRICED, f"decide.least_points_per_dollar={1.1 * made.gain.high / extra}")
    assert dear.action is Action.refresh
    assert "decide.least_points_per_dollar" in dear.reason


def test_a_span_that_has_not_arrived_is_forecast(store):
    train(store, 4.0, 4.0)
    made = decide(store)
    assert (made.span.name, made.arrived, made.action) == ("2026-05", False, Action.train)
    assert decide(store, span="2026-05").span == made.span
    with pytest.raises(ConfigError, match="2026-09"):
        decide(store, span="2026-09")


def test_a_person_overrules_the_rule_before_and_after_it_has_spoken(store):
    train(store, 4.0, 4.0)
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
    train(store, -2.0, -2.0)
    ingest(store, "2026-05")
    hold(store, "Ana looks at it")
    made = decide(store)
    assert made.action is Action.skip
    assert "Ana looks at it" in made.reason


def test_a_training_is_longer_while_its_last_steps_still_gain(store, monkeypatch):
    train(store, 4.0, 4.0)
    ingest(store, "2026-05")
    longer = "decide.longer_least_points=1"
    assert "No curve" in decide(store, longer).reason
    monkeypatch.setattr(weekly, "points_of_more_steps", lambda runs, most: 1.5)
    made = decide(store, longer)
    assert (made.action, made.options[1].points) == (Action.longer, pytest.approx(made.gain.points + 1.5))
    assert decide(store, "decide.longer_least_points=2").action is Action.train
    plan = plan_run(store, small_config(ON))
    keep(store, made)
    twice = plan_run(store, small_config(ON))
    assert twice.config.train.epochs == 2 * plan.config.train.epochs
    assert twice.run_key != plan.run_key
    trained_only(store, twice)  # an interrupted run goes on with its epochs, named or not
    assert plan_run(store, small_config(ON)).run_key == plan_run(store, small_config(ON), "2026-05").run_key
    assert plan_run(store, small_config(ON)).run_key == twice.run_key
