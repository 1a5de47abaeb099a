"""The runs of a backfill, each planned when the checkpoint before it is made; their locks; adoption of the branch."""

from infra.store.base import Conflict, Store
from tasks.backfill.backfill_plan import BackfillPlan, SpanPlan
from tasks.backfill.backfill_state import BackfillState
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import PLAN
from tasks.foundation.errors import ConfigError
from tasks.monitoring.deadlines import is_held
from tasks.runs import branches, lineage
from tasks.runs.plan import plan_window, read_plan


def run_of(store: Store, plan: BackfillPlan, span: SpanPlan) -> RunPlan:
    """Plan the run over a span: the lineage's own run, a run started before on the branch, or the next on the branch.

    Raises:
        Conflict: the branch has changed since the backfill was planned.
        StoreError: a plan or checkpoint is not readable.
    """
    on = span.branch or plan.on
    if span.run_key is not None and store.exists(PLAN.key(run=span.run_key)):
        started = read_plan(store, span.run_key)
        config = plan.config.model_copy(update={"lineage": started.config.lineage})
        return started.model_copy(update={"workspace": store.uri, "config": config})
    config = plan.config.model_copy(update={"lineage": on})
    run = plan_window(store, config, span.window, lineage.head(store, on))
    if span.run_key is not None and run.run_key != span.run_key:
        raise Conflict(f"branch {on} has changed since the backfill was planned; start the backfill again")
    return run


def locks(plan: BackfillPlan) -> tuple[str, ...]:
    """Return the lineages to lock: the branch, and the given lineage if its own runs have work left."""
    own = [plan.lineage] if any(span.branch is None for span in plan.to_do) else []
    return (*own, *([plan.branch] if plan.branch is not None else []))


def is_lost(store: Store, backfill: BackfillState) -> bool:
    """Return whether the process of a running backfill is gone: no process holds its lock."""
    return backfill.state == "Running" and not is_held(store, backfill.branch or backfill.lineage)


def check_not_overtaken(store: Store, plan: BackfillPlan) -> None:
    """Check that the lineage would continue what is about to be released.

    Raises:
        ConfigError: the lineage has adopted another branch since the backfill was planned.
    """
    on = branches.active(store, plan.lineage)
    if plan.branch is not None and on not in (plan.on, plan.branch):
        raise ConfigError(
            f"runs of lineage {plan.lineage} now continue {on}, but this backfill was planned when they continued "
            f"{plan.on}: nothing was released and {plan.branch} was not adopted. Start it again to plan it on {on}"
        )


def adopt(store: Store, plan: BackfillPlan) -> None:
    """Let runs of the lineage continue the backfill's branch, whose last model was released.

    Raises:
        Conflict: another process moved the pointer meanwhile.
    """
    if plan.branch is not None:
        branches.adopt(store, plan.lineage, plan.branch, instead_of=plan.on)
