"""Checks of every machine with NeuronCores, once per machine, before any worker takes a core.

One worker checks each machine. These workers exchange their findings through the workspace, and pass them to the other
workers of their machine through a local file.
"""

from collections.abc import Callable, Sequence

from tasks.contracts.outcomes import Check
from tasks.runs.host_records import this_host
from tasks.worker.checks.exchange import WAIT_SECONDS, AllFindings, WorkerFindings, exchange
from tasks.worker.checks.verdicts import conclude, machine_of
from tasks.worker.devices import neuron_node, sysfs
from tasks.worker.devices.accelerators import uses_neuron
from tasks.worker.process.job import Job


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
        found = neuron_node.check_node(machine_of(job.config.health), sysfs.ROOT)
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
