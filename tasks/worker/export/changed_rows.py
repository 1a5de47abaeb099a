"""Rows that differ between two releases by one model: by these alone, a table of one becomes a table of the other.

A partition whose files both have is not read; of one with a new delta, the deltas alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from infra.store.manifest import FileEntry
from tasks.data.rows import ITEM_ID, MODEL_VERSION, TEXT, VECTOR
from tasks.worker.catalogue.reuse import as_matrix
from tasks.worker.export.table_contents import ReleaseVectors

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Changes(NamedTuple):
    """Changes of a partition: new and changed rows, as `ReleaseVectors.rows` returns them, and ids of gone items."""

    rows: pa.Table
    gone: list[str]


def comparable(before: ReleaseVectors, now: ReleaseVectors) -> bool:
    """Return True if both are by one model, of the same numbers, and in the same partitions."""
    kinds = [(each.model_version, each.partitions, each.shape.width, each.shape.fp16) for each in (before, now)]
    return kinds[0] == kinds[1]


def changes(before: ReleaseVectors, now: ReleaseVectors) -> Iterator[Changes]:
    """Yield the changes from one release to another, by partition; a partition without any is left out.

    Raises:
        CorruptFolder: a file does not match its manifest's checksum.
    """
    for number in sorted(before.files.keys() | now.files.keys()):
        old, new = before.files.get(number, ()), now.files.get(number, ())
        pairs = enumerate(zip(old, new, strict=False))
        shared = next((at for at, (one, other) in pairs if one.sha256 != other.sha256), min(len(old), len(new)))
        if shared == len(old) == len(new):
            continue
        was, is_ = _named(before, old, shared), _named(now, new, shared)
        if shared and len(was.ids.filter(pc.invert(pc.is_in(was.ids, value_set=is_.ids)))):
            # The rows of the others are in older files now, as after a rollback.
            was, is_ = _named(before, old, 0), _named(now, new, 0)
        ids = pc.unique(pa.concat_arrays([was.ids, is_.ids]))
        gone = ids.filter(pc.invert(pc.is_in(ids, value_set=is_.live[ITEM_ID].combine_chunks())))
        rows = is_.live.filter(pa.array(_differing(was.live, is_.live)))
        if rows.num_rows or len(gone):
            yield Changes(now.as_rows(rows, number), gone.to_pylist())


def gathered(some: Iterable[Changes], most: int) -> Iterator[Changes]:
    """Join changes of several partitions, so that a service gets few requests; each has `most` rows and ids or less.

    One partition's changes alone may be more.
    """
    rows, gone = list[pa.Table](), list[str]()
    for each in some:
        held = sum(table.num_rows for table in rows) + len(gone)
        if held and held + each.rows.num_rows + len(each.gone) > most:
            yield Changes(pa.concat_tables(rows), gone)
            rows, gone = [], []
        rows, gone = [*rows, each.rows], [*gone, *each.gone]
    if rows:
        yield Changes(pa.concat_tables(rows), gone)


class _Named(NamedTuple):
    """All that files name: the rows of live items, and the ids of these and of removed ones."""

    live: pa.Table
    ids: pa.Array


def _named(release: ReleaseVectors, files: Sequence[FileEntry], below: int) -> _Named:
    """Return the rows and ids in the files of a partition, without the first `below`."""
    if not (some := files[below:]):
        return _Named(pa.table({ITEM_ID: pa.array([], pa.string())}), pa.array([], pa.string()))
    layers = release.open_files(some, above=below > 0)
    return _Named(layers.table([ITEM_ID, TEXT, VECTOR, MODEL_VERSION]), layers.named)


def _differing(before: pa.Table, now: pa.Table) -> np.ndarray:
    """Return bool (rows now,): True if the item was not there, or had another text or vector."""
    if not before.num_rows or not now.num_rows:
        return np.ones(now.num_rows, dtype=bool)
    place = pc.index_in(now[ITEM_ID], value_set=before[ITEM_ID].combine_chunks())
    same = before.take(pc.fill_null(place, 0))
    vectors = np.any(as_matrix(now[VECTOR]) != as_matrix(same[VECTOR]), axis=1)
    return place.is_null().to_numpy() | vectors | pc.not_equal(now[TEXT], same[TEXT]).to_numpy()
