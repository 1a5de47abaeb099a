"""infer: embeds every item of the catalogue, partition by partition, each committed on its own.

The workers never communicate: each leases a partition in the workspace, embeds it in batches and writes its shard, then
a note with its counts. A partition with a note is done, in this attempt or an earlier one. A slow worker gets fewer
partitions, and a lost worker's partition is reassigned. The first worker, once it finds all notes, seals the folder.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Conflict, sha256_of
from infra.store.lease import hold
from infra.store.manifest import CorruptFolder, FileEntry, MissingFolder, expect_manifest, read_manifest
from tasks.contracts.jobs import InferInputs, report
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.stages import Stage, compute_of
from tasks.data.layers import PARQUET
from tasks.data.rows import CONTENT, ITEM_ID, MODEL_VERSION, TEXT, VECTOR, part_name
from tasks.foundation.errors import CodeError, DataError
from tasks.worker.catalogue.changed_items import ids_sha256
from tasks.worker.catalogue.deltas import Deltas
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import BadItem, EarlierVectors, ShardNote, as_matrix
from tasks.worker.catalogue.shards import Shards
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.model.tokens import TokenLists, prompts_of, tokenize
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts, load_parts

BATCH_ITEMS = 4096  # in memory at once, with their vectors
NORM_TOLERANCE = 1e-3
A_MODELS_FAULT = 16  # a batch of at least this many items, all with bad vectors, is the model's fault
KEEP_SECONDS = 10.0  # work that the ledger may miss; a refresh makes a partition in milliseconds
_REASON = "its vector is not finite or not of unit length"


class Batch(NamedTuple):
    """Items, and bool `kept` (items,): True for a vector of an earlier folder, which is in `found` already.

    `found`: vectors, float32 (items, width). `inputs`: the other items, as the model reads them; None: no other.
    """

    items: pa.Table
    kept: np.ndarray
    found: np.ndarray
    inputs: tuple[TokenLists, FeatureArrays] | None


class Made(NamedTuple):
    """Rows of a shard, the number of their reused vectors, and the items that got none."""

    rows: pa.Table
    reused: int
    bad: tuple[BadItem, ...]


class Embedder:
    """Makes the shards and deltas of a worker, one after another."""

    def __init__(
        self, job: Job, accelerator: Accelerator, parts: ModelParts, catalogue: Catalogue, version: str,
        earlier: EarlierVectors, deltas: Deltas,
    ) -> None:  # fmt: skip
        self.job, self._accelerator, self._parts = job, accelerator, parts
        self._catalogue, self._version, self._earlier, self._deltas = catalogue, version, earlier, deltas
        kind = pa.float16() if job.config.infer.vectors == "fp16" else pa.float32()
        self._kept: float | None = None
        self._schema = pa.schema(
            {
                ITEM_ID: pa.string(),
                TEXT: pa.string(),
                VECTOR: pa.list_(kind, parts.model.width),
                MODEL_VERSION: pa.dictionary(pa.int32(), pa.string()),
                CONTENT: pa.string(),
            }
        )

    def keep(self) -> None:
        """Record the seconds of this work, as the first worker, at most every KEEP_SECONDS."""
        now = time.monotonic()
        if self.job.share.index == 0 and (self._kept is None or now - self._kept >= KEEP_SECONDS):
            self.job.keep(self.job.clock.read())
            self._kept = now

    @contextlib.contextmanager
    def shard(self, number: int) -> Iterator[tuple[Path, ShardNote]]:
        """Yield the new file of a partition as a local file, with its note.

        If the device works beside the host, one thread reads and tokenises ahead of it, and one writes behind it.

        Raises:
            CodeError: no vector of a whole batch of items is usable.
        """
        began = time.monotonic()
        with self.job.scratch() as folder:
            known: dict[tuple[str, str], np.ndarray] = {}
            found = self._delta(number, folder, known) or self._shard(number, folder, known)
            path, note = found
            yield path, note.model_copy(update={"seconds": time.monotonic() - began})

    def _delta(
        self, number: int, folder: Path, known: dict[tuple[str, str], np.ndarray]
    ) -> tuple[Path, ShardNote] | None:
        """Embed the changes of a partition; None if it is to be written whole, with these vectors in `known`."""
        if (changed := self._deltas.changed(number)) is None:
            return None
        made = [*self._made(iter(changed.changed.to_batches(BATCH_ITEMS)), {})]
        live = pa.concat_tables([self._schema.empty_table(), *(each.rows for each in made)])
        bad = tuple(item for each in made for item in each.bad)
        none = {item.item_id for item in bad}
        if (written := self._deltas.write(number, live, [*changed.gone, *none], folder)) is None:
            keys = zip(live[ITEM_ID].to_pylist(), live[CONTENT].to_pylist(), strict=True)
            known.update(zip(keys, as_matrix(live[VECTOR]), strict=True))
            return None
        vectors = len(changed.ids) - len(bad)
        ids = ids_sha256(each for each in changed.ids if each not in none)
        note = self._note(written.file, vectors, vectors - live.num_rows, bad, ids)
        return written.path or folder, note.model_copy(update={"below": written.below})

    def _shard(self, number: int, folder: Path, known: Mapping[tuple[str, str], np.ndarray]) -> tuple[Path, ShardNote]:
        earlier = {**self._earlier.of_partition(number, self._catalogue.ref.partitions), **known}
        path, bad, ids, vectors, reused = folder / part_name(number), list[BadItem](), hashlib.sha256(), 0, 0
        items = (batch for table in self._catalogue.items(number, BATCH_ITEMS) for batch in table.to_batches())
        with pq.ParquetWriter(path, self._schema, **PARQUET) as writer:
            for made in self._made(items, earlier):
                writer.write_table(made.rows)
                ids.update("".join(f"{item_id}\n" for item_id in made.rows[ITEM_ID].to_pylist()).encode())
                vectors, reused, bad = vectors + made.rows.num_rows, reused + made.reused, [*bad, *made.bad]
        entry = FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path)) if vectors else None
        return path, self._note(entry, vectors, reused - len(known), tuple(bad), ids.hexdigest())

    def _note(self, file: FileEntry | None, vectors: int, reused: int, bad: tuple[BadItem, ...], ids: str) -> ShardNote:
        return ShardNote(
            file=file,
            attempt=self.job.spec.submitted_as,
            worker=self.job.share.index,
            vectors=vectors,
            reused=reused,
            width=self._parts.model.width,
            bad=bad,
            ids_sha256=ids,
            seconds=0.0,
        )

    def _made(self, batches: Iterator[pa.RecordBatch], earlier: Mapping[tuple[str, str], np.ndarray]) -> Iterator[Made]:
        """Yield the rows of items, in their order, with the vectors that `earlier` has."""
        read = (self._batch(pa.Table.from_batches([batch]), earlier) for batch in batches)
        embedded = (self._embed(batch) for batch in self._accelerator.ahead(read))
        for items, kept, found, _ in self._accelerator.ahead(embedded):
            usable = np.abs(np.linalg.norm(found, axis=1) - 1.0) < NORM_TOLERANCE  # false for a NaN too
            if not usable.any() and len(usable) >= A_MODELS_FAULT:
                item = items[ITEM_ID][0].as_py()
                raise CodeError(
                    f"item {item!r} and all {len(usable)} of its batch got vectors that are not finite or not "
                    "of unit length; the checkpoint should not be released"
                )
            bad = [BadItem(item_id=items[ITEM_ID][row].as_py(), reason=_REASON)
                   for row in np.flatnonzero(~usable).tolist()]  # fmt: skip
            rows = self._table(items.filter(pa.array(usable)), found[usable])
            yield Made(rows, int((kept & usable).sum()), tuple(bad))

    def _batch(self, items: pa.Table, earlier: Mapping[tuple[str, str], np.ndarray]) -> Batch:
        """Return items with the vectors of `earlier`, by id and content, and the inputs of the others."""
        keys = zip(items[ITEM_ID].to_pylist(), items[CONTENT].to_pylist(), strict=True)
        known = [earlier.get(key) for key in keys]
        kept = np.array([vector is not None for vector in known], dtype=bool)
        found = np.empty((items.num_rows, self._parts.model.width), dtype=np.float32)
        if kept.any():
            found[kept] = np.stack([vector for vector in known if vector is not None])
        return Batch(items, kept, found, None if kept.all() else self._inputs(items.filter(pa.array(~kept))))

    def _inputs(self, items: pa.Table) -> tuple[TokenLists, FeatureArrays]:
        parts, longest = self._parts, self.job.config.infer.max_tokens
        prompt = prompts_of(items, "item", parts.model.shape.prompts, parts.features.entity)
        tokens = tokenize(parts.tokenizer, items[TEXT].to_pylist(), longest, parts.model.pad, prompt)
        return tokens, encode_features(parts.features, items, "item")

    def _embed(self, batch: Batch) -> Batch:
        """Compute the vectors that are missing, by this worker alone."""
        if batch.inputs is not None:
            config = self.job.config
            settings = embed_settings(config, self._accelerator, config.infer.precision)
            own = embed(self._parts.model, self._accelerator, *batch.inputs, settings, shared=False)
            batch.found[~batch.kept] = own
        return batch

    def _table(self, items: pa.Table, vectors: np.ndarray) -> pa.Table:
        kind = self._schema.field(VECTOR).type
        flat = pa.array(vectors.astype(kind.value_type.to_pandas_dtype()).reshape(-1), kind.value_type)
        versions = pa.DictionaryArray.from_arrays(np.zeros(len(vectors), dtype=np.int32), [self._version])
        columns = [items[ITEM_ID], items[TEXT], pa.FixedSizeListArray.from_arrays(flat, kind.list_size), versions,
                   items[CONTENT]]  # fmt: skip
        return pa.table(columns, schema=self._schema)


LEASE_SECONDS = 20.0  # before a lost worker's partition is reassigned
WAIT_SECONDS = 2.0  # between checks of partitions leased by other workers
PROBES = 3  # leased partitions before another look: thousands of workers may wait for the last ones


def run(job: Job) -> InferOutcome | None:
    """Embed partitions until all are done; return the outcome over all workers, as the first of them.

    Raises:
        DataError: the catalogue has no item.
        CodeError: too many vectors are not finite or not of unit length; nothing is sealed.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, InferInputs)
    if not inputs.catalogue.items:
        raise DataError(f"{job.store.uri}/{inputs.catalogue.prefix} has no live item to embed")
    shards = Shards(job)
    if not (left := shards.begin()):
        return shards.seal() if job.share.index == 0 else None
    config = with_infer_compiler(job.config)
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            if inputs.compiled is not None:
                from tasks.worker.training import compile_cache  # made by warmup, with the modules of training

                compile_cache.reuse(accelerator, job.store, inputs.compiled)
            parts = load_parts(job.shared, inputs.model.checkpoint)
            accelerator.to_device(parts.model)
            catalogue = Catalogue(job.store, inputs.catalogue, job.shared)
            earlier = _earlier(job, inputs)
            deltas = Deltas(job.store, job.shared, shards.earlier, catalogue)
        embedder = Embedder(job, accelerator, parts, catalogue, inputs.model.version, earlier, deltas)
        while left:
            if not _make(shards, left, embedder):
                time.sleep(WAIT_SECONDS)
            left = shards.open()
    return shards.seal() if job.share.index == 0 else None


def _make(shards: Shards, left: Sequence[int], embedder: Embedder) -> int:
    """Make the shards of partitions that no other worker has, up to the first that another has done; return the number.

    What others do meanwhile is one listing of all notes, instead of some requests for each of their partitions.
    """
    job, made, taken = embedder.job, 0, 0
    for number in left:
        try:
            with hold(job.store, shards.lease(number), LEASE_SECONDS) as lease:
                if shards.done(number):
                    return made + 1
                with job.clock.phase("productive"), embedder.shard(number) as (path, note):
                    shards.commit(number, path, note, lease)
        except Conflict:  # another worker has it
            if (taken := taken + 1) == PROBES:
                return made
            continue
        made += 1
        embedder.keep()
        shards.ready += 1
        report("partitions", shards.ready, shards.partitions)
    return made


def _earlier(job: Job, inputs: InferInputs) -> EarlierVectors:
    """Return the earlier vectors; none if their manifest is not the released one, so that all items are embedded."""
    reuse = inputs.reuse
    try:
        if reuse is not None:
            expect_manifest(job.shared, reuse, read_manifest(job.shared, reuse), inputs.reuse_sha256)
    except (MissingFolder, CorruptFolder) as error:
        print(f"all items are embedded again: {error}", flush=True)
        reuse = None
    return EarlierVectors(job.store, reuse, inputs.model.version, job.shared)


def with_infer_compiler(config: Config) -> Config:
    """Return the configuration with the compiler target of infer's machines."""
    if config.batch.infer is None or compute_of(config, Stage.infer) != "batch":
        return config
    return config.model_copy(
        update={"compiler": config.compiler.model_copy(update={"target": config.batch.infer.target})}
    )
