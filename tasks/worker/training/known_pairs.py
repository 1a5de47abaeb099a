"""The pairs that are known to be right, trained on or held out: none of them is ever a negative.

They are those of all rows of the lineage so far, on any side of the holdout, and of the golden set. An item with the
same normalised text as a right one is right too, as `tasks.worker.model.relevant` has it where models are measured:
with any text that a row says the item has.
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
from tasks.worker.training.positives import ROWS_AT_ONCE, Buckets, Positives, PositivesFile
from tasks.worker.training.tokenised import KEYS, id_keys, text_keys

SAID = np.dtype([*((name, "<i8") for name in KEYS), ("pair", "?")])  # the keys of a row; whether it is a pair
MADE = "known"  # names the folder that the first worker of a machine has made
_TEXTS = "item_texts"


class Known(NamedTuple):
    """The items, and the texts, that are right for each query: by `item_key` and by `text_key` of the rows."""

    items: Positives
    texts: Positives

    @classmethod
    def open(cls, folder: Path) -> Known:
        """Return what `write_known` wrote, left in its files."""
        return cls(Positives.open(folder, "item_key"), Positives.open(folder, "text_key"))


@dataclass(frozen=True)
class SaidRows:
    """What all rows of some spans, and the golden set, say of pairs, read again each time it is iterated over.

    `golden`: the key of the golden set, whose rows are all pairs; None: there is none.
    """

    store: Store
    refs: Sequence[RowsRef]
    golden: str | None
    heads: HeadsConfig

    @property
    def rows(self) -> int:
        """How many rows the spans have."""
        return sum(ref.rows for ref in self.refs)

    def __iter__(self) -> Iterator[np.ndarray]:
        """Yield SAID (rows,), some thousand at a time."""
        for table in read_rows(self.store, self.refs, []):
            yield _said(table, pair_mask(table, self.heads))
        if self.golden is not None:
            table = pq.read_table(self.store.local(self.golden))
            yield _said(table, np.ones(table.num_rows, dtype=bool))


def open_known(job: Job, said: SaidRows, barrier: Callable[[], object]) -> Known:
    """Return what is known to be right, in files, which one worker of each machine makes for all of them.

    The files are deleted once all workers have opened them: the system keeps them as long as they are in use.

    Args:
        barrier: waits for every worker of the stage.
    """
    rank = job.rank
    if rank.local:
        known = Known.open(Path(job.machine.wait_for(MADE, "the known pairs").decode()))
        barrier()
        return known
    began = time.monotonic()
    with job.scratch() as folder:
        write_known(folder, said, said.rows)
        known = Known.open(folder)
        if rank.world > 1:  # through a file: it can take longer than a process group waits
            job.machine.publish(MADE, str(folder).encode())
        barrier()
    print(f"the pairs of {said.rows} rows are known; {time.monotonic() - began:.1f} s", flush=True)
    return known


def known_of(said: Iterable[np.ndarray], rows: int) -> Known:
    """Return what some rows know to be right, SAID; `rows`: how many there may be in all."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        write_known(Path(name), said, rows)
        return Known.open(Path(name))


def write_known(folder: Path, said: Iterable[np.ndarray], rows: int) -> None:
    """Write what is known to be right into files of `folder`, holding some hundred thousand rows in memory.

    Args:
        said: SAID (n,), of all rows.
        rows: how many there may be in all.
    """
    texts, pairs = Buckets(folder, _TEXTS, rows, 2), Buckets(folder, "pairs", rows, 3)
    for some in _gathered(said):
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
    """Return for each place in `number`, which names a list, all values of the list: the places, and the values."""
    counts = np.bincount(whose, minlength=lists)
    begins = np.cumsum(counts) - counts
    each = counts[number]
    places = np.repeat(begins[number] - (np.cumsum(each) - each), each) + np.arange(each.sum())
    return np.repeat(np.arange(len(number)), each), values[places]


def _gathered(said: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the same rows, more of them at once, so that buckets get many at a time."""
    waiting: list[np.ndarray] = []
    for some in said:
        waiting.append(some)
        if sum(map(len, waiting)) >= ROWS_AT_ONCE:
            yield np.concatenate(waiting)
            waiting = []
    if waiting:
        yield np.concatenate(waiting)


def _columns(said: np.ndarray, *names: str) -> np.ndarray:
    return np.stack([said[name] for name in names], axis=1)


def _said(table: pa.Table, pair: np.ndarray) -> np.ndarray:
    said = np.empty(table.num_rows, dtype=SAID)
    said["query_key"], said["text_key"] = text_keys(table[QUERY]), text_keys(table[ITEM])
    said["item_key"], said["pair"] = id_keys(table[ITEM_ID]), pair
    return said
