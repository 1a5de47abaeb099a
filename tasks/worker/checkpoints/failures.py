"""How often the trainings of a lineage fail, by the records of their attempts."""

import contextlib
from typing import NamedTuple

from infra.store.base import Store
from infra.store.manifest import MANIFEST, Manifest
from infra.store.records import read_record
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.stages import Stage
from tasks.foundation.errors import POLICIES, FailureClass, StoreError
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord
from tasks.runs.lineage import PRUNED

RUNS = 10  # the newest of the lineage; each costs a few requests to a bucket
ENOUGH_FAILURES = 3  # with fewer of them their mean says little
ASSUMED_SECONDS_BETWEEN = 24 * 3600.0  # then


class Failures(NamedTuple):
    """What the recorded attempts say: failures that a checkpoint helps against, and for how long attempts ran."""

    failed: int
    attempts: int
    seconds: float

    @property
    def enough(self) -> bool:
        """Whether there were so many that their mean is used."""
        return self.failed >= ENOUGH_FAILURES

    @property
    def seconds_between(self) -> float:
        """Mean seconds of training between two failures; a day where fewer than three are on record."""
        return max(1.0, self.seconds / self.failed) if self.enough else ASSUMED_SECONDS_BETWEEN


def recorded_failures(store: Store, name: str, run_key: str) -> Failures:
    """Return how the ended attempts of the newest trainings of lineage `name` fared, those of this run included.

    Records that can't be read count for nothing: this is an estimate.
    """
    found = [record for key in _newest_runs(store, name, run_key) for record in _attempts(store, key)]
    ended = [record for record in found if record.ended_at is not None]
    return Failures(
        failed=sum(_loses_work(record.failure) for record in ended),
        attempts=len(ended),
        seconds=sum(record.wall_seconds - record.seconds.queued for record in ended),
    )


def _loses_work(failure: FailureClass | None) -> bool:
    """Return whether an attempt that ended so is tried again from a checkpoint; without a machine none had begun."""
    return failure is not None and POLICIES[failure].transient and failure is not FailureClass.CAPACITY


def _newest_runs(store: Store, name: str, run_key: str) -> list[str]:
    """Return the keys of the runs whose checkpoints are the newest, and of this one."""
    sealed = [key for key in store.list(f"lineages/{name}") if key.rpartition("/")[2] in (MANIFEST, PRUNED)]
    found = {run_key: None}
    for key in sorted(sealed, reverse=True)[:RUNS]:
        with contextlib.suppress(StoreError):
            found[read_record(store, key, Manifest, "").facts["run_key"]] = None
    return list(found)


def _attempts(store: Store, run_key: str) -> list[LedgerRecord]:
    try:
        return ledger.read(store, store.list(stage_prefix(run_key, Stage.train)))
    except StoreError:
        return []
