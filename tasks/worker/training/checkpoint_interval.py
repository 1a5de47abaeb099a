"""The interval between partial checkpoints: every N steps, every N seconds, or the interval that loses the least time.

Checkpoints never change the training or its records. An interval in seconds waits for a step whose losses are read
anyway: only the first worker reads the clock, and the sum of the losses carries its request to the others.
"""

import contextlib
import math
import time
import zlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import nn

from configs.schema.training import interval_of
from infra.store.base import Store
from infra.store.manifest import MANIFEST, PRUNED, Manifest
from infra.store.records import read_record
from tasks.contracts.stages import Stage
from tasks.contracts.usage import CheckpointUse
from tasks.contracts.workspace import CHECKPOINT
from tasks.foundation.errors import POLICIES, CodeError, StoreError
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tasks.worker.devices.accelerators import Accelerator


class Replicas:
    """Models that must be equal on all workers, by their names in messages."""

    def __init__(self, models: Mapping[str, nn.Module], accelerator: Accelerator) -> None:
        self._models, self._accelerator = models, accelerator
        self.seconds = 0.0  # time of all comparisons

    def compare(self, step: int) -> None:
        """Compare all workers' weights after global step `step`; each worker gets the same result.

        Raises:
            CodeError: they differ; names the first differing weights, and the workers of each copy.
        """
        if self._accelerator.rank.world == 1:
            return
        began = time.perf_counter()
        names, sums = [], []
        for called, model in self._models.items():
            for name, weight in model.state_dict().items():
                names.append(f"{called} {name}")
                sums.append(checksum(weight))
        copies = self._accelerator.gather(torch.tensor([sums], dtype=torch.int64))  # (workers, weights), on the host
        self.seconds += time.perf_counter() - began
        differing = (copies != copies[0]).any(dim=0).nonzero().flatten().tolist()
        if differing:
            raise CodeError(
                f"the workers' copies of the weights differ at step {step}, in {len(differing)} of {len(names)} "
                f"tensors, first in {names[differing[0]]}: {_who(copies[:, differing[0]].tolist())}. So no checkpoint "
                "was written; the one before it was equal on all workers, and the same command continues from it. All "
                "workers must be machines of one kind with the same packages; if they are, check the memory of those "
                "in the minority (millrace hosts), and if it happens again at this step, set train.precision=bf16"
            )


def checksum(weight: torch.Tensor) -> int:
    """Return the CRC-32 of a tensor's bits, on any device; every single flipped bit changes it."""
    return zlib.crc32(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _who(sums: list[int]) -> str:
    """Return the workers of each copy, the most frequent copy first."""
    holders: dict[int, list[str]] = {}
    for worker, each in enumerate(sums):
        holders.setdefault(each, []).append(str(worker))
    copies = sorted(holders.values(), key=len, reverse=True)
    return ", ".join(f"worker{'s' * (len(each) > 1)} {' and '.join(each)} hold{'s' * (len(each) == 1)} "
                     f"{'one' if number == 0 else 'another'}" for number, each in enumerate(copies))  # fmt: skip


RUNS = 10  # newest runs of the lineage to read; each costs a few requests to a bucket
ENOUGH_FAILURES = 3  # with fewer, their mean says little
ASSUMED_SECONDS_BETWEEN = 24 * 3600.0  # assumed mean time between failures, with too few on record


class Failures(NamedTuple):
    """Recorded attempts: the number that failed and lost work, the total, and their running time."""

    failed: int
    attempts: int
    seconds: float

    @property
    def enough(self) -> bool:
        """True if the failures are enough to use their mean."""
        return self.failed >= ENOUGH_FAILURES

    @property
    def seconds_between(self) -> float:
        """Mean seconds of training between two failures; a day if fewer than three are on record."""
        return max(1.0, self.seconds / self.failed) if self.enough else ASSUMED_SECONDS_BETWEEN


def recorded_failures(store: Store, name: str, run_key: str) -> Failures:
    """Return the failures of the ended attempts of the newest trainings of lineage `name`, with this run's.

    Unreadable records are ignored: this is an estimate.
    """
    snapshot = Snapshot(store)
    runs = (Run(snapshot, key) for key in _newest_runs(store, name, run_key))
    found = [attempt for run in runs for attempt in run.stage(Stage.train).attempts]
    ended = [record for record in found if record.ended_at is not None]
    return Failures(
        failed=sum(record.failure is not None and POLICIES[record.failure].loses_work for record in ended),
        attempts=len(ended),
        seconds=sum(record.wall_seconds - record.seconds.queued for record in ended),
    )


def _newest_runs(store: Store, name: str, run_key: str) -> list[str]:
    """Return the keys of the runs with the newest checkpoints, and of this run."""
    sealed = [
        key for key in store.list(CHECKPOINT.within(lineage=name)) if key.rpartition("/")[2] in (MANIFEST, PRUNED)
    ]
    found = {run_key: None}
    for key in sorted(sealed, reverse=True)[:RUNS]:
        with contextlib.suppress(StoreError):
            found[read_record(store, key, Manifest, "").facts["run_key"]] = None
    return list(found)


ASSUMED_WRITE_SECONDS = 1.0  # assumed stall per write until one is measured
MOST_STALLED = 0.01  # largest share of the training that writes may take


def best_seconds(write_seconds: float, seconds_between_failures: float, measured: bool) -> float:
    """Return the seconds between checkpoints that minimise the time lost to writes and to repeated work after failures.

    sqrt(2 * write * mean between failures) (Young 1974, doi:10.1145/361147.361115; Daly 2006,
    doi:10.1016/j.future.2004.11.016, whose further terms are small if a write is much shorter than the time between
    failures), but long enough that writes take at most 1 % of the training.

    Args:
        write_seconds: stall of the training per write, without the part that runs in the background.
        measured: `write_seconds` is measured, not assumed. The limit of 1 % holds only then: otherwise a training that
            fails every minute would never write its first checkpoint.
    """
    least = write_seconds / MOST_STALLED if measured else 0.0
    return max(math.sqrt(2 * write_seconds * seconds_between_failures), least)


class CheckpointInterval:
    """Decides when a checkpoint is due; one instance per attempt of a training, on every worker."""

    def __init__(
        self,
        every: str,
        failures: Failures | None,
        stalled: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the clock.

        Args:
            every: `train.checkpoint_every`.
            failures: recorded failures, on the first worker if `every` is auto; else None.
            stalled: returns the seconds that all writes so far have delayed the training.
        """
        self._every, self._interval, self._failures = every, interval_of(every), failures
        self._stalled, self._clock = stalled, clock
        self._began = self._last = clock()
        self._written = 0
        self.wanted = False  # True: a checkpoint is due after the next step whose losses are read

    def is_due_by_steps(self, step: int) -> bool:
        """Return True if an interval in steps makes a checkpoint due after global step `step`."""
        return self._interval is not None and self._interval.unit == "steps" and not step % self._interval.number

    @property
    def seconds(self) -> float | None:
        """Seconds between checkpoints; None for an interval in steps, and for auto on all workers but the first."""
        if self._interval is not None:
            return float(self._interval.number) if self._interval.unit == "seconds" else None
        if self._failures is None:
            return None
        return best_seconds(self._write_seconds, self._failures.seconds_between, measured=bool(self._written))

    @property
    def has_passed(self) -> bool:
        """True if the interval has passed on this worker's clock; only the first worker's counts."""
        return self.seconds is not None and self._clock() - self._last >= self.seconds

    def agree(self, due: bool) -> None:
        """Accept the first worker's request, on every worker after the same step."""
        self.wanted = self.wanted or due

    def restart(self) -> None:
        """Restart the clock, on every worker, because a write has begun."""
        self.wanted, self._last = False, self._clock()
        self._written += 1

    @property
    def _write_seconds(self) -> float:
        return self._stalled() / self._written if self._written else ASSUMED_WRITE_SECONDS

    def use(self) -> CheckpointUse:
        """Return the figures for the report, on the first worker."""
        known, seconds = self._failures, self.seconds
        return CheckpointUse(
            every=self._every,
            written=self._written,
            stalled_seconds=round(self._stalled(), 3),
            training_seconds=round(self._clock() - self._began, 3),
            seconds=None if seconds is None else round(seconds, 1),
            write_seconds=None if known is None else round(self._write_seconds, 4),
            seconds_between_failures=None if known is None else round(known.seconds_between, 1),
            failures=None if known is None else known.failed,
            attempts=None if known is None else known.attempts,
        )
