import pytest

from tasks.contracts.evaluation import Role, refused
from tasks.contracts.jobs import EvaluateInputs, ValidateInputs
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import VERDICTS
from tasks.evaluate import evaluate
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_run
from tasks.quality import verdicts
from tasks.runs import releases
from tasks.runs.results import read_judgement
from tasks.validate import validate
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import Run, carry_out


@pytest.fixture
def judgements(monkeypatch) -> list[str]:
    """One entry for each call of the gates."""
    calls: list[str] = []
    judge = verdicts.judge
    monkeypatch.setattr(verdicts, "judge", lambda outcome, gates: calls.append("call") or judge(outcome, gates))
    return calls


def inputs_of_last_evaluation(runner: FakeRunner) -> EvaluateInputs:
    inputs = [spec.inputs for spec in runner.specs if spec.stage is Stage.evaluate][-1]
    assert isinstance(inputs, EvaluateInputs)
    return inputs


def again(plan: RunPlan, run: Run) -> None:
    judged = evaluate.fn(plan, run.validated, run.warm, run.trained)
    assert (judged.outcome, judged.verdicts) == (run.judged.outcome, run.judged.verdicts)


def test_without_a_release_there_is_no_champion(store, runner):
    run = carry_out(plan_run(store, small_config()))
    assert inputs_of_last_evaluation(runner).champion is None
    assert [verdict.answer for verdict in run.judged.verdicts] == [None, None, None, None, "pass", None, None]


def test_the_champion_is_the_current_release_and_all_spans_have_a_holdout(store, runner):
    first = carry_out(plan_run(store, small_config()))
    second = carry_out(plan_run(store, small_config()))
    inputs = inputs_of_last_evaluation(runner)
    assert first.released is not None
    assert inputs.champion == first.released.model
    assert inputs.challenger.checkpoint == second.trained.checkpoint
    assert [rows.span.name for rows in inputs.rows] == ["2021-Q1", "2021-Q2"]


def test_a_rejected_model_is_no_error_and_the_champion_stays(store, runner):
    first = carry_out(plan_run(store, small_config()))
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.2}
    refused = carry_out(plan_run(store, small_config()))
    assert [verdict.answer for verdict in refused.judged.verdicts] == ["fail", None, None, None, "pass", "fail", None]
    assert releases.current(store) == first.released


def test_verdicts_are_judged_once_and_kept(store, runner, judgements):
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    again(plan, run)
    assert read_judgement(store, plan.run_key) == run.judged
    assert len(judgements) == 2, "of evaluate and of release"


def test_a_nan_metric_is_judged_only_once_and_never_released(store, runner, judgements):
    runner.metrics = {"recall@10": float("nan"), "mrr@10": 0.3}
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    assert run.judged.refused, "the floor of base.yaml needs no champion"
    evaluate.fn(plan, run.validated, run.warm, run.trained)
    assert len(judgements) == 1


def test_damaged_verdicts_are_set_aside_and_judged_again(store, runner, judgements):
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    store.write(VERDICTS.key(run=plan.run_key), b"{")
    again(plan, run)
    assert len(judgements) == 3, "of evaluate, of release, and of evaluate again"
    assert store.read(f"quarantine/{VERDICTS.key(run=plan.run_key)}.1") == b"{"


def test_an_evaluation_that_ran_again_is_judged_again(store, runner):
    carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    store.delete(f"runs/{plan.run_key}/evaluate/result.json")
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    judged = evaluate.fn(plan, run.validated, run.warm, run.trained)
    assert judged.outcome.challenger["recall@10"] == 0.1
    assert refused(judged.verdicts)


def test_a_later_release_does_not_repeat_a_done_evaluation(store, runner, judgements):
    first_plan = plan_run(store, small_config())
    first = carry_out(first_plan)
    carry_out(plan_run(store, small_config()))
    before = len(runner.specs), len(judgements)
    again(first_plan, first)
    assert (len(runner.specs), len(judgements)) == before


def test_a_runs_own_release_is_never_its_champion(store, runner):
    first = carry_out(plan_run(store, small_config()))
    plan = plan_run(store, small_config())
    second = carry_out(plan)
    store.delete(f"runs/{plan.run_key}/evaluate/result.json")
    evaluate.fn(plan, second.validated, second.warm, second.trained)
    assert first.released is not None
    assert inputs_of_last_evaluation(runner).champion == first.released.model


def test_champion_and_rivals_are_named_with_their_releases(store, runner):
    first = carry_out(plan_run(store, small_config())).released
    carry_out(plan_run(store, small_config()))
    inputs = inputs_of_last_evaluation(runner)
    assert first is not None
    assert inputs.champion_release == first.number
    assert {rival.role: rival.model for rival in inputs.rivals} == {Role.first: first.model, Role.best: first.model}


def test_a_changed_golden_set_is_measured_again_and_nothing_is_trained(store, runner, tmp_path):
    golden = tmp_path / "golden.csv"
    golden.write_text("query,item\nlamp,desk lamp\n")
    plan = plan_run(store, small_config(f"evaluate.golden={golden}"))
    run = carry_out(plan)
    known = inputs_of_last_evaluation(runner).golden
    assert known is not None
    assert store.exists(known)
    evaluate.fn(plan, run.validated, run.warm, run.trained)
    assert runner.stages.count("evaluate") == 1
    golden.write_text("query,item\nlamp,floor lamp\n")
    evaluate.fn(plan, run.validated, run.warm, run.trained)
    assert (runner.stages.count("evaluate"), runner.stages.count("train")) == (2, 1)
    assert inputs_of_last_evaluation(runner).golden != known
    validate.fn(plan)
    (kept_out,) = [spec.inputs.kept_out for spec in runner.specs if isinstance(spec.inputs, ValidateInputs)]
    assert kept_out == known, "a span is validated once"


def test_a_golden_set_that_cant_be_used_is_refused_before_anything_is_trained(store, runner, tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        carry_out(plan_run(store, small_config(f"evaluate.golden={tmp_path / 'gone.csv'}")))
    assert runner.stages == []
