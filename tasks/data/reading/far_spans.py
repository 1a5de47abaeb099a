"""Few rows far away in time from all others: wrong dates more often than data."""

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tasks.contracts.spans import SpanKind, after, first_day, in_order, last_day
from tasks.foundation.errors import DataError

# Longer without a row than this, and what comes before or after may be a wrong date.
FAR = {
    SpanKind.day: dt.timedelta(days=60),
    SpanKind.week: dt.timedelta(days=182),
    SpanKind.month: dt.timedelta(days=366),
    SpanKind.quarter: dt.timedelta(days=2 * 366),
    SpanKind.year: dt.timedelta(days=3 * 366),
}
FEW = 0.05  # of all rows


class Seen(NamedTuple):
    """The first record of a span: where it is, and the rows of the span."""

    where: str  # file, row, column and value
    rows: int


def refuse_far_spans(
    kind: SpanKind,
    source: Mapping[str, Seen],
    known: Mapping[str, Callable[[], int]],
    trusted: tuple[bool, bool],
) -> None:
    """Refuse spans of few rows that are far from most rows of source and workspace.

    Args:
        source: the spans of the source, by name.
        known: the spans of the workspace; what gives their rows is called only where spans are far apart.
        trusted: whether a person said where the data begins, and where it ends; that side is not judged then.

    Raises:
        DataError: there is such a span; names the first record of it and the ways out.
    """
    groups = _groups(in_order(list({*source, *known})), FAR[kind])
    if len(groups) < 2:
        return
    rows = [sum(source[name].rows if name in source else known[name]() for name in group) for group in groups]
    main = rows.index(max(rows))
    for place, group in enumerate(groups):
        early = place < main
        if place == main or trusted[0 if early else 1] or set(group) & set(known) or rows[place] > FEW * sum(rows):
            continue
        first = source[group[0]]
        border = first_day(groups[main][0]) if early else last_day(groups[main][-1])
        option, edge = ("--not-before", first_day(group[0])) if early else ("--not-after", last_day(group[-1]))
        many = "1 row is" if rows[place] == 1 else f"{rows[place]} rows are"
        raise DataError(
            f"{first.where}: {many} in {_named(group)}, far from the other {sum(rows) - rows[place]} rows, "
            f"{_named(groups[main])}. If the time is wrong, correct it, or set such rows aside with "
            f"{option} {border} --set-aside FILE; if it is right, say so with {option} {edge}"
        )


def _groups(names: Sequence[str], far: dt.timedelta) -> list[list[str]]:
    """Cut spans in order wherever more time than `far` has none."""
    groups: list[list[str]] = []
    for name in names:
        if not groups or first_day(name) - first_day(after(groups[-1][-1])) > far:
            groups.append([])
        groups[-1].append(name)
    return groups


def _named(group: Sequence[str]) -> str:
    return group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"
