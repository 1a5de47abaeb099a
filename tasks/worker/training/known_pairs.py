"""Known positive pairs, which are never used as negatives.

They come from all rows of the lineage so far, training and holdout, and from the golden set. An item is also relevant
if it shares a normalised text with a relevant item, in any row, as in `tasks.worker.model.relevant`.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.references import RowsRef
from tasks.data.label_columns import pair_mask
from tasks.data.rows import ITEM, ITEM_ID, QUERY, read_rows
from tasks.worker.process.job import Job
from tasks.worker.training.positives import ROWS_AT_ONCE, Buckets, Positives, PositivesFile, ranges
from tasks.worker.training.tokenised import KEYS, id_keys, text_keys

ROW_KEYS = np.dtype([*((name, "<i8") for name in KEYS), ("pair", "?")])  # a row's keys; True if it is a pair
MADE = "known"  # file with the path of the folder that the machine's first worker has written
_TEXTS = "item_texts"


class KnownPositives(NamedTuple):
    """The relevant items of each query: by `item_key`, and by `text_key`."""

    items: Positives
    texts: Positives

    def part(self, queries: np.ndarray) -> KnownPositives:
        """Return the relevant items of some queries, int64 (n,), distinct and ascending, in memory."""
        return KnownPositives(self.items.part(queries), self.texts.part(queries))

    @classmethod
    def open(cls, folder: Path) -> KnownPositives:
        """Open the files of `write_known`, which are not read into memory."""
        return cls(Positives.open(folder, "item_key"), Positives.open(folder, "text_key"))


@dataclass(frozen=True)
class LineageKeys:
    """The keys of all rows of some spans and the golden set, read again in each iteration.

    `golden`: the key of the golden set, whose rows are all pairs, if any.
    """

    store: Store
    refs: Sequence[RowsRef]
    golden: str | None
    heads: HeadsConfig

    @property
    def rows(self) -> int:
        """Number of rows of the spans."""
        return sum(ref.rows for ref in self.refs)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield ROW_KEYS (rows,), some thousand rows at a time."""
        for table in read_rows(self.store, self.refs, []):
            yield _row_keys(table, pair_mask(table, self.heads))
        if self.golden is not None:
            table = pq.read_table(self.store.local(self.golden))
            yield _row_keys(table, np.ones(table.num_rows, dtype=bool))


def open_known(job: Job, keys: LineageKeys, barrier: Callable[[], object]) -> KnownPositives:
    """Return the known positives, in files that one worker of each machine writes for all.

    The files are deleted once all workers have opened them: the system keeps them while they are in use.

    Args:
        barrier: waits for every worker of the stage.
    """
    rank = job.rank
    if rank.local:
        known = KnownPositives.open(Path(job.machine.wait_for(MADE, "the known pairs").decode()))
        barrier()
        return known
    began = time.monotonic()
    with job.scratch() as folder:
        write_known(folder, keys, keys.rows)
        known = KnownPositives.open(folder)
        if rank.world > 1:  # through a file: the work can exceed a process group's timeout
            job.machine.publish(MADE, str(folder).encode())
        barrier()
    print(f"the pairs of {keys.rows} rows are known; {time.monotonic() - began:.1f} s", flush=True)
    return known


def find_known_positives(keys: Iterable[np.ndarray], rows: int) -> KnownPositives:
    """Return the known positives of some rows, ROW_KEYS; `rows`: upper limit of their number."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        write_known(Path(name), keys, rows)
        return KnownPositives.open(Path(name))


def write_known(folder: Path, keys: Iterable[np.ndarray], rows: int) -> None:
    """Write the known positives into files of `folder`, with some hundred thousand rows in memory.

    Args:
        keys: ROW_KEYS (n,), of all rows.
        rows: upper limit of their number.
    """
    texts, pairs = Buckets(folder, _TEXTS, rows, 2), Buckets(folder, "pairs", rows, 3)
    for some in _gathered(keys):
        texts.add(_columns(some, "item_key", "text_key"))
        pairs.add(_columns(some[some["pair"]], "query_key", "item_key", "text_key"))
    with PositivesFile(folder, _TEXTS) as several:
        for bucket in texts:
            several.add(bucket[:, 0], bucket[:, 1])
    of_item = Positives.open(folder, _TEXTS)
    with PositivesFile(folder, "item_key") as by_item, PositivesFile(folder, "text_key") as by_text:
        for bucket in pairs:
            queries, item, text = bucket.T
            by_item.add(queries, item)
            items, number = np.unique(item, return_inverse=True)
            pair, others = _expanded(number, *of_item.lists(items), len(items))
            by_text.add(np.concatenate([queries, queries[pair]]), np.concatenate([text, others]))
    for path in folder.glob(f"{_TEXTS}.*"):
        path.unlink()


def _expanded(number: np.ndarray, whose: np.ndarray, values: np.ndarray, lists: int) -> tuple[np.ndarray, np.ndarray]:
    """Replace each list number in `number` with the values of that list; return places in `number`, and the values."""
    counts = np.bincount(whose, minlength=lists)
    begins = np.cumsum(counts) - counts
    each = counts[number]
    return np.repeat(np.arange(len(number)), each), values[ranges(begins[number], each)]


def _gathered(keys: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the same rows in larger pieces, so that buckets get many at a time."""
    waiting: list[np.ndarray] = []
    for some in keys:
        waiting.append(some)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _columns(keys: np.ndarray, *names: str) -> np.ndarray:
    return np.stack([keys[name] for name in names], axis=1)


def _row_keys(table: pa.Table, pair: np.ndarray) -> np.ndarray:
    keys = np.empty(table.num_rows, dtype=ROW_KEYS)
    keys["query_key"], keys["text_key"] = text_keys(table[QUERY]), text_keys(table[ITEM])
    keys["item_key"], keys["pair"] = id_keys(table[ITEM_ID]), pair
    return keys
