"""Where stages run and with how many workers."""

from configs.load import load_config
from tasks.contracts.stages import WORKS, BackfillPhase, Chore, Stage, compute_of, stages_in, workers_of


def test_each_stage_runs_on_its_own_compute_or_another_stages() -> None:
    config = load_config(overrides=["compute=batch", "validate.compute=local", "train.compute=local"])
    on_batch = {work for work in WORKS if compute_of(config, work) == "batch"}
    assert on_batch == {Stage.infer, Stage.release, Chore.publish}
    proven_apart = load_config(overrides=["train.compute=batch", "warmup.compute=local"])
    stages = (Stage.health, Stage.warmup, Stage.evaluate, Stage.validate)
    assert [compute_of(proven_apart, stage) for stage in stages] == ["batch", "local", "batch", "local"]


def test_health_warmup_and_evaluate_have_the_workers_of_training() -> None:
    config = load_config(overrides=["train.workers=4", "infer.workers=3"])
    assert [workers_of(config, stage) for stage in Stage] == [1, 4, 4, 4, 4, 3, 1]


def test_each_stage_belongs_to_one_phase_of_a_backfill() -> None:
    assert [stage for phase in BackfillPhase for stage in stages_in(phase)] == list(Stage)
