"""The relation of a feature's values to the same items' earlier ones: found in numbers, not in single items.

A sale moves all prices and keeps their order; a wrong join does not.
"""

from typing import NamedTuple

import numpy as np
import pandas as pd

_SAME = 1e-3  # share by which a ratio may differ from a power of ten, as after rounding
_HIGHEST = 6  # powers of ten, either way


class Relation(NamedTuple):
    """`kept`: 1 for values in the same order, or equal categories; 0 for values without any relation; None if unknown.

    `unit` is the share of the items whose number is `times` times the one before, with a power of ten other than 1.
    """

    items: int
    kept: float | None
    unit: float = 0.0
    times: float = 1.0
    examples: tuple[str, ...] = ()


def relation_of(ids: np.ndarray, before: np.ndarray, now: np.ndarray) -> Relation:
    """Return the relation of the values, float64 or object (items,), without missing ones."""
    return _of_numbers(ids, before, now) if before.dtype.kind == "f" else _of_names(ids, before, now)


def _of_numbers(ids: np.ndarray, before: np.ndarray, now: np.ndarray) -> Relation:
    """Compare by the rank correlation (Spearman 1904), which no change of unit and no sale moves."""
    ratios = np.divide(now, before, out=np.ones_like(now), where=(before > 0) & (now > 0))
    powers = np.round(np.log10(ratios)).astype(np.int64)
    exact = (powers != 0) & (np.abs(powers) <= _HIGHEST) & (np.abs(ratios / 10.0**powers - 1) < _SAME)
    often = int(pd.Series(powers[exact]).mode().iloc[0]) if exact.any() else 0
    scaled = exact & (powers == often)
    old, new = (pd.Series(each).rank().to_numpy() for each in (before, now))
    spread = len(ids) > 1 and min(float(np.ptp(old)), float(np.ptp(new))) > 0
    kept = float(np.corrcoef(old, new)[0, 1]) if spread else None
    differ = np.flatnonzero(scaled if scaled.any() else before != now)
    return Relation(
        len(ids),
        None if kept is None else max(0.0, kept),
        float(scaled.mean()) if len(ids) else 0.0,
        10.0**often,
        _examples(ids, before, now, differ),
    )


def _of_names(ids: np.ndarray, before: np.ndarray, now: np.ndarray) -> Relation:
    """Compare by the share of equal categories among the ones that existed before: a new name of one is no move."""
    existed = pd.Series(now).isin(before).to_numpy(dtype=bool)
    ids, before, now = ids[existed], before[existed], now[existed]
    same = before == now
    return Relation(
        len(ids),
        float(same.mean()) if len(ids) else None,
        examples=_examples(ids, before, now, np.flatnonzero(~same)),
    )


def _examples(ids: np.ndarray, before: np.ndarray, now: np.ndarray, places: np.ndarray) -> tuple[str, ...]:
    def shown(value: object) -> str:
        return f"{value:g}" if isinstance(value, float) else repr(value)

    return tuple(f"{ids[at]!r}: {shown(before[at])} became {shown(now[at])}" for at in places[:3].tolist())
