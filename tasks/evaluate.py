"""Stage evaluate, control side: measure the challenger and its baselines on the same rows, then judge the gates."""

from infra.store.base import Store
from infra.store.factory import open_store
from infra.store.manifest import quarantine
from tasks.contracts.evaluation import undecided
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.outcomes import EvaluateOutcome, InferOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.references import ModelRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.judging.golden_set import store_golden_set
from tasks.judging.judge_run import judge_evaluation
from tasks.judging.rivals import begun_with, rivals_for
from tasks.quality.fall_parts import CHAMPION_BEFORE
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.results import Judgement
from tasks.train import model_of
from tasks.validate import catalogue_of


@stage_task
def evaluate(
    plan: RunPlan,
    validated: ValidateOutcome,
    warm: WarmupOutcome,
    trained: TrainOutcome,
    inferred: InferOutcome | None = None,
) -> Judgement:
    """Measure the models and judge the gates. A finished evaluation keeps its champion and other releases.

    A refusal is no error: it is in the verdicts.

    Args:
        inferred: result of `infer_to_judge`.
    """
    store = open_store(plan.workspace)
    champion = champion_for(store, model_of(trained))
    golden = plan.config.evaluate.golden
    inputs = EvaluateInputs(
        rows=(*plan.history, *validated.rows),
        catalogue=catalogue_of(plan, validated),
        challenger=model_of(trained),
        challenger_vectors=inferred.prefix if inferred else None,
        champion=champion.model if champion else None,
        champion_vectors=champion.vectors_prefix if champion and champion.catalogue else None,
        champion_release=champion.number if champion else None,
        rivals=rivals_for(store, plan.config, model_of(trained)),
        begun_with=begun_with(store, plan.config),
        golden=store_golden_set(store, golden) if golden is not None else None,
        compiled=warm.compiled,
    )
    outcome = run_stage(plan, inputs, EvaluateOutcome)
    if outcome.golden_leak:
        logger().warning("golden set: %s", outcome.golden_leak)
    judged = judge_evaluation(store, plan, outcome)
    for verdict in judged.verdicts:
        if verdict.against == CHAMPION_BEFORE and verdict.answer == "fail":
            logger().warning("rows: %s", verdict.sentence)
    for sentence in undecided(judged.verdicts):
        logger().warning("undecided: %s", sentence)
    return judged


def champion_for(store: Store, challenger: ModelRef) -> Release | None:
    """Return the current release, or the one before it if it holds the challenger itself; None without a release."""
    others = releases.current_and_before(store)
    return next((release for release in others if release.model.version != challenger.version), None)


def forget_outdated(store: Store, plan: RunPlan, trained: TrainOutcome, judged: Judgement) -> bool:
    """Quarantine an evaluation that compared with another champion than the current one; return True if so."""
    champion = champion_for(store, model_of(trained))
    if (champion.model.version if champion else None) == judged.outcome.champion_version:
        return False
    quarantine(store, RESULT.key(run=plan.run_key, stage=Stage.evaluate))
    return True
