"""Embeds the items of a partition in batches and writes its shard."""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import sha256_of
from infra.store.manifest import FileEntry
from tasks.data.items import CONTENT, MODEL_VERSION, TEXT, VECTOR, part_name
from tasks.data.rows import ITEM_ID
from tasks.foundation.errors import CodeError
from tasks.worker.catalogue.earlier_shards import BadItem, ShardNote
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts

BATCH_ITEMS = 4096  # in memory at once, with their vectors
NORM_TOLERANCE = 1e-3
A_MODELS_FAULT = 16  # a batch of at least this many items, all with bad vectors, is the model's fault
_REASON = "its vector is not finite or not of unit length"


class Batch(NamedTuple):
    """Items, and bool `kept` (items,): True for a vector of an earlier folder, which is in `found` already.

    `found`: vectors, float32 (items, width). `inputs`: the other items, as the model reads them; None: no other.
    """

    items: pa.Table
    kept: np.ndarray
    found: np.ndarray
    inputs: tuple[TokenLists, FeatureArrays] | None


class Embedder:
    """Makes the shards of a worker, one after another."""

    def __init__(
        self, job: Job, accelerator: Accelerator, parts: ModelParts, catalogue: Catalogue, version: str,
        earlier: EarlierVectors,
    ) -> None:  # fmt: skip
        self._job, self._accelerator, self._parts = job, accelerator, parts
        self._catalogue, self._version, self._earlier = catalogue, version, earlier
        kind = pa.float16() if job.config.infer.vectors == "fp16" else pa.float32()
        self._schema = pa.schema(
            {
                ITEM_ID: pa.string(),
                TEXT: pa.string(),
                VECTOR: pa.list_(kind, parts.model.width),
                MODEL_VERSION: pa.dictionary(pa.int32(), pa.string()),
                CONTENT: pa.string(),
            }
        )

    @contextlib.contextmanager
    def shard(self, number: int) -> Iterator[tuple[Path, ShardNote]]:
        """Yield the shard of a partition as a local file, with its note.

        If the device works beside the host, one thread reads and tokenises ahead of it, and one writes behind it.

        Raises:
            CodeError: no vector of a whole batch of items is usable.
        """
        began = time.monotonic()
        earlier = self._earlier.of_partition(number, self._catalogue.ref.partitions)
        bad: list[BadItem] = []
        ids = hashlib.sha256()
        vectors = reused = 0
        with self._job.scratch() as folder:
            path = folder / part_name(number)
            with pq.ParquetWriter(path, self._schema, compression="zstd") as writer:
                read = (self._batch(items, earlier) for items in self._catalogue.items(number, BATCH_ITEMS))
                embedded = (self._embed(batch) for batch in self._accelerator.ahead(read))
                for items, kept, found, _ in self._accelerator.ahead(embedded):
                    usable = np.abs(np.linalg.norm(found, axis=1) - 1.0) < NORM_TOLERANCE  # false for a NaN too
                    if not usable.any() and len(usable) >= A_MODELS_FAULT:
                        item = items[ITEM_ID][0].as_py()
                        raise CodeError(
                            f"item {item!r} and all {len(usable)} of its batch got vectors that are not finite or not "
                            "of unit length; the checkpoint should not be released"
                        )
                    bad += [BadItem(item_id=items[ITEM_ID][row].as_py(), reason=_REASON)
                            for row in np.flatnonzero(~usable).tolist()]  # fmt: skip
                    good = items.filter(pa.array(usable))
                    writer.write_table(self._table(good, found[usable]))
                    ids.update("".join(f"{item_id}\n" for item_id in good[ITEM_ID].to_pylist()).encode())
                    vectors, reused = vectors + good.num_rows, reused + int((kept & usable).sum())
            entry = FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path)) if vectors else None
            yield (
                path,
                ShardNote(
                    file=entry,
                    attempt=self._job.spec.submitted_as,
                    worker=self._job.share.index,
                    vectors=vectors,
                    reused=reused,
                    width=self._parts.model.width,
                    bad=tuple(bad),
                    ids_sha256=ids.hexdigest(),
                    seconds=time.monotonic() - began,
                ),
            )

    def _batch(self, items: pa.Table, earlier: dict[tuple[str, str], np.ndarray]) -> Batch:
        """Return items with the vectors of `earlier`, by id and content, and the inputs of the others."""
        keys = zip(items[ITEM_ID].to_pylist(), items[CONTENT].to_pylist(), strict=True)
        known = [earlier.get(key) for key in keys]
        kept = np.array([vector is not None for vector in known], dtype=bool)
        found = np.empty((items.num_rows, self._parts.model.width), dtype=np.float32)
        if kept.any():
            found[kept] = np.stack([vector for vector in known if vector is not None])
        return Batch(items, kept, found, None if kept.all() else self._inputs(items.filter(pa.array(~kept))))

    def _inputs(self, items: pa.Table) -> tuple[TokenLists, FeatureArrays]:
        parts, longest = self._parts, self._job.config.infer.max_tokens
        prompt = prompts_of(items, "item", parts.model.shape.prompts, parts.features.entity)
        tokens = tokenize(parts.tokenizer, items[TEXT].to_pylist(), longest, parts.model.pad, prompt)
        return tokens, encode_features(parts.features, items, "item")

    def _embed(self, batch: Batch) -> Batch:
        """Compute the vectors that are missing, by this worker alone."""
        if batch.inputs is not None:
            config = self._job.config
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
