"""Checkpoints' states, and what runs leave that trained a model and released it, rejected it, or stopped in between."""

from __future__ import annotations

from typing import Any

from infra.store.base import Store
from tasks.contracts.evaluation import Verdict
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import CheckpointRef, CheckpointState, HoldoutRule, ModelRef, RowsRef
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.workspace import NUMBER, VERDICTS
from tasks.judging.judge_run import rules_of
from tasks.planning.start import adopt_branch
from tasks.runs.plan import save_plan
from tasks.runs.releases import Numbered, numbers
from tasks.runs.results import Judgement
from tests.support.fakes.fake_runner import write_checkpoint
from tests.support.workspace.specs import CATALOGUE, MADE_BY, SEALED


def checkpoint_state(step: int, **changes: Any) -> CheckpointState:
    """The state of a complete first run's checkpoint, with `changes`."""
    state: dict[str, Any] = {
        "lineage": "main",
        "run_key": "run",
        "step": step,
        "first_step": 0,
        "complete": True,
        "consumed": (),
        "parent": None,
        "seed": 17,
        "holdout": HoldoutRule(group="query_and_item", share=0.1, measured=0.1),
        "losses": (),
        "curve": (),
    }
    return CheckpointState(**(state | changes))


def trained_only(store: Store, plan: RunPlan, adopt: bool = True) -> CheckpointRef:
    """The checkpoint of a run that was interrupted after its training, or just before its branch was adopted."""
    save_plan(store, plan)
    rows = tuple(RowsRef(span=span, prefix=f"runs/{plan.run_key}/{span.name}", rows=4) for span in plan.window)
    step = plan.parent.step if plan.parent else 0
    holdout = HoldoutRule.of(plan.config.evaluate)
    facts = {"consumed": (*plan.history, *rows), "parent": plan.parent, "first_step": step, "holdout": holdout}
    state = checkpoint_state(step + 10, lineage=plan.config.lineage, run_key=plan.run_key, **facts)
    checkpoint = write_checkpoint(store, state)
    if adopt:
        adopt_branch(store, plan)
    return checkpoint


def reject(store: Store, plan: RunPlan) -> None:
    measured = EvaluateOutcome(holdout_rows=9, corpus_items=9, challenger={}, champion=None, champion_version=None)
    no = Verdict(metric="auc", severity="critical", answer="fail", value=0.1, baseline=None, sentence="auc is low")
    judged = Judgement(
        outcome=measured,
        verdicts=(no,),
        slices=(),
        number=1,
        at="2026-11-22T12:00:00+00:00",
        rules=rules_of(plan.config),
    )
    store.write(VERDICTS.key(run=plan.run_key), judged.to_json())


def rejected(store: Store, plan: RunPlan) -> CheckpointRef:
    """The checkpoint of a run whose model was rejected."""
    reject(store, plan)
    return trained_only(store, plan)


def release(store: Store, plan: RunPlan, checkpoint: CheckpointRef) -> None:
    """A release of the run, whether or not it was rejected before; it has no files."""
    number = max(numbers(store), default=0) + 1
    made = Release(
        number=number,
        previous=None,
        span=plan.span,
        run_key=plan.run_key,
        model=ModelRef(version=f"m{number}", checkpoint=checkpoint),
        model_prefix=f"models/m{number}",
        vectors_prefix=f"vectors/m{number}",
        vectors=4,
        catalogue=CATALOGUE,
        metrics={},
        created_at="2026-11-22T12:00:00+00:00",
        **SEALED,
        **MADE_BY,
    )
    store.write(NUMBER.key(run=plan.run_key), Numbered(number=number).to_json())
    store.write(f"releases/{number}.json", made.to_json())


def released(store: Store, plan: RunPlan) -> CheckpointRef:
    """The checkpoint of a run whose model was released."""
    checkpoint = trained_only(store, plan)
    release(store, plan, checkpoint)
    return checkpoint
