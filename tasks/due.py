"""Which span a scheduled run takes, and which ones before it nobody has trained although they are there.

All of it follows from the workspace and the time that the run was scheduled for; the time that it is now plays no part.
"""

from __future__ import annotations

import datetime as dt

from configs.schema import Config
from infra.store import Store
from tasks import branches, catalog, lineage
from tasks.contracts import SpanRef
from tasks.errors import ConfigError, DataError
from tasks.spans import SpanKind, first_day, kind_of, last_over


def due_span(store: Store, scheduled: dt.datetime, zone: str) -> str:
    """The newest span that is over at `scheduled` by the calendar of `zone`, arrived or not.

    Raises:
        ConfigError: there is no such zone, or the workspace's spans are of several lengths.
        DataError: the workspace holds no span yet, so their length is not known.
    """
    return last_over(scheduled, zone, span_kind(store))


def span_kind(store: Store) -> SpanKind:
    """The length of the spans of a workspace.

    Raises:
        ConfigError: they are of several lengths.
        DataError: there are none.
    """
    names = [span.name for span in catalog.list_spans(store)]
    by_kind = {kind_of(name): name for name in names}
    if not by_kind:
        raise DataError(f"{store.uri} holds no ingested span, so nothing can be due; first: millrace ingest")
    if len(by_kind) > 1:
        raise ConfigError(
            f"{store.uri} holds spans of several lengths ({', '.join(by_kind.values())}), so which one is due can't be "
            "said; keep one length to a workspace, or name the span"
        )
    return next(iter(by_kind))


def missed(store: Store, config: Config, up_to: str) -> list[str]:
    """The spans up to `up_to`, it included, that have arrived after what the lineage has trained; oldest first.

    A lineage that has trained nothing has missed nothing: its first run takes all spans up to its own with it.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    consumed = _consumed(store, config)
    if not consumed:
        return []
    watermark = max(first_day(span.name) for span in consumed)
    names = [span.name for span in catalog.list_spans(store)]
    return [name for name in names if watermark < first_day(name) <= first_day(up_to)]


def require_arrived(store: Store, span: str) -> str:
    """The span, which is due and must be there.

    Raises:
        DataError: it is not; says what happens when it comes.
    """
    if catalog.latest_version(store, span) is None:
        names = [ref.name for ref in catalog.list_spans(store)]
        newest = f"the newest that has is {names[-1]}" if names else "none has"
        raise DataError(
            f"span {span} is due and has not arrived in {store.uri} ({newest}). Once `millrace ingest` has put it "
            f"there, the deployment watch/hourly starts its run; sooner by hand: millrace run --span {span}"
        )
    return span


def run_of(store: Store, config: Config, span: str) -> str:
    """The span whose run is that of `span`: itself, unless the lineage's first run took it along with later ones.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    for _, state in lineage.completed(store, branches.active(store, config.lineage)):
        names = [rows.span.name for rows in state.consumed]
        if span in names:
            return names[-1]
    return span


def _consumed(store: Store, config: Config) -> tuple[SpanRef, ...]:
    head = lineage.head(store, branches.active(store, config.lineage))
    return () if head is None else tuple(rows.span for rows in head[1].consumed)
