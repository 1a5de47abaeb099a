"""A run beside its lineage: judged on a branch that no run continues, for an experiment or a backfill."""

from flows.presentation.model import Command, Section
from flows.presentation.wording import with_settings
from infra.store.base import Store
from tasks.foundation.errors import StoreError
from tasks.runs import branches, experiments
from tasks.runs.run import Run


def section(store: Store, run: Run) -> Section | None:
    """Return the box of a judged run that `millrace run` would not continue; None for other runs.

    Its way on is a backfill, since a run of the branch would be released while the lineage goes on from other weights.
    """
    if run.plan is None or run.judgement is None:
        return None
    try:
        root = branches.root(store, run.lineage)
        if branches.active(store, root) == run.lineage:
            return None
        names = [each.name for each in experiments.read_all(store) if each.run_key == run.run_key]
    except StoreError:  # the readers of these records name it
        return None
    purpose = f"experiment {names[0]}" if names else "a part of a backfill"
    line = f"It is {purpose}, trained on branch {run.lineage}, which runs of lineage {root} do not continue."
    spans = f"--from {run.plan.window[0].name} --to {run.span}"
    again = with_settings(f"millrace backfill {spans} --set lineage={root}", store.uri, run.run_key)
    release = Command("To release it if the gates agree:", tuple(again.splitlines()))
    return Section("Not released", (line,), id="trouble", mood="going", commands=(release,))
