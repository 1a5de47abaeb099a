"""Metrics on unseen and on seen queries, always next to each other: columns, cells, a table and a sentence.

A query is unseen if all its rows are held out. A number over both would hide that a model knows its training queries.
Forward scores too: a release on the span after it, with the previous release.
"""

from collections.abc import Iterable, Mapping, Sequence

from configs.schema.gates import METRICS, Family
from flows.presentation.model import Table, table
from flows.presentation.wording import MINUS, NONE, count, difference, number, share
from tasks.contracts.evaluation import (
    MAIN,
    ByQueries,
    ForwardNumbers,
    ForwardScore,
    PartMetrics,
    Queries,
    Role,
    main_metric,
)
from tasks.foundation.nouns import plural

_OF_PAIRS = (Family.ranking, Family.likelihood)  # the others are over rows with a label, whose number is not on record
OF_QUERIES: dict[Queries, str] = {"unseen": "unseen queries", "seen": "seen queries"}
ALL_QUERIES = "all held-out queries"


def of_queries(metric: str) -> tuple[str, ...]:
    """Return the names of a metric's two numbers: `recall@10, unseen queries`, and of seen ones."""
    return tuple(f"{metric}, {name}" for name in OF_QUERIES.values())


def columns(metric: str | None) -> tuple[str, ...]:
    """Return the two columns of a metric, as `table` takes them."""
    return tuple(f">{name}" for name in of_queries(metric or "metric"))


def cells(found: ByQueries | None, metric: str | None) -> tuple[str, ...]:
    """Return the cells of `columns`: the value, and the interval if the metric has one."""
    return tuple(_with_interval(part, metric) for part in found.parts.values()) if found else (NONE,) * len(OF_QUERIES)


def metric_of(each: Iterable[ByQueries | None]) -> str | None:
    """Return the metric to show where there is room for one; None if nothing was measured."""
    parts = [part for found in each if found is not None for part in found.parts.values()]
    return main_metric(name for part in parts for name in part.metrics)


def sentence(found: ByQueries | None) -> str:
    """Return both numbers in words, as in `recall@10 0.9132 on unseen queries and 0.9411 on seen ones`."""
    metric = metric_of([found])
    if found is None or metric is None:
        return ""
    values: dict[Queries, float | None] = {name: part.metrics.get(metric) for name, part in found.parts.items()}
    said = [f"{number(value)} on {OF_QUERIES[part]}" for part, value in values.items() if value is not None]
    return f"{metric} {' and '.join(said)}"


def by_queries(challenger: ByQueries, champion: ByQueries | None, of: str) -> Table:
    """Return a table of the metrics of challenger and champion on each part, unseen queries first.

    Args:
        of: rows and corpus in words.
    """
    rows = []
    theirs = champion.parts if champion else {}
    for name, part in challenger.parts.items():
        before = theirs.get(name)
        rows += [
            (
                f"{metric}, {OF_QUERIES[name]}",
                number(value),
                interval(part, metric),
                number(before.metrics.get(metric) if before else None),
                difference(value, before.metrics.get(metric) if before else None),
                count(part.rows) if METRICS[metric].family in _OF_PAIRS else NONE,
            )
            for metric, value in part.metrics.items()
        ]
    names = ("metric", ">challenger", "95 % interval", ">champion", ">difference", ">pairs")
    return table(f"Unseen and seen queries apart: {of}", names, rows)


def truly_seen(found: ByQueries) -> tuple[str, ...]:
    """Return a sentence about seen rows whose query no training row has; empty if there is none."""
    if found.seen_trained is None or found.seen_trained == 1:
        return ()
    return (
        f"Of the held-out pairs of seen queries, {share(found.seen_trained)} have a query that a training row has; the "
        "others are held out by their group, and no other row has their query.",
    )


def of_roles(found: Mapping[Role, ByQueries]) -> tuple[ByQueries | None, ByQueries | None]:
    """Return the challenger's and the champion's numbers."""
    return found.get(Role.challenger), found.get(Role.champion)


def interval(part: PartMetrics, metric: str | None) -> str:
    """Return the bounds of the metric, as in `0.9012 to 0.9345`; only recall@10 has them."""
    if metric != MAIN or part.low is None or part.high is None:
        return NONE
    return f"{number(part.low)} to {number(part.high)}"


def _with_interval(part: PartMetrics, metric: str | None) -> str:
    value = number(part.metrics.get(metric or ""))
    bounds = interval(part, metric)
    return value if bounds == NONE else f"{value} ({bounds})"


CAPTION = "Each release on the span after it, which it had not seen"
_COLUMNS = ("span", ">release", "queries", ">rows", ">{metric}", ">release before", ">its {metric}", ">difference",
            "95 % interval", ">untrained")  # fmt: skip


def forward_sentence(score: ForwardScore) -> str:
    """Return a release's score on the span after it, on unseen and on seen queries."""
    said = "; ".join(
        f"{score.metric} on {OF_QUERIES[queries]} {_told(score, numbers)}" for queries, numbers in score.parts.items()
    )
    whole = f"{score.metric} {_told(score, score)}"
    return f"Release {score.release} on span {score.span}, which it had not seen: {said or whole}."


def _told(score: ForwardScore, numbers: ForwardNumbers) -> str:
    found = f"{number(numbers.value)} over {plural(numbers.rows, 'holdout row')}"
    if score.previous is not None and numbers.previous_value is not None:
        bounds = f", 95 % interval {forward_interval(numbers)}" if numbers.low is not None else ""
        gain = difference(numbers.value, numbers.previous_value)
        found += f", the release before it, {score.previous}, {number(numbers.previous_value)} ({gain}{bounds})"
    return found if numbers.untrained is None else f"{found}, untrained {number(numbers.untrained)}"


def forward_interval(numbers: ForwardNumbers) -> str:
    """Return the bounds of the difference to the release before."""
    if numbers.low is None or numbers.high is None:
        return NONE
    return " to ".join(f"{bound:+.4f}".replace("-", MINUS) for bound in (numbers.low, numbers.high))


def forward_rows(scores: Sequence[ForwardScore]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table, as `table` takes them, and a row for each part of each score; at least one."""
    rows = [
        [
            score.span,
            str(score.release),
            OF_QUERIES[queries],
            count(numbers.rows),
            number(numbers.value),
            str(score.previous or NONE),
            number(numbers.previous_value),
            difference(numbers.value, numbers.previous_value),
            forward_interval(numbers),
            number(numbers.untrained),
        ]
        for score in scores
        for queries, numbers in score.parts.items()
    ]
    return [name.format(metric=scores[0].metric) for name in _COLUMNS], rows
