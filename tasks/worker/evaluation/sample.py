"""How many holdout rows of each span are measured, where there are more than `evaluate.max_rows`."""

from collections.abc import Sequence

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.quality.bootstrap import DRAWS, Answers, draw, row_values, truths
from tasks.quality.row_metrics import RANKING
from tasks.quality.row_results import RowResults

HEADLINE = "recall@10"
CONFIDENCE = 0.95  # of the interval of a number that a sample gives


def rows_of_spans(there: Sequence[int], most: int) -> list[int]:
    """Return how many rows of each span are measured, at most `most` together; a higher one takes no row away.

    The newest span has up to half of them, the others share the rest equally; what one does not need goes to the
    others.

    Args:
        there: holdout rows of each span, oldest first.
    """
    *earlier, newest = there
    own = min(newest, max(most - most // 2, most - sum(earlier)))
    return [*_shared(earlier, most - own), own]


def _shared(there: Sequence[int], rows: int) -> list[int]:
    """Return equal shares of rows, none larger than what is there; rows that can't be shared equally go to the last."""
    found, left = [0] * len(there), min(rows, sum(there))
    while left:
        wanting = [at for at, count in enumerate(there) if count > found[at]]
        each, over = divmod(left, len(wanting))
        for number, at in enumerate(reversed(wanting)):
            more = min(there[at] - found[at], each + (number < over))
            found[at] += more
            left -= more
    return found


def interval_of(results: RowResults) -> tuple[float, float] | None:
    """Return the interval in which HEADLINE of the challenger, next to the champion, is on all holdout rows.

    None where it was not measured. Rows that stand and fall together are drawn together, as for the gates.
    """
    if HEADLINE not in RANKING or HEADLINE not in results.metrics(Role.challenger):
        return None
    among = ~results.golden & results.pair
    champion = Role.champion if Role.champion in results.roles else None
    values = row_values(results, HEADLINE, Role.challenger, champion)[among]
    answers = Answers(HEADLINE, results.group[among], truths(results, HEADLINE)[among], (values,))
    low, high = np.quantile(draw(answers, DRAWS, (0,))[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
