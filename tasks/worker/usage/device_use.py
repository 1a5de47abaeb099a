"""The use of NeuronCores and EFA during a training: measured by the first worker of each node, collected by rank 0.

An attempt that fails leaves its nodes' numbers too, in `device-use/` of its folder.
"""

import contextlib
import sys
from collections.abc import Iterator

from infra.store.records import read_record
from tasks.contracts.usage import DeviceUse
from tasks.foundation.errors import StoreError
from tasks.worker.devices.accelerators import uses_neuron
from tasks.worker.devices.efa_counters import read_counters, use_between
from tasks.worker.devices.neuron_monitor import Reading, monitored, summarize
from tasks.worker.process.job import Job


@contextlib.contextmanager
def device_use_measured(job: Job) -> Iterator[None]:
    """Measure while the block runs, and write this node's numbers to the attempt after it; nothing without Neuron."""
    if job.rank.local > 0 or not uses_neuron(job.config.accelerator):
        yield
        return
    before, readings = read_counters(), list[Reading]()
    try:
        with monitored() as readings:
            yield
    except BaseException:
        with contextlib.suppress(OSError, StoreError):  # the error counts more
            _write(job, before, readings)
        raise
    _write(job, before, readings)


def collect_device_use(job: Job) -> tuple[DeviceUse, ...] | None:
    """Return on rank 0 what all nodes wrote, in their order; None if no node measured. Call it after a barrier."""
    if not job.rank.is_main or not uses_neuron(job.config.accelerator):
        return None
    found = [read_record(job.store, key, DeviceUse) for key in job.store.list(_folder(job))]
    return tuple(sorted(found, key=lambda use: use.node)) or None


def _write(job: Job, before: dict[str, int], readings: list[Reading]) -> None:
    efa = use_between(before, read_counters())
    if efa is not None and efa.faults:
        counted = ", ".join(f"{count} {name}" for name, count in efa.faults.items())
        print(f"warning: EFA counted {counted} while this node trained", file=sys.stderr, flush=True)
    if readings:
        node = job.rank.index // job.rank.local_world
        use = summarize(node, readings).model_copy(update={"efa": efa})
        job.store.write(f"{_folder(job)}/{node}.json", use.to_json())


def _folder(job: Job) -> str:
    return f"{job.spec.attempt_prefix}/device-use"
