"""Forward scores as sentences and rows: a release on the span after it, compared with the previous release."""

from collections.abc import Sequence

from flows.presentation.wording import MINUS, NONE, count, difference, number, plural
from tasks.contracts.evaluation import ForwardScore

CAPTION = "Each release on the span after it, which it had not seen"
_COLUMNS = ("span", ">release", ">rows", ">{metric}", ">release before", ">its {metric}", ">difference",
            "95 % interval", ">untrained")  # fmt: skip


def forward_sentence(score: ForwardScore) -> str:
    """Return a release's score on the span after it."""
    found = f"{score.metric} {number(score.value)} over {plural(score.rows, 'holdout row')}"
    if score.previous is not None:
        bounds = f", 95 % interval {interval(score)}" if score.low is not None else ""
        gain = difference(score.value, score.previous_value)
        found += f"; the release before it, {score.previous}, {number(score.previous_value)} ({gain}{bounds})"
    if score.untrained is not None:
        found += f"; untrained {number(score.untrained)}"
    return f"Release {score.release} on span {score.span}, which it had not seen: {found}."


def interval(score: ForwardScore) -> str:
    """Return the bounds of the difference to the release before."""
    if score.low is None or score.high is None:
        return NONE
    return " to ".join(f"{bound:+.4f}".replace("-", MINUS) for bound in (score.low, score.high))


def forward_rows(scores: Sequence[ForwardScore]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of a table, as `table` takes them, and a row for each score; at least one."""
    rows = [
        [
            score.span,
            str(score.release),
            count(score.rows),
            number(score.value),
            str(score.previous or NONE),
            number(score.previous_value),
            difference(score.value, score.previous_value),
            interval(score),
            number(score.untrained),
        ]
        for score in scores
    ]
    return [name.format(metric=scores[0].metric) for name in _COLUMNS], rows
