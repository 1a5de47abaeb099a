"""Detect wrong rows in a new span: compare the champion there with the same champion on the spans before.

The other gates compare two models on the same rows. If the rows are wrong, both models are equally wrong, and no gate
notices. The champion has not seen the new span, but on items of its release it is nearly as good there as before, even
if a third of the items is new, since new items don't count.
"""

from collections.abc import Sequence

import numpy as np

from configs.schema.stages import Bounds
from tasks.contracts.evaluation import Role, Verdict
from tasks.quality.answers import Answers, answers_of, measure
from tasks.quality.intervals import Term, error_of, estimate
from tasks.quality.row_results import RowResults
from tasks.quality.selection import counting

METRIC = "recall@10"
FEWEST = 50  # rows on each side; with fewer, recall is too noisy
CONFIDENCE = 0.95
CHAMPION_BEFORE = "champion before"  # name of the baseline: the champion on the spans before


def judge_falls(rows: RowResults, window: Sequence[str], bounds: Bounds) -> dict[str, Verdict]:
    """Return a verdict for each span of the window with enough holdout rows; none without a champion.

    Args:
        window: names of the spans that the champion was not trained on.
        bounds: share of its value on the spans before that the champion may lose.
    """
    if Role.champion not in rows.ranks or rows.held is None:
        return {}
    counted = counting(rows, METRIC, Role.champion) & rows.held & ~rows.golden
    before = counted & ~np.isin(rows.span, list(window))
    spans = {span: counted & (rows.span == span) for span in window}
    if before.sum() < FEWEST:
        return {}
    return {s: _judge(rows, s, new, before, bounds) for s, new in spans.items() if new.sum() >= FEWEST}


def _judge(rows: RowResults, span: str, new: np.ndarray, before: np.ndarray, bounds: Bounds) -> Verdict:
    answers = [answers_of(rows, METRIC, among, [Role.champion]) for among in (new, before)]
    (value,), (baseline,) = (measure(each) for each in answers)
    stops, warns = (limit is not None and _lost(answers, limit) for limit in (bounds.stop, bounds.warn))
    limit = bounds.stop if stops or bounds.warn is None else bounds.warn
    error = error_of(*_less(answers, 1.0))
    low, high = error.bounds(value - baseline, CONFIDENCE)
    lost = (baseline - value) / baseline if baseline else 0.0
    return Verdict(
        metric=METRIC,
        severity="critical" if stops else "warning",
        answer="fail" if stops or warns else "pass",
        value=value,
        baseline=baseline,
        sentence=_sentence(span, value, baseline, lost, limit, (int(new.sum()), int(before.sum())), stops, warns),
        against=CHAMPION_BEFORE,
        where=f"the champion on {span}",
        over=f"{int(new.sum()):,} holdout rows about items of its release",
        rows=int(new.sum()),
        groups=len(np.unique(rows.group[new])),
        threshold=None if limit is None else -limit * baseline,
        difference=value - baseline,
        low=low,
        high=high,
        standard_error=error.standard_error,
        degrees=error.degrees,
        confidence=CONFIDENCE,
    )


def _less(answers: Sequence[Answers], share: float) -> tuple[Term, Term]:
    """Return the metric on the new rows less a share of that on the rows before."""
    return Term(answers[0], (1.0,)), Term(answers[1], (-share,))


def _lost(answers: Sequence[Answers], share: float) -> bool:
    """Return True if more than the share is lost, at CONFIDENCE."""
    terms = _less(answers, 1 - share)
    return error_of(*terms).bounds(estimate(*terms), CONFIDENCE)[1] < 0


def _sentence(
    span: str,
    value: float,
    baseline: float,
    lost: float,
    limit: float | None,
    rows: tuple[int, int],
    stops: bool,
    warns: bool,
) -> str:
    allowed = "" if limit is None else f"; a loss of {limit:.0%} is allowed"
    said = (
        f"The champion's {METRIC} is {value:.4f} on {rows[0]:,} holdout rows of span {span} about items that its "
        f"release holds, and {baseline:.4f} on {rows[1]:,} of the spans before"
    )
    if not (stops or warns):
        return f"{said}: {'no loss' if lost <= 0 else f'a loss of {lost:.1%}'}{allowed}."
    return (
        f"{said}: a loss of {lost:.1%}{allowed}, with {CONFIDENCE:.0%} confidence. The champion is the same, so the "
        f"rows of {span} differ: are queries, ids, texts, features and labels joined rightly? If not, ingest the span "
        "again with --replace. If customers really search otherwise now: millrace gate --run KEY --override NAME "
        "--reason TEXT, or another evaluate.champion_loss."
    )
