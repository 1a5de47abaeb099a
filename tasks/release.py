"""Stage release, control side: a worker exports and verifies the model; then it is judged and bound to its vectors."""

import math
from collections.abc import Sequence

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.evaluation import Role, Verdict, refused
from tasks.contracts.jobs import Carried, ReleaseInputs
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import ModelRef, RowsRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.spans import first_day
from tasks.judging.judge_run import judge_release
from tasks.running.lineage_lock import confirm_lineages
from tasks.running.stage import run_stage, stage_task
from tasks.running.stage_output import logger
from tasks.runs import releases
from tasks.runs.adding_releases import add
from tasks.runs.results import Judgement, Refusal, change_judgement


@stage_task
def release(
    plan: RunPlan,
    model: ModelRef,
    inferred: InferOutcome,
    judged: Judgement | Release,
    rows: Sequence[RowsRef],
) -> Release | Refusal:
    """Export the model, search all vectors with it, and make the release of this run unless a gate refuses it.

    The release becomes current unless the current one is of a later span. A run with a release keeps it, even if gates
    now refuse it.

    Args:
        judged: the judgement of the model; for a refresh the release that it updates.
        rows: rows of all spans on which the model was trained; the queries are from their holdout.
    """
    store = open_store(plan.workspace)
    metrics = judged.metrics if isinstance(judged, Release) else judged.outcome.challenger
    by_queries = judged.by_queries if isinstance(judged, Release) else judged.outcome.by_queries.get(Role.challenger)
    before, known = _before(store, plan), releases.origin(store, model.version)
    inputs = ReleaseInputs(
        model=model,
        vectors=inferred.prefix,
        catalogue=inferred.catalogue,
        rows=tuple(rows),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        by_queries=by_queries,
        before=before.ref if before else None,
        overrides=judged.overrides,
        carried=_carried(judged) if isinstance(judged, Release) else None,
        model_sha256=known.model_sha256 if known is not None else None,
    )
    exported = run_stage(plan, inputs, ReleaseOutcome)
    verdicts = _judge(store, plan, exported, inferred.vectors, judged)
    overridden = isinstance(judged, Judgement) and bool(judged.overrides)
    if refused(verdicts) and not overridden and releases.of_run(store, plan.run_key) is None:
        refusal = Refusal(verdicts=verdicts)
        logger().warning("nothing is released: %s", refusal.why)
        return refusal
    made = add(
        store,
        span=plan.span,
        run_key=plan.run_key,
        model=model,
        exported=exported,
        inferred=inferred,
        metrics=dict(metrics),
        by_queries=by_queries,
        rows=rows,
        verdicts=(*judged.verdicts, *verdicts) if isinstance(judged, Judgement) else verdicts,
        overrides=judged.overrides,
        refreshed=judged.number if isinstance(judged, Release) else None,
        confirm=confirm_lineages,
    )
    _explain(store, plan, made)
    return made


def _before(store: Store, plan: RunPlan) -> Release | None:
    """Return the release to compare with: the current one, or the one before it if that is this run's own."""
    return next((one for one in releases.current_and_before(store) if one.run_key != plan.run_key), None)


def _carried(refreshed: Release) -> Carried:
    metrics = {name: value for name, value in refreshed.catalogue_metrics.items() if math.isfinite(value)}
    return Carried(release=refreshed.ref, metrics=metrics, unsearched=refreshed.unsearched)


def _judge(
    store: Store, plan: RunPlan, exported: ReleaseOutcome, vectors: int, judged: Judgement | Release
) -> tuple[Verdict, ...]:
    """Return the verdicts of the gates of `release`, and add them to the run's judgement."""
    verdicts = judge_release(exported, vectors, plan.config.release.gates, plan.config.evaluate.min_shared)
    if isinstance(judged, Judgement) and judged.release_verdicts != verdicts:
        change_judgement(
            store, plan.run_key, lambda there: (there or judged).model_copy(update={"release_verdicts": verdicts})
        )
    return verdicts


def _explain(store: Store, plan: RunPlan, made: Release) -> None:
    """Warn if another release serves."""
    serving = releases.current(store)
    if serving is not None and first_day(serving.span.name) > first_day(plan.span.name):
        logger().warning(
            "release %d of span %s is kept, but release %d of span %s serves on: it has newer data",
            made.number,
            plan.span.name,
            serving.number,
            serving.span.name,
        )
    elif made.refreshed is not None and serving is not None and serving.number != made.number:
        logger().warning(
            "release %d is kept, but release %d serves: the release that was refreshed is not current any more",
            made.number,
            serving.number,
        )
