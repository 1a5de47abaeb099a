"""What a release was worth on the span after it: on the page of that span's evaluation, and over the history."""

import pytest

from flows.cli import history as command
from flows.cli.terminal import console
from flows.presentation.figures import svg
from flows.presentation.history.quality import forward_figures, forward_section
from flows.presentation.run.pages import stage_page
from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import ForwardNumbers, Measurement, Role, SpanMetrics
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.stages import Stage
from tasks.monitoring.history import History, read_history
from tasks.planning.next_run import plan_run
from tasks.runs.snapshot import Snapshot
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.pages.shown import row, rows, written


def span(name: str, **recalls: float) -> SpanMetrics:
    return SpanMetrics(span=name, rows=30, metrics={Role(role): {"recall@10": of} for role, of in recalls.items()})


class MeasuringRunner(FakeRunner):
    """Its evaluations say how each model does on the newest spans."""

    def _outcome(self, spec, inputs):
        outcome = super()._outcome(spec, inputs)
        if not isinstance(outcome, EvaluateOutcome) or outcome.champion is None:
            return outcome
        assert isinstance(inputs, EvaluateInputs)
        assert inputs.champion is not None
        before = span("before", challenger=0.45, champion=0.5, untrained=0.01)
        newest = span(spec.span.name, challenger=0.55, champion=0.3, previous=0.25, untrained=0.01)
        of = {Role.challenger: (inputs.challenger.version, None), Role.champion: (inputs.champion.version, 1)}
        of |= {each.role: (each.model.version, each.release) for each in inputs.rivals if each.role is Role.previous}
        measured = tuple(
            Measurement(
                role=role,
                version=version,
                release=release,
                metrics=outcome.challenger if role is Role.challenger else outcome.champion,
                vectors={"effective_rank": 9.5},
            )
            for role, (version, release) in of.items()
        )
        golden = {Role.challenger: {"recall@10": 0.75}, Role.champion: {"recall@10": 0.5}}
        of_golden = {"golden": golden, "golden_rows": 4, "golden_trained": 1}
        return outcome.model_copy(update={"spans": (before, newest), "measured": measured, **of_golden})


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = MeasuringRunner(store)
    monkeypatch.setattr("infra.compute.factory.make_runner", lambda config, store, stage: runner)
    return runner


@pytest.fixture
def judged(store: DirectoryStore, runner: FakeRunner):
    """A first run, and one that has a champion."""
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    return plan, carry_out(plan).judged


def test_the_page_of_an_evaluation_says_what_the_champion_was_worth_and_what_was_forgotten(store, judged, golden):
    page = stage_page(store, judged[0], Stage.evaluate, judged[1])
    golden(written(page, parts=False))
    assert row(page, "before") == ["30", "0.4500", "0.5000", "\N{MINUS SIGN}0.0500", "0.0100"]
    assert ["challenger", judged[1].outcome.measured[0].version, "0.7500"] in rows(page), "on the golden set"
    assert ["champion", f"{judged[1].outcome.champion_version}, release 1", "9.5000"] in rows(page), "of its vectors"


def with_parts(history: History) -> History:
    """The history with forward scores of unseen and of seen queries, as evaluations of real rows have them."""
    for run, score in history.forward:
        assert run.judgement is not None
        parts = {
            name: ForwardNumbers(rows=15, value=value, previous_value=None, low=None, high=None, untrained=None,
                                 challenger=None)
            for name, value in (("unseen", 0.2), ("seen", 0.4))
        }  # fmt: skip
        vars(run)["judgement"] = run.judgement.model_copy(update={"forward": score.model_copy(update=parts)})
    return history


def test_the_history_has_each_release_on_the_span_after_it_also_where_that_was_rejected(
    store, runner, judged, capsys, golden
):
    ingest(store, "2026-W49")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    rejected = carry_out(plan_run(store, small_config()))
    assert rejected.released is None
    runner.metrics = {"recall@10": 0.5, "mrr@10": 0.3}
    carry_out(plan_run(store, small_config()))
    history = with_parts(read_history(Snapshot(store)))
    found = [(score.release, score.span) for _, score in history.forward]
    assert found == [(1, "2026-W47"), (2, "2026-W48"), (2, "2026-W49")], "the first release has no champion to judge"
    assert [run.span for run, _ in history.forward] == ["2026-W47", "2026-W48", "2026-W49"]
    assert history.forward[1][0].state == "Rejected"

    unseen, seen = forward_figures(history)
    assert (unseen.title, seen.title) == ("Forward recall@10, unseen queries", "Forward recall@10, seen queries")
    assert b"<svg" in svg(unseen)
    section = forward_section(history)
    assert section is not None
    golden(unseen.caption, seen.caption, written(section))
    first, second = ([cell.text for cell in each][:5] for each in section.tables[0].rows[:2])
    assert first == ["2026-W49", "2", "unseen queries", "15", "0.2000"]
    assert second == ["2026-W49", "2", "seen queries", "15", "0.4000"]
    assert section.tables[0].rows[-1][0].key == f"runs/{history.runs[1].run_key}/report.html"

    output = command.history(store)
    assert isinstance(output, command.HistoryOutput)
    assert [(score.release, score.span) for score in output.forward] == found
    console.show(command.history_page(output, None))
    assert "had not seen" in capsys.readouterr().out

    none = history._replace(runs=history.runs[:1])
    assert (forward_figures(none), forward_section(none)) == ([], None)
