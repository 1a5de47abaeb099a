"""Words that queries share with their items, beyond chance: few of them if ids, queries or texts are joined wrongly."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tasks.data.rows import normal_text

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
