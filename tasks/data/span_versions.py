"""The spans of the workspace and their versions, found by their manifests.

A version without a manifest was never completed, and does not count.
"""

import difflib
import re
from collections.abc import Sequence

from infra.store.base import Store
from infra.store.manifest import MANIFEST
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import first_day, in_order
from tasks.foundation.errors import ConfigError

_COMPLETE = re.compile(rf"(?:spans|items)/([^/]+)/v([1-9]\d*)/{re.escape(MANIFEST)}")


def list_spans(store: Store) -> list[SpanRef]:
    """Return the latest complete version of each span, oldest span first.

    Raises:
        ConfigError: a folder below spans/ is not named like a span.
    """
    latest = latest_versions(store, "spans")
    return [SpanRef(name=name, version=latest[name]) for name in in_order(list(latest))]


def latest_version(store: Store, name: str, root: str = "spans") -> int | None:
    """Return the highest complete version of a span, None if it has none; `root` is "items" for an item feed."""
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
    raise ConfigError(f"span {name!r} was not ingested; near it: {', '.join(near)} (of {len(names)} spans)")


def latest_versions(store: Store, prefix: str) -> dict[str, int]:
    """Return the highest complete version by name of span, by listing all that lies below `prefix`."""
    latest: dict[str, int] = {}
    for key in store.list(prefix):
        if found := _COMPLETE.fullmatch(key):
            name, version = found[1], int(found[2])
            latest[name] = max(version, latest.get(name, 0))
    return latest
