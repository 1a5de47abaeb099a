"""The releases of a history, refreshes included: each publication with its metric, and the one that serves."""

from flows.presentation import queries
from flows.presentation.model import Cell, Section, table
from flows.presentation.releases import published_as
from flows.presentation.wording import ON_HOLDOUT, count, moment
from tasks.monitoring.history import History


def releases_section(history: History) -> Section | None:
    """Return a row for each of the newest releases; None before the first."""
    if not history.published:
        return None
    newest_first, serving = history.published[::-1], history.current.number if history.current else None
    metric = queries.metric_of(each.by_queries for each in newest_first)
    columns = ("release", "", "span", "made at", ">vectors", *queries.columns(metric))
    rows = [
        (
            Cell(f"{each.number}, serves", "✓", "good") if each.number == serving else str(each.number),
            published_as(each.refreshed),
            each.span.name,
            moment(each.created_at),
            count(each.vectors),
            *queries.cells(each.by_queries, metric),
        )
        for each in newest_first
    ]
    caption = f"Newest first; metrics {ON_HOLDOUT}, which a refresh takes over from its model"
    return Section("Releases", id="releases", tables=(table(caption, columns, rows),))
