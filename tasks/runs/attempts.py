"""The attempts of one stage of a run, listed once.

Make one while no other process can run the stage. It does not change: make a new one to see later attempts.
"""

import re

from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.jobs import JobSpec, stage_prefix
from tasks.contracts.stages import Work
from tasks.contracts.workspace import SPEC
from tasks.foundation.errors import StoreError
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord

_ATTEMPT = re.compile(r"/attempt-(\d+)/")


class Attempts:
    """The files that the attempts of a stage had left in the workspace when this was made."""

    def __init__(self, store: Store, run_key: str, stage: Work) -> None:
        self._store = store
        self._of = {"run": run_key, "stage": stage}
        self._keys = store.list(stage_prefix(run_key, stage))

    @property
    def last(self) -> int:
        """The highest number of an attempt that left any file; 0 where there is none."""
        return max((int(found[1]) for key in self._keys if (found := _ATTEMPT.search(key))), default=0)

    def last_spec(self) -> JobSpec | None:
        """Return the spec of the attempt that was started last; None where it is gone or not readable."""
        number = self.last
        while number:
            try:
                spec = find_record(self._store, SPEC.key(**self._of, attempt=number), JobSpec)
            except StoreError:
                return None
            if spec is None or spec.submitted_as == number:
                return spec
            number = spec.submitted_as  # the later ones are retries by AWS Batch, whose specs are copies
        return None

    def records(self) -> list[LedgerRecord]:
        """Return the ledger records in the order in which the attempts started.

        Raises:
            StoreError: one is not readable; names the file.
        """
        return ledger.read(self._store, self._keys)

    def close_abandoned(self) -> list[LedgerRecord]:
        """Close the records of attempts whose orchestrator died, and return them. Raises what `records` does."""
        return [ledger.close_abandoned(self._store, record) for record in self.records() if record.ended_at is None]
