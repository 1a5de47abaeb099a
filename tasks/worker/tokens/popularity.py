"""How popular the item, or the query, of each row is among all rows of a run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tasks.worker.tokens.positives import ROWS_AT_ONCE, Buckets


def write_popularity(records: Path, kind: np.dtype, rows: int, key: str, path: Path, only: str | None = None) -> None:
    """Write log(c * M / N) of each row, float32 (rows,): 0 where all keys are equally frequent.

    c is the number of counted rows with the row's key, M the number of distinct keys and N that of counted rows, so
    c / N is how probable it is that a random row has the key, here as a multiple of 1 / M. Rows that don't count
    have 0. Four bytes a row are in memory.

    Args:
        records: a file with the rows, and perhaps more after them.
        key: the field with the keys, int64 and not negative.
        path: the file; its folder has others while it is made.
        only: a field; rows where it is 0 don't count. None: all do.
    """
    buckets, counts, keys = Buckets(path.parent, path.name, rows, 2), np.zeros(rows, dtype=np.float32), 0
    for start, some in _pieces(records, kind, rows):
        counted = some[only] > 0 if only is not None else np.ones(len(some), dtype=bool)
        buckets.add(np.stack([some[key][counted], start + np.flatnonzero(counted)], axis=1))
    for bucket in buckets:
        _, which, count = np.unique(bucket[:, 0], return_inverse=True, return_counts=True)
        counts[bucket[:, 1]] = count[which]
        keys += len(count)
    there = counts > 0
    counts[there] = np.log(counts[there] * (keys / max(int(there.sum()), 1)))
    counts.tofile(path)


def _pieces(records: Path, kind: np.dtype, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the number of the first of some rows, and these rows."""
    with records.open("rb") as file:
        for start in range(0, rows, ROWS_AT_ONCE):
            yield start, np.fromfile(file, kind, min(ROWS_AT_ONCE, rows - start))
