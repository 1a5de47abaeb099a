import pytest

from tasks.contracts.stages import Stage
from tasks.foundation.clock import now
from tasks.foundation.errors import HostError
from tasks.planning.next_run import plan_run
from tasks.runs.run_report import all_reports, run_report, unfinished_before
from tests.support.fakes.fake_runner import PHASES, small_config
from tests.support.fakes.stages import carry_out

WALL = PHASES.booting + PHASES.compiling + PHASES.restoring + PHASES.productive


def test_the_report_of_a_released_run_has_its_results(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    runner.fail(Stage.infer, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    run = carry_out(plan)
    report = run_report(store, plan)
    assert run.released is not None
    assert report.state == "Released"
    assert (report.span, report.release, report.model_version) == ("2021-Q2", 2, run.released.model.version)
    assert report.metrics == {"recall@10": 0.5, "mrr@10": 0.3}
    assert report.champion == {"recall@10": 0.4, "mrr@10": 0.4}
    assert report.vectors == 30
    assert report.verdicts[:-1] == run.judged.verdicts
    assert report.verdicts[-1].metric == "recall@10 of the items that both hold"
    assert report.seconds == pytest.approx(8 * WALL)
    assert report.cached == ()


def test_a_rejected_run_says_why(store, runner):
    carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.39}
    plan = plan_run(store, small_config())
    carry_out(plan)
    report = run_report(store, plan)
    assert (report.state, report.release, report.vectors) == ("Rejected", None, None)
    assert report.why.startswith("recall@10 0.2000 is 0.2000 below the champion's 0.4000; allowed is a drop of 0.0050.")


def test_a_report_on_an_invocation_names_the_stages_already_done(store, runner):
    plan = plan_run(store, small_config())
    runner.fail(Stage.evaluate, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    began = now()
    carry_out(plan)
    assert run_report(store, plan, since=began).cached == (Stage.validate, Stage.health, Stage.warmup, Stage.train)


def test_all_runs_are_reported_by_span(store, runner):
    for _ in range(2):
        carry_out(plan_run(store, small_config()))
    runner.fail(Stage.train, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan_run(store, small_config()))
    found = all_reports(store)
    assert [(report.span, report.state) for report in found] == [
        ("2021-Q1", "Released"),
        ("2021-Q2", "Released"),
        ("2021-Q3", "Unfinished"),
    ]
    assert found[-1].metrics is None


def test_a_trained_but_unfinished_run_is_found(store, runner):
    first = plan_run(store, small_config())
    assert unfinished_before(store, first) is None
    runner.fail(Stage.infer, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(first)
    other = small_config("train.epochs=7")  # the same settings would go on with the interrupted run
    assert unfinished_before(store, plan_run(store, other)) == "2021-Q1"
    carry_out(plan_run(store, small_config()))
    assert unfinished_before(store, plan_run(store, other)) is None
