"""The proof that the exported model gives items and queries the vectors that the pipeline gave them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import MANIFEST, CorruptFolder, FileEntry
from tasks.contracts.jobs import ReleaseInputs
from tasks.data.items import VECTOR, partition_of
from tasks.data.rows import ITEM_ID, QUERY
from tasks.foundation.errors import CodeError
from tasks.worker.accelerators import open_accelerator
from tasks.worker.catalogue.read import Catalogue
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Job
from tasks.worker.search.consumer import Consumer
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.vectors.reuse import as_matrix

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def item_cosines(job: Job, inputs: ReleaseInputs, shard: FileEntry, consumer: Consumer) -> np.ndarray:
    """Return cosines, float32 (items,), of exported and released vectors of the first items of a shard.

    Raises:
        CodeError: one is below `release.min_cosine`.
    """
    items, released = _sample(job.store, inputs, shard, job.config.release.probe_rows)
    cosines: np.ndarray = (released * consumer.items(items)).sum(axis=1)
    cosines /= np.linalg.norm(released, axis=1)  # float16 rounds
    _refuse(job, cosines, "item", items[ITEM_ID], "the released one")
    return cosines


def query_cosines(job: Job, parts: ModelParts, queries: pa.Table, consumer: Consumer) -> np.ndarray:
    """Return cosines, float32 (queries,), of the exported and the trained model's vectors.

    Raises:
        CodeError: one is below `release.min_cosine`.
    """
    if not queries.num_rows:
        return np.zeros(0, dtype=np.float32)
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
        settings = embed_settings(job.config, accelerator, "fp32")
        longest = job.config.infer.max_tokens
        prompt = parts.model.shape.prompts.query
        tokens = tokenize(parts.tokenizer, queries[QUERY].to_pylist(), longest, parts.model.pad, prompt)
        features = encode_features(parts.features, queries, "query")
        trained = embed(parts.model, accelerator, tokens, features, settings, shared=False)
    cosines: np.ndarray = (trained * consumer.queries(queries)).sum(axis=1)
    _refuse(job, cosines, "query", queries[QUERY], "that of the trained one")
    return cosines


def _refuse(job: Job, cosines: np.ndarray, what: str, names: pa.ChunkedArray, compared: str) -> None:
    worst, least = int(np.argmin(cosines)), job.config.release.min_cosine
    if not cosines[worst] >= least:  # also where it is not a number
        raise CodeError(
            f"the exported model gives {what} {names[worst].as_py()!r} a vector with cosine {cosines[worst]:.6f} to "
            f"{compared}, below release.min_cosine {least}; nothing was released"
        )


def _sample(store: Store, inputs: ReleaseInputs, shard: FileEntry, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Return the first items of a shard, with their features, and their released vectors, float32 (items, width)."""
    path = store.local(f"{inputs.vectors}/{shard.name}")
    if not path.is_file() or sha256_of(path) != shard.sha256:
        raise CorruptFolder(f"{path} does not match its checksum in {MANIFEST}; run infer again")
    vectors = next(pq.ParquetFile(path).iter_batches(rows, columns=[ITEM_ID, VECTOR]))
    catalogue = Catalogue(store, inputs.catalogue)
    items = next(catalogue.items(partition_of(vectors[ITEM_ID][0].as_py(), inputs.catalogue.partitions), 2 * rows))
    items = items.filter(pc.is_in(items[ITEM_ID], value_set=vectors[ITEM_ID]))  # bad items have no vector
    sample = vectors.take(pc.index_in(items[ITEM_ID].combine_chunks(), value_set=vectors[ITEM_ID]))
    return items, as_matrix(pa.chunked_array([sample[VECTOR]])).astype(np.float32)
