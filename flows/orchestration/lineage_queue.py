"""One run at a time on a lineage: a queue for display in the Prefect UI, and the workspace's lock, which decides.

The queue is a global concurrency limit named after the lineage; `millrace deploy` makes it. With a queue a run waits
for the run before it. Without one, or if a command holds the lineage, it waits a limited time for the lock.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from infra.store.base import Store
from tasks.contracts.kinds import lineage_lock
from tasks.foundation import clock
from tasks.running.lineage_lock import hold_lineage
from tasks.running.stage_output import StageOutput, logger

LEASE_SECONDS = 60.0  # Prefect's minimum; a killed run blocks the queue this long
PATIENCE_SECONDS = 120.0  # well over a lease; after it only the lock decides
POLL_SECONDS = 2.0


def queue_name(store: Store, lineage: str) -> str:
    """Return the name of a lineage's concurrency limit. Workspaces on one server have a lineage of the same name."""
    return f"millrace-{lineage}-{hashlib.sha256(store.uri.encode()).hexdigest()[:6]}"


@contextlib.contextmanager
def lineage_turn(store: Store, lineage: str, patience_seconds: float | None = None) -> Iterator[None]:
    """Hold a lineage inside the block, so that no other run works on it. First wait in its queue, if it has one.

    Raises:
        Conflict: a process outside the queue still works on the lineage after the wait.
        CancelledError: the flow run was cancelled while it waited.
    """
    key = lineage_lock(lineage)
    with contextlib.ExitStack() as held:
        if flow_run.id:
            _wait(held, store, key, queue_name(store, lineage))
        held.enter_context(hold_lineage(store, key, logger().warning, _sleeper(), patience_seconds))
        yield


def _sleeper() -> Callable[[float], None]:
    """Return a sleep function that raises if the flow run was cancelled."""
    waiter = StageOutput()

    def sleep(seconds: float) -> None:
        waiter.pulse()
        clock.sleep(seconds)

    return sleep


def _wait(held: contextlib.ExitStack, store: Store, key: str, queue: str) -> None:
    """Wait for the slot of the queue and take it; continue without it if it stays taken while the lineage is free."""
    waiter, began, logged = StageOutput(), clock.uptime(), False
    while (free := _has_free_slot(queue)) is not None:
        if free and _take_slot(held, queue, waiter.flow_run):
            return
        if not logged:
            logger().info("waiting in the queue %s for another run to end", queue)
            logged = True
        if clock.uptime() - began > PATIENCE_SECONDS and store.peek(key) is None:
            logger().warning("the queue %s is full, but no process holds %s: running without the queue", queue, key)
            return
        waiter.pulse()
        clock.sleep(POLL_SECONDS)


def _has_free_slot(queue: str) -> bool | None:
    """Return True if the queue's slot is free; None if the queue doesn't exist."""
    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(queue)
    except ObjectNotFound:
        return None
    except Exception as error:  # the server may be away for a while
        logger().debug("the queue %s can't be read: %s", queue, error)
        return False
    return limit.active_slots < limit.limit if limit.active else None


def _take_slot(held: contextlib.ExitStack, queue: str, holder: str) -> bool:
    """Take the slot until `held` is closed; return False if another run was faster."""
    try:
        # A failed renewal, because the server is away, must not end hours of training.
        held.enter_context(
            concurrency(
                queue,
                lease_duration=LEASE_SECONDS,
                max_retries=0,
                holder=ConcurrencyLeaseHolder(type="flow_run", id=UUID(holder)),
                raise_on_lease_renewal_failure=False,
            )
        )
    except ConcurrencySlotAcquisitionError:
        return False
    return True
