"""Values that are gone from a window, as a market or a class, next to earlier spans; features that tell the class.

Classes are judged only for what chance surely does not give: in a month with labels as before, a check fails in less
than one of a thousand cases, whatever the limits.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from configs.schema.config import Config
from configs.schema.training import ClassificationHead
from configs.schema.validation import LabelsConfig
from tasks.contracts.outcomes import Check
from tasks.data.rows import LABEL
from tasks.foundation.nouns import plural
from tasks.quality.row_metrics import area_under_roc
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.rows.columns import Compared
from tasks.worker.rows.drift import MIN_ROWS

_LEFT = 0.1  # share of its usual share: a value with less is gone. Seasons leave more.


class _GoneValue(NamedTuple):
    usual: float
    left: float
    value: str


def judge_values(earlier: Compared, now: Compared, config: Config) -> list[Check]:
    """Return for each slice and categorical feature the check that the usual values are there; empty without any.

    A value that only got another name is there: the items that had it alone still have rows. At least 50 rows must be
    expected, of which chance leaves less than a tenth in no month of a lifetime.
    """
    entity = (config.features.entity,) if config.features.entity else ()
    columns = dict.fromkeys((*config.evaluate.slices, *config.features.categorical, *entity))
    return [_judge(column, earlier, now, config) for column in columns]


def _judge(column: str, earlier: Compared, now: Compared, config: Config) -> Check:
    limits, name = config.validate_.before.value, f"usual values of {column}"
    sides = [_names(rows, column) for rows in (earlier, now)]
    if sides[0] is None or sides[1] is None or min(earlier.rows, now.rows) < MIN_ROWS:
        why = f"{plural(earlier.rows, 'earlier row')} and {now.rows} in the window; {MIN_ROWS} on each side are needed"
        return not_judged(name, limits, why)
    gone = _gone(earlier, now, *(each for each in sides if each is not None))
    if not gone:
        return check_share(name, 0.0, limits, "before.value", f"every usual {column} is there")
    share = sum(each.usual for each in gone)
    named = ", ".join(f"{each.value!r} ({each.usual:.2%} of the rows before, {each.left:.2%} now)" for each in gone[:3])
    sentence = f"{column} {named}{' and others' * (len(gone) > 3)} and the items that had it are gone"
    advice = "Does the export leave something out? Rows that come later: millrace ingest --merge."
    return check_share(name, share, limits, "before.value", sentence, advice)


def _names(rows: Compared, column: str) -> np.ndarray | None:
    found = rows.series.get(column)
    return None if found is None or len(found) != rows.rows else np.asarray(found.astype(object), dtype=object)


def _gone(earlier: Compared, now: Compared, before: np.ndarray, after: np.ndarray) -> Sequence[_GoneValue]:
    values, place = np.unique([str(each) for each in before if isinstance(each, str)], return_inverse=True)
    shares = np.bincount(place, minlength=len(values)) / earlier.rows
    found = []
    for at in np.flatnonzero(shares * now.rows >= MIN_ROWS):
        value, usual = str(values[at]), float(shares[at])
        has = before == value
        own = np.setdiff1d(earlier.items[has], earlier.items[~has])
        left = float(((after == value) | np.isin(now.items, own)).mean())
        if left < _LEFT * usual:
            found.append(_GoneValue(usual, left, value))
    return sorted(found, key=lambda each: -each.usual)


ONE_CLASS, TOLD = "both classes", "labels not told by a feature"
_FEWEST = 20  # items of each class
_SURELY = 3.5  # standard errors: one in 4,000, for up to a few features
_RARE = 1e-6  # chance at which a class is missing for a reason
_ALONE = 0.9  # without earlier spans: no honest feature tells the class alone
_HALVES = 2


def judge_labels(earlier: Compared, now: Compared, config: Config) -> list[Check]:
    """Return the check that both classes are there, and that no feature tells the class; empty without a head."""
    head = config.heads.classification
    if head is None:
        return []
    limits = config.validate_.labels
    before, after = (_classes(rows, head) for rows in (earlier, now))
    return [_one_class(earlier, now, before, after, config), _told(earlier, now, before, after, config, limits)]


def _classes(rows: Compared, head: ClassificationHead) -> np.ndarray:
    """Return each row's class, float64 (rows,): 0, 1, or NaN without one; empty if labels are no numbers."""
    labels = rows.series.get(LABEL)
    if labels is None or labels.dtype.kind != "f" or len(labels) != rows.rows:
        return np.empty(0)
    values = labels.to_numpy()
    return np.where(values <= head.negative_max, 0.0, np.where(values >= head.positive_min, 1.0, np.nan))


class _GoneClass(NamedTuple):
    """A class that no row of a part has, with its usual share there."""

    where: str
    which: int
    usual: float
    rows: int


def _one_class(earlier: Compared, now: Compared, before: np.ndarray, after: np.ndarray, config: Config) -> Check:
    limits = config.validate_.labels.one_class
    many = [int((~np.isnan(each)).sum()) for each in (before, after)]
    if min(many) < MIN_ROWS:
        rows = f"{plural(many[0], 'earlier row')} and {many[1]} in the window"
        why = f"{rows} have a class; {MIN_ROWS} on each side are needed"
        return not_judged(ONE_CLASS, limits, why)
    gone = [
        found
        for where, then, mine in _parts(earlier, now, config.evaluate.slices)
        if (found := _missing(where, before[then], after[mine])) is not None
    ]
    if not gone:
        shares = " and ".join(f"{float(np.nanmean(each)):.2%}" for each in (after, before))
        sentence = f"{shares} of the rows with a class have class 1, now and in the spans before"
        return check_share(ONE_CLASS, 0.0, limits, "labels.one_class", sentence)
    worst = max(gone, key=lambda each: (not each.where, each.usual))  # all rows before any part of them
    sentence = (
        f"none of {worst.rows} rows{worst.where} has class {worst.which}, and {worst.usual:.2%} of them had it in the "
        "spans before"
    )
    advice = "Is the label filled by a default, or are rows of one kind left out?"
    return check_share(ONE_CLASS, worst.usual, limits, "labels.one_class", sentence, advice, "that vanish")


def _parts(earlier: Compared, now: Compared, columns: Sequence[str]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield all rows, then the rows of each value of the columns: a phrase, and the masks of both sides."""
    yield "", np.ones(earlier.rows, dtype=bool), np.ones(now.rows, dtype=bool)
    for column in columns:
        both = [rows.series.get(column) for rows in (earlier, now)]
        if any(each is None or len(each) != rows.rows for each, rows in zip(both, (earlier, now), strict=True)):
            continue
        then, mine = (np.asarray(each, dtype=object) for each in both)
        for value in sorted({each for each in mine if isinstance(each, str)}):
            yield f" with {column} {value}", then == value, mine == value


def _missing(where: str, before: np.ndarray, after: np.ndarray) -> _GoneClass | None:
    """Return the class that is missing, unless its share before makes that possible by chance."""
    before, after = before[~np.isnan(before)], after[~np.isnan(after)]
    if len(before) < MIN_ROWS or not len(after):
        return None
    for which in (0, 1):
        usual = float((before == which).mean())
        if usual < 1 and not (after == which).any() and (1 - usual) ** len(after) < _RARE:
            return _GoneClass(where, which, usual, len(after))
    return None


class _Strength(NamedTuple):
    """How surely a feature tells the class, 2 AUC - 1, with its standard error."""

    value: float
    error: float
    by: str


def _told(
    earlier: Compared, now: Compared, before: np.ndarray, after: np.ndarray, config: Config, limits: LabelsConfig
) -> Check:
    features = config.features
    entity = (features.entity,) if features.entity else ()
    found: list[tuple[float, str]] = []
    for name in dict.fromkeys((*features.numeric, *features.categorical, *entity)):
        mine = _strength(now, name, after)
        if mine is None:
            continue
        then = _strength(earlier, name, before)
        usual = then or _Strength(0.0, 0.0, "")
        surely = mine.value - usual.value - _SURELY * float(np.hypot(mine.error, usual.error))
        if then is None and mine.value < _ALONE:
            surely = 0.0
        compared = f"{(then.value + 1) / 2:.3f} in the spans before" if then else "and no span is before it"
        sentence = (
            f"{mine.by} {name} alone tells the class of a row with an AUC of {(mine.value + 1) / 2:.3f}, {compared}; "
            f"2 AUC - 1 has surely risen by {max(0.0, surely):.2f}"
        )
        found.append((max(0.0, surely), sentence))
    if not found:
        return not_judged(TOLD, limits.told, f"no feature has {_FEWEST} items of each class")
    rise, sentence = max(found)
    advice = "Is the feature filled after the outcome is known, or by it? Then it is not there in a search."
    return check_share(TOLD, min(1.0, rise), limits.told, "labels.told", sentence, advice)


def _strength(rows: Compared, name: str, classes: np.ndarray) -> _Strength | None:
    """Return the larger strength of a feature's values and of its absence; None if too few items have a class.

    Each item counts once in each class.
    """
    values = rows.series.get(name)
    if values is None or len(values) != len(classes):
        return None
    known = np.flatnonzero(~np.isnan(classes))
    of_items = pd.DataFrame({"item": rows.items[known], "class": classes[known]})
    once = known[~of_items.duplicated().to_numpy()]  # rows about one item hang together: with a few head items, the
    classes, some = classes[once], values.iloc[once]  # feature that names the item would tell the class
    there = some.notna().to_numpy()
    absent = _of(classes, (~there).astype(np.float64), "The absence of")
    half = (rows.items[once] % _HALVES).astype(np.int64)
    numbers = some.to_numpy(dtype=np.float64) if some.dtype.kind == "f" else _rates(some, classes, half)
    found = [each for each in (absent, _of(classes[there], numbers[there], "The value of")) if each is not None]
    return max(found, default=None)


def _of(classes: np.ndarray, says: np.ndarray, by: str) -> _Strength | None:
    """Return the strength; its error is that of a feature that tells nothing (Mann and Whitney 1947)."""
    ones, zeros = int((classes == 1).sum()), int((classes == 0).sum())
    if min(ones, zeros) < _FEWEST:
        return None
    area = area_under_roc(classes, says)
    assert area is not None
    return _Strength(abs(2 * area - 1), 2 * float(np.sqrt((ones + zeros + 1) / (12 * ones * zeros))), by)


def _rates(names: pd.Series, classes: np.ndarray, half: np.ndarray) -> np.ndarray:
    """Return for each row the share of class 1 of its category in the other half of the items, float64 (rows,).

    By its own half, a category of one item would tell its class.
    """
    found = np.full(len(names), float(classes.mean()) if len(classes) else 0.0)
    for each in range(_HALVES):
        others = pd.Series(classes[half != each]).groupby(names.to_numpy()[half != each]).mean()
        rates = names[half == each].map(others).to_numpy(dtype=np.float64)
        found[half == each] = np.where(np.isnan(rates), found[half == each], rates)
    return found
