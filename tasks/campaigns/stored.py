"""Campaigns in the workspace: begun, read, and the runs, locks and branch of one that is carried out."""

from infra.store.base import Conflict, Store
from infra.store.records import find_record
from tasks.campaigns.campaign import BackfillPlan, Campaign, Cell
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import CAMPAIGN, PLAN
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.runs import branches, lineage
from tasks.runs.invocations import is_held
from tasks.runs.plan import plan_window, read_plan


def begin(store: Store, plan: BackfillPlan, flow_run: str, page: str) -> BackfillPlan:
    """Start the record of another attempt."""
    before = read(store, plan.id)
    begun = {"state": "Running", "attempt": before.attempt + 1 if before else 1, "flow_run": flow_run, "page": page}
    state = plan.model_copy(update=begun)
    save(store, state)
    return state


def save(store: Store, campaign: BackfillPlan) -> None:
    """Write the record."""
    store.write(CAMPAIGN.key(campaign=campaign.id), campaign.model_copy(update={"updated_at": now()}).to_json())


def read(store: Store, name: str) -> BackfillPlan | None:
    """Return the campaign with this id; None if there is no such record.

    Raises:
        StoreError: the record is not readable; names the file.
    """
    return find_record(store, CAMPAIGN.key(campaign=name), BackfillPlan, "move the file away, no work is lost")


def read_all(store: Store) -> list[BackfillPlan]:
    """Return all campaigns of the workspace, in the order of their last start.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    found = (CAMPAIGN.match(key) for key in store.list(CAMPAIGN.within()))
    states = (read(store, fields["campaign"]) for fields in found if fields)
    return sorted((state for state in states if state is not None), key=lambda state: state.began_at)


def run_of(store: Store, plan: BackfillPlan, span: Cell) -> RunPlan:
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


def is_lost(store: Store, backfill: Campaign) -> bool:
    """Return True if a running backfill has lost its process: no process holds its lock."""
    return backfill.state == "Running" and not is_held(store, backfill.branch or backfill.lineage)


def check_not_overtaken(store: Store, plan: BackfillPlan) -> None:
    """Check, before a release, that the lineage would continue the backfill's branch.

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
