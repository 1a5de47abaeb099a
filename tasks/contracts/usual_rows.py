"""The usual number of rows of a span, by the spans before it, and spans with far fewer, as after an outage."""

from collections.abc import Mapping, Sequence
from statistics import median

from pydantic import Field

from tasks.foundation.records import Record

USUAL_SPANS = 8  # the usual number of rows is the median of the newest 8 spans
ENOUGH_SPANS = 2  # earlier spans without which no number is usual


class FewRows(Record):
    """A span with far fewer rows than are usual."""

    span: str = Field(description="name of the span")
    rows: int = Field(description="its rows")
    usual: float = Field(description="median rows of the eight spans before it")

    @property
    def sentence(self) -> str:
        """The fact in one sentence without an end."""
        return f"{self.span} has {self.rows:,} rows, {self.rows / self.usual:.1%} of the usual {self.usual:,.0f}"


def usual_rows(earlier: Sequence[int]) -> float | None:
    """Return the usual number of rows after spans with these numbers, oldest first; None: too few spans, or no rows."""
    usual = median(earlier[-USUAL_SPANS:]) if len(earlier) >= ENOUGH_SPANS else None
    return usual or None


def few_rows(rows: Mapping[str, int], most_missing: float | None) -> list[FewRows]:
    """Return the spans that lack more of the usual rows than a share; none without a share.

    Args:
        rows: rows by span, oldest first.
        most_missing: `validate.before.missing.warn`.
    """
    numbers = [*rows.values()]
    found = []
    for place, (span, count) in enumerate(rows.items()):
        usual = usual_rows(numbers[:place])
        if usual is not None and most_missing is not None and 1 - count / usual > most_missing:
            found.append(FewRows(span=span, rows=count, usual=usual))
    return found
