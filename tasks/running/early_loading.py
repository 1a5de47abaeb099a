"""Load the libraries of a run's stages while the command that runs it still plans and imports Prefect.

Alone, since it begins before anything that is slow to load.
"""

import infra.compute.factory
from infra.compute.local import LocalRunner, begin_warm_parents
from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


def begin_loading(store: Store, plan: RunPlan) -> None:
    """Start processes that load libraries, and return at once.

    Start none if the run is finished, or if it begins on another machine than this one.
    """
    if compute_of(plan.config, Stage.validate) != "local" or not Run(Snapshot(store), plan.run_key).unfinished:
        return
    if isinstance(infra.compute.factory.make_runner(plan.config, store, Stage.validate), LocalRunner):
        begin_warm_parents(plan.config, refresh=not plan.window)
