"""Sampling of holdout rows if the spans have more than `evaluate.max_rows`."""

from collections.abc import Sequence

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.quality.bootstrap import DRAWS, Answers, draw, row_values, truths
from tasks.quality.row_metrics import RANKING
from tasks.quality.row_results import RowResults
from tasks.quality.selection import counting

HEADLINE = "recall@10"
CONFIDENCE = 0.95  # level of the interval for a sampled metric


def sample_sizes(there: Sequence[int], most: int) -> list[int]:
    """Return the sample size of each span, at most `most` in all; a higher `most` only adds rows.

    The newest span gets up to half, the others share the rest equally; rows that one span lacks go to the others.

    Args:
        there: holdout rows of each span, oldest first.
    """
    *earlier, newest = there
    own = min(newest, max(most - most // 2, most - sum(earlier)))
    return [*_shared(earlier, most - own), own]


def _shared(there: Sequence[int], rows: int) -> list[int]:
    """Split `rows` equally, each share at most the span's count; the remainder goes to the last spans."""
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
    """Return the confidence interval of the challenger's HEADLINE over all holdout rows, by a bootstrap of the sample.

    None if it was not measured. With a champion, ranks are among the items that both hold. Rows of one group are
    resampled together, as for the gates.
    """
    if HEADLINE not in RANKING or HEADLINE not in results.metrics(Role.challenger):
        return None
    champion = Role.champion if Role.champion in results.roles else None
    among = ~results.golden & counting(results, HEADLINE, Role.challenger, champion)
    if not among.any():
        return None
    values = row_values(results, HEADLINE, Role.challenger, champion)[among]
    answers = Answers(HEADLINE, results.group[among], truths(results, HEADLINE)[among], (values,))
    low, high = np.quantile(draw(answers, DRAWS, (0,))[0], [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
