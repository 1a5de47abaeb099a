"""Splits records into partitions on disk; memory depends neither on the records nor on the partitions.

DuckDB's own partitioned writing buffers rows of every partition, so its memory grows with both.
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

PART = "part"  # the column with the number of a record's partition
BATCH_RECORDS = 8192
FILES = 64  # open at once; more partitions take several passes over the records


def scatter(records: Iterable[pa.RecordBatch], folder: Path, partitions: int) -> None:
    """Write the records of each partition to its own file in the folder; an empty partition gets no file.

    Args:
        records: batches of one schema with PART, int32, from 0 to partitions - 1.
        partitions: a power of two.
    """
    _pass(records, folder, partitions, 0, 1)


def scattered(folder: Path, number: int) -> pa.Table | None:
    """Return the records of a partition, memory-mapped; None if it is empty."""
    path = _path(folder, number, 1)
    return pa.ipc.open_stream(pa.memory_map(str(path))).read_all() if path.exists() else None


def remove(folder: Path, number: int) -> None:
    """Delete the file of a partition, if it has one."""
    _path(folder, number, 1).unlink(missing_ok=True)


def _pass(records: Iterable[pa.RecordBatch], folder: Path, left: int, first: int, step: int) -> None:
    """Split records of the partitions first, first + step, ... (`left` of them) into at most FILES files."""
    ways = min(FILES, left)
    left //= ways
    paths = [_path(folder, first + way * step, left) for way in range(ways)]
    _split(records, paths, step)
    if left > 1:
        for way, path in enumerate(paths):
            if path.exists():
                _pass(_read(path), folder, left, first + way * step, step * ways)
                path.unlink()


def _path(folder: Path, number: int, partitions: int) -> Path:
    """Return the file whose first partition is `number`; a file of the last pass holds one partition."""
    return folder / f"{number}-of-{partitions}.arrow"


def _split(records: Iterable[pa.RecordBatch], paths: list[Path], step: int) -> None:
    """Append each record to the file of its partition number, divided by `step`, modulo the number of files."""
    with contextlib.ExitStack() as opened:
        writers: dict[int, pa.RecordBatchStreamWriter] = {}
        for batch in records:
            way = batch[PART].to_numpy() // step % len(paths)
            order = np.argsort(way, kind="stable")
            ordered = batch.take(pa.array(order))
            ends = np.cumsum(np.bincount(way, minlength=len(paths)))
            for number, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)):
                if start == end:
                    continue
                if number not in writers:
                    sink = opened.enter_context(pa.OSFile(str(paths[number]), "wb"))
                    writers[number] = opened.enter_context(pa.ipc.new_stream(sink, batch.schema))
                writers[number].write_batch(ordered.slice(start, end - start))


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the records of a file, in batches of BATCH_RECORDS or a little more."""
    with pa.OSFile(str(path)) as file:
        some: list[pa.RecordBatch] = []
        for batch in pa.ipc.open_stream(file):
            some.append(batch)
            if sum(each.num_rows for each in some) >= BATCH_RECORDS:
                yield pa.concat_batches(some)
                some = []
        if some:
            yield pa.concat_batches(some)
