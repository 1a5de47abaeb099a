"""The signs of life of an attempt. Where its orchestrator was killed, they say how long it ran."""

import logging
import time

from infra.store.base import Store
from tasks.foundation.errors import StoreError
from tasks.runs import ledger
from tasks.runs.ledger import LedgerRecord

EVERY_SECONDS = 30.0


class SignsOfLife:
    """Those of one attempt, counted from now."""

    def __init__(self, store: Store, record: LedgerRecord) -> None:
        self._store, self._record = store, record
        self._began = self._given = time.monotonic()

    def give(self) -> None:
        """Record that the attempt still runs, if the last sign is old. One that can't be written is left out."""
        now = time.monotonic()
        if now - self._given < EVERY_SECONDS:
            return
        self._given = now
        try:
            ledger.see(self._store, self._record, now - self._began)
        except (OSError, StoreError) as error:
            logging.getLogger("millrace").debug("a sign of life was not written: %s", error)
