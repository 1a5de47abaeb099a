"""Words that queries share with their items: far fewer of them about new items if those have the texts of others."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from tasks.data.rows import normal_text

_WORD = re.compile(r"\w{2,}")
_ERRORS = 3.0  # standard errors by which a loss is sure: one item's rows hang together


class SharedWords(NamedTuple):
    """Shares of some rows whose query has a word of its own item's text, of another row's, of any of these rows'."""

    rows: int
    own: float
    other: float
    any: float

    @property
    def beyond_chance(self) -> float:
        return self.own - self.other

    @property
    def standard_error(self) -> float:
        """Error of `beyond_chance` by two independent shares; at least that of one row."""
        variance = self.own * (1 - self.own) + self.other * (1 - self.other)
        return float((max(variance, 1 / self.rows) / self.rows) ** 0.5)


def shared_words(queries: Sequence[str], texts: Sequence[str]) -> SharedWords:
    """Return the shares of rows in an order by chance. Another row is the one half of the rows further on."""
    asked, said = ([frozenset(_WORD.findall(normal_text(text))) for text in side] for side in (queries, texts))
    many = len(asked)
    if not many:
        return SharedWords(0, 0.0, 0.0, 0.0)
    others = said[many // 2 :] + said[: many // 2]
    everywhere = frozenset[str]().union(*said)

    def share(texts: Sequence[frozenset[str]]) -> float:
        return sum(not words.isdisjoint(text) for words, text in zip(asked, texts, strict=True)) / many

    return SharedWords(many, share(said), share(others), share([everywhere] * many))


def surely_lost(new: SharedWords, known: SharedWords) -> float | None:
    """Return the share that `new` has surely lost of what `known` shares beyond chance; None if that may be none."""
    if not new.rows or not known.rows or known.beyond_chance < 2 * _ERRORS * known.standard_error:
        return None
    return max(0.0, 1 - (new.beyond_chance + _ERRORS * new.standard_error) / known.beyond_chance)
