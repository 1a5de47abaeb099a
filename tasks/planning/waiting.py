"""The untrained spans of a lineage, grouped into the windows of its runs."""

import datetime as dt
from collections.abc import Sequence

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import first_day
from tasks.planning import decisions
from tasks.runs.plan import rows_of


def position(span: SpanRef) -> tuple[dt.date, str]:
    """Return the sort key of a span."""
    return first_day(span.name), span.name


def after(spans: Sequence[SpanRef], trained: Sequence[SpanRef]) -> list[SpanRef]:
    """Return the spans after the newest of `trained`; all if nothing was trained."""
    newest = max(map(position, trained), default=None)
    return [span for span in spans if newest is None or position(span) > newest]


def windows(
    store: Store,
    config: Config,
    spans: Sequence[SpanRef],
    merge: bool | None = None,
    wanted: SpanRef | None = None,
) -> list[list[SpanRef]]:
    """Return the windows in which runs train these consecutive spans: one span each, unless some wait for the next.

    A span with fewer ingested rows than `validate.min_rows` may be merged with the spans after it until they have
    enough. A span that waits by a decision is merged with the next one. The last spans are left out if they wait.

    Args:
        merge: True to merge small spans; None: as in `validate.small_spans`.
        wanted: span that does not wait, whatever was decided, because a person or the schedule names it.

    Raises:
        StoreError: a decision is not readable.
    """
    merge = config.validate_.small_spans == "merge" if merge is None else merge
    postponed = [span for span in decisions.waiting(store, config, spans) if span != wanted]
    if not merge and not postponed:
        return [[span] for span in spans]
    found: list[list[SpanRef]] = []
    window: list[SpanRef] = []
    for span in spans:
        window.append(span)
        rows = rows_of(store, window) if merge else None
        if span not in postponed and (rows is None or sum(rows) >= config.validate_.min_rows):
            found.append(window)
            window = []
    return found


def first_windows(store: Store, config: Config, spans: Sequence[SpanRef]) -> list[list[SpanRef]]:
    """Return the windows of a new lineage. Its first one has at least `validate.min_rows` rows if the spans do."""
    first = next(iter(windows(store, config, spans, merge=True)), None)
    if first is None:
        return [] if config.validate_.small_spans == "merge" else [list(spans)]
    return [first, *windows(store, config, spans[len(first) :])]
