"""The releases of a history, refreshes included: each publication with its metric, and the one that serves."""

from collections.abc import Sequence

from configs.schema.metrics import main_metric
from flows.presentation.model import Cell, Section, table
from flows.presentation.wording import NONE, ON_HOLDOUT, count, moment, number
from tasks.contracts.runs import Release
from tasks.monitoring.history import History


def published_as(refreshed: int | None) -> str:
    """Return the kind of a release, as in `refresh of 4`. `refreshed`: the release whose model it keeps, if any."""
    return f"refresh of {refreshed}" if refreshed is not None else "new model"


def release_rows(newest_first: Sequence[Release], serving: int | None) -> tuple[list[str], list[list[Cell | str]]]:
    """Return the columns of a table, as `table` takes them, and a row for each release."""
    metric = next((name for each in newest_first if (name := main_metric(each.metrics))), None)
    columns = ["release", "", "span", "made at", ">vectors", f">{metric or 'metric'}"]
    rows: list[list[Cell | str]] = [
        [
            Cell(f"{each.number}, serves", "✓", "good") if each.number == serving else str(each.number),
            published_as(each.refreshed),
            each.span.name,
            moment(each.created_at),
            count(each.vectors),
            number(each.metrics.get(metric)) if metric else NONE,
        ]
        for each in newest_first
    ]
    return columns, rows


def releases_section(history: History) -> Section | None:
    """Return a row for each of the newest releases; None before the first."""
    if not history.published:
        return None
    columns, rows = release_rows(history.published[::-1], history.current.number if history.current else None)
    caption = f"Newest first; metrics {ON_HOLDOUT}, which a refresh takes over from its model"
    return Section("Releases", id="releases", tables=(table(caption, columns, rows),))
