"""How far a distribution has moved, as one number. The caller decides whether that is too far."""

from typing import NamedTuple

import numpy as np

BINS = 10  # deciles of the earlier rows
MIN_ROWS = 50  # on each side; with fewer, chance moves the index more than any shift worth a warning
_EPSILON = 1e-4  # replaces the share of an empty bin, which has no logarithm


class Drift(NamedTuple):
    """The index, its number of bins, and the index that chance alone gives for so many rows of one distribution."""

    psi: float
    bins: int
    by_chance: float


def population_stability(earlier: np.ndarray, now: np.ndarray) -> Drift:
    """Return the population stability index (PSI) of `now` against `earlier`, both 1-d float64, NaN where null.

    PSI = sum over bins of (n - e) * ln(n / e), where e and n are the shares of `earlier` and `now` in a bin. The
    bins are the deciles of `earlier`, or its distinct values where it has no more than 20 of them (ratings,
    classes), with one bin for values never seen before; nulls are a bin of their own. Shares are clamped to 1e-4.

    By the usual reading (N. Siddiqi, Credit Risk Scorecards, 2006) below 0.1 is no change, 0.1 to 0.25 some, above
    0.25 a real shift. For equal distributions its mean is about (bins - 1) * (1/rows earlier + 1/rows now)
    (B. Yurdakul, Statistical Properties of Population Stability Index, 2018): `by_chance`.
    """
    values = earlier[~np.isnan(earlier)]
    distinct = np.unique(values)
    if len(distinct) <= 2 * BINS:
        bins = len(distinct) + 1
        earlier_bin, now_bin = (_by_value(column, distinct) for column in (earlier, now))
    else:
        edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
        bins = len(edges) + 1
        earlier_bin, now_bin = (np.searchsorted(edges, column, side="right") for column in (earlier, now))
    e, n = (
        np.bincount(np.where(np.isnan(column), bins, numbered), minlength=bins + 1) / len(column)
        for column, numbered in ((earlier, earlier_bin), (now, now_bin))
    )
    used = (e > 0) | (n > 0)
    e, n = np.clip(e[used], _EPSILON, None), np.clip(n[used], _EPSILON, None)
    filled = int(used.sum())
    return Drift(
        psi=float(np.sum((n - e) * np.log(n / e))),
        bins=filled,
        by_chance=(filled - 1) * (1 / len(earlier) + 1 / len(now)),
    )


def _by_value(column: np.ndarray, distinct: np.ndarray) -> np.ndarray:
    """Return the index of each value in `distinct`; for other values, its length."""
    if not len(distinct):
        return np.zeros(len(column), dtype=np.int64)
    found = np.minimum(np.searchsorted(distinct, column), len(distinct) - 1)
    return np.where(distinct[found] == column, found, len(distinct))
