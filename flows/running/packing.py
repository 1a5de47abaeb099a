"""Pack the records of ended runs by month, so that long histories need few reads. An error is only logged."""

from infra.store.base import Store
from tasks.foundation.errors import StoreError
from tasks.monitoring.work_sums import sum_up
from tasks.running.stage_output import logger
from tasks.runs.packs import pack_runs


def pack_past(store: Store) -> None:
    """Pack the records of ended runs, and summarise refreshes and publications."""
    try:
        pack_runs(store)
        sum_up(store)
    except (OSError, StoreError) as error:
        logger().warning("the records of runs that are over were not packed: %s", error)


def sum_up_refreshes(store: Store) -> None:
    """Summarise refreshes and publications."""
    try:
        sum_up(store)
    except (OSError, StoreError) as error:
        logger().warning("the refreshes that are over were not added up: %s", error)
