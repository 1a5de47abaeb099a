"""The attempts of one stage of a run, listed once.

Make one while no other process can run the stage. It does not change: make a new one to see later attempts.
"""

from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.jobs import JobSpec, stage_prefix
from tasks.contracts.stages import Work
from tasks.foundation.errors import StoreError
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord


class Attempts:
    """The files that the attempts of a stage had left in the workspace when this was made."""

    def __init__(self, store: Store, run_key: str, stage: Work) -> None:
        self._store = store
        self._prefix = stage_prefix(run_key, stage)
        self._keys = store.list(self._prefix)

    @property
    def last(self) -> int:
        """The highest number of an attempt that left any file; 0 where there is none."""
        folders = {key.removeprefix(f"{self._prefix}/").partition("/")[0] for key in self._keys}
        numbers = (name.removeprefix("attempt-") for name in folders if name.startswith("attempt-"))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def last_spec(self) -> JobSpec | None:
        """Return the spec of the attempt that was started last; None where it is gone or not readable."""
        number = self.last
        while number:
            try:
                spec = find_record(self._store, f"{self._prefix}/attempt-{number}/spec.json", JobSpec)
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
