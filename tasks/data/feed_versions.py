"""The latest versions of all item feeds, in one record: an export each hour leaves more than anybody could list.

The record is derived, and written by ingest under its lock. Each version is announced before it is committed, so a
killed ingest hides nothing. Where the record is lost or damaged, all versions are listed.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field, ValidationError

from infra.store.base import Conflict, Store
from infra.store.manifest import MANIFEST
from tasks.contracts.references import FeedRef
from tasks.contracts.spans import in_order
from tasks.data.span_versions import latest_versions
from tasks.foundation.records import Record

FEEDS = "packs/feeds.json"
FEW = 50  # announced versions that readers look for one by one; of more, all versions are listed


class LatestFeeds(Record):
    """`packs/feeds.json`: the latest version of each span of the item feeds, by name."""

    version: Literal[1] = 1
    complete: dict[str, int]
    announced: dict[str, int] = Field(default={}, description="being written, or left by an ingest that was killed")


def list_feeds(store: Store) -> list[FeedRef]:
    """Return the latest complete version of each span of the item feeds, oldest span first.

    Raises:
        ConfigError: a span has a name of no known form.
    """
    _, known = _read(store)
    if known is None or len(known.announced) > FEW:
        latest = latest_versions(store, "items")
    else:
        there = {name: number for name, number in known.announced.items() if _is_there(store, name, number)}
        latest = known.complete | there
    return [FeedRef(name=name, version=latest[name]) for name in in_order(list(latest))]


@contextlib.contextmanager
def noted(store: Store, versions: Mapping[str, int]) -> Iterator[None]:
    """Announce versions before they are committed inside, and note after that, that they are complete.

    The caller holds the lock of ingest. Nothing is written where all of them are known.
    """
    _, known = _read(store)
    if known is not None and versions.items() <= known.complete.items() and not known.announced.keys() & versions:
        yield
        return
    _swap(store, {}, versions)
    yield
    _swap(store, versions, {})


def note_all(store: Store) -> None:
    """Compare the record with what lies below `items/`, and write it again if a person changed something there.

    Takes no lock: where an ingest writes it meanwhile, that is left to the next time.
    """
    raw, known = _read(store)
    there = latest_versions(store, "items")
    before = known.announced if known is not None else {}
    left = {name: number for name, number in before.items() if there.get(name, 0) < number}
    found = LatestFeeds(complete=there, announced=left)
    if found != known and (there or raw is not None):
        with contextlib.suppress(Conflict):
            store.swap(FEEDS, found.to_json(), expected=raw)


def _swap(store: Store, complete: Mapping[str, int], announced: Mapping[str, int]) -> None:
    while True:
        raw, known = _read(store)
        if known is None:
            known = LatestFeeds(complete=latest_versions(store, "items"))
        left = {name: number for name, number in known.announced.items() if name not in complete}
        found = LatestFeeds(complete={**known.complete, **complete}, announced={**left, **announced})
        with contextlib.suppress(Conflict):  # whoever compares all of it was faster; look again
            store.swap(FEEDS, found.to_json(), expected=raw)
            return


def _read(store: Store) -> tuple[bytes | None, LatestFeeds | None]:
    try:
        raw = store.read(FEEDS)
    except FileNotFoundError:
        return None, None
    try:
        return raw, LatestFeeds.model_validate_json(raw)
    except ValidationError:
        return raw, None


def _is_there(store: Store, name: str, number: int) -> bool:
    return store.exists(f"{FeedRef(name=name, version=number).prefix}/{MANIFEST}")
