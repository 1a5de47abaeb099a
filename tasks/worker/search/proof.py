"""Prove that the exported model gives items and queries the same vectors as the pipeline.

The exported model runs in its own process, and its vectors are not normalised before the comparison.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute

from infra.store.base import Store
from tasks.contracts.jobs import ReleaseInputs
from tasks.data.items import TEXT, partition_of
from tasks.data.rows import ITEM_ID, QUERY
from tasks.foundation.errors import CodeError, ConfigError
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import Side, encode_features
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Job
from tasks.worker.search.consumer import Given, encode_apart
from tasks.worker.search.index import Index
from tasks.worker.training.checkpoint import ModelParts

NORM_TOLERANCE = 1e-3
COLLAPSED = 0.999  # length of the mean of unit vectors; its square is their mean cosine
BATCH_ITEMS = 8192
pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Proof(NamedTuple):
    """Cosines, float32 (items,) and (queries,), between the exported model's vectors and the pipeline's.

    `vectors` float32 (all queries, width) are the exported model's vectors of all queries, also of queries not
    compared; `vectors_before` are the previous release's, None without one.
    """

    items: np.ndarray
    queries: np.ndarray
    vectors: np.ndarray
    vectors_before: np.ndarray | None


def prove(
    job: Job,
    inputs: ReleaseInputs,
    index: Index,
    parts: ModelParts,
    queries: pa.Table,
    folder: Path,
    folder_before: Path | None,
) -> Proof:
    """Compare the vectors of `release.probe_rows` items, by chance, and of the first queries; encode all queries.

    Args:
        index: the released vectors.
        queries: from `holdout_queries`.
        folder: the exported model.
        folder_before: the previous release's model, which encodes all queries too; None: no previous release.

    Raises:
        CodeError: a cosine is below `release.min_cosine`, a vector is not of unit length, or the folder can't be used.
        ConfigError: a cosine is below it because all vectors are nearly the same.
    """
    rows = job.config.release.probe_rows
    items, released = _sample(job.store, inputs, index, rows)
    entity = job.config.features.entity
    before = [] if folder_before is None else [Given(folder_before, queries, entity=entity)]
    exported, *earlier = encode_apart(Given(folder, queries, items, parts.features.entity), *before)
    job.clock.count_as("booting", exported.loading)
    vectors_before = earlier[0].queries if earlier else None
    released /= np.linalg.norm(released, axis=1, keepdims=True)  # float16 vectors are not exactly of unit length
    of_items = compared(job, exported.items, released, "item", items[ITEM_ID], "the released one")
    if not queries.num_rows:
        return Proof(of_items, np.zeros(0, dtype=np.float32), exported.queries, vectors_before)
    first = queries.slice(0, rows)
    trained = trained_vectors(job, parts, first, "query")
    of_queries = compared(job, exported.queries[:rows], trained, "query", first[QUERY], "that of the trained one")
    return Proof(of_items, of_queries, exported.queries, vectors_before)


def trained_vectors(job: Job, parts: ModelParts, table: pa.Table, side: Side) -> np.ndarray:
    """Return the trained model's unit vectors of queries or items, float32 (rows, width)."""
    # The proof reproduces the released folder as its consumers run it: in fp32 on a processor, for any training device.
    with open_accelerator("cpu", job.rank, job.config, "fp32") as accelerator:
        settings = embed_settings(job.config, accelerator, "fp32")
        longest = job.config.infer.max_tokens
        prompt = prompts_of(table, side, parts.model.shape.prompts, parts.features.entity)
        texts = table[QUERY if side == "query" else TEXT].to_pylist()
        tokens = tokenize(parts.tokenizer, texts, longest, parts.model.pad, prompt)
        features = encode_features(parts.features, table, side)
        return embed(parts.model, accelerator, tokens, features, settings, shared=False)


def compared(
    job: Job, exported: np.ndarray, ours: np.ndarray, what: str, names: pa.ChunkedArray, compared: str
) -> np.ndarray:
    """Return the cosines of vectors, float32 (entries,); `ours` are unit vectors. Raises like `prove`."""
    lengths = np.linalg.norm(exported, axis=1)
    longest = int(np.argmax(np.abs(lengths - 1.0)))
    if not abs(lengths[longest] - 1.0) < NORM_TOLERANCE:  # true for NaN too
        raise CodeError(
            f"the exported model gives {what} {names[longest].as_py()!r} a vector of length {lengths[longest]:.6f}, "
            "and not of unit length; nothing was released"
        )
    cosines: np.ndarray = (ours * exported).sum(axis=1)
    worst, least = int(np.argmin(cosines)), job.config.release.min_cosine
    if not cosines[worst] >= least:  # true for NaN too
        if len(ours) > 1 and np.linalg.norm(ours.mean(axis=0)) > COLLAPSED:  # rounding decides such directions
            raise ConfigError(
                f"the trained model gives every {what} nearly the same vector, so its training diverged; lower "
                f"train.learning_rate ({job.config.train.learning_rate:g}), and train again; nothing was released"
            )
        raise CodeError(
            f"the exported model gives {what} {names[worst].as_py()!r} a vector with cosine {cosines[worst]:.6f} to "
            f"{compared}, below release.min_cosine {least}; nothing was released"
        )
    return cosines


def _sample(store: Store, inputs: ReleaseInputs, index: Index, rows: int) -> tuple[pa.Table, np.ndarray]:
    """Return random items of all shards with their features, and their released vectors, float32 (items, width).

    All items if they are at most `rows`. The same release gives the same sample.
    """
    chance = np.random.default_rng(int(inputs.model.checkpoint.sha256[:16], 16))
    places = np.arange(index.vectors)
    if index.vectors > rows:
        places = np.sort(chance.choice(index.vectors, rows, replace=False))
    chosen = index.items(places)
    ids = pa.array([chosen[place].item_id for place in places.tolist()], pa.string())
    catalogue, found = Catalogue(store, inputs.catalogue), list[pa.Table]()
    for number in sorted({partition_of(item, inputs.catalogue.partitions) for item in ids.to_pylist()}):
        found += [
            table.filter(pc.is_in(table[ITEM_ID], value_set=ids)) for table in catalogue.items(number, BATCH_ITEMS)
        ]
    items = pa.concat_tables(found)
    return items, index.at(places[pc.index_in(items[ITEM_ID].combine_chunks(), value_set=ids).to_numpy()])
