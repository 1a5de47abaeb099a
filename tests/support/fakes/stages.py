"""The stages one after the other as the flow calls them, without Prefect."""

from __future__ import annotations

from typing import NamedTuple

from configs.schema.config import Config
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.outcomes import InferOutcome, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import Release, RunPlan
from tasks.evaluate import evaluate
from tasks.health import health
from tasks.infer import infer
from tasks.planning.start import adopt_branch
from tasks.release import release
from tasks.runs.catalogues import plan_refresh
from tasks.runs.plan import save_plan
from tasks.runs.results import Judgement, read_judgement
from tasks.train import model_of, train
from tasks.validate import catalogue_of, validate
from tasks.warmup import warmup
from tests.support.fakes.fake_runner import small_config


class Run(NamedTuple):
    """What the stages of a run gave; nothing after a refused gate."""

    validated: ValidateOutcome
    warm: WarmupOutcome
    trained: TrainOutcome
    judged: Judgement
    inferred: InferOutcome | None
    released: Release | None


def carry_out(plan: RunPlan) -> Run:
    """Run all stages of a plan on the runner that `infra.compute.factory.make_runner` gives."""
    save_plan(open_store(plan.workspace), plan)
    validated = validate.fn(plan)
    warm = warmup.fn(plan, validated, health.fn(plan, validated))
    trained = train.fn(plan, validated, warm)
    adopt_branch(open_store(plan.workspace), plan)
    judged = evaluate.fn(plan, validated, warm, trained)
    if judged.refused:
        return Run(validated, warm, trained, judged, None, None)
    model = model_of(trained)
    inferred = infer.fn(plan, catalogue_of(plan, validated), model, warm.compiled)
    released = release.fn(plan, model, inferred, judged, (*plan.history, *validated.rows))
    final = read_judgement(open_store(plan.workspace), plan.run_key)  # with the verdicts on the release
    assert final is not None
    return Run(validated, warm, trained, final, inferred, released if isinstance(released, Release) else None)


def refreshed(store: Store, config: Config | None = None) -> Release:
    """Run the stages of a refresh; return its release."""
    plan, current = plan_refresh(store, config or small_config())
    save_plan(store, plan)
    inferred = infer.fn(plan, catalogue_of(plan, validate.fn(plan)), current.model, None, reuse=current)
    made = release.fn(plan, current.model, inferred, current, current.rows)
    assert isinstance(made, Release)
    return made
