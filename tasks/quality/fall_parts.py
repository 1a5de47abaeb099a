"""Detect rows that are wrong in one part of a new span, or in their labels, or about new items alone.

`fall.py` compares the champion's recall over the whole span. Two of nine categories with inverted labels move that by a
few points; in their own rows the champion finds nothing. So each value of a slice is judged by itself, and so is the
relation of the champion's scores to the labels: it falls to chance if the labels belong to other rows.
"""

from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from configs.schema.stages import Bounds
from tasks.contracts.evaluation import Role, Verdict
from tasks.quality.fall import CHAMPION_BEFORE, CONFIDENCE, METRIC
from tasks.quality.row_metrics import RANKING, area_under_roc
from tasks.quality.row_results import RowResults
from tasks.quality.selection import Part, counting, slices_of

AREA = "auc"
_FEWEST_OF_A_CLASS = 5
_FEWEST_NEW = 30  # rows about new items
_NOT_FOUND = 0.1  # a share of the recall on known items: a model that was trained on honest new items finds more
_SKILL = 0.2  # 2 AUC - 1 before, below which a fall tells nothing
_NORMAL = NormalDist()


class _Fall(NamedTuple):
    """A number of the champion in a part of the new span and before, each with its standard error."""

    where: str  # empty: all rows
    metric: str
    value: float
    before: float
    error: float
    error_before: float
    rows: tuple[int, int]
    groups: int

    def chance(self, share: float) -> float:
        """Return the probability of such a fall, if no more than the share of the number before is lost."""
        scale = 2.0 if self.metric == AREA else 1.0  # skill is 2 AUC - 1
        value, before = (scale * each - (scale - 1) for each in (self.value, self.before))
        error = scale * float(np.hypot(self.error, (1 - share) * self.error_before))
        return _NORMAL.cdf((value - (1 - share) * before) / error)

    @property
    def lost(self) -> float:
        value, before = ((2 * each - 1 if self.metric == AREA else each) for each in (self.value, self.before))
        return (before - value) / before


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
    hits = np.asarray(RANKING[METRIC](rows.ranks[Role.champion]), dtype=np.float64)
    counted = counting(rows, METRIC, Role.champion) & rows.held
    for part in parts:
        sides = [part.rows & counted & each for each in (new, before)]
        if min(int(each.sum()) for each in sides) < fewest:
            continue
        (value, error), (was, error_before) = (_mean(hits[each], rows.group[each]) for each in sides)
        counts = (int(sides[0].sum()), int(sides[1].sum()))
        yield _Fall(part.where, METRIC, value, was, error, error_before, counts, len(np.unique(rows.group[sides[0]])))


def _mean(hits: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Return the mean and its standard error with whole groups drawn.

    Half a hit and half a miss are added, so that equal answers do not give an error of 0 (Agresti and Coull 1998).
    """
    many = len(hits)
    value = (hits.sum() + 0.5) / (many + 1)
    _, group = np.unique(groups, return_inverse=True)
    of_groups = np.bincount(group, weights=hits - value)
    return float(hits.mean()), float(np.sqrt((of_groups**2).sum() + 0.5 * (value**2 + (1 - value) ** 2)) / (many + 1))


def _areas(
    rows: RowResults, parts: Sequence[Part], new: np.ndarray, before: np.ndarray, fewest: int
) -> Iterator[_Fall]:
    """Yield the AUC of each part by the champion's probabilities; without a head, by its ranks."""
    says = rows.probabilities.get(Role.champion)
    scores = -rows.ranks[Role.champion].astype(np.float64) if says is None else says.astype(np.float64)
    for part in parts:
        sides = [part.rows & (rows.label_class >= 0) & each for each in (new, before)]
        measured = [_area(rows.label_class[each], scores[each], fewest) for each in sides]
        if measured[0] is None or measured[1] is None or 2 * measured[1][0] - 1 < _SKILL:
            continue
        (value, error), (was, error_before) = measured[0], measured[1]
        counts = (int(sides[0].sum()), int(sides[1].sum()))
        yield _Fall(part.where, AREA, value, was, error, error_before, counts, len(np.unique(rows.group[sides[0]])))


def _area(classes: np.ndarray, scores: np.ndarray, fewest: int) -> tuple[float, float] | None:
    """Return the AUC, and the standard error of one by chance (Mann and Whitney 1947), which no other one exceeds."""
    ones, zeros = int((classes == 1).sum()), int((classes == 0).sum())
    if len(classes) < fewest or min(ones, zeros) < _FEWEST_OF_A_CLASS:
        return None
    area = area_under_roc(classes, scores)
    if area is None or np.isnan(area):
        return None
    return area, float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros)))


def _failed(span: str, falls: Sequence[_Fall], bounds: Bounds) -> tuple[Verdict, ...]:
    stops, warns = (_surely(falls, limit) for limit in (bounds.stop, bounds.warn))
    return tuple(
        _verdict(span, fall, bounds.stop if fall in stops else bounds.warn, fall in stops)
        for fall in falls
        if fall in stops or fall in warns
    )


def _surely(falls: Sequence[_Fall], limit: float | None) -> list[_Fall]:
    """Return the falls below the limit by Holm's method (Holm 1979)."""
    if limit is None:
        return []
    found = []
    for at, fall in enumerate(sorted(falls, key=lambda each: each.chance(limit))):
        if fall.chance(limit) > (1 - CONFIDENCE) / (len(falls) - at):
            break
        found.append(fall)
    return found


def _verdict(span: str, fall: _Fall, limit: float | None, stops: bool) -> Verdict:
    assert limit is not None
    where = f" with {fall.where}" if fall.where else ""
    by_labels = fall.metric == AREA
    unit, setting = ("2 AUC - 1", "evaluate.label_loss") if by_labels else (METRIC, "evaluate.champion_loss")
    asked = (
        "Do the labels belong to these rows, and is 1 still the good one?"
        if by_labels
        else "Are queries, ids, texts, features and labels joined rightly there?"
    )
    return Verdict(
        metric=fall.metric,
        severity="critical" if stops else "warning",
        answer="fail",
        value=fall.value,
        baseline=fall.before,
        sentence=(
            f"The champion's {'AUC of the labels' if by_labels else METRIC} is {fall.value:.4f} on {fall.rows[0]:,} "
            f"holdout rows of span {span}{where}, and {fall.before:.4f} on {fall.rows[1]:,} of the spans before: a "
            f"loss of {fall.lost:.1%} of its {unit}; a loss of {limit:.0%} is allowed, with {CONFIDENCE:.0%} "
            f"confidence over all parts. {asked} If not, ingest the span again with --replace. If they are: millrace "
            f"gate --run KEY --override NAME --reason TEXT, or another {setting}."
        ),
        against=CHAMPION_BEFORE,
        where=", ".join(filter(None, (f"the champion on {span}", fall.where))),
        over=f"{fall.rows[0]:,} holdout rows",
        rows=fall.rows[0],
        groups=fall.groups,
        difference=fall.value - fall.before,
        standard_error=float(np.hypot(fall.error, fall.error_before)),
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
    known = _mean(_hits(rows, Role.champion, sides[True]), rows.group[sides[True]])[0]
    best = max(_upper(_hits(rows, role, sides[False]), rows.group[sides[False]])
               for role in (Role.champion, Role.challenger) if role in rows.ranks)  # fmt: skip
    if best >= _NOT_FOUND * known:
        return ()
    many, value = int(sides[False].sum()), float(_hits(rows, Role.challenger, sides[False]).mean())
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


def _hits(rows: RowResults, role: Role, among: np.ndarray) -> np.ndarray:
    return np.asarray(RANKING[METRIC](rows.ranks[role]), dtype=np.float64)[among]


def _upper(hits: np.ndarray, groups: np.ndarray) -> float:
    value, error = _mean(hits, groups)
    return value + _NORMAL.inv_cdf(CONFIDENCE) * error
