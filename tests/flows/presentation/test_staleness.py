"""What a new span is worth: on the page of an evaluation, and over the history."""

import pytest

from flows.presentation.figures import svg
from flows.presentation.history.staleness import new_span, staleness
from flows.presentation.run.pages import stage_page
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import Measurement, Role, SpanMetrics
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.stages import Stage
from tasks.monitoring.history import read_history
from tasks.planning.next_run import plan_run
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.sections import row, rows


def span(name: str, challenger: float, champion: float) -> SpanMetrics:
    values = {Role.challenger: challenger, Role.champion: champion, Role.untrained: 0.01}
    return SpanMetrics(span=name, rows=30, metrics={role: {"recall@10": value} for role, value in values.items()})


class MeasuringRunner(FakeRunner):
    """Its evaluations say how each model does on the newest spans."""

    def _outcome(self, spec, inputs):
        outcome = super()._outcome(spec, inputs)
        if not isinstance(outcome, EvaluateOutcome) or outcome.champion is None:
            return outcome
        spans = (span("before", 0.45, 0.5), span(spec.span.name, 0.55, 0.3))
        measured = tuple(
            Measurement(role=role, version=version, release=release, metrics=metrics, vectors={"effective_rank": 9.5})
            for role, version, release, metrics in (
                (Role.challenger, "m-2", None, outcome.challenger),
                (Role.champion, "m-1", 1, outcome.champion),
            )
        )
        golden = {Role.challenger: {"recall@10": 0.75}, Role.champion: {"recall@10": 0.5}}
        of_golden = {"golden": golden, "golden_rows": 4, "golden_trained": 1}
        return outcome.model_copy(update={"spans": spans, "measured": measured, **of_golden})


@pytest.fixture
def judged(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch):
    """A first run, and one that has a champion."""
    monkeypatch.setattr("infra.compute.factory.make_runner", lambda config, store, stage: MeasuringRunner(store))
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    return plan, carry_out(plan).judged


def test_the_page_of_an_evaluation_says_what_the_new_span_is_worth_and_what_was_forgotten(store, judged):
    page = stage_page(store, judged[0], Stage.evaluate, judged[1])
    assert any(
        f"of span {judged[0].span.name} alone, recall@10 is 0.3000 by the champion and 0.5500" in line
        for line in page.lines
    )
    assert row(page, "before") == ["30", "0.4500", "0.5000", "\N{MINUS SIGN}0.0500", "0.0100"]
    assert ["challenger", "m-2", "0.7500"] in rows(page), "on the golden set"
    assert any("1 of the 4 rows of the golden set were trained on" in line for line in page.lines)
    assert ["champion", "m-1, release 1", "9.5000"] in rows(page), "of its vectors"


def test_the_history_draws_the_models_on_each_new_span(store, judged):
    history = read_history(store)
    first, second = history.runs
    assert new_span(first) is None, "without a champion nothing was stale"
    measured = new_span(second)
    assert measured is not None
    assert (measured.span, measured.values[Role.champion]) == (judged[0].span.name, 0.3)
    figure = staleness(history)
    assert figure is not None
    assert "champion 0.3000, challenger 0.5500" in figure.caption
    assert "+0.2500" in figure.caption
    assert b"<svg" in svg(figure)
    assert staleness(history._replace(runs=(first,))) is None
