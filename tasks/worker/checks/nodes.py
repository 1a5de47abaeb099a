"""Checks of every machine with NeuronCores, once per machine, and the exchange of findings between workers.

One worker checks each machine, before any worker takes a core, and passes its findings to the others of its machine
through a local file. Between machines they are files of the attempt, not collectives: the exchange must work before a
process group exists, and while collectives are broken.
"""

from collections.abc import Callable, Sequence

from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.outcomes import Check
from tasks.foundation.records import Record
from tasks.runs.host_records import this_host
from tasks.worker.checks.verdicts import conclude, machine_of
from tasks.worker.devices import neuron_node
from tasks.worker.devices.accelerators import uses_neuron
from tasks.worker.process.job import Job
from tasks.worker.process.machine import wait_until

WAIT_SECONDS = 900.0  # longer than all checks of a machine may take; a dead worker is noticed elsewhere


class WorkerFindings(Record):
    """One worker's findings: numbers by name, and the checks that need no other worker."""

    host: str
    numbers: dict[str, float]
    checks: tuple[Check, ...]


class AllFindings(Record):
    """All findings, as every worker gets them: hosts and numbers by worker, and every check."""

    hosts: tuple[str, ...]
    numbers: tuple[dict[str, float], ...]
    checks: tuple[Check, ...]


def exchange(
    store: Store,
    folder: str,
    index: int,
    members: int,
    mine: WorkerFindings,
    judge: Callable[[Sequence[WorkerFindings]], Sequence[Check]],
) -> AllFindings:
    """Return the same `AllFindings` to each of `members` workers; each calls this with its `index`.

    Args:
        folder: for the files. Every member has read them at the next barrier.
        judge: called by member 0 alone with all findings in order, before any other member gets an answer; its
            writes are complete even if a member then fails.

    Raises:
        HangError: a worker wrote nothing in time; names the worker's file.
    """
    all_key = f"{folder}/whole.json"
    if index > 0:
        write_findings(store, folder, index, mine)
        wait_until(
            lambda: store.exists(all_key),
            lambda: f"the first worker has not written {store.uri}/{all_key}",
            WAIT_SECONDS,
        )
        return read_record(store, all_key, AllFindings)
    findings = [mine, *_collect(store, folder, members)]
    whole = AllFindings(
        hosts=tuple(each.host for each in findings),
        numbers=tuple(each.numbers for each in findings),
        checks=tuple(judge(findings)),
    )
    if members > 1:
        store.write(all_key, whole.to_json())
    return whole


def write_findings(store: Store, folder: str, index: int, mine: WorkerFindings) -> None:
    """Write a worker's findings for member 0 without waiting for the answer."""
    store.write(f"{folder}/{index}.json", mine.to_json())


def _collect(store: Store, folder: str, members: int) -> list[WorkerFindings]:
    keys = [f"{folder}/{index}.json" for index in range(1, members)]
    if not keys:
        return []

    def missing() -> list[str]:
        there = set(store.list(folder))
        return [key for key in keys if key not in there]

    wait_until(
        lambda: not missing(),
        lambda: f"other workers have not written {', '.join(missing())} in {store.uri}",
        WAIT_SECONDS,
    )
    return [read_record(store, key, WorkerFindings) for key in keys]


def check_nodes(job: Job) -> tuple[Check, ...]:
    """Return the checks of all machines, the same on every worker; empty without NeuronCores.

    Raises:
        HangError: a machine's worker wrote nothing in time.
    """
    if not uses_neuron(job.config.accelerator):
        return ()
    rank = job.rank

    def check() -> AllFindings:
        host = this_host()
        found = neuron_node.check_node(machine_of(job.config.health), neuron_node.ECC_ROOT)
        checks = tuple(check.model_copy(update={"host": host}) for check in found)
        mine = WorkerFindings(host=host, numbers={}, checks=checks)
        nodes, number = rank.world // rank.local_world, rank.index // rank.local_world
        return exchange(job.store, f"{folder(job)}/nodes", number, nodes, mine, lambda findings: _judge(job, findings))

    return run_once_per_machine(job, "machines", check).checks


def run_once_per_machine(job: Job, name: str, work: Callable[[], AllFindings]) -> AllFindings:
    """Run `work` in the first worker of this machine; the others read its result from a local file.

    Raises:
        HangError: the result did not arrive in time.
    """
    if job.rank.local > 0:
        found = job.machine.wait_for(f"findings-{name}", f"its findings about the {name}", 2 * WAIT_SECONDS)
        return AllFindings.model_validate_json(found)
    whole = work()
    if job.rank.world > 1:
        job.machine.publish(f"findings-{name}", whole.to_json())
    return whole


def folder(job: Job) -> str:
    """Return the folder for the workers' findings of an attempt."""
    return f"{job.spec.attempt_prefix}/findings"


def _judge(job: Job, findings: Sequence[WorkerFindings]) -> Sequence[Check]:
    checks = [check for each in findings for check in each.checks]
    conclude(job, checks, [each.host for each in findings])
    return checks
