import pytest

from tasks.contracts.jobs import HealthInputs, InferInputs, JobSpec, TrainInputs, ValidateInputs, WarmupInputs
from tasks.contracts.outcomes import StageResult
from tasks.contracts.references import CompileRef
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.foundation.errors import CodeError
from tasks.planning.next_run import plan_run
from tasks.train import inputs_of, model_of, train
from tasks.validate import catalogue_of
from tests.support.fakes.fake_runner import STEPS_PER_SPAN, FakeRunner, commit_files, small_config
from tests.support.fakes.stages import carry_out


def spec_of(runner: FakeRunner, stage: Stage) -> JobSpec:
    return next(spec for spec in reversed(runner.specs) if spec.stage is stage)


def test_the_first_training_has_no_parent_and_the_whole_window(store, runner):
    plan = plan_run(store, small_config(), "2021-Q2")
    run = carry_out(plan)
    assert spec_of(runner, Stage.train).inputs == TrainInputs(rows=run.validated.rows, history=(), parent=None)
    assert run.trained.last_step == 2 * STEPS_PER_SPAN


def test_the_next_training_has_the_last_checkpoint_and_only_the_new_span(store, runner):
    before = carry_out(plan_run(store, small_config()))
    after = carry_out(plan_run(store, small_config()))
    assert spec_of(runner, Stage.train).inputs == TrainInputs(
        rows=after.validated.rows, history=before.validated.rows, parent=before.trained.checkpoint
    )
    assert [rows.span.name for rows in after.validated.rows] == ["2021-Q2"]
    assert after.trained.first_step == before.trained.last_step


def test_a_training_gets_the_pairs_that_validate_found(store, runner):
    plan = plan_run(store, small_config())
    run = carry_out(plan)
    found = run.validated.model_copy(update={"positives": "runs/k/validate/positives/2021-Q1-0f1e2d3c4b5a"})
    assert inputs_of(plan, found, run.warm).positives == found.positives


def test_each_stage_gets_the_earlier_outputs_and_its_number_of_workers(store, runner):
    config = small_config("train.workers=2", "infer.workers=3")
    before = carry_out(plan_run(store, config))
    run = carry_out(plan_run(store, config))
    workers = {"validate": 1, "health": 2, "warmup": 2, "train": 2, "evaluate": 2, "infer": 3, "release": 1}
    assert [(spec.stage.value, spec.workers) for spec in runner.specs[7:]] == list(workers.items())
    plan = plan_run(store, config, "2021-Q2")
    assert spec_of(runner, Stage.validate).inputs == ValidateInputs(
        window=plan.window,
        history=plan.history,
        feeds=(),
        bases=(catalogue_of(plan, before.validated),),
        turn=1,
        parent=plan.parent,
    )
    assert spec_of(runner, Stage.health).inputs == HealthInputs()
    assert spec_of(runner, Stage.warmup).inputs == WarmupInputs(rows=run.validated.rows, parent=plan.parent)
    assert spec_of(runner, Stage.infer).inputs == InferInputs(
        catalogue=catalogue_of(plan, run.validated), model=model_of(run.trained).of_items
    )


def test_a_done_run_is_not_repeated(store, runner):
    first = carry_out(plan_run(store, small_config()))
    ran = len(runner.specs)
    assert carry_out(plan_run(store, small_config(), "2021-Q1")) == first
    assert len(runner.specs) == ran


@pytest.mark.parametrize("compiles", [True, False], ids=["compiled device", "processor"])
def test_a_run_goes_on_with_another_number_of_workers_whose_graphs_are_compiled_first(store, runner, compiles: bool):
    runner.fail(Stage.train, CodeError("killed"))
    with pytest.raises(CodeError):
        carry_out(plan_run(store, small_config("train.workers=2")))
    if compiles:
        key = RESULT.key(run=runner.specs[0].run_key, stage=Stage.warmup)
        warmed = StageResult.model_validate_json(store.read(key))
        commit_files(store, "compile/two", {"graph": "g"}, "compiled", complete=True)
        outcome = warmed.outcome.model_copy(update={"compiled": CompileRef(key="two", graphs=1, seconds=1.0)})
        store.write(key, warmed.model_copy(update={"outcome": outcome}).to_json())
    runner.specs.clear()
    carry_out(plan_run(store, small_config("train.workers=4"), "2021-Q1"))
    assert runner.stages[:2] == (["warmup", "train"] if compiles else ["train", "evaluate"])
    assert spec_of(runner, Stage.train).workers == 4
    runner.specs.clear()
    carry_out(plan_run(store, small_config("train.workers=1"), "2021-Q1"))
    assert runner.specs == [], "it is trained, and needs no graphs"


def test_the_task_is_named_like_the_stage():
    assert train.task.name == "train"
    assert train.task.task_run_name == "train {plan.span.name}"
    assert train.task.persist_result is False
