"""Parquet files without the erased rows, and the manifests that name them.

A file keeps its name, types and compression. Its checksum is new, so the manifest's is, and that of a manifest that
names that one: all are known before the first byte is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import sha256_of
from infra.store.manifest import FileEntry, Manifest
from tasks.contracts.kinds import Kind
from tasks.contracts.workspace import CATALOGUE, FEED, HELD, SPAN, VECTORS
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import (
    DELETED,
    FIRST_SHA256,
    ITEM_ID,
    LABEL,
    VECTOR,
    deleted_name,
    part_name,
    partition_of,
)
from tasks.erase.records import NewFile
from tasks.erase.wanted import GONE, LIKE_ROW, Wanted, columns_for, row_groups

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def count_rows(path: Path, wanted: Wanted, span: str | None) -> int:
    """Return the number of rows of a file that go, or that name one that goes."""
    names = pq.read_schema(path).names
    columns = columns_for(names, wanted)
    if not columns:
        return 0
    return sum(int((wanted.mask(each, span) | _like(each, wanted)).sum()) for each in row_groups(path, columns))


def without_rows(path: Path, to: Path, wanted: Wanted, span: str | None) -> NewFile:
    """Write a file without the rows that go, and return its record."""
    removed = labels = deleted = 0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        schema = file.schema_arrow
        codec = file.metadata.row_group(0).column(0).compression.lower() if file.num_row_groups else "snappy"
    with pq.ParquetWriter(to, schema, compression="none" if codec == "uncompressed" else codec) as writer:
        for table in row_groups(path):
            found = wanted.mask(table, span)
            gone = table.filter(pa.array(found))
            names = table.schema.names
            # A delta names an item that its partition no longer has by a row without a vector, or without a record.
            removed += gone.num_rows - sum(gone[name].null_count for name in (VECTOR, DELETED) if name in names)
            deleted += int(pc.sum(gone[DELETED]).as_py() or 0) if DELETED in names else 0
            if LABEL in table.schema.names:
                labels += len(gone[LABEL].drop_null())
            table = _unlike(table.filter(pa.array(~found)), wanted)
            if table.num_rows:
                writer.write_table(table.cast(schema))
    return NewFile(
        sha256=sha256_of(to),
        bytes=to.stat().st_size,
        removed=removed,
        labels=labels,
        deleted=deleted,
    )


def emptied(kind: Kind, path: Path) -> bool:
    """Return True if a file without rows has no place: a partition of items, which is absent if it is empty."""
    return kind in (CATALOGUE, VECTORS) and pq.read_metadata(path).num_rows == 0


def lowest_files(manifests: Mapping[str, tuple[Kind, Manifest]]) -> set[str]:
    """Return the keys of files with a delta above them: these stay, also without rows.

    Args:
        manifests: by folder.
    """
    return {
        layers[0].key(prefix)
        for prefix, (kind, manifest) in manifests.items()
        if kind in (CATALOGUE, VECTORS)
        for layers in layers_of(manifest).values()
        if len(layers) > 1
    }


def _like(table: pa.Table, wanted: Wanted) -> np.ndarray:
    """Return bool (rows,): True for a row that is left out since it is like a row that goes."""
    if LIKE_ROW not in table.schema.names:
        return np.zeros(table.num_rows, dtype=bool)
    spans = table["like_span"].to_pylist() if "like_span" in table.schema.names else [None] * table.num_rows
    rows = table[LIKE_ROW].to_pylist()
    return np.array([row in wanted.ids(of) for of, row in zip(spans, rows, strict=True)], dtype=bool)


def _unlike(table: pa.Table, wanted: Wanted) -> pa.Table:
    found = _like(table, wanted)
    if not found.any():
        return table
    rows = [GONE if one else row for one, row in zip(found, table[LIKE_ROW].to_pylist(), strict=True)]
    return table.set_column(table.schema.names.index(LIKE_ROW), LIKE_ROW, pa.array(rows, pa.string()))


def new_manifest(
    kind: Kind,
    before: Manifest,
    files: Mapping[str, NewFile],
    sha256: Mapping[str, str],
    counts: Mapping[str, Mapping[str, int]],
    wanted: Wanted,
    local: Callable[[FileEntry], Path],
) -> Manifest:
    """Return the manifest of a folder after the change of some files; the same one if none of it changes.

    Args:
        files: by checksum before, as `sha256`; that has the manifests named by this one.
        counts: of the catalogue that the vectors belong to.
        local: returns the local path of a file of the folder.
    """
    entries = tuple(_entries(before.files, files))
    facts = dict(before.facts)
    changed = [(entry, files[entry.sha256]) for entry in before.files if entry.sha256 in files]
    rows = sum(new.removed for _, new in changed)
    if kind in (SPAN, FEED):
        facts |= {"content_sha256": ""} if changed else {}  # an ingest of the same source compares row by row
    if kind is SPAN and "labels" in facts:
        facts["labels"] = facts["labels"] - sum(new.labels for _, new in changed)
    if kind is CATALOGUE:
        live, gone = _gone_of_catalogue(before, files)
        facts |= {"items": facts["items"] - live, "deleted": facts["deleted"] - gone}
    elif kind is HELD:
        places = {entry.name: new.removed for entry, new in changed}
        facts["rows_in"] = [
            n - places.get(f"rows-{number:02d}.parquet", 0) for number, n in enumerate(facts["rows_in"])
        ]
    elif kind is VECTORS:
        facts = _facts_of_vectors(before, facts, files, sha256, counts, wanted, local)
    elif isinstance(facts.get("rows"), int):
        facts["rows"] -= rows
    return before.model_copy(update={"files": entries, "facts": facts})


def ids_sha256(paths: Iterable[Path], wanted: Wanted | None) -> str:
    """Return the hash over the ids of a partition's live items; with `wanted`, without the item that goes."""
    there = [path for path in paths if path.is_file()]  # a killed erasure may have deleted an emptied one
    left = list[str]()
    if there:
        ids = Layers.open(there).table([ITEM_ID])
        ids = ids if wanted is None else ids.filter(pa.array(~wanted.mask(ids, None)))
        left = ids[ITEM_ID].to_pylist()
    return hashlib.sha256("".join(f"{item}\n" for item in left).encode()).hexdigest()


def _entries(entries: Collection[FileEntry], files: Mapping[str, NewFile]) -> Iterator[FileEntry]:
    for entry in entries:
        new = files.get(entry.sha256)
        if new is None:
            yield entry
        elif new.sha256:
            yield entry.model_copy(update={"sha256": new.sha256, "bytes": new.bytes})


def _gone_of_catalogue(before: Manifest, files: Mapping[str, NewFile]) -> tuple[int, int]:
    """Return the live and the deleted items that go; the newest file of a partition that names one tells its state."""
    of_name, layers = {entry.name: entry for entry in before.files}, layers_of(before)
    live = deleted = 0
    for number in range(before.facts["partitions"]):
        lowest = [of_name[name] for name in (part_name(number), deleted_name(number)) if name in of_name]
        changed = [files[entry.sha256] for entry in lowest if entry.sha256 in files]
        deltas = [files[entry.sha256] for entry in layers.get(number, ())[1:] if entry.sha256 in files]
        for new in deltas[-1:] or changed:
            live, deleted = live + new.removed - new.deleted, deleted + new.deleted
    return live, deleted


def _facts_of_vectors(
    before: Manifest,
    facts: dict[str, Any],
    files: Mapping[str, NewFile],
    sha256: Mapping[str, str],
    counts: Mapping[str, Mapping[str, int]],
    wanted: Wanted,
    local: Callable[[FileEntry], Path],
) -> dict[str, Any]:
    catalogue = facts["catalogue"]
    changed = {
        number: (layers, [files[entry.sha256] for entry in layers if entry.sha256 in files])
        for number, layers in layers_of(before).items()
        if any(entry.sha256 in files for entry in layers)
    }
    if catalogue["sha256"] not in sha256 and not changed:
        return facts
    items_gone = catalogue["items"] - counts.get(catalogue["prefix"], {}).get("items", catalogue["items"])
    shards = [list(each) for each in facts["shards"]]
    removed = 0
    for number, (layers, new) in changed.items():
        gone = new[-1].removed  # the newest file that names it: none if a delta had removed it already
        shards[number] = [shards[number][0] - gone, shards[number][1], ids_sha256(map(local, layers), wanted)]
        removed += gone
    bad = items_gone - removed  # an item without a usable vector
    partitions = {partition_of(form, catalogue["partitions"]) for form in wanted.forms}
    left = max(bad, 0)
    for number in sorted(partitions, key=lambda each: (each in changed, each)):  # of a changed one the vector went
        gone = min(left, shards[number][1])
        shards[number][1], left = shards[number][1] - gone, left - gone
    return {
        **facts,
        "catalogue": {
            **catalogue,
            "items": catalogue["items"] - items_gone,
            "sha256": sha256.get(catalogue["sha256"], catalogue["sha256"]),
        },
        "vectors": facts["vectors"] - removed,
        "bad": facts["bad"] - max(bad, 0),
        "shards": shards,
        "ids_sha256": hashlib.sha256("".join(each[2] for each in shards).encode()).hexdigest(),
        FIRST_SHA256: facts.get(FIRST_SHA256, before.sha256),
    }
