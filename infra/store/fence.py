"""The fence of a lineage: the attempts whose workers may write to the workspace.

The holder of the lineage's lock sets it before workers start. If a suspended holder wakes after another one took over,
the fence refuses the next write of its workers, on any machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import Field

from infra.store.base import Store
from infra.store.checked import CheckedStore
from infra.store.records import find_record
from tasks.foundation.clock import sleep
from tasks.foundation.errors import SupersededError
from tasks.foundation.records import Record

PATIENCE_SECONDS = 10.0  # a new holder finds its jobs one by one
POLL_SECONDS = 1.0
WAY_OUT = "delete it once no process works on this lineage"


class Fence(Record):
    """`.locks/<name of the lock>.fence`: the folders of the attempts that the holder submitted or found."""

    attempts: tuple[str, ...]
    term: int = Field(description="term of the lock's holder that set the fence")


class FencedStore(CheckedStore):
    """The store of one attempt's workers: each write first checks that no fence excludes the attempt."""

    def __init__(
        self, store: Store, fences: Sequence[str], attempt: str, sleep: Callable[[float], None] = sleep
    ) -> None:
        super().__init__(store, self._look)
        self._fences, self._attempt, self._sleep = fences, attempt, sleep

    def _look(self, key: str) -> None:
        """Raise SupersededError if another process took over and its fence excludes this attempt."""
        for fence in self._fences:
            polls = PATIENCE_SECONDS / POLL_SECONDS
            while (others := self._others(fence)) is not None:
                if polls <= 0:
                    raise SupersededError(
                        f"{self.uri}/{key} was not written: another process took over from {self._attempt}, and works "
                        f"on {', '.join(others)}"
                    )
                polls -= 1
                self._sleep(POLL_SECONDS)

    def _others(self, fence: str) -> Sequence[str] | None:
        """Return the attempts that may write instead of this one; None if this one may."""
        found = find_record(self._store, fence, Fence, WAY_OUT)
        return found.attempts if found is not None and self._attempt not in found.attempts else None
