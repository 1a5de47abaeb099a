"""Known positive pairs, which are never used as negatives, and the positive items of each query.

They come from all rows of the lineage so far, training and holdout, and from the golden set. Of earlier spans only the
keys are read, and no text. Validate writes the positives of a run's own queries, so that no accelerator waits while the
history is read. An item is also relevant if it shares a normalised text with a relevant item, in any row, as in
`tasks.worker.model.relevant`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, cast

import numpy as np

from configs.schema.training import HeadsConfig
from infra.store.base import Store
from infra.store.manifest import commit_by_content
from tasks.contracts.references import RowsRef
from tasks.worker.process.job import Job
from tasks.worker.process.machine import beating
from tasks.worker.training.record_files import Column, RecordFile
from tasks.worker.training.replay import ReplayedRows, open_made_of
from tasks.worker.training.row_keys import (
    OTHERS,
    PAIRS,
    TEXTS,
    SortedFile,
    TextKeys,
    distinct,
    key_rule,
    keyed,
    open_span_keys,
    ranges_of_keys,
    write_keys,
)

_READERS = 16  # parallel reads: a history has hundreds of folders, and a bucket answers in tens of milliseconds
_FILES = ("queries", "offsets", "keys")


@dataclass(frozen=True)
class Positives:
    """The item keys of each query that has several positive items; all arrays int64.

    `queries` (Q,): keys of these queries, ascending. `offsets` (Q + 1,): the items of query number q are
    `keys[offsets[q]:offsets[q + 1]]`, distinct and ascending.
    """

    queries: np.ndarray
    offsets: np.ndarray
    keys: np.ndarray

    @classmethod
    def of(cls, query_key: np.ndarray, key: np.ndarray) -> Positives:
        """Return the positives of pairs, int64 (pairs,) each, not negative; pairs may repeat."""
        both = distinct(np.stack([query_key, key], axis=1))
        queries, counts = np.unique(both[:, 0], return_counts=True)
        several = counts > 1  # a query's only item is its own, excluded anyway
        offsets = np.concatenate([[0], np.cumsum(counts[several])]).astype(np.int64)
        return cls(queries[several], offsets, both[np.repeat(several, counts), 1])

    @classmethod
    def open(cls, folder: Path, name: str) -> Positives:
        """Open the files of the `PositivesFile` with this name, which are not read into memory."""
        return cls(*(cast(np.ndarray, Column(RecordFile(folder / f"{name}.{each}", np.int64))) for each in _FILES))

    def lists(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the items of some queries, concatenated: the place of each one's query in `queries`, and its key.

        Args:
            queries: int64 (n,), distinct and ascending; unknown queries have no item.
        """
        place = np.searchsorted(self.queries, queries)
        there = place < len(self.queries)
        there[there] = self.queries[place[there]] == queries[there]
        begins, counts = (np.zeros(len(queries), dtype=np.int64) for _ in range(2))
        begins[there] = self.offsets[place[there]]
        counts[there] = self.offsets[place[there] + 1] - begins[there]
        return np.repeat(np.arange(len(queries)), counts), self.keys[ranges(begins, counts)]

    def among(self, query_key: np.ndarray, batch_key: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return places in `query_key` and in `batch_key`, int64: each query with an item that is its positive.

        Search time grows with the positives of these queries, not with the product of queries and items.
        """
        queries, row_of = np.unique(query_key, return_inverse=True)
        whose, wanted = self.lists(queries)
        columns = np.argsort(batch_key, kind="stable")
        keys = batch_key[columns]
        first = np.searchsorted(keys, wanted)
        hit = np.flatnonzero(np.append(keys, -1)[first] == wanted)  # keys are not negative
        first, whose = first[hit], whose[hit]
        same = np.searchsorted(keys, wanted[hit], side="right") - first
        column, whose = columns[ranges(first, same)], np.repeat(whose, same)
        rows = np.argsort(row_of, kind="stable")
        asked = np.bincount(row_of, minlength=len(queries))
        row = rows[ranges((np.cumsum(asked) - asked)[whose], asked[whose])]
        return row, np.repeat(column, asked[whose])

    def part(self, queries: np.ndarray) -> Positives:
        """Return the positives of some queries, int64 (n,), distinct and ascending, in memory."""
        whose, keys = self.lists(queries)
        counts = np.bincount(whose, minlength=len(queries))
        several = counts > 0
        return Positives(queries[several], np.append(0, np.cumsum(counts[several])), keys)


def ranges(begins: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the numbers of some ranges, one after the other, int64; `begins` and `counts` int64 (ranges,)."""
    return np.repeat(begins - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())


class PositivesFile:
    """Writes positives query by query to files: `<name>.queries`, `<name>.offsets` and `<name>.keys`."""

    def __init__(self, folder: Path, name: str) -> None:
        self._files: list[BinaryIO] = [(folder / f"{name}.{each}").open("wb") for each in _FILES]
        self._total = 0
        np.zeros(1, dtype=np.int64).tofile(self._files[1])

    def add(self, query_key: np.ndarray, key: np.ndarray) -> None:
        """Add pairs, as in `Positives.of`; their query keys must be larger than all before."""
        found = Positives.of(query_key, key)
        for file, values in zip(self._files, (found.queries, found.offsets[1:] + self._total, found.keys), strict=True):
            values.tofile(file)
        self._total += len(found.keys)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files:
            file.close()


KIND = "positives"
_MADE_OF = "made_of.json"
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
    """The keys of a run's rows, of all rows before it and of the golden set, in the folders that validate wrote.

    `golden`: the key of the golden set, if any. `heads` say which rows are pairs. `replayed`: rows of earlier spans
    whose queries the run meets too. `positives`: the folder that `commit_known` named, if any.
    """

    store: Store
    own: Sequence[RowsRef]
    earlier: Sequence[RowsRef]
    golden: str | None
    heads: HeadsConfig
    replayed: ReplayedRows
    positives: str | None = None

    @property
    def rows(self) -> int:
        """Number of rows of the spans."""
        return sum(ref.rows for ref in (*self.own, *self.earlier))

    @property
    def made_of(self) -> dict[str, Any]:
        """The rows that decide the known positives, and the rule of their keys, as JSON."""
        own, earlier = ([ref.prefix for ref in refs] for refs in (self.own, self.earlier))
        golden = [] if self.golden is None else [self.golden]
        again = {"replayed": self.replayed.made_of} if self.replayed.replay.refs else {}
        return {"own": own, "of": [*own, *earlier, *golden], "rule": key_rule(self.heads), **again}

    def commit_known(self, prefix: str, folder: Path, met: Sequence[Path] | None = None) -> str:
        """Write the known positives of the run's queries to the workspace; return the folder's key.

        Args:
            prefix: start of the folder's key; a hash of the files follows.
            folder: a new local folder for the files.
            met: folders of `write_met` over all earlier spans; None: the keys of all earlier rows are read.

        Raises:
            MissingFolder, CorruptFolder: the rows of a span without usable keys are missing or damaged.
        """
        folder.mkdir(parents=True)
        self.write_known(folder, lambda: None, met)
        # In a file too, so that other rows give another folder.
        (folder / _MADE_OF).write_text(json.dumps(self.made_of), encoding="utf-8")
        return commit_by_content(self.store, prefix, folder, KIND, self.made_of)

    def open_committed(self) -> Path | None:
        """Return the local folder of `commit_known`; None if it is missing or of no use; the log says why."""
        if self.positives is None:
            return None
        instead = "the known pairs are made of the keys of all spans"
        return open_made_of(self.store, self.positives, KIND, self.made_of, instead)

    def write_known(self, folder: Path, beat: Callable[[], object], met: Sequence[Path] | None = None) -> None:
        """Write the known positives of the run's queries, as `write_known` does.

        Args:
            beat: called as the work goes on.
            met: as in `commit_known`.
        """
        made = folder / "own", folder / "earlier", folder / "replayed"
        own = self._folders(made[0], self.own, None, beat)
        earlier = self._folders(made[1], self.earlier if met is None else (), self.golden, beat)
        made[2].mkdir()
        again = (keyed(table, self.heads) for table in beating(self.replayed, beat))
        write_keys(made[2], again, sum(ref.rows for ref in self.replayed.replay.refs))
        write_known(folder, [*own, *earlier, *(met or ())], [*own, made[2]], beat)
        for each in made:
            shutil.rmtree(each, ignore_errors=True)

    def write_met(self, folder: Path, scratch: Path) -> None:
        """Write the keys of the earlier rows that the known positives of the queries of `own` are made of.

        `folder` is then a folder of keys itself, and smaller: it has an item's text once, and no pair of another query.
        """
        sides = {"own": self.own, "earlier": self.earlier}
        own, earlier = (self._folders(scratch / name, refs, None, _silent) for name, refs in sides.items())
        sources = [SortedFile(source, TEXTS) for source in earlier]
        with (folder / TEXTS).open("wb") as texts:
            for last in ranges_of_keys(sources):
                distinct(np.concatenate([file.until(last) for file in sources])).tofile(texts)
        with (folder / PAIRS).open("wb") as pairs:
            for records in _met(earlier, own, _silent):
                distinct(records).tofile(pairs)
        (folder / OTHERS).touch()

    def _folders(
        self, folder: Path, refs: Sequence[RowsRef], golden: str | None, beat: Callable[[], object]
    ) -> list[Path]:
        """Return folders with the keys of some spans; the keys that the workspace lacks are made in `folder`."""
        with ThreadPoolExecutor(_READERS) as readers:
            found = list(readers.map(lambda ref: _opened(self.store, ref, self.heads, beat), refs))
        missing = [ref for ref, there in zip(refs, found, strict=True) if there is None]
        folders = [there for there in found if there is not None]
        if missing or golden is not None:
            made = TextKeys(self.store, missing, golden, self.heads)
            folder.mkdir()
            write_keys(folder, beating(made, beat), made.rows)
            folders.append(folder)
        return folders


def _opened(store: Store, ref: RowsRef, heads: HeadsConfig, beat: Callable[[], object]) -> Path | None:
    folder = open_span_keys(store, ref, heads)
    beat()
    return folder


def open_known(job: Job, keys: LineageKeys, barrier: Callable[[], object]) -> KnownPositives:
    """Return the known positives, in files that validate wrote, or that one worker of each machine writes for all.

    The latter are deleted once all workers have opened them: the system keeps them while they are in use.

    Args:
        barrier: waits for every worker of the stage.
    """
    rank = job.rank
    if rank.local:
        known = KnownPositives.open(Path(job.machine.wait_for(MADE, "the known pairs").decode()))
        barrier()
        return known
    began = time.monotonic()
    with job.scratch() as scratch:
        folder = keys.open_committed()
        if folder is None:
            folder = scratch
            keys.write_known(folder, job.machine.beat)
        known = KnownPositives.open(folder)
        if rank.world > 1:  # through a file: the work can exceed a process group's timeout
            job.machine.publish(MADE, str(folder).encode())
        barrier()
    print(f"the pairs of {keys.rows} rows are known; {time.monotonic() - began:.1f} s", flush=True)
    return known


def find_known_positives(keys: Iterable[np.ndarray], rows: int) -> KnownPositives:
    """Return the known positives of some rows, ROW_KEYS; `rows`: upper limit of their number."""
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        write_keys(Path(name), keys, rows)
        write_known(Path(name), [Path(name)], None)
        return KnownPositives.open(Path(name))


def write_known(
    folder: Path, sources: Sequence[Path], own: Sequence[Path] | None, beat: Callable[[], object] = lambda: None
) -> None:
    """Write the known positives into files of `folder`, with some hundred thousand keys in memory.

    Args:
        sources: folders of keys, from `write_keys`.
        own: folders with the queries whose positives are written, all of them in `sources` too; None: all queries.
        beat: called as the work goes on.
    """
    texts = [SortedFile(source, TEXTS) for source in sources]
    with PositivesFile(folder, _TEXTS) as several:
        for last in ranges_of_keys(texts):
            beat()
            several.add(*np.concatenate([file.until(last) for file in texts]).T)
    of_item = Positives.open(folder, _TEXTS)
    with PositivesFile(folder, "item_key") as by_item, PositivesFile(folder, "text_key") as by_text:
        for records in _met(sources, own, beat):
            queries, item, text = records.T
            by_item.add(queries, item)
            items, number = np.unique(item, return_inverse=True)
            pair, others = _expanded(number, *of_item.lists(items), len(items))
            by_text.add(np.concatenate([queries, queries[pair]]), np.concatenate([text, others]))
    for path in folder.glob(f"{_TEXTS}.*"):
        path.unlink()


def _met(sources: Sequence[Path], own: Sequence[Path] | None, beat: Callable[[], object]) -> Iterator[np.ndarray]:
    """Yield the records of PAIRS with the queries of `own`, range by range of queries, int64 (n, 3)."""
    pairs = [SortedFile(source, PAIRS) for source in sources]
    asked = None if own is None else [SortedFile(each, name) for each in own for name in (PAIRS, OTHERS)]
    for last in ranges_of_keys(pairs):
        beat()
        found = [file.until(last) for file in pairs]
        if asked is not None:
            wanted = np.unique(np.concatenate([file.until(last)[:, 0] for file in asked]))
            found = [records[_among(records[:, 0], wanted)] for records in found]
        yield np.concatenate(found)


def _silent() -> None:
    """Tell nobody that the work goes on."""


def _among(values: np.ndarray, ascending: np.ndarray) -> np.ndarray:
    """Return a mask of the values that are in `ascending`, bool (values,)."""
    return np.append(ascending, -1)[np.searchsorted(ascending, values)] == values  # keys are not negative


def _expanded(number: np.ndarray, whose: np.ndarray, values: np.ndarray, lists: int) -> tuple[np.ndarray, np.ndarray]:
    """Replace each list number in `number` with the values of that list; return places in `number`, and the values."""
    counts = np.bincount(whose, minlength=lists)
    begins = np.cumsum(counts) - counts
    each = counts[number]
    return np.repeat(np.arange(len(number)), each), values[ranges(begins[number], each)]
