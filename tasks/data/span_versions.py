"""The versions of the workspace's spans and item feeds, found by their manifests.

A version without a manifest is incomplete and does not count. A derived record also has the latest versions of all
feeds, because hourly exports leave too many to list each time. Ingest writes it under its lock, and announces each
version before committing it, so a killed ingest hides nothing. Without a readable record, all versions are listed.
"""

import contextlib
import datetime as dt
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field, ValidationError

from infra.store.base import Conflict, Store
from infra.store.manifest import MANIFEST
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.spans import SpanKind, first_day, in_order, span_of
from tasks.contracts.workspace import PACKED_FEEDS
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

FEEDS = PACKED_FEEDS.key()
FEW = 50  # announced versions that readers look up one by one; with more, they list all versions

_COMPLETE = re.compile(rf"(?:spans|items)/([^/]+)/v([1-9]\d*)/{re.escape(MANIFEST)}")


def list_spans(store: Store) -> list[SpanRef]:
    """Return the latest complete version of each span, oldest span first.

    Raises:
        ConfigError: a folder below spans/ is not named like a span.
    """
    latest = latest_versions(store, "spans")
    return [SpanRef(name=name, version=latest[name]) for name in in_order(list(latest))]


def refuse_other_kinds(store: Store, kind: SpanKind) -> None:
    """Raise ConfigError if there are spans of another length: rows of a month and its quarter would count twice."""
    for ref in list_spans(store):
        start = first_day(ref.name)
        if span_of(dt.datetime(start.year, start.month, start.day), kind) != ref.name:
            raise ConfigError(
                f"a {kind.value} as span: {store.uri} has spans of another length, such as {ref.name!r}, and rows of "
                "overlapping spans would be trained on twice; use that length, or another workspace"
            )


def latest_version(store: Store, name: str, root: str = "spans") -> int | None:
    """Return the highest complete version of a span, or None; `root` is "items" for an item feed."""
    return latest_versions(store, f"{root}/{name}").get(name)


def find(spans: Sequence[SpanRef], name: str) -> SpanRef:
    """Return the span with this name.

    Raises:
        ConfigError: the span was not ingested, or the name has no known form; lists the nearest spans.
    """
    first_day(name)  # raises for a name of no known form
    for span in spans:
        if span.name == name:
            return span
    names = [span.name for span in spans]
    near = sorted(difflib.get_close_matches(name, names, n=3)) or names[-3:]
    raise ConfigError(
        f"span {name!r} was not ingested; near it: {', '.join(near)} (of {len(names)} spans); ingest it again, or "
        "name one of them"
    )


def latest_versions(store: Store, prefix: str) -> dict[str, int]:
    """Return the highest complete version of each span by name; lists all keys below `prefix`."""
    latest: dict[str, int] = {}
    for key in store.list(prefix):
        if found := _COMPLETE.fullmatch(key):
            name, version = found[1], int(found[2])
            latest[name] = max(version, latest.get(name, 0))
    return latest


class LatestFeeds(Record):
    """`packs/feeds.json`: the latest version of each span of the item feeds, by name."""

    version: Literal[1] = 1
    complete: dict[str, int]
    announced: dict[str, int] = Field(default={}, description="versions being written, or left by a killed ingest")


def list_feeds(store: Store) -> list[FeedRef]:
    """Return the latest complete version of each span of the item feeds, oldest span first.

    Raises:
        ConfigError: a span has a name of no known form.
    """
    _, known = _read_feeds(store)
    if known is None or len(known.announced) > FEW:
        latest = latest_versions(store, "items")
    else:
        there = {name: number for name, number in known.announced.items() if _is_there(store, name, number)}
        latest = _highest(known.complete, there)
    return [FeedRef(name=name, version=latest[name]) for name in in_order(list(latest))]


@contextlib.contextmanager
def noted(store: Store, versions: Mapping[str, int]) -> Iterator[None]:
    """Announce versions before the block commits them, and record them as complete after it.

    The caller holds the lock of ingest. Nothing is written if all versions are known.
    """
    _, known = _read_feeds(store)
    if known is not None and all(number <= known.complete.get(name, 0) for name, number in versions.items()):
        yield
        return
    _swap_feeds(store, {}, versions)
    yield
    _swap_feeds(store, versions, {})


def note_all(store: Store) -> None:
    """Compare the record with the versions below `items/`, and rewrite it if a person changed something there.

    Takes no lock: if an ingest writes the record meanwhile, the next call repairs it.
    """
    raw, known = _read_feeds(store)
    there = latest_versions(store, "items")
    before = known.announced if known is not None else {}
    left = {name: number for name, number in before.items() if there.get(name, 0) < number}
    found = LatestFeeds(complete=there, announced=left)
    if found != known and (there or raw is not None):
        with contextlib.suppress(Conflict):
            store.swap(FEEDS, found.to_json(), expected=raw)


def _swap_feeds(store: Store, complete: Mapping[str, int], announced: Mapping[str, int]) -> None:
    """Add versions to the record. No number falls: an ingest that stood still may yet complete its later version."""
    while True:
        raw, known = _read_feeds(store)
        if known is None:
            known = LatestFeeds(complete=latest_versions(store, "items"))
        ended, begun = _highest(known.complete, complete), _highest(known.announced, announced)
        left = {name: number for name, number in begun.items() if number > ended.get(name, 0)}
        found = LatestFeeds(complete=ended, announced=left)
        with contextlib.suppress(Conflict):  # `note_all` was faster; try again
            store.swap(FEEDS, found.to_json(), expected=raw)
            return


def _highest(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {**one, **{name: max(number, one.get(name, 0)) for name, number in other.items()}}


def _read_feeds(store: Store) -> tuple[bytes | None, LatestFeeds | None]:
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
