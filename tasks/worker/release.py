"""release: exports the evaluated model, then checks that the exported folder gives the vectors of the release.

The control plane moves the pointer to the current release, after this.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from infra.store.base import Store, sha256_of
from infra.store.manifest import MANIFEST, CorruptFolder, FileEntry, commit, read_manifest
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.data.items import TEXT, VECTOR, partition_of
from tasks.data.rows import ITEM_ID
from tasks.foundation.errors import CodeError
from tasks.worker.catalogue.read import Catalogue
from tasks.worker.formats.export import export_model
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.vectors.reuse import as_matrix

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

KIND = "model"


def run(job: Job) -> ReleaseOutcome:
    """Export and probe; nothing is committed unless the probe passes.

    Raises:
        CodeError: the vectors of the exported folder are not the released ones, or those are of other items.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, ReleaseInputs)
    config = job.config
    prefix = f"models/{inputs.model.version}"
    with job.scratch() as folder:
        with job.clock.phase("restoring"):
            parts = load_parts(job.store, inputs.model.checkpoint)
            manifest = read_manifest(job.store, inputs.vectors)
        export_model(parts, config, inputs.model.version, folder)
        if manifest.facts["catalogue"] != inputs.catalogue.model_dump():
            raise CodeError(
                f"the vectors in {job.store.uri}/{inputs.vectors} are not those of the items in "
                f"{job.store.uri}/{inputs.catalogue.prefix}; run infer again; nothing was released"
            )
        items, released = _sample(job.store, inputs, manifest.files[0], config.release.probe_rows)
        exported = probe(folder, items, [*parts.features.numeric, *parts.features.categorical])
        cosines = (released * exported).sum(axis=1) / np.linalg.norm(released, axis=1)  # float16 rounds
        worst = int(np.argmin(cosines))
        if not cosines[worst] >= config.release.min_cosine:
            raise CodeError(
                f"the exported model gives item {items[ITEM_ID][worst].as_py()!r} a vector with cosine "
                f"{cosines[worst]:.6f} to the released one, below release.min_cosine {config.release.min_cosine}; "
                "nothing was released"
            )
        commit(job.store, prefix, folder, KIND, {"model_version": inputs.model.version, "width": parts.model.width})
    return ReleaseOutcome(model=prefix, min_cosine=float(cosines[worst]), probed=len(cosines))


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


def probe(folder: Path, items: pa.Table, feature_names: list[str]) -> np.ndarray:
    """Return unit vectors, float32 (items, width), of the items, made by sentence-transformers from the folder."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)  # our own file, written just now
    entries: list[Any] = items[TEXT].to_pylist()
    if feature_names:
        columns = {"text": entries, **{name: items[name].to_pylist() for name in feature_names}}
        entries = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return np.asarray(model.encode(entries, normalize_embeddings=True, show_progress_bar=False))
