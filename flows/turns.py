"""A run's turn on its lineage: the queue that the Prefect UI shows, and the workspace's lock, which is what counts.

The queue is a global concurrency limit named after the lineage, which `millrace deploy` makes. Without one a run that
meets another fails with Conflict; with one it waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import ConcurrencyLeaseHolder
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run

from infra.store import Conflict, Store
from tasks.alone import alone
from tasks.sinks import Sinks, logger

LEASE_SECONDS = 60.0  # the shortest that Prefect has: so long a killed run blocks those that wait
PATIENCE_SECONDS = 120.0  # well over a lease; who is refused for longer looks whether anybody is there
ASK_SECONDS = 2.0


def queue_name(lineage: str) -> str:
    """The name of a lineage's concurrency limit."""
    return f"millrace-{lineage}"


@contextlib.contextmanager
def in_turn(store: Store, lineage: str) -> Iterator[None]:
    """Have a lineage to oneself inside the block; before, wait in its queue if the server has one.

    Raises:
        Conflict: somebody who does not queue works on it.
        CancelledError: the flow run was cancelled while it waited.
    """
    key = f"lineages/{lineage}.run"
    with contextlib.ExitStack() as held:
        if flow_run.id:
            _wait(held, store, key, queue_name(lineage))
        held.enter_context(alone(store, key, logger().warning))
        yield


def _wait(held: contextlib.ExitStack, store: Store, key: str, queue: str) -> None:
    """Take the slot of the queue, however long that takes, unless it turns out that nobody has it."""
    waiter, began, said = Sinks(None), time.monotonic(), False
    while (room := _room(queue)) is not None:
        if room and _entered(held, queue, waiter.flow_run):
            return
        if not said:
            logger().info("waiting in the queue %s for another run to end", queue)
            said = True
        if time.monotonic() - began > PATIENCE_SECONDS and _free(store, key):
            logger().warning("the queue %s lets nobody in, though nobody works on %s; going on without", queue, key)
            return
        waiter.pulse()
        time.sleep(ASK_SECONDS)


def _room(queue: str) -> bool | None:
    """Whether the queue's slot is free; None where there is no such queue."""
    try:
        with get_client(sync_client=True) as client:
            limit = client.read_global_concurrency_limit_by_name(queue)
    except ObjectNotFound:
        return None
    except Exception as error:  # the server may be away for a while
        logger().debug("the queue %s can't be asked for: %s", queue, error)
        return False
    return limit.active_slots < limit.limit if limit.active else None


def _entered(held: contextlib.ExitStack, queue: str, holder: str) -> bool:
    """Take the slot until `held` is closed; False where another was faster."""
    try:
        # A lease that can't be renewed, because the server is away, must not end hours of training.
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


def _free(store: Store, key: str) -> bool:
    try:
        with store.lock(key):
            return True
    except Conflict:
        return False
