"""Runs whose stages were done by workers without arithmetic."""

import pytest

from tasks.contracts.stages import Stage
from tasks.foundation.errors import HostError
from tasks.planning.next_run import plan_run
from tasks.runs import invocations
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
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
    found = Run(Snapshot(store), plan.run_key)
    assert run.released is not None
    assert (found.state, found.span, found.release) == ("Released", "2021-Q2", run.released)
    assert found.metrics == {"recall@10": 0.5, "mrr@10": 0.3}
    assert found.vectors == 30
    assert found.judgement is not None
    assert found.judgement.verdicts == run.judged.verdicts
    assert found.judgement.all_verdicts[-1].metric == "recall@10 of the items that both hold"
    assert found.wall_seconds == pytest.approx(8 * WALL)


def test_a_rejected_run_says_why(store, runner):
    carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.39}
    plan = plan_run(store, small_config())
    carry_out(plan)
    found = Run(Snapshot(store), plan.run_key)
    assert (found.state, found.release, found.vectors) == ("Rejected", None, None)
    assert found.message.startswith("recall@10 0.2000 is")


def test_the_stages_that_were_done_before_an_invocation_are_cached(store, runner):
    plan = plan_run(store, small_config())
    runner.fail(Stage.evaluate, HostError("gone"))
    with pytest.raises(HostError):
        carry_out(plan)
    invocations.begin(store, plan)
    carry_out(plan)
    assert Run(Snapshot(store), plan.run_key).cached == (Stage.validate, Stage.health, Stage.warmup, Stage.train)
