"""How far a distribution has moved, as one number and as bars. The caller decides whether that is too far."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasks.contracts.profiles import Bin

BINS = 10  # deciles of the earlier rows
MIN_ROWS = 50  # on each side; with fewer, chance moves the index more than any shift worth a warning
_CATEGORIES = 20  # that have a bin of their own, the commonest of the earlier rows
_EPSILON = 1e-4  # replaces the share of an empty bin, which has no logarithm
MISSING, NEVER_SEEN, OTHERS = "no value", "never seen before", "all others"


class Drift(NamedTuple):
    """The index, and the index that chance alone gives for so many rows of one distribution."""

    psi: float
    by_chance: float
    bins: tuple[Bin, ...]


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
        labels = [*(f"{value:g}" for value in distinct), NEVER_SEEN]
        earlier_bin, now_bin = (_by_value(column, distinct) for column in (earlier, now))
    else:
        edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS))
        labels = _ranges(edges)
        earlier_bin, now_bin = (np.searchsorted(edges, column, side="right") for column in (earlier, now))
    missing = len(labels)
    return _compared(
        [*labels, MISSING],
        np.where(np.isnan(earlier), missing, earlier_bin),
        np.where(np.isnan(now), missing, now_bin),
    )


def category_stability(earlier: pd.Series, now: pd.Series) -> Drift:
    """Return the same index for names, null where there is none.

    The bins are the 20 commonest names of `earlier`, its other names together, names never seen before, and nulls.
    """
    ordered = list(counted(earlier))
    common = ordered[:_CATEGORIES]
    labels = [*common, OTHERS, NEVER_SEEN, MISSING]
    places = {name: min(place, len(common)) for place, name in enumerate(ordered)}
    numbered = [
        np.where(column.isna(), len(common) + 2, column.map(places).fillna(len(common) + 1)).astype(np.int64)
        for column in (earlier, now)
    ]
    return _compared(labels, *numbered)


def counted(names: pd.Series) -> dict[str, int]:
    """Return how often each name occurs, the commonest first; nulls don't count."""
    counts = {str(name): int(times) for name, times in names.value_counts().items()}
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def _compared(labels: Sequence[str], earlier: np.ndarray, now: np.ndarray) -> Drift:
    """Return the index of two columns of bin numbers; bins that are empty on both sides are left out."""
    e, n = (np.bincount(column, minlength=len(labels)) / len(column) for column in (earlier, now))
    used = np.flatnonzero((e > 0) | (n > 0))
    clipped_e, clipped_n = np.clip(e[used], _EPSILON, None), np.clip(n[used], _EPSILON, None)
    return Drift(
        psi=float(np.sum((clipped_n - clipped_e) * np.log(clipped_n / clipped_e))),
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
