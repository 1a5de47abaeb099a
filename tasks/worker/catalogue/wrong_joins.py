"""Signs that ids, queries, texts or features were joined wrongly, found in numbers and not in single items.

A sale moves all prices and keeps their order; a wrong join does not. And queries share words with their items, beyond
chance.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from tasks.data.rows import normal_text

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


_WORD = re.compile(r"\w{2,}")
_ERRORS = 3.0  # standard errors by which a loss is sure: one item's rows hang together
_FEWEST_WORDS = 0.1  # of the rows, beyond chance; with fewer, queries and items have no words in common by nature


class SharedWords(NamedTuple):
    """Counts of rows whose query has a word of its own item's text, of another row's, of any of these rows'."""

    rows: int
    own: int
    other: int
    any: int

    def share(self, count: int) -> float:
        """Return a count's share of the rows."""
        return count / self.rows if self.rows else 0.0

    @property
    def beyond_chance(self) -> float:
        """Share of rows whose query has a word of its own item, above the share that has one of another item."""
        return self.share(self.own - self.other)

    @property
    def standard_error(self) -> float:
        """Error of `beyond_chance` by two independent shares; at least that of one row."""
        own, other = self.share(self.own), self.share(self.other)
        return float((max(own * (1 - own) + other * (1 - other), 1 / self.rows) / self.rows) ** 0.5)

    @property
    def misplaced(self) -> float | None:
        """Share of the words in common that surely belong to other items; None if queries have none by nature.

        Right rows of product searches, reviews and encyclopedias have 0.05 to 0.67, and 0.88 to 0.99 with the items of
        other rows.
        """
        common = self.share(self.any - self.other)
        if common < _FEWEST_WORDS:
            return None
        return min(1.0, max(0.0, 1 - (self.beyond_chance + _ERRORS * self.standard_error) / common))


def shared_words(queries: Sequence[str], texts: Sequence[str]) -> SharedWords:
    """Count in rows whose order is no matter of words. Another row is the one half of the rows further on."""
    asked, said = ([frozenset(_WORD.findall(normal_text(text))) for text in side] for side in (queries, texts))
    others = said[len(said) // 2 :] + said[: len(said) // 2]
    everywhere = frozenset[str]().union(*said)

    def with_word(texts: Sequence[frozenset[str]]) -> int:
        return sum(not words.isdisjoint(text) for words, text in zip(asked, texts, strict=True))

    return SharedWords(len(asked), with_word(said), with_word(others), with_word([everywhere] * len(asked)))


def surely_lost(new: SharedWords, known: SharedWords) -> float | None:
    """Return the share that `new` has surely lost of what `known` has beyond chance; None if that may be none."""
    if not new.rows or not known.rows or known.beyond_chance < 2 * _ERRORS * known.standard_error:
        return None
    return max(0.0, 1 - (new.beyond_chance + _ERRORS * new.standard_error) / known.beyond_chance)
