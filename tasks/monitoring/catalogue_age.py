"""Share of known items that the current release holds, and the waiting time of the rest."""

import datetime as dt

from pydantic import Field

from infra.store.manifest import read_manifest
from tasks.contracts.references import FeedRef, RowsRef
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.foundation.records import Record
from tasks.runs.catalogues import known_items
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


class WaitingSource(Record):
    """Items that the release does not hold yet: a version of an item feed, or rows that a run validated."""

    source: str = Field(description="key of the folder")
    records: int = Field(description="rows or feed records; only a refresh finds out how many change an item")
    since: str | None = Field(description="time of arrival, or of its training, ISO 8601 in UTC; null: not recorded")


class CatalogueAge(Record):
    """The catalogue of a release, compared with all arrivals since."""

    release: int = Field(description="number of the release")
    items: int = Field(description="live items in the catalogue")
    vectors: int
    bad: int = Field(description="items of the catalogue without a usable vector")
    waiting: tuple[WaitingSource, ...] = Field(
        description="sources that the release does not hold yet, the longest wait first"
    )

    @property
    def coverage(self) -> float:
        """The share of the catalogue's items that have a vector."""
        return self.vectors / (self.vectors + self.bad) if self.vectors + self.bad else 1.0

    @property
    def complete_until(self) -> str | None:
        """Arrivals before this moment are in the catalogue; None if no source waits."""
        return min((each.since for each in self.waiting if each.since is not None), default=None)

    @property
    def sentence(self) -> str:
        """Completeness of the release, and its missing sources, in one sentence."""
        parts = [f"all {self.vectors:,} items have a vector"]
        if self.bad:
            parts = [f"{self.coverage:.2%} of {self.vectors + self.bad:,} items have a vector".replace("%", " %", 1)]
            parts += [f"{self.bad:,} without one, for reasons in its infer quarantine"]
        if self.waiting:
            records, number = sum(each.records for each in self.waiting), len(self.waiting)
            parts += [f"{number} {'source' if number == 1 else 'sources'} with {records:,} records not in it yet"]
        return ", ".join(parts)

    def hours(self, at: dt.datetime) -> float:
        """Return the longest wait of a source that the release lacks; 0 if it lacks none."""
        if self.complete_until is None:
            return 0.0
        return max(0.0, (at - dt.datetime.fromisoformat(self.complete_until)).total_seconds() / 3600)


def catalogue_age(snapshot: Snapshot, release: Release) -> CatalogueAge:
    """Return how complete a release is. Raises StoreError: its plan, catalogue or lineage is not readable."""
    waiting = [_waiting(snapshot, source) for source in known_items(snapshot.store, release).waiting]
    return CatalogueAge(
        release=release.number,
        items=release.catalogue.items,
        vectors=release.vectors,
        bad=release.bad,
        waiting=tuple(sorted(waiting, key=lambda each: (each.since or "", each.source))),
    )


def _waiting(snapshot: Snapshot, source: RowsRef | FeedRef) -> WaitingSource:
    if isinstance(source, FeedRef):
        facts = read_manifest(snapshot.store, source.prefix).facts
        return WaitingSource(source=source.prefix, records=facts["rows"], since=facts.get("ingested_at"))
    attempts = Run(snapshot, source.run_key).stage(Stage.train).attempts
    trained = [each.ended_at for each in attempts if each.ended_at is not None]
    return WaitingSource(source=source.prefix, records=source.rows, since=max(trained, default=None))
