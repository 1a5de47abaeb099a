"""Publications of a release at each target: attempts, measurements, and the release that it serves now."""

from collections.abc import Iterable
from typing import NamedTuple

from configs.schema.publishing import AnyTarget
from infra.store.base import Store
from tasks.contracts.stages import Chore
from tasks.foundation.errors import FailureClass
from tasks.runs import served_targets
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.served_targets import Served
from tasks.runs.snapshot import Snapshot


class Publication(NamedTuple):
    """One release and one target."""

    target: AnyTarget
    attempts: tuple[LedgerRecord, ...]  # in the order in which they started
    measured: Served | None  # by the last attempt that succeeded; None: no such attempt, or not on record
    now: Served | None  # current content of the target, as far as the workspace knows; may be another release

    @property
    def failure(self) -> FailureClass | None:
        """The class that the last attempt failed with."""
        return self.attempts[-1].failure if self.attempts else None


def of_release(store: Store, release: int, configured: Iterable[AnyTarget]) -> tuple[Publication, ...]:
    """Return the publications of a release to the configured targets, then to others that serve it now.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    snapshot = Snapshot(store, strict=True)
    now = {each.target.name: each for each in served_targets.of_all_targets(store)}
    targets = {target.name: target for target in configured}
    targets |= {name: each.target for name, each in now.items() if each.release == release and name not in targets}
    return tuple(
        Publication(
            target,
            Run(snapshot, served_targets.publication(release, name)).stage(Chore.publish).attempts,
            served_targets.measured(store, release, name),
            now.get(name),
        )
        for name, target in targets.items()
    )
