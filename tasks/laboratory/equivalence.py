"""Equal, different, or not decided: the quality of two sides of a comparison on the same rows, within a margin.

Two one-sided tests (Schuirmann, 1987): equal only if the whole interval of the relative difference lies within the
margin, different only if it lies beyond. A few changed answers out of 200 say neither.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pydantic import Field

from configs.schema.gates import METRICS, GateConfig
from infra.store.base import Store
from tasks.contracts.evaluation import (
    ROW_ID,
    Role,
    loss_of,
    predicted_of,
    probability_of,
    rank_of,
    says_of,
)
from tasks.foundation.records import Record
from tasks.laboratory.sides import Trained
from tasks.quality.comparisons import Measured, compare
from tasks.quality.intervals import Error, rows_needed
from tasks.quality.row_metrics import RANKING
from tasks.quality.row_results import RowResults, read_answers, row_results
from tasks.quality.selection import row_values

MARGIN = 0.001  # relative difference up to which two qualities are equal
CONFIDENCE = 0.95  # one for each bound
ROUNDING = 1e-4  # probabilities and values closer than this are the same answer; compilers add up in another order
_HEADS = {metric.head for metric in METRICS.values() if metric.head is not None}


class Bounds(NamedTuple):
    """Bounds of a difference, each at CONFIDENCE."""

    low: float
    high: float


class Finding(StrEnum):
    """The three answers."""

    equal = "equal"
    different = "different"
    undecided = "not decided"


class Equivalence(Record):
    """One metric of a side against that of the first, after the last step."""

    metric: str
    first: float = Field(description="value of the first side, mean of its seeds")
    other: float = Field(description="value of the other side")
    difference: float = Field(description="the other's minus the first's")
    relative_difference: float = Field(description="its size, divided by the larger magnitude")
    low: float | None = Field(description="lower bound of the difference, at 0.95; null: no answers to rows, no seeds")
    high: float | None = Field(description="upper bound of the difference, at 0.95")
    finding: Finding
    same_answers: bool = Field(description="true: both sides answer every row alike, with each seed")
    rows: int | None = Field(description="rows that both sides answered; null: no answers were kept")
    rows_needed: int | None = Field(
        description="rows that would decide it, about, if the difference stays; null: decided, or not by rows"
    )

    @property
    def relative_bounds(self) -> tuple[float, float] | None:
        """Bounds of the relative difference, with its sign; None if not known."""
        if self.low is None or self.high is None:
            return None
        most = max(abs(self.first), abs(self.other))
        return (self.low / most, self.high / most) if most else (self.low, self.high)

    def sentence(self) -> str:
        """Return the answer with its reason, without the names of the sides."""
        answer = {
            Finding.equal: f"is equal within {percent(MARGIN)}",
            Finding.different: f"differs by more than {percent(MARGIN)}",
            Finding.undecided: f"is not decided within {percent(MARGIN)}",
        }[self.finding]
        told = f"{self.metric} {answer}, {self.first:.4f} and {self.other:.4f}"
        bounds = self.relative_bounds
        if self.same_answers:
            return f"{told}: all {self.rows:,} rows are answered alike"
        if bounds is None:
            known = math.isfinite(self.difference)
            return f"{told}: {'no answers to rows of both sides, and one seed' if known else 'one is no number'}"
        low, high = (f"{'-' if bound < 0 else '+'}{percent(abs(bound))}" for bound in bounds)
        rows = "the seeds" if self.rows is None else f"{self.rows:,} rows"
        told = (
            f"{told}: with 0.95 confidence the relative difference is at least {low}, and at most {high}, over {rows}"
        )
        if self.finding is not Finding.undecided:
            return told
        if self.rows_needed is None or (self.rows or 0) >= self.rows_needed:
            return f"{told}; more seeds are needed"
        return f"{told}; about {self.rows_needed:,} rows would be needed, if the difference stays as it is"


def percent(share: float) -> str:
    """Format a share with two significant digits: 0.1 %, 0.000052 %."""
    if share == 0 or math.isinf(share):
        return "0 %" if share == 0 else "infinite"
    decimals = max(0, 1 - math.floor(math.log10(100 * share)))
    text = f"{100 * share:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def paired_answers(store: Store, first: Sequence[Trained], other: Sequence[Trained]) -> RowResults | None:
    """Return the answers of both sides to the same rows, the rows of all seeds one after the other.

    The first side is the champion, the other the challenger. Rows of one query keep their group in all seeds, so they
    are drawn together. None if a training kept no answers, or the sides measured different rows.

    Raises:
        StoreError: the answers of a training are gone or damaged; names the file and the way out.
    """
    tables = []
    for keys in zip(*([each.outcome.answers_key for each in side] for side in (first, other)), strict=True):
        mine, theirs = (read_answers(store, key) if key is not None else None for key in keys)
        if mine is None or theirs is None or not mine[ROW_ID].equals(theirs[ROW_ID]):
            return None
        for name, renamed in _columns(mine).items():
            theirs = theirs.append_column(renamed, mine[name])
        tables.append(theirs)
    return row_results(pa.concat_tables(tables, promote_options="permissive"))


def equivalence(
    metric: str,
    first: Sequence[float],
    other: Sequence[float],
    rows: RowResults | None,
    over_seeds: Bounds | None = None,
    tests: int = 1,
) -> Equivalence:
    """Compare two sides in one metric.

    The interval is over the rows, and over the seeds if there are several: the lower of the lower bounds, and the
    higher of the higher ones. With one seed, two trained models are compared, and other seeds may differ.

    Args:
        first: value of the first side with each seed; likewise `other`.
        rows: from `paired_answers`.
        over_seeds: bounds of the difference with the seeds as units.
        tests: number of metrics that are tested at once. Bonferroni's correction keeps the probability that any of
            them is wrongly called different at a twentieth. All must be equal, which needs no correction.
    """
    mine, theirs = (math.fsum(side) / len(side) for side in (first, other))
    many, same = (len(rows.row_id) // len(first), _same(metric, rows)) if rows is not None else (None, False)
    error = _error_over_rows(metric, rows) if rows is not None and not same else None
    over_rows, surely = (
        None if error is None else Bounds(*error.bounds(theirs - mine, 1 - doubt))
        for doubt in (1 - CONFIDENCE, (1 - CONFIDENCE) / (2 * tests))
    )
    low, high = (0.0, 0.0) if same else _hull(over_rows, over_seeds)
    margin = MARGIN * max(abs(mine), abs(theirs))
    finding = Finding.undecided
    if not math.isfinite(theirs - mine):
        finding = Finding.different
    elif low is not None and high is not None and -margin <= low and high <= margin:
        finding = Finding.equal
    elif _beyond(margin, *_hull(surely, over_seeds)):
        finding = Finding.different
    needed = None
    if finding is Finding.undecided and error is not None and many is not None:
        needed = rows_needed(many, error, theirs - mine, math.copysign(margin, theirs - mine), CONFIDENCE)
    return Equivalence(
        metric=metric,
        first=mine,
        other=theirs,
        difference=theirs - mine,
        relative_difference=relative_difference(mine, theirs),
        low=low,
        high=high,
        finding=finding,
        same_answers=same,
        rows=many,
        rows_needed=needed,
    )


def relative_difference(left: float, right: float) -> float:
    """Return the difference divided by the larger magnitude; infinite if a number is not finite."""
    if not (math.isfinite(left) and math.isfinite(right)):
        return math.inf
    return 0.0 if left == right else abs(left - right) / max(abs(left), abs(right))


def _beyond(margin: float, low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and (low > margin or high < -margin)


def all_equal(found: Sequence[Equivalence]) -> Finding:
    """Return the answer about several metrics: different if one is, equal if all are."""
    findings = {each.finding for each in found}
    if Finding.different in findings:
        return Finding.different
    return Finding.equal if findings == {Finding.equal} else Finding.undecided


def _columns(answers: pa.Table) -> Mapping[str, str]:
    """Return the names of the challenger's columns, and of the champion's in their place."""
    there = set(answers.column_names)
    names = {of(Role.challenger): of(Role.champion) for of in (rank_of, loss_of, probability_of, predicted_of)}
    names |= {says_of(Role.challenger, head): says_of(Role.champion, head) for head in _HEADS}
    return {mine: theirs for mine, theirs in names.items() if mine in there}


def _same(metric: str, rows: RowResults) -> bool:
    """Return True if both sides answer every row alike: by ranks, which tell more than who is among the first ten."""
    if metric in RANKING:
        return bool((rows.ranks[Role.challenger] == rows.ranks[Role.champion])[rows.pair].all())
    mine, theirs = (row_values(rows, metric, role) for role in (Role.challenger, Role.champion))
    return bool(np.allclose(mine, theirs, rtol=ROUNDING, atol=ROUNDING, equal_nan=True))


def _error_over_rows(metric: str, rows: RowResults) -> Error | None:
    """Return the error of the difference over the rows; None: no row can decide, or the difference is no number."""
    metrics = {role: rows.metrics(role) for role in (Role.challenger, Role.champion)}
    gate = GateConfig(
        metric=metric, baseline="champion", direction="higher", threshold=0.0, confidence=CONFIDENCE,
        severity="warning",
    )  # fmt: skip
    (found,) = compare(Measured(metrics, rows), gate)
    return found.interval.error if found.interval is not None else None


def _hull(over_rows: Bounds | None, over_seeds: Bounds | None) -> tuple[float | None, float | None]:
    """Return the lower of the lower bounds, and the higher of the higher ones; None without any."""
    known = [each for each in (over_rows, over_seeds) if each is not None]
    return min((each.low for each in known), default=None), max((each.high for each in known), default=None)
