"""The months of the workspace that tests of prune share, and a prune of it."""

from __future__ import annotations

from configs.schema.operations import PruneConfig
from infra.store.base import Store
from tasks.contracts.pruning import PrunePlan
from tasks.prune.prune import prune

MONTHS = [f"2021-{month:02d}" for month in range(1, 8)]


def pruned(store: Store, keep: int = 2, dry_run: bool = False) -> PrunePlan:
    return prune(store, PruneConfig.newest(keep), dry_run, print)
