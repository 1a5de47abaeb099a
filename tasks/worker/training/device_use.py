"""The use of NeuronCores during a training: measured by the first worker of each node, collected by rank 0."""

import contextlib
from collections.abc import Iterator

from tasks.contracts.usage import DeviceUse
from tasks.worker.accelerators import uses_neuron
from tasks.worker.neuron.monitor import monitored, summarize
from tasks.worker.process.job import Job


@contextlib.contextmanager
def device_use_measured(job: Job) -> Iterator[None]:
    """Measure while the block runs, and write this node's numbers to the attempt after it; nothing without Neuron."""
    if job.rank.local > 0 or not uses_neuron(job.config.accelerator):
        yield
        return
    with monitored() as readings:
        yield
    if readings:
        node = job.rank.index // job.rank.local_world
        job.store.write(f"{_folder(job)}/{node}.json", summarize(node, readings).to_json())


def collect_device_use(job: Job) -> tuple[DeviceUse, ...] | None:
    """Return on rank 0 what all nodes wrote, in their order; None if no node measured. Call it after a barrier."""
    if not job.rank.is_main or not uses_neuron(job.config.accelerator):
        return None
    found = [DeviceUse.model_validate_json(job.store.read(key)) for key in job.store.list(_folder(job))]
    return tuple(sorted(found, key=lambda use: use.node)) or None


def _folder(job: Job) -> str:
    return f"{job.spec.attempt_prefix}/device-use"
