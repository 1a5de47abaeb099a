"""infer: a vector for every distinct item of the span, in Parquet shards, each committed on its own.

The workers never communicate: each makes its share of the shards and writes its counts; the last one seals the folder
with its manifest. A shard that an earlier attempt completed is not made again.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import FileEntry, seal
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.progress import report
from tasks.data.rows import ITEM, ITEM_ID, distinct_items
from tasks.foundation.errors import CodeError, DataError, StoreError
from tasks.foundation.records import Record
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.compile import compile_cache
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.pairs import load_rows

KIND = "vectors"
NORM_TOLERANCE = 1e-3


class ShareCounts(Record):
    """`tallies/<share>.json` of the job, for all of its tries: all shards of one worker are there."""

    reused: int
    embedded: int
    seconds: float


def run(job: Job) -> InferOutcome | None:
    """Embed this worker's share of the span's items; return the outcome of all if the others are done, else None.

    Raises:
        DataError: the span has no item.
        CodeError: a vector is not finite or not of unit length; nothing of that shard is written.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, InferInputs)
    config = job.config
    shards = Shards(job.store, f"vectors/{inputs.model.version}/{inputs.rows.span.name}", job.spec.stage_prefix)
    with open_accelerator(config.accelerator, job.rank, config, config.infer.precision) as accelerator:
        with job.clock.phase("restoring"):
            compile_cache.reuse(accelerator, job.store, inputs.compiled)
            items = distinct_items(load_rows(job.store, [inputs.rows], config))
            if not items.num_rows:
                raise DataError(f"span {inputs.rows.span.name} has no item to embed")
            parts = load_parts(job.store, inputs.model.checkpoint)
            accelerator.to_device(parts.model)
        starts = range(0, items.num_rows, config.infer.shard_rows)
        began = time.monotonic()
        reused = embedded = 0
        for number in range(job.share.index, len(starts), job.share.of):
            if shards.done(number):
                reused += 1
                continue
            shard = items.slice(starts[number], config.infer.shard_rows)
            vectors = _embed_shard(job, accelerator, parts, shard)
            shards.write(number, shard[ITEM_ID], vectors, inputs.model.version)
            embedded += len(vectors)
            if job.share.index == 0:
                report("infer", min(starts[number] + config.infer.shard_rows, items.num_rows), items.num_rows)
        own = ShareCounts(reused=reused, embedded=embedded, seconds=time.monotonic() - began)
    counts = _write_counts(job, own)
    if counts is None:
        return None
    facts = {"model_version": inputs.model.version, "span": inputs.rows.span.name, "width": parts.model.width}
    shards.seal(len(starts), items.num_rows, facts)
    return InferOutcome(
        prefix=shards.prefix,
        vectors=items.num_rows,
        width=parts.model.width,
        shards=len(starts),
        shards_reused=sum(each.reused for each in counts),
        texts_per_second=round(sum(each.embedded for each in counts) / max(each.seconds for each in counts), 2),
    )


class Shards:
    """The Parquet shards of one vectors folder, and a note for each complete one (kept with the run)."""

    def __init__(self, store: Store, prefix: str, stage_prefix: str) -> None:
        self.store = store
        self.prefix = prefix
        self.notes = f"{stage_prefix}/shards"

    def done(self, number: int) -> bool:
        """Return whether a shard was completed before and its bytes are unchanged."""
        if not self.store.exists(self._note(number)):
            return False
        entry = FileEntry.model_validate_json(self.store.read(self._note(number)))
        path = self.store.local(f"{self.prefix}/{entry.name}")
        return path.is_file() and sha256_of(path) == entry.sha256

    def write(self, number: int, item_ids: pa.ChunkedArray, vectors: np.ndarray, version: str) -> None:
        """Write one shard: item_id string, vector fixed-size list of float32, model_version; then its note."""
        width = vectors.shape[1]
        flat = pa.array(vectors.reshape(-1), pa.float32())
        table = pa.table(
            {
                ITEM_ID: item_ids,
                "vector": pa.FixedSizeListArray.from_arrays(flat, width),
                "model_version": pa.array([version] * len(vectors)).dictionary_encode(),
            }
        )
        name = f"part-{number:05d}.parquet"
        with tempfile.TemporaryDirectory(prefix="millrace-") as folder:
            path = Path(folder) / name
            pq.write_table(table, path, compression="zstd")
            entry = FileEntry(name=name, bytes=path.stat().st_size, sha256=sha256_of(path))
            self.store.upload(path, f"{self.prefix}/{name}")
        self.store.write(self._note(number), entry.to_json())

    def seal(self, shards: int, vectors: int, facts: dict[str, Any]) -> None:
        """Write the folder's manifest. Raises StoreError if the shards do not have every vector exactly once."""
        entries = tuple(FileEntry.model_validate_json(self.store.read(self._note(n))) for n in range(shards))
        counted = sum(pq.read_metadata(self.store.local(f"{self.prefix}/{entry.name}")).num_rows for entry in entries)
        if counted != vectors:
            raise StoreError(
                f"{self.store.uri}/{self.prefix} has {counted} vectors, expected {vectors}; run infer again"
            )
        seal(self.store, self.prefix, entries, KIND, {**facts, "vectors": vectors, "shards": shards})

    def _note(self, number: int) -> str:
        return f"{self.notes}/part-{number:05d}.json"


def _write_counts(job: Job, own: ShareCounts) -> list[ShareCounts] | None:
    """Write the counts of this worker; return those of all workers, or None while one is missing.

    Several workers that end at the same time may each find all; they then write the same.
    """
    folder = f"{job.spec.job_prefix}/tallies"
    job.store.write(f"{folder}/{job.share.index}.json", own.to_json())
    keys = [f"{folder}/{index}.json" for index in range(job.share.of)]
    if not set(keys) <= set(job.store.list(folder)):
        return None
    return [ShareCounts.model_validate_json(job.store.read(key)) for key in keys]


def _embed_shard(job: Job, accelerator: Accelerator, parts: ModelParts, shard: pa.Table) -> np.ndarray:
    """Return unit vectors, float32 (rows, width), made by this worker alone. Raises CodeError for a bad vector."""
    infer = job.config.infer
    settings = embed_settings(job.config, accelerator, infer.precision)
    tokens = tokenize(parts.tokenizer, shard[ITEM].to_pylist(), infer.token_rungs[-1], parts.model.pad)
    features = encode_features(parts.features, shard, "item")
    vectors = embed(parts.model, accelerator, tokens, features, settings, shared=False)
    off = np.abs(np.linalg.norm(vectors, axis=1) - 1.0)
    if not (off < NORM_TOLERANCE).all():  # a NaN compares false, so this finds it too
        row = int(np.argmax(~(off < NORM_TOLERANCE)))
        raise CodeError(
            f"item {shard[ITEM_ID][row].as_py()!r} got a vector that is not finite or not of unit length "
            f"(norm off by {off[row]:.3g}); the checkpoint should not be released"
        )
    return vectors
