"""The checks of every machine with NeuronCores, made once for each, before any worker takes a core.

One worker of each machine checks it. These workers collect their findings in the workspace, and pass them to the other
workers of their machine through a local file.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tasks.contracts.outcomes import Check
from tasks.hosts.host_records import this_host
from tasks.worker.accelerators import uses_neuron
from tasks.worker.checks.exchange import WAIT_SECONDS, AllFindings, WorkerFindings, exchange
from tasks.worker.checks.verdicts import conclude, machine_of
from tasks.worker.neuron import node, sysfs
from tasks.worker.process.job import Job
from tasks.worker.process.waiting import wait_until


def check_nodes(job: Job) -> tuple[Check, ...]:
    """Return the findings about all machines, the same on every worker; none without NeuronCores.

    Raises:
        HangError: the worker of a machine wrote nothing in time.
    """
    if not uses_neuron(job.config.accelerator):
        return ()
    rank = job.rank
    node_file = _node_file(job)
    if rank.local > 0:
        wait_until(
            node_file.exists, lambda: f"this machine's first worker has not written {node_file}", 2 * WAIT_SECONDS
        )
        return AllFindings.model_validate_json(node_file.read_bytes()).checks
    host = this_host()
    found = node.check_node(machine_of(job.config.health), sysfs.ROOT)
    mine = WorkerFindings(
        host=host, numbers={}, checks=tuple(check.model_copy(update={"host": host}) for check in found)
    )
    nodes = rank.world // rank.local_world
    whole = exchange(job.store, f"{folder(job)}/nodes", _node(job), nodes, mine, lambda findings: _judge(job, findings))
    if rank.local_world > 1:
        staged = node_file.with_suffix(".tmp")
        staged.write_bytes(whole.to_json())
        staged.replace(node_file)
    return whole.checks


def remove_node_file(job: Job) -> None:
    """Remove the file for the other workers of this machine; call it after all of them have read it."""
    if job.rank.local == 0:
        _node_file(job).unlink(missing_ok=True)


def folder(job: Job) -> str:
    """Return the folder for the findings of the workers of an attempt."""
    return f"{job.spec.attempt_prefix}/findings"


def _judge(job: Job, findings: Sequence[WorkerFindings]) -> Sequence[Check]:
    checks = [check for each in findings for check in each.checks]
    conclude(job, checks, [each.host for each in findings])
    return checks


def _node(job: Job) -> int:
    return job.rank.index // job.rank.local_world


def _node_file(job: Job) -> Path:
    """Return the file, which is named after attempt, node and the parent process of all workers of this machine."""
    attempt = hashlib.sha256(f"{job.store.uri}#{job.spec.attempt_prefix}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"millrace-health-{attempt}-{_node(job)}-{os.getppid()}.json"
