"""The population stability index (PSI) of a distribution and its bins. The caller compares it with a limit."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasks.contracts.profiles import Bin

BINS = 10  # deciles of the earlier rows
MIN_ROWS = 50  # on each side; with fewer, chance moves the index more than any shift worth a warning
_CATEGORIES = 20  # the commonest earlier categories, which have a bin each
_EPSILON = 1e-4  # least share of an empty bin, which has no logarithm; of few rows half a row is more
MISSING, NEVER_SEEN, OTHERS = "no value", "never seen before", "all others"


class Drift(NamedTuple):
    """The index, and its expected value if both sides have the same distribution."""

    psi: float
    by_chance: float
    bins: tuple[Bin, ...]


def population_stability(earlier: np.ndarray, now: np.ndarray) -> Drift:
    """Return the PSI of `now` against `earlier`, both 1-d float64 with NaN for null.

    PSI = sum over bins of (n - e) * ln(n / e), with e and n the shares of `earlier` and `now` in a bin. The bins are
    the deciles of `earlier`, or its distinct values if they are at most 20 (ratings, classes), plus one bin for values
    never seen before; nulls have their own bin. Shares are clamped to half a row, or 1e-4.

    The usual reading (N. Siddiqi, Credit Risk Scorecards, 2006): below 0.1 no change, 0.1 to 0.25 some, above 0.25 a
    real shift. For equal distributions the mean is about (bins - 1) * (1/rows earlier + 1/rows now) (B. Yurdakul,
    Statistical Properties of Population Stability Index, 2018): `by_chance`.
    """
    values = earlier[~np.isnan(earlier)]
    distinct = np.unique(values)
    if len(distinct) <= 2 * BINS:
        labels = [*(f"{value:g}" for value in distinct), NEVER_SEEN]
        earlier_bin, now_bin = (_by_value(column, distinct) for column in (earlier, now))
        known = now[~np.isnan(now)]
        new = [np.unique(some, return_counts=True)[1] for some in (values, known[~np.isin(known, distinct)])]
        usual = _usual(new[0], new[1], len(earlier), len(now))
    else:
        edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
        labels, usual = _ranges(edges), 0.0
        earlier_bin, now_bin = (np.searchsorted(edges, column, side="right") for column in (earlier, now))
    missing = len(labels)
    return _compared(
        [*labels, MISSING],
        np.where(np.isnan(earlier), missing, earlier_bin),
        np.where(np.isnan(now), missing, now_bin),
        usual,
    )


def category_stability(earlier: pd.Series, now: pd.Series) -> Drift:
    """Return the PSI of categories; null if missing.

    The bins are the 20 commonest categories of `earlier`, its other categories together, new categories, and nulls.
    """
    counts = counted(earlier)
    ordered = list(counts)
    common = ordered[:_CATEGORIES]
    labels = [*common, OTHERS, NEVER_SEEN, MISSING]
    places = {name: min(place, len(common)) for place, name in enumerate(ordered)}

    def numbers(column: pd.Series) -> np.ndarray:
        of_known = column.map(places).fillna(len(common) + 1)
        return np.where(column.isna(), len(common) + 2, of_known).astype(np.int64)

    new = [count for name, count in counted(now).items() if name not in places]
    usual = _usual(np.array(list(counts.values())), np.array(new), len(earlier), len(now))
    return _compared(labels, numbers(earlier), numbers(now), usual)


def counted(names: pd.Series) -> dict[str, int]:
    """Return the count of each non-null name, the commonest first."""
    counts = {str(name): int(times) for name, times in names.value_counts().items()}
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def _usual(before: np.ndarray, new: np.ndarray, earlier: int, now: int) -> float:
    """Return the share of rows with a value never seen that is no drift.

    In a sample of the same values it is about the share of the earlier rows whose value occurs once (Good 1953, "The
    population frequencies of species", section 2). Each of them is rare, so the commonest one does not count.

    Args:
        before: rows of each earlier value, int64 (values,); `new`: of each value never seen.
        earlier: number of earlier rows; `now`: of new ones.
    """
    return float(min((before == 1).sum() / earlier, (new.sum() - new.max(initial=0)) / now))


def _compared(labels: Sequence[str], earlier: np.ndarray, now: np.ndarray, usual: float) -> Drift:
    """Return the PSI of two columns of bin numbers, without bins that are empty on both sides.

    Args:
        usual: share of rows in the bin NEVER_SEEN that was to be expected, though no earlier row is in it.
    """
    e, n = (np.bincount(column, minlength=len(labels)) / len(column) for column in (earlier, now))
    used = np.flatnonzero((e > 0) | (n > 0))
    expected = e.copy()
    if usual:
        expected *= 1 - usual
        expected[labels.index(NEVER_SEEN)] = usual
    shares = [
        np.clip(side[used], max(_EPSILON, 0.5 / rows), None) for side, rows in ((expected, len(earlier)), (n, len(now)))
    ]
    return Drift(
        psi=float(np.sum((shares[1] - shares[0]) * np.log(shares[1] / shares[0]))),
        by_chance=(len(used) - 1) * (1 / len(earlier) + 1 / len(now)),
        bins=tuple(
            Bin(label=labels[b], earlier=round(float(e[b]), 6), now=round(float(n[b]), 6)) for b in used.tolist()
        ),
    )


def _ranges(edges: np.ndarray) -> list[str]:
    texts = [f"{edge:.4g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(texts)]
    return [f"below {texts[0]}", *between, f"{texts[-1]} and more"]


def _by_value(column: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the index of each value in `distinct`; for other values, its length."""
    if not len(distinct):
        return np.zeros(len(column), dtype=np.int64)
    found = np.minimum(np.searchsorted(distinct, column), len(distinct) - 1)
    return np.where(distinct[found] == column, found, len(distinct))
