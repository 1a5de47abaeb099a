"""The files of a partition: of vectors a shard, of a catalogue the live items; and deltas over it with later changes.

One rule decides which row of an item counts: the one in the newest file that names it. It is here, and in SQL in
`from_catalogue`, which reads more items than fit in memory. A delta of vectors names a removed item by a row without
content, one of a catalogue by `deleted`. All readers get each live item of a partition once, by item id, as if all were
written anew, so that no answer depends on the number of files.

A refresh adds a delta with its changes, and merges it with older ones by `layers_below`. So N changes of a partition
are written about log2(N) times before they are merged with the shard, and a partition has few files.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.manifest import MANIFEST, CorruptFolder, FileEntry, Manifest
from tasks.data.rows import CONTENT, DELETED, ITEM_ID, MODEL_VERSION, is_deleted_name, place_of_name

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

DELTA_SHARE = 0.25  # bytes of its deltas by a shard's; beyond it, all become a new shard
MOST_DELTAS = 8  # over one shard: a reader opens this many files more
# Vectors repeat no number, so a dictionary of them takes more room than they do.
PARQUET: dict[str, Any] = {"compression": "zstd", "use_dictionary": [MODEL_VERSION], "write_statistics": [ITEM_ID]}
_GROWTH = 2  # a delta stays apart if it has this many times the bytes of all newer ones


def layers_below(sizes: Sequence[int], new: int) -> int:
    """Return the number of a partition's files, from the oldest on, that stay below a new delta.

    The others are merged with it. 0: all become a new shard.

    Args:
        sizes: bytes of the files, the shard's first.
        new: bytes of the delta, alone.
    """
    stay = len(sizes)
    while stay > 1 and (sizes[stay - 1] < _GROWTH * new or stay > MOST_DELTAS):
        stay -= 1
        new += sizes[stay]
    return stay if sum(sizes[1:stay]) + new <= DELTA_SHARE * sizes[0] else 0


def layers_of(manifest: Manifest) -> dict[int, tuple[FileEntry, ...]]:
    """Return the files of each partition that has any, the shard first and the newest last; by partition.

    The files of a catalogue that hold deleted items alone are left out.

    Raises:
        CorruptFolder: a delta lies over no shard, or a file has no name of a partition.
    """
    found: dict[int, dict[int, FileEntry]] = {}
    of = f"{MANIFEST} of a folder of {manifest.kind}"
    for entry in manifest.files:
        if is_deleted_name(entry.name):
            continue
        if (place := place_of_name(entry.name)) is None:
            raise CorruptFolder(f"{of} names {entry.name}, which is no partition; restore a backup")
        found.setdefault(place[0], {})[place[1]] = entry
    if over_none := next((each for each in found.values() if 0 not in each), None):
        name = min(over_none.items())[1].name
        raise CorruptFolder(f"{of} names {name}, but no file below it; restore it from a backup")
    return {
        number: tuple(entry for _, entry in sorted(of_number.items())) for number, of_number in sorted(found.items())
    }


def next_generation(layers: Sequence[FileEntry]) -> int:
    """Return the generation of a new delta over a partition's files; no earlier file over the shard has its name."""
    places = [place_of_name(entry.name) for entry in layers]
    return 1 + max(place[1] for place in places if place is not None)


class Layers(NamedTuple):
    """Local files of one partition, the newest last."""

    paths: tuple[Path, ...]
    rows: np.ndarray | None  # int32 (live items,): their rows, counted through all files, by item id; None: every row

    @classmethod
    def open(cls, paths: Sequence[Path], above: bool = False) -> "Layers":
        """Find the live items; of a partition with one file, nothing is read.

        Args:
            above: the files lie over others, which are not asked for: the first one removes items too.
        """
        if len(paths) == 1 and not above:
            return cls(tuple(paths), None)
        parts = [_named(path, removing=above or at > 0) for at, path in enumerate(paths)]
        rows = _newest([ids for ids, _ in parts])
        live = np.concatenate([live for _, live in parts])
        return cls(tuple(paths), rows[live[rows]])

    @property
    def named(self) -> pa.Array:
        """The ids that the files name, removed items included."""
        return pc.unique(pa.concat_tables(pq.read_table(path, columns=[ITEM_ID]) for path in self.paths)[ITEM_ID])

    @property
    def items(self) -> int:
        """The number of live items."""
        return pq.read_metadata(self.paths[0]).num_rows if self.rows is None else len(self.rows)

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return columns of the live items, by item id."""
        tables = [pq.read_table(path, columns=list(columns)) for path in self.paths]
        return tables[0] if self.rows is None else pa.concat_tables(tables).take(pa.array(self.rows))

    def batches(self, columns: Sequence[str], rows: int) -> Iterator[pa.Table]:
        """Yield `table`, at most this many rows at a time; a partition with deltas is read at once."""
        if self.rows is not None:
            every = self.table(columns)
            yield from (every.slice(at, rows) for at in range(0, every.num_rows, rows))
            return
        with pq.ParquetFile(self.paths[0]) as file:
            for batch in file.iter_batches(rows, columns=list(columns)):
                yield pa.Table.from_batches([batch])

    def groups(self, columns: Sequence[str]) -> Iterator[tuple[int, int, Callable[[], pa.Table]]]:
        """Yield the first row, the number of rows, and a function that reads them, for each group that is read at once.

        So a reader that needs a few rows skips the other groups.
        """
        if self.rows is not None:
            yield 0, self.items, lambda: self.table(columns)
            return
        first = 0
        with pq.ParquetFile(self.paths[0]) as file:
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                yield first, rows, functools.partial(file.read_row_group, group, columns=list(columns))
                first += rows


def open_layers(manifest: Manifest, paths: Sequence[Path]) -> dict[int, Layers]:
    """Return the files of each partition, from the local paths of all files of a manifest, in its order."""
    local = {entry.name: path for entry, path in zip(manifest.files, paths, strict=True)}
    return {number: Layers.open([local[each.name] for each in layers])
            for number, layers in layers_of(manifest).items()}  # fmt: skip


def merged(deltas: Sequence[pa.Table]) -> pa.Table:
    """Return the rows of deltas over the same file as one delta, the newest of each item, by item id.

    Args:
        deltas: the newest last.
    """
    every = pa.concat_tables(deltas)
    return every.take(pa.array(_newest([table[ITEM_ID].combine_chunks() for table in deltas])))


def _newest(named: Sequence[pa.Array]) -> np.ndarray:
    """Return the row of each item in the last file that names it, counted through all files, int32, by item id.

    Args:
        named: the ids in each file, which are distinct in one file.
    """
    starts = np.cumsum([0, *map(len, named)]).tolist()
    ids, rows, newer = list[pa.Array](), list[np.ndarray](), pa.array([], pa.string())
    for of_file, start in zip(reversed(named), reversed(starts[:-1]), strict=True):
        own = np.flatnonzero(~pc.is_in(of_file, value_set=newer).to_numpy(zero_copy_only=False))
        ids.append(of_file.take(pa.array(own)))
        rows.append(own + start)
        newer = pa.concat_arrays([newer, of_file])
    order = pc.sort_indices(pa.concat_arrays(ids)).to_numpy()
    return np.concatenate(rows)[order].astype(np.int32)


def _named(path: Path, removing: bool) -> tuple[pa.Array, np.ndarray]:
    """Return the ids that a file names, and bool (ids,): False for an item that it removes."""
    if not removing:
        ids = pq.read_table(path, columns=[ITEM_ID])[ITEM_ID].combine_chunks()
        return ids, np.ones(len(ids), dtype=bool)
    of_catalogue = DELETED in pq.read_schema(path).names
    table = pq.read_table(path, columns=[ITEM_ID, DELETED if of_catalogue else CONTENT])
    live = pc.equal(table[DELETED], False).fill_null(False) if of_catalogue else table[CONTENT].is_valid()
    return table[ITEM_ID].combine_chunks(), live.to_numpy()
