"""Targets and the release that each serves: `releases/targets/<name>.json`, written after a swap or a check.

The record may be outdated: only the target itself knows its current content. A copy stays with the publication that
made it, after the target has gone on to another release.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from pydantic import Field

from configs.schema.stages import AnyTarget
from infra.store.base import Store
from infra.store.records import find_record, read_record
from tasks.contracts.kinds import PUBLICATION
from tasks.contracts.runs import Release
from tasks.contracts.search import NarrowRecall
from tasks.contracts.stages import Chore
from tasks.contracts.workspace import MEASURED, SERVED
from tasks.foundation.errors import FailureClass, StoreError
from tasks.foundation.records import Record
from tasks.runs import served_targets
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

_WAY_OUT = "delete it, and write it again with: millrace publish"


class Served(Record):
    """The content of a target at its last publication or check."""

    version: Literal[1] = 1
    target: AnyTarget
    release: int = Field(description="number of the release that it serves")
    table: str = Field(description="table or collection that consumers reach under the target's name")
    model_version: str
    vectors: int
    index: str | None = Field(description="name of its index; null: the service has none, and searches exactly")
    recall: float = Field(description="recall@10 of its search, compared with exact search")
    query_ms: float = Field(
        description="median time of a warm query, in milliseconds, measured by the publishing worker"
    )
    queries: int = Field(description="queries that recall and time were measured with")
    narrow: NarrowRecall | None = Field(
        default=None, description="recall of the holdout queries when the table was new; null: whole vectors"
    )
    coming: int | None = Field(
        default=None, description="release of another model to which a publication is about to swap it; null: none"
    )
    at: str
    run_key: str = Field(description="key of the run; publications/<run key>/publish/ has the record")


def of_target(store: Store, name: str) -> Served | None:
    """Return the record of a target; None before the first publication. Raises StoreError: the record is damaged."""
    return find_record(store, SERVED.key(target=name), Served, _WAY_OUT)


def of_all_targets(store: Store) -> tuple[Served, ...]:
    """Return the records of all targets with a publication. Raises StoreError: a record is damaged."""
    keys = (key for key in store.list(SERVED.within()) if SERVED.match(key))
    return tuple(read_record(store, key, Served, _WAY_OUT) for key in keys)


def left_out(store: Store, targets: Iterable[AnyTarget]) -> list[str]:
    """Return a sentence on each published target that is not among `targets`."""
    names = {target.name for target in targets}
    return [
        f"{each.target.name} ({each.target.kind}) serves what it served, release {each.release}"
        for each in of_all_targets(store)
        if each.target.name not in names
    ]


def measured(store: Store, release: int, name: str) -> Served | None:
    """Return the record of the last successful publication of a release to a target, or None.

    Raises:
        StoreError: the record is damaged.
    """
    return find_record(store, MEASURED.key(run=publication(release, name)), Served, _WAY_OUT)


def note(store: Store, served: Served) -> None:
    """Write the record of a target, and the publication's copy."""
    store.write(SERVED.key(target=served.target.name), served.to_json())
    store.write(MEASURED.key(run=served.run_key), served.to_json())


def forget(store: Store, release: int, name: str) -> None:
    """Delete the record of `measured`: the target's table of the release is made again, and not whole meanwhile."""
    store.delete(MEASURED.key(run=publication(release, name)))


@contextlib.contextmanager
def announced(store: Store, name: str, release: Release) -> Iterator[None]:
    """Say on a target's record that it is about to serve another model, until the block has ended.

    Between its swap and its new record, consumers find vectors of a model that no record would name.
    """
    before = _if_readable(store, name)
    if before is not None and before.model_version != release.model.version:
        store.write(SERVED.key(target=name), before.model_copy(update={"coming": release.number}).to_json())
    try:
        yield
    finally:
        after = _if_readable(store, name)
        if after is not None and after.coming is not None:
            store.write(SERVED.key(target=name), after.model_copy(update={"coming": None}).to_json())


def _if_readable(store: Store, name: str) -> Served | None:
    """Return the record of a target, also None for a damaged one: the publication replaces it."""
    with contextlib.suppress(StoreError):
        return of_target(store, name)
    return None


def publication(release: int, name: str) -> str:
    """Return the run key of the publications of a release to a target."""
    return f"{PUBLICATION}{release}-{name}"


def lock_of(name: str) -> str:
    """Return the name of the lock of a target: one publication at a time."""
    return f"{SERVED.within()}/{name}.publish"


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
