"""The work pool of the deployments, its queue for janitors, and the command that starts its worker.

The pool has no limit, since runs of a dead worker would count as running for ever. The limit is the worker's own.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from infra.prefect_health import PASSWORD_OF_CLIENT

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

    from infra.prefect_server import Server

WORKER = 6  # flow runs at once; each process takes about 350 MiB before its work begins
JANITORS = 3  # at once: two that a power cut ended together leave a slot, in which the watch frees theirs
_BEHIND = 2  # priority after the default queue's 1; lower runs first


def worker_command(server: Server, pool: str) -> str:
    """Return the command that starts a worker of the pool; no history of a shell gets the password from it."""
    # Without an address Prefect would start a worker of an empty server of its own.
    words = [f"PREFECT_API_URL={shlex.quote(server.url)}", f"prefect worker start --pool {pool} --limit {WORKER}"]
    if server.password_file is not None:
        words.insert(0, f'{PASSWORD_OF_CLIENT}="$(cat {shlex.quote(server.password_file)})"')
    return " ".join(words)


def kind_of(client: SyncPrefectClient, pool: str) -> str:
    """Return the type of the work pool; `process` if it is missing, since `make_pool` makes it so."""
    from prefect.exceptions import ObjectNotFound  # a second of loading

    try:
        return client.read_work_pool(pool).type
    except ObjectNotFound:
        return "process"


def make_pool(client: SyncPrefectClient, pool: str) -> None:
    """Make the work pool if it is missing. An existing one keeps its type."""
    from prefect.client.schemas.actions import WorkPoolCreate  # a second of loading
    from prefect.exceptions import ObjectNotFound
    from prefect.workers.process import ProcessWorker

    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        template = ProcessWorker.get_default_base_job_template()
        client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))


def limit_janitors(client: SyncPrefectClient, pool: str, queue: str) -> None:
    """Make the janitors' queue, after the default queue in priority and with a limit of runs at once."""
    from prefect.exceptions import ObjectNotFound

    try:
        there = client.read_work_queue_by_name(queue, work_pool_name=pool)
    except ObjectNotFound:
        client.create_work_queue(queue, concurrency_limit=JANITORS, priority=_BEHIND, work_pool_name=pool)
    else:
        client.update_work_queue(there.id, concurrency_limit=JANITORS)
