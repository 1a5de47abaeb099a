"""Values with a usual share of the rows that are gone from a window, as a market that an export leaves out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.config import Config
from tasks.contracts.outcomes import Check
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.rows.columns import Compared
from tasks.worker.rows.drift import MIN_ROWS

_LEFT = 0.1  # share of its usual share: a value with less is gone. Seasons leave more.


class _Gone(NamedTuple):
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
        why = f"{earlier.rows} earlier rows and {now.rows} in the window; {MIN_ROWS} on each side are needed"
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


def _gone(earlier: Compared, now: Compared, before: np.ndarray, after: np.ndarray) -> Sequence[_Gone]:
    values, place = np.unique([str(each) for each in before if isinstance(each, str)], return_inverse=True)
    shares = np.bincount(place, minlength=len(values)) / earlier.rows
    found = []
    for at in np.flatnonzero(shares * now.rows >= MIN_ROWS):
        value, usual = str(values[at]), float(shares[at])
        has = before == value
        own = np.setdiff1d(earlier.items[has], earlier.items[~has])
        left = float(((after == value) | np.isin(now.items, own)).mean())
        if left < _LEFT * usual:
            found.append(_Gone(usual, left, value))
    return sorted(found, key=lambda each: -each.usual)
