"""Spans that a person excluded from a lineage, with the reason. A later version of the span is not skipped."""

from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Conflict, Store
from infra.store.records import read_record
from tasks.contracts.references import SpanRef
from tasks.contracts.workspace import SKIP
from tasks.data import span_versions
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.planning.start import consumed, find_start, on_active
from tasks.runs import branches


class Skip(Record):
    """`lineages/<lineage>/skipped/<span>-v<version>.json`: no run of the lineage takes this version of the span."""

    version: Literal[1] = 1
    span: SpanRef
    reason: str
    at: str = Field(description="time of the skip, ISO 8601 in UTC")


def skip(store: Store, config: Config, name: str, reason: str) -> Skip:
    """Record that runs of `config.lineage` skip the newest version of a span. A second call changes nothing.

    Raises:
        ConfigError: the reason is empty, the span was not ingested, the lineage has trained it, or it is already
            skipped for another reason.
        StoreError: the lineage's head is not readable.
    """
    if not reason.strip():
        raise ConfigError(f"say why {name} is skipped: --reason TEXT")
    span = span_versions.find(span_versions.list_spans(store), name)
    if span in consumed(find_start(store, on_active(store, config)).parent):
        raise ConfigError(
            f"lineage {config.lineage} has trained {name} v{span.version}, and what is in the weights can't be left out"
        )
    made = Skip(span=span, reason=reason.strip(), at=now())
    key = _key(branches.root(store, config.lineage), span)
    try:
        store.create(key, made.to_json())
    except Conflict:
        there = _read(store, key)
        if there.reason != made.reason:
            raise ConfigError(
                f"{name} v{span.version} is skipped already: {there.reason}. To change that, delete {store.uri}/{key}"
            ) from None
        return there
    return made


def skips(store: Store, lineage: str) -> dict[SpanRef, Skip]:
    """Return the skips of a lineage or branch, by span.

    Raises:
        StoreError: a record is not readable; names the file.
    """
    found = [_read(store, key) for key in store.list(SKIP.within(lineage=branches.root(store, lineage)))]
    return {one.span: one for one in found}


def spans_to_train(store: Store, lineage: str, *named: str) -> list[SpanRef]:
    """Return the newest version of every span that the lineage does not skip, oldest first.

    Raises:
        ConfigError: one of the spans in `named` is skipped.
        StoreError: as `skips`.
    """
    left_out = skips(store, lineage)
    spans = span_versions.list_spans(store)
    for span in spans:
        if span.name in named and span in left_out:
            raise ConfigError(f"{span.name} v{span.version} is skipped: {left_out[span].reason}; name another span")
    return [span for span in spans if span not in left_out]


def _read(store: Store, key: str) -> Skip:
    return read_record(store, key, Skip, "restore it from a backup, or delete it: the span is then trained")


def _key(lineage: str, span: SpanRef) -> str:
    return SKIP.key(lineage=lineage, span=span.name, version=span.version)
