"""Measure a training: the speed of its steps, their communication, and the use of NeuronCores and EFA.

On the CPU collectives are timed. On NeuronCores they are inside the graphs, so their time is estimated: the bytes of
gradients that are summed and of vectors that are gathered, by the rates measured in the run's health stage.
"""

import contextlib
import sys
import time
from collections.abc import Iterator

from torch import nn

from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.outcomes import HealthOutcome
from tasks.contracts.stages import Stage
from tasks.contracts.usage import Communication, DeviceUse
from tasks.contracts.workspace import DEVICE_USE
from tasks.foundation.errors import StoreError
from tasks.runs.results import read_result
from tasks.worker.devices.accelerators import Accelerator, uses_neuron
from tasks.worker.devices.neuron_monitor import Reading, run_monitor, summarize
from tasks.worker.devices.neuron_node import compute_traffic, read_counters
from tasks.worker.process.job import Job


@contextlib.contextmanager
def measure_device_use(job: Job) -> Iterator[None]:
    """Measure during the block, then write this node's numbers to the attempt; does nothing without Neuron."""
    if job.rank.local > 0 or not uses_neuron(job.config.accelerator):
        yield
        return
    before, readings = read_counters(), list[Reading]()
    try:
        with run_monitor() as readings:
            yield
    except BaseException:
        with contextlib.suppress(OSError, StoreError):  # the first error matters more
            _write(job, before, readings)
        raise
    _write(job, before, readings)


def collect_device_use(job: Job) -> tuple[DeviceUse, ...] | None:
    """Return on rank 0 the records of all nodes, in order; None if no node measured. Call it after a barrier."""
    if not job.rank.is_main or not uses_neuron(job.config.accelerator):
        return None
    found = [
        read_record(job.store, key, DeviceUse)
        for key in job.store.list(DEVICE_USE.within(run=job.spec.run_key, attempt=job.spec.attempt))
    ]
    return tuple(sorted(found, key=lambda use: use.node)) or None


def _write(job: Job, before: dict[str, int], readings: list[Reading]) -> None:
    efa = compute_traffic(before, read_counters())
    if efa is not None and efa.faults:
        counted = ", ".join(f"{count} {name}" for name, count in efa.faults.items())
        print(f"warning: EFA counted {counted} while this node trained", file=sys.stderr, flush=True)
    if readings:
        node = job.rank.index // job.rank.local_world
        use = summarize(node, readings).model_copy(update={"efa": efa})
        job.store.write(DEVICE_USE.of(job.spec, node=node), use.to_json())


GB = 1e9  # bytes; same unit as the rates of health


class StepClock:
    """Times steps, from its creation on; the time between `pause` and `resume` does not count."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.seconds, self.steps, self.communicated_seconds = 0.0, 0, 0.0
        self._rows = self._rows_begun = self._steps_begun = 0
        self.resume()

    def count_step(self, rows: int) -> None:
        """Count a step over `rows` pairs of all workers; it is included at the next pause."""
        self._steps_begun += 1
        self._rows_begun += rows

    def pause(self) -> None:
        """Wait for the device, and add the time and steps since `resume`."""
        self._accelerator.synchronize()
        self.seconds += time.monotonic() - self._began
        self.communicated_seconds += (self._accelerator.communicated_seconds or 0.0) - self._communicated
        self.steps, self._rows = self._steps_begun, self._rows_begun

    def resume(self) -> None:
        self._began = time.monotonic()
        self._communicated = self._accelerator.communicated_seconds or 0.0

    @property
    def pairs_per_second(self) -> float:
        """Pairs per second of all workers; 0 without a step."""
        return round(self._rows / self.seconds, 2) if self.seconds else 0.0

    def communication(self, store: Store, run_key: str, model: nn.Module, gathered: int) -> Communication | None:
        """Return on rank 0 the communication time of a step; None for one worker, or if unknown.

        Args:
            gathered: bytes of the global batch's vectors that a step gathers, from `gathered_bytes`.

        Raises:
            StoreError: the result of the run's health stage is not readable.
        """
        rank = self._accelerator.rank
        if rank.world == 1 or not rank.is_main or not self.steps:
            return None
        step_seconds = self.seconds / self.steps
        if self._accelerator.communicated_seconds is not None:
            return _communication(self.communicated_seconds / self.steps, step_seconds, measured=True)
        health = read_result(store, run_key, Stage.health)
        if health is None or not isinstance(health.outcome, HealthOutcome) or not health.outcome.collectives:
            return None
        rates = health.outcome.collectives
        moved = {"all_reduce": gradient_bytes(model), "all_gather": gathered, "reduce_scatter": gathered}
        seconds = sum(size / GB / rates[f"{name}_gb_s"] for name, size in moved.items() if size)
        return _communication(seconds, step_seconds, measured=False)


def gradient_bytes(model: nn.Module) -> int:
    """Return the bytes of the last step's gradients; a weight that no loss uses, as BERT's pooler, has none."""
    return sum(weight.grad.nbytes for weight in model.parameters() if weight.grad is not None)


def _communication(seconds: float, step_seconds: float, measured: bool) -> Communication:
    return Communication(seconds=round(seconds, 6), step_seconds=round(step_seconds, 6), measured=measured)
