"""The runs that a backfill consists of, planned one by one as the checkpoint before each comes to be."""

from __future__ import annotations

from infra.store import Conflict, Store
from tasks import branches, lineage
from tasks.backfill_plan import BackfillPlan, SpanPlan
from tasks.backfill_state import BackfillState
from tasks.contracts import RunPlan
from tasks.deadlines import somebody_works
from tasks.errors import ConfigError
from tasks.plan import plan_key, plan_window, read_plan


def run_of(store: Store, plan: BackfillPlan, span: SpanPlan) -> RunPlan:
    """The run over a span: that of the lineage, the one begun before on the branch, or the next on the branch.

    Raises:
        Conflict: the branch is not where the plan saw it.
        StoreError: a plan or checkpoint is not readable.
    """
    on = span.branch or plan.on
    if span.run_key is not None and store.exists(plan_key(span.run_key)):
        begun = read_plan(store, span.run_key)
        config = plan.config.model_copy(update={"lineage": begun.config.lineage})
        return begun.model_copy(update={"workspace": store.uri, "config": config})
    config = plan.config.model_copy(update={"lineage": on})
    run = plan_window(store, config, span.window, lineage.head(store, on))
    if span.run_key is not None and run.run_key != span.run_key:
        raise Conflict(f"branch {on} has changed since the backfill was planned; ask for the backfill again")
    return run


def locks(plan: BackfillPlan) -> tuple[str, ...]:
    """The lineages to have to oneself: the branch, and the one that was named where its own runs have work left."""
    own = [plan.lineage] if any(span.branch is None for span in plan.to_do) else []
    return (*own, *([plan.branch] if plan.branch is not None else []))


def is_lost(store: Store, backfill: BackfillState) -> bool:
    """Whether the process of a backfill is gone, without an end on record: nobody holds what it works on."""
    return backfill.state == "Running" and not somebody_works(store, backfill.branch or backfill.lineage)


def check_not_overtaken(store: Store, plan: BackfillPlan) -> None:
    """Nothing is released that the lineage would not continue.

    Raises:
        ConfigError: since the backfill was planned the lineage has adopted another branch.
    """
    on = branches.active(store, plan.lineage)
    if plan.branch is not None and on not in (plan.on, plan.branch):
        raise ConfigError(
            f"runs of lineage {plan.lineage} continue {on} by now, and this backfill was planned when they continued "
            f"{plan.on}: nothing was released and {plan.branch} was not adopted. Ask again: it is then planned on {on}"
        )


def adopt(store: Store, plan: BackfillPlan) -> None:
    """Let the lineage continue the backfill's branch, whose last model was released.

    Raises:
        Conflict: somebody else moved the pointer meanwhile.
    """
    if plan.branch is not None:
        branches.adopt(store, plan.lineage, plan.branch, instead_of=plan.on)
