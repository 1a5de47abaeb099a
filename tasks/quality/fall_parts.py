"""Detect wrong rows in a new span, in all of it, in one part, in labels, or about new items alone.

The first check compares the champion's recall over the whole span. Two of nine categories with inverted labels move
it by a few points; in their own rows the champion finds nothing. So each value of a slice is judged by itself, and so
is the relation of the champion's scores to the labels: it falls to chance if the labels belong to other rows.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.stages import Bounds
from tasks.contracts.evaluation import Role, Verdict
from tasks.quality.intervals import Error, Term, error_of, estimate
from tasks.quality.row_results import RowResults
from tasks.quality.selection import Answers, Part, answers_of, counting, measure, slices_of

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


AREA = "auc"
_FEWEST_OF_A_CLASS = 5
_FEWEST_NEW = 30  # rows about new items
_NOT_FOUND = 0.1  # a share of the recall on known items: a model that was trained on honest new items finds more
_SKILL = 0.2  # 2 AUC - 1 before, which the champion must surely have: below, a fall tells nothing
_NO_ERROR = 1e-12  # divides a number without an error


class _Fall(NamedTuple):
    """The champion's answers in a part of the new span and before; recall as it is, the AUC as 2 AUC - 1."""

    where: str  # empty: all rows
    new: Answers
    before: Answers

    @property
    def values(self) -> tuple[float, float]:
        """The metric on the new span and before."""
        return measure(self.new)[0], measure(self.before)[0]

    @property
    def lost(self) -> float:
        value, before = (self._scale * each - self._offset for each in self.values)
        return (before - value) / before

    def below(self, share: float) -> tuple[float, Error]:
        """Return the number on the new span less what must be left of that before, and the error of this difference."""
        terms = Term(self.new, (self._scale,)), Term(self.before, (-self._scale * (1 - share),))
        return estimate(*terms) - share * self._offset, error_of(*terms)

    @property
    def _scale(self) -> float:
        return 2.0 if self.new.metric == AREA else 1.0

    @property
    def _offset(self) -> float:
        return self._scale - 1


def judge_parts(
    rows: RowResults, window: Sequence[str], columns: Sequence[str], bounds: tuple[Bounds, Bounds], fewest: int
) -> dict[str, tuple[Verdict, ...]]:
    """Return the failed verdicts for each span of the window; none without a champion.

    The parts of a span are judged together: Holm's method keeps the chance of any false alarm among them at 5 %, for
    each number and limit.

    Args:
        window: names of the spans that the champion was not trained on.
        columns: each value of these is a part.
        bounds: shares that the champion may lose of its recall@10, and of its 2 AUC - 1.
        fewest: rows of a part, on each side.

    Raises:
        ConfigError: the rows lack a column.
    """
    if Role.champion not in rows.ranks:
        return {}
    loss, label_loss = bounds
    parts = [Part(f"{c}={part.where}", part.rows) for c in columns for part in slices_of(rows, c)]
    everything = Part("", ~rows.golden)
    found: dict[str, tuple[Verdict, ...]] = {}
    for span in window:
        new, before = rows.span == span, ~np.isin(rows.span, list(window)) & ~rows.golden
        recalls = [*_recalls(rows, parts, new, before, fewest)]
        areas = [*_areas(rows, (everything, *parts), new, before, fewest)]
        unseen = _new_items(rows, span, new)
        found[span] = (*_failed(span, recalls, loss), *_failed(span, areas, label_loss), *unseen)
    return found


def _recalls(
    rows: RowResults, parts: Sequence[Part], new: np.ndarray, before: np.ndarray, fewest: int
) -> Iterator[_Fall]:
    if rows.held is None:
        return
    counted = counting(rows, METRIC, Role.champion) & rows.held
    for part in parts:
        sides = [part.rows & counted & each for each in (new, before)]
        if min(int(each.sum()) for each in sides) >= fewest:
            yield _Fall(part.where, *(answers_of(rows, METRIC, each, [Role.champion]) for each in sides))


def _areas(
    rows: RowResults, parts: Sequence[Part], new: np.ndarray, before: np.ndarray, fewest: int
) -> Iterator[_Fall]:
    """Yield the AUC of each part by the champion's probabilities; without a head, by its ranks."""
    says = rows.probabilities.get(Role.champion)
    scores = -rows.ranks[Role.champion].astype(np.float64) if says is None else says.astype(np.float64)
    for part in parts:
        sides = [_scored(rows, scores, part.rows & (rows.label_class >= 0) & each) for each in (new, before)]
        if all(_has_both(side, fewest) for side in sides) and _skill(sides[1]) >= _SKILL:
            yield _Fall(part.where, *sides)


def _skill(side: Answers) -> float:
    """Return the lower bound of 2 AUC - 1: the labels of a model without skill fall by chance alone."""
    term = Term(side, (2.0,))
    return error_of(term).bounds(estimate(term) - 1, CONFIDENCE)[0]


def _scored(rows: RowResults, scores: np.ndarray, among: np.ndarray) -> Answers:
    truth = rows.label_class[among].astype(np.float64)
    return Answers(AREA, rows.group[among], rows.item_id[among], truth, (scores[among],))


def _has_both(side: Answers, fewest: int) -> bool:
    """Return True if the classes have rows enough, and each row a score."""
    ones = int(side.truth.sum())
    enough = len(side.truth) >= fewest and min(ones, len(side.truth) - ones) >= _FEWEST_OF_A_CLASS
    return enough and not np.isnan(side.values[0]).any()


def _failed(span: str, falls: Sequence[_Fall], bounds: Bounds) -> tuple[Verdict, ...]:
    stops, warns = (_surely(falls, limit) for limit in (bounds.stop, bounds.warn))
    return tuple(
        _verdict(span, falls[at], bounds.stop if at in stops else bounds.warn, at in stops)
        for at in sorted(stops | warns)
    )


def _surely(falls: Sequence[_Fall], limit: float | None) -> set[int]:
    """Return the places of the falls below the limit by Holm's method (Holm 1979)."""
    found: set[int] = set()
    if limit is None:
        return found
    below = [fall.below(limit) for fall in falls]
    surest = sorted(range(len(falls)), key=lambda at: below[at][0] / max(below[at][1].standard_error, _NO_ERROR))
    for left, at in zip(range(len(falls), 0, -1), surest, strict=True):
        number, error = below[at]
        if error.bounds(number, 1 - (1 - CONFIDENCE) / left)[1] >= 0:
            break
        found.add(at)
    return found


def _verdict(span: str, fall: _Fall, limit: float | None, stops: bool) -> Verdict:
    assert limit is not None
    where = f" with {fall.where}" if fall.where else ""
    by_labels = fall.new.metric == AREA
    (value, before), rows = fall.values, (len(fall.new.groups), len(fall.before.groups))
    error = error_of(Term(fall.new, (1.0,)), Term(fall.before, (-1.0,)))
    unit, setting = ("2 AUC - 1", "evaluate.label_loss") if by_labels else (METRIC, "evaluate.champion_loss")
    asked = (
        "Do the labels belong to these rows, and is 1 still the good one?"
        if by_labels
        else "Are queries, ids, texts, features and labels joined rightly there?"
    )
    return Verdict(
        metric=fall.new.metric,
        severity="critical" if stops else "warning",
        answer="fail",
        value=value,
        baseline=before,
        sentence=(
            f"The champion's {'AUC of the labels' if by_labels else METRIC} is {value:.4f} on {rows[0]:,} "
            f"holdout rows of span {span}{where}, and {before:.4f} on {rows[1]:,} of the spans before: a "
            f"loss of {fall.lost:.1%} of its {unit}; a loss of {limit:.0%} is allowed, with {CONFIDENCE:.0%} "
            f"confidence over all parts. {asked} If not, ingest the span again with --replace. If they are: millrace "
            f"gate --run KEY --override NAME --reason TEXT, or another {setting}."
        ),
        against=CHAMPION_BEFORE,
        where=", ".join(filter(None, (f"the champion on {span}", fall.where))),
        over=f"{rows[0]:,} holdout rows",
        rows=rows[0],
        groups=len(np.unique(fall.new.groups)),
        difference=value - before,
        standard_error=error.standard_error,
        degrees=error.degrees,
        confidence=CONFIDENCE,
    )


def _new_items(rows: RowResults, span: str, new: np.ndarray) -> tuple[Verdict, ...]:
    """Return a critical verdict if neither champion nor challenger finds the span's new items, and the known ones are.

    A new language is strange to the champion, but not to the challenger, which was trained on it.
    """
    if rows.held is None:
        return ()
    counted = counting(rows, METRIC, Role.champion) & ~rows.golden
    sides = {held: new & counted & (rows.held == held) for held in (False, True)}
    if min(int(each.sum()) for each in sides.values()) < _FEWEST_NEW:
        return ()
    (known,) = measure(answers_of(rows, METRIC, sides[True], [Role.champion]))
    roles = [role for role in (Role.champion, Role.challenger) if role in rows.ranks]
    terms = [Term(answers_of(rows, METRIC, sides[False], [role]), (1.0,)) for role in roles]
    best = max(error_of(term).bounds(estimate(term), CONFIDENCE)[1] for term in terms)
    if best >= _NOT_FOUND * known:
        return ()
    many, value = int(sides[False].sum()), estimate(terms[-1])
    return (
        Verdict(
            metric=METRIC,
            severity="critical",
            answer="fail",
            value=value,
            baseline=known,
            sentence=(
                f"On {many:,} holdout rows of span {span} about items that no release holds, {METRIC} is {value:.4f} "
                f"of the challenger and surely below {best:.4f} of either model; on known items the champion has "
                f"{known:.4f}. A model finds at least {_NOT_FOUND:.0%} of that on items that it was trained on, so "
                "the texts or the queries of the new items are wrong: a placeholder, or those of other items? If "
                "so, ingest the span again with --replace; if not: millrace gate --run KEY --override NAME --reason "
                "TEXT."
            ),
            against=CHAMPION_BEFORE,
            where=f"new items of {span}",
            over=f"{many:,} holdout rows about new items",
            rows=many,
            difference=value - known,
            confidence=CONFIDENCE,
        ),
    )
