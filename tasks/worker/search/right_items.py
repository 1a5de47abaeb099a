"""Which items of a release are right for some queries: sorted hashes of query and item, eight bytes for each pair."""

import numpy as np

from tasks.worker.search.released_items import ReleasedItems
from tasks.worker.tokens.known import Known

_ODD = np.uint64(0x9E3779B97F4A7C15)


class RightItems:
    """The right items of some queries, by id and by text.

    An item of the release is right if its id is, or if a right item has its text, in rows or in the release.
    """

    def __init__(
        self, known: Known, released: ReleasedItems, queries: np.ndarray, ids: np.ndarray, texts: np.ndarray
    ) -> None:
        """Look up the right items of some pairs' queries, and add those of the pairs themselves.

        Args:
            queries: int64 (pairs,), keys of the queries, as `ids` and `texts` of the items.
        """
        asked = np.unique(queries)
        whose, items = known.items.lists(asked)
        whose_text, of_rows = known.texts.lists(asked)
        whose, items = np.concatenate([asked[whose], queries]), np.concatenate([items, ids])
        places = released.places_of(items)
        there = places >= 0
        self._released = released
        self._sorted = np.unique(
            np.concatenate(
                [
                    _joined(whose, items),
                    _joined(whose[there], released.texts[places[there]]),
                    _joined(asked[whose_text], of_rows),
                    _joined(queries, texts),
                ]
            )
        )

    def has(self, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return whether items are right for queries, bool; int64 keys and places in the release, of shapes that fit.

        Only for queries that were looked up.
        """
        return self._found(queries, self._released.ids[places]) | self._found(queries, self._released.texts[places])

    def _found(self, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        wanted = _joined(queries, items)
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return self._sorted[place] == wanted


def _joined(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return one number for each pair, uint64. Both keys are uniform, so an odd factor is enough to mix them."""
    return queries.view(np.uint64) * _ODD + items.view(np.uint64)
