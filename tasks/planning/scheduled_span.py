"""The span of a scheduled run, and earlier spans that have arrived and were not trained.

They depend on the workspace and the scheduled time of the run, not on the present time.
"""

import datetime as dt

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.spans import SpanKind, first_day, kind_of, last_over
from tasks.data import span_versions
from tasks.foundation.errors import ConfigError, DataError
from tasks.planning.next_run import after, windows
from tasks.planning.skips import spans_to_train
from tasks.planning.start import consumed, on_active
from tasks.runs import branches, lineage


def due_span(store: Store, scheduled: dt.datetime, zone: str) -> str:
    """Return the newest span that has ended at `scheduled` by the calendar of `zone`, arrived or not.

    Raises:
        ConfigError: the zone is unknown, or the workspace's spans have several lengths.
        DataError: the workspace has no span yet, so their length is not known.
    """
    return last_over(scheduled, zone, span_kind(store))


def span_kind(store: Store) -> SpanKind:
    """Return the length of the spans of a workspace.

    Raises:
        ConfigError: they have several lengths.
        DataError: no span exists.
    """
    names = [span.name for span in span_versions.list_spans(store)]
    by_kind = {kind_of(name): name for name in names}
    if not by_kind:
        raise DataError(f"{store.uri} holds no ingested span, so nothing can be due; first: millrace look FILE")
    if len(by_kind) > 1:
        raise ConfigError(
            f"{store.uri} holds spans of several lengths ({', '.join(by_kind.values())}), so which one is due can't be "
            "said; keep one length to a workspace, or name the span"
        )
    return next(iter(by_kind))


def missed(store: Store, config: Config, up_to: str) -> list[str]:
    """Return the arrived spans up to and including `up_to` that come after the lineage's trained spans.

    Skipped spans are left out, and small ones that are trained together with a later one or wait for it. A new lineage
    has missed nothing: its first run trains all spans up to its own.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    config = on_active(store, config)
    trained = consumed(lineage.head(store, config.lineage))
    if not trained:
        return []
    later = after(spans_to_train(store, config.lineage), trained)
    due = [span for span in later if first_day(span.name) <= first_day(up_to)]
    return [window[-1].name for window in windows(store, config, due)]


def require_arrived(store: Store, span: str) -> str:
    """Return `span`, which is due. Raises DataError: it has not arrived; the message names the next step."""
    if span_versions.latest_version(store, span) is None:
        names = [ref.name for ref in span_versions.list_spans(store)]
        newest = f"the newest that has is {names[-1]}" if names else "none has"
        raise DataError(
            f"span {span} is due and has not arrived in {store.uri} ({newest}). Once `millrace ingest` has put it "
            f"there, the deployment watch/hourly starts its run; sooner by hand: millrace run --span {span}"
        )
    return span


def run_of(store: Store, config: Config, span: str) -> str:
    """Return the last span of the run that trained `span`.

    Raises:
        StoreError: a checkpoint, or the record of a branch, is not readable.
    """
    for _, state in lineage.completed(store, branches.active(store, config.lineage)):
        names = [rows.span.name for rows in state.consumed]
        if span in names:
            return names[-1]
    return span
