"""Which spans the workspace holds, and in which versions; told by the manifests alone.

A version whose manifest is not there was never completed, and does not count.
"""

from __future__ import annotations

import re

from infra.manifest import MANIFEST
from infra.store import Store
from tasks.contracts import SpanRef
from tasks.spans import in_order

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


def _latest(store: Store, prefix: str) -> dict[str, int]:
    latest: dict[str, int] = {}
    for key in store.list(prefix):
        if found := _COMPLETE.fullmatch(key):
            name, version = found[1], int(found[2])
            latest[name] = max(version, latest.get(name, 0))
    return latest
