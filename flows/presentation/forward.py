"""Forward scores as sentences and rows: a release on the span after it, by queries, with the previous release."""

from collections.abc import Sequence

from flows.presentation.queries import OF_QUERIES
from flows.presentation.wording import MINUS, NONE, count, difference, number, plural
from tasks.contracts.evaluation import ForwardNumbers, ForwardScore

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
        bounds = f", 95 % interval {interval(numbers)}" if numbers.low is not None else ""
        gain = difference(numbers.value, numbers.previous_value)
        found += f", the release before it, {score.previous}, {number(numbers.previous_value)} ({gain}{bounds})"
    return found if numbers.untrained is None else f"{found}, untrained {number(numbers.untrained)}"


def interval(numbers: ForwardNumbers) -> str:
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
            interval(numbers),
            number(numbers.untrained),
        ]
        for score in scores
        for queries, numbers in score.parts.items()
    ]
    return [name.format(metric=scores[0].metric) for name in _COLUMNS], rows
