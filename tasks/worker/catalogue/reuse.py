"""Vectors of earlier releases of the same model, reused for unchanged items.

A manifest of new vectors points to the old shard of each unchanged partition; in the others, single vectors are reused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from infra.store.base import Store, sha256_of
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    FileEntry,
    Manifest,
    MissingFolder,
    expect_manifest,
    find_damage,
    in_turn,
    read_manifest,
    sentence_of,
    set_apart,
)
from tasks.contracts.jobs import InferInputs
from tasks.contracts.references import CatalogueRef
from tasks.data.rows import CONTENT, ITEM_ID, VECTOR, VECTORS_KIND, part_name
from tasks.foundation.records import Record
from tasks.worker.process.job import Job, Share


def expect_vectors(store: Store, prefix: str, manifest: Manifest, model_version: str) -> None:
    """Raise CorruptFolder, which names both models, unless a folder holds vectors by this model."""
    by = manifest.facts.get("model_version")
    if manifest.kind != VECTORS_KIND or by != model_version:
        what = f"{store.uri}/{prefix} holds {manifest.kind} by {by}"
        raise CorruptFolder(f"{what}, expected {VECTORS_KIND} by {model_version}")


class BadItem(Record):
    item_id: str
    reason: str


class ShardNote(Record):
    """`runs/<run key>/infer/shards/<model>/<catalogue>/<number>.json`: the shard of one partition is complete."""

    file: FileEntry | None = Field(description="null: the partition has no item with a vector")
    attempt: int
    worker: int
    vectors: int
    reused: int = Field(description="vectors copied from an earlier release of the same model")
    width: int
    bad: tuple[BadItem, ...]
    ids_sha256: str = Field(description="over the item ids, one on each line")
    seconds: float


class Counted(NamedTuple):
    """Counts of one shard, which the facts of a manifest have as `shards`, by partition."""

    vectors: int
    bad: int
    ids_sha256: str


class EarlierShards(NamedTuple):
    """Shards of earlier vectors; their files lie in other folders."""

    notes: dict[int, ShardNote]  # by partition; they need not be made again
    files: dict[int, FileEntry]  # of all partitions


def earlier_shards(job: Job) -> EarlierShards:
    """Return the earlier vectors' shards.

    A partition need not be made again if the file of its items is the same as in the catalogue of the earlier vectors,
    all of these got a vector, vectors are stored as they were, and its shard is sound. A damaged one is set apart.
    """
    inputs, infer = job.spec.inputs, job.config.infer
    assert isinstance(inputs, InferInputs)
    if inputs.reuse is None:
        return EarlierShards({}, {})
    try:
        vectors = read_manifest(job.shared, inputs.reuse)
        expect_manifest(job.shared, inputs.reuse, vectors, inputs.reuse_sha256)
        expect_vectors(job.shared, inputs.reuse, vectors, inputs.model.version)
        damage = find_damage(job.shared, inputs.reuse, vectors, in_turn(vectors.files, inputs.turn))
        before = CatalogueRef.model_validate(vectors.facts["catalogue"])
        items = read_manifest(job.shared, before.prefix)
        expect_manifest(job.shared, before.prefix, items, before.sha256)
    except (MissingFolder, CorruptFolder) as error:
        print(f"no shard is taken from earlier vectors: {error}", flush=True)
        return EarlierShards({}, {})
    facts = vectors.facts
    alike = (facts["type"], facts["max_tokens"], before.partitions)
    if alike != (infer.vectors, infer.max_tokens, inputs.catalogue.partitions) or "shards" not in facts:
        return EarlierShards({}, {})
    if damage:
        print(f"{sentence_of(damage)}: its items are embedded again", flush=True)
        set_apart(job.store, inputs.reuse, vectors, damage)
    now = read_manifest(job.shared, inputs.catalogue.prefix)
    files = {number: entry for number, entry in _named(inputs.reuse, vectors).items() if entry.name not in damage}
    notes = {
        number: ShardNote(
            file=files.get(number),
            attempt=job.spec.submitted_as,
            worker=0,
            vectors=counted.vectors,
            reused=counted.vectors,
            width=facts["width"],
            bad=(),
            ids_sha256=counted.ids_sha256,
            seconds=0.0,
        )
        for number, counted in _same(items, now, [Counted(*each) for each in facts["shards"]])
        if part_name(number) not in damage
    }
    return EarlierShards(notes, files)


def _named(prefix: str, manifest: Manifest) -> dict[int, FileEntry]:
    number_of = {part_name(number): number for number in range(manifest.facts["catalogue"]["partitions"])}
    return {number_of[entry.name]: entry.named_from(prefix) for entry in manifest.files}


def _same(before: Manifest, now: Manifest, shards: list[Counted]) -> Iterator[tuple[int, Counted]]:
    """Yield the partitions with the same file of live items in both catalogues, unless an item got no vector."""
    old, new = ({entry.name: entry.sha256 for entry in each.files} for each in (before, now))
    for number, counted in enumerate(shards):
        if not counted.bad and old.get(part_name(number)) == new.get(part_name(number)):
            yield number, counted


pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class EarlierVectors:
    """The vectors of a folder, by item id and content; empty without a folder.

    Raises:
        MissingFolder, CorruptFolder: the folder is not complete, or holds the vectors of another model.
    """

    def __init__(self, store: Store, prefix: str | None, model_version: str, manifests: Store | None = None) -> None:
        """Read the manifest; from `manifests` if given: the same workspace, shared by several workers."""
        self._store, self._prefix = store, prefix
        self._files: tuple[FileEntry, ...] = ()
        self._partitions = 1
        self.max_tokens: int | None = None  # limit to which the texts of these vectors were cut
        self._type = pa.float32()
        self.catalogue: CatalogueRef | None = None  # the items of these vectors
        if prefix is not None:
            manifest = read_manifest(manifests or store, prefix)
            expect_vectors(store, prefix, manifest, model_version)
            self._files = manifest.files
            self.catalogue = CatalogueRef.model_validate(manifest.facts["catalogue"])
            self._partitions = self.catalogue.partitions
            self.max_tokens = manifest.facts["max_tokens"]
            self._type = pa.float16() if manifest.facts["type"] == "fp16" else pa.float32()

    def of_partition(self, number: int, of: int) -> dict[tuple[str, str], np.ndarray]:
        """Return (item id, content hash) -> vector of the items of a partition; damaged files are left out.

        Args:
            of: partitions of the catalogue that `number` counts.
        """
        found: dict[tuple[str, str], np.ndarray] = {}
        for earlier in self.partitions_of(number, of):
            entry = self._entry(earlier)
            if entry is not None and not self._whole(entry):
                print(f"{self._local(entry)} is damaged: its items are embedded again", flush=True)
            elif (table := self.table(earlier, [ITEM_ID, CONTENT, VECTOR])) is not None:
                keys = zip(table[ITEM_ID].to_pylist(), table[CONTENT].to_pylist(), strict=True)
                found.update(zip(keys, as_matrix(table[VECTOR]), strict=True))
        return found

    def partitions_of(self, number: int, of: int) -> range:
        """Return the earlier partitions that may hold the items of partition `number` of `of`.

        Both counts are powers of two, so a partition is a part of one earlier partition, or several are parts of it.
        """
        step = min(of, self._partitions)
        return range(number % step, self._partitions, step)

    def partitions(self, share: Share) -> range:
        """Return this worker's share of the earlier partitions."""
        return range(self._partitions)[share.index :: share.of]

    def table(self, earlier: int, columns: Sequence[str]) -> pa.Table | None:
        """Return columns of an earlier partition; None if it has no vector."""
        entry = self._entry(earlier)
        return None if entry is None else pq.read_table(self._local(entry), columns=list(columns))

    def stored(self, vectors: np.ndarray) -> pa.Array:
        """Return vectors, float32 (items, width), as a column of the type that the folder stores."""
        flat = pa.array(vectors.astype(self._type.to_pandas_dtype()).reshape(-1), self._type)
        return pa.FixedSizeListArray.from_arrays(flat, vectors.shape[1])

    def check(self, share: Share) -> None:
        """Compare this worker's share of the files with their checksums. Raises CorruptFolder: names the file."""
        for entry in self._files[share.index :: share.of]:
            if not self._whole(entry):
                raise CorruptFolder(f"{self._local(entry)} does not match its checksum in {MANIFEST}")

    def holds(self, ids: pa.ChunkedArray, share: Share) -> np.ndarray:
        """Return bool (ids,): True for an id in this worker's share of the files, with any content."""
        found = np.zeros(len(ids), dtype=bool)
        for entry in self._files[share.index :: share.of]:
            there = pq.read_table(self._local(entry), columns=[ITEM_ID])[ITEM_ID]
            found |= pc.is_in(ids, value_set=there.combine_chunks()).to_numpy()
        return found

    def _entry(self, number: int) -> FileEntry | None:
        name = part_name(number)
        return next((entry for entry in self._files if entry.name == name), None)

    def _whole(self, entry: FileEntry) -> bool:
        path = self._local(entry)
        return path.is_file() and sha256_of(path) == entry.sha256

    def _local(self, entry: FileEntry) -> Path:
        assert self._prefix is not None
        return self._store.local(entry.key(self._prefix))


def as_matrix(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of fixed-size lists as an array (rows, width) of its own type."""
    width = column.type.list_size
    flat = [chunk.flatten().to_numpy(zero_copy_only=False) for chunk in column.chunks]
    return np.concatenate(flat).reshape(-1, width) if flat else np.zeros((0, width), dtype=np.float32)
