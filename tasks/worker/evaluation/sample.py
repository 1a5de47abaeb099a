"""Sampling of holdout rows if the spans have more than `evaluate.max_rows`."""

from collections.abc import Sequence


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
