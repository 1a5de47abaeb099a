"""Vectors of earlier releases of the same model, reused for unchanged items.

A manifest of new vectors points to the old files of each partition, and to a delta over them with the changes. If
a partition gets a new shard, single vectors are reused.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import CONTENT, ITEM_ID, VECTOR, VECTORS_KIND
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

    file: FileEntry | None = Field(description="its newest file; null: the partition has no item with a vector")
    below: tuple[FileEntry, ...] = Field(default=(), description="files below it, the shard first")
    attempt: int
    worker: int
    vectors: int
    reused: int = Field(description="vectors copied from an earlier release of the same model")
    width: int
    bad: tuple[BadItem, ...]
    ids_sha256: str = Field(description="over the item ids, one on each line")
    seconds: float

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """The partition's files, the shard first."""
        return () if self.file is None else (*self.below, self.file)


class Counted(NamedTuple):
    """Counts of one shard, which the facts of a manifest have as `shards`, by partition."""

    vectors: int
    bad: int
    ids_sha256: str


class EarlierShards(NamedTuple):
    """Files of earlier vectors; they lie in other folders. Empty without vectors that fit."""

    notes: dict[int, ShardNote]  # by partition; they need not be made again
    layers: dict[int, tuple[FileEntry, ...]]  # the sound files of each partition
    whole: dict[int, Counted]  # partitions of whose items all have a vector in sound files
    catalogue: CatalogueRef | None  # the items of these vectors


def earlier_shards(job: Job) -> EarlierShards:
    """Return the earlier vectors' files.

    A partition need not be made again if the file of its items is the same as in the catalogue of the earlier vectors,
    all of these got a vector, vectors are stored as they were, and its files are sound. Damaged ones are set apart.
    """
    inputs, infer = job.spec.inputs, job.config.infer
    assert isinstance(inputs, InferInputs)
    none = EarlierShards({}, {}, {}, None)
    if inputs.reuse is None:
        return none
    try:
        vectors = read_manifest(job.shared, inputs.reuse)
        expect_manifest(job.shared, inputs.reuse, vectors, inputs.reuse_sha256)
        expect_vectors(job.shared, inputs.reuse, vectors, inputs.model.version)
        earlier = layers_of(vectors)
        damage = find_damage(job.shared, inputs.reuse, vectors, in_turn(vectors.files, inputs.turn))
        before = CatalogueRef.model_validate(vectors.facts["catalogue"])
        items = read_manifest(job.shared, before.prefix)
        expect_manifest(job.shared, before.prefix, items, before.sha256)
    except (MissingFolder, CorruptFolder) as error:
        print(f"no shard is taken from earlier vectors: {error}", flush=True)
        return none
    facts = vectors.facts
    alike = (facts["type"], facts["max_tokens"], before.partitions)
    if alike != (infer.vectors, infer.max_tokens, inputs.catalogue.partitions) or "shards" not in facts:
        return none
    if damage:
        print(f"{sentence_of(damage)}: its items are embedded again", flush=True)
        set_apart(job.store, inputs.reuse, vectors, damage)
    now = read_manifest(job.shared, inputs.catalogue.prefix)
    layers = {
        number: tuple(entry.named_from(inputs.reuse) for entry in of_number)
        for number, of_number in earlier.items()
        if not any(entry.name in damage for entry in of_number)
    }
    counts = dict(enumerate(Counted(*each) for each in facts["shards"]))
    sound = {n: each for n, each in counts.items() if not each.bad and (n in layers or n not in earlier)}
    notes = {
        number: ShardNote(
            file=layers[number][-1] if number in layers else None,
            below=layers[number][:-1] if number in layers else (),
            attempt=job.spec.submitted_as,
            worker=0,
            vectors=sound[number].vectors,
            reused=sound[number].vectors,
            width=facts["width"],
            bad=(),
            ids_sha256=sound[number].ids_sha256,
            seconds=0.0,
        )
        for number in sound.keys() & _same(items, now, before.partitions)
    }
    return EarlierShards(notes, layers, {number: sound[number] for number in sound.keys() & layers.keys()}, before)


def _same(before: Manifest, now: Manifest, partitions: int) -> set[int]:
    """Return the partitions with the same files of live items in both catalogues."""
    old, new = (
        {number: [entry.sha256 for entry in layers] for number, layers in layers_of(each).items()}
        for each in (before, now)
    )
    return {number for number in range(partitions) if old.get(number) == new.get(number)}


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
        self._layers: dict[int, tuple[FileEntry, ...]] = {}
        self._opened: dict[int, Layers] = {}
        self._partitions = 1
        self.max_tokens: int | None = None  # limit to which the texts of these vectors were cut
        self._type = pa.float32()
        self.catalogue: CatalogueRef | None = None  # the items of these vectors
        if prefix is not None:
            manifest = read_manifest(manifests or store, prefix)
            expect_vectors(store, prefix, manifest, model_version)
            self._files, self._layers = manifest.files, layers_of(manifest)
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
        for entry in (entry for earlier in self.partitions_of(number, of) for entry in self._layers.get(earlier, ())):
            if not self._whole(entry):
                print(f"{self._local(entry)} is damaged: its items are embedded again", flush=True)
                continue
            # A row that a newer file hides is the vector of another content, so it is as good as a live one.
            table = pq.read_table(self._local(entry), columns=[ITEM_ID, CONTENT, VECTOR])
            table = table.filter(table[VECTOR].is_valid())
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
        """Return columns of an earlier partition, each live item once, by item id; None if it has no file."""
        if earlier not in self._layers:
            return None
        if earlier not in self._opened:
            self._opened[earlier] = Layers.open([self._local(entry) for entry in self._layers[earlier]])
        return self._opened[earlier].table(columns)

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
        """Return bool (ids,): True for an id in this worker's share of the partitions, with any content."""
        found = np.zeros(len(ids), dtype=bool)
        for number in self.partitions(share):
            if (there := self.table(number, [ITEM_ID])) is not None:
                found |= pc.is_in(ids, value_set=there[ITEM_ID].combine_chunks()).to_numpy()
        return found

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
