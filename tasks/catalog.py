"""Which spans the workspace holds, and in which versions; told by the manifests alone.

A version whose manifest is not there was never completed, and does not count.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from infra.manifest import MANIFEST
from infra.store import Store
from tasks.contracts import SpanRef
from tasks.errors import ConfigError
from tasks.spans import first_day, in_order

_COMPLETE = re.compile(rf"spans/([^/]+)/v([1-9]\d*)/{re.escape(MANIFEST)}")


def list_spans(store: Store) -> list[SpanRef]:
    """The latest complete version of each span, oldest span first.

    Raises:
        ConfigError: a folder below spans/ is not named like a span.
    """
    latest = _latest(store, "spans")
    return [SpanRef(name=name, version=latest[name]) for name in in_order(list(latest))]


def latest_version(store: Store, name: str) -> int | None:
    """The highest complete version of one span; None where there is none."""
    return _latest(store, f"spans/{name}").get(name)


def find(spans: Sequence[SpanRef], name: str) -> SpanRef:
    """The span of this name out of `list_spans`.

    Raises:
        ConfigError: it was not ingested, or is in no known form; says which there are near it.
    """
    first_day(name)  # a name in no known form gets that error, not a guess
    for span in spans:
        if span.name == name:
            return span
    names = [span.name for span in spans]
    near = sorted(difflib.get_close_matches(name, names, n=3)) or names[-3:]
    raise ConfigError(f"span {name!r} was not ingested; near it: {', '.join(near)} (of {len(names)} spans)")


def _latest(store: Store, prefix: str) -> dict[str, int]:
    latest: dict[str, int] = {}
    for key in store.list(prefix):
        if found := _COMPLETE.fullmatch(key):
            name, version = found[1], int(found[2])
            latest[name] = max(version, latest.get(name, 0))
    return latest
