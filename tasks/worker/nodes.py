"""The checks of every machine with NeuronCores, made once for each, before any worker takes a core.

One worker of each machine checks it. These bring their findings together in the workspace, and tell the others of
their machine through a file there.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from configs.schema import Config
from tasks.contracts import Check
from tasks.hosts import this_host
from tasks.worker.accelerators.xla_environment import means_neuron
from tasks.worker.exchange import WAIT_SECONDS, Part, Whole, exchange, wait_until
from tasks.worker.job import Job
from tasks.worker.neuron import node, sysfs
from tasks.worker.verdicts import conclude, machine_of


def check_nodes(job: Job) -> tuple[Check, ...]:
    """The findings about all machines, the same on every worker; none where there are no NeuronCores.

    Raises:
        HangError: a machine's worker was not heard of.
    """
    if not uses_neuron(job.config):
        return ()
    rank = job.rank
    told = _told_on_this_machine(job)
    if rank.local > 0:
        wait_until(told.exists, lambda: f"this machine's first worker has not written {told}", 2 * WAIT_SECONDS)
        return Whole.model_validate_json(told.read_bytes()).checks
    host = this_host()
    found = node.check_node(machine_of(job.config.health), sysfs.ROOT)
    mine = Part(host=host, numbers={}, checks=tuple(check.model_copy(update={"host": host}) for check in found))
    nodes = rank.world // rank.local_world
    whole = exchange(job.store, f"{folder(job)}/nodes", _node(job), nodes, mine, lambda parts: _judge(job, parts))
    if rank.local_world > 1:
        staged = told.with_suffix(".tmp")
        staged.write_bytes(whole.to_json())
        staged.replace(told)
    return whole.checks


def forget_told(job: Job) -> None:
    """Remove the file by which the workers of this machine were told; once all of them have read it."""
    if job.rank.local == 0:
        _told_on_this_machine(job).unlink(missing_ok=True)


def folder(job: Job) -> str:
    """Where the workers of an attempt tell each other what they found."""
    return f"{job.spec.attempt_prefix}/findings"


def uses_neuron(config: Config) -> bool:
    """Whether the workers' devices are NeuronCores."""
    return config.accelerator == "neuron" or (config.accelerator == "xla" and means_neuron())


def _judge(job: Job, parts: Sequence[Part]) -> Sequence[Check]:
    checks = [check for part in parts for check in part.checks]
    conclude(job, checks, [part.host for part in parts])
    return checks


def _node(job: Job) -> int:
    return job.rank.index // job.rank.local_world


def _told_on_this_machine(job: Job) -> Path:
    """Named after attempt and node, and after the process that all workers of this machine are children of."""
    attempt = hashlib.sha256(f"{job.store.uri}#{job.spec.attempt_prefix}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"millrace-health-{attempt}-{_node(job)}-{os.getppid()}.json"
