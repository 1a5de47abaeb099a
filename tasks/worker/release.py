"""release: exports the evaluated model, then checks that the exported folder gives the vectors of the release.

The control plane moves the pointer to the current release, after this.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.manifest import commit, open_folder
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.data.rows import ITEM, ITEM_ID, distinct_items
from tasks.foundation.errors import CodeError
from tasks.worker.formats.export import export_model
from tasks.worker.infer import KIND as VECTORS_KIND
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import load_parts
from tasks.worker.training.pairs import load_rows

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
            vectors_folder, manifest = open_folder(job.store, inputs.vectors, VECTORS_KIND)
        export_model(parts, config, inputs.model.version, folder)
        vectors = pq.read_table(vectors_folder / manifest.files[0].name).slice(0, config.release.probe_rows)
        items = distinct_items(load_rows(job.store, [inputs.rows], config)).slice(0, vectors.num_rows)
        if items[ITEM_ID].to_pylist() != vectors[ITEM_ID].to_pylist():
            raise CodeError(
                f"the vectors in {job.store.uri}/{inputs.vectors} are not those of the items in "
                f"{job.store.uri}/{inputs.rows.prefix}; run infer again; nothing was released"
            )
        released = np.stack(vectors["vector"].to_numpy())
        cosines = (released * probe(folder, items, [*parts.features.numeric, *parts.features.categorical])).sum(axis=1)
        worst = int(np.argmin(cosines))
        if not cosines[worst] >= config.release.min_cosine:
            raise CodeError(
                f"the exported model gives item {items[ITEM_ID][worst].as_py()!r} a vector with cosine "
                f"{cosines[worst]:.6f} to the released one, below release.min_cosine {config.release.min_cosine}; "
                "nothing was released"
            )
        commit(job.store, prefix, folder, KIND, {"model_version": inputs.model.version, "width": parts.model.width})
    return ReleaseOutcome(model=prefix, min_cosine=float(cosines[worst]), probed=len(cosines))


def probe(folder: Path, items: pa.Table, feature_names: list[str]) -> np.ndarray:
    """Return unit vectors, float32 (items, width), of the items, made by sentence-transformers from the folder."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)  # our own file, written just now
    entries: list[Any] = items[ITEM].to_pylist()
    if feature_names:
        columns = {"text": entries, **{name: items[name].to_pylist() for name in feature_names}}
        entries = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return np.asarray(model.encode(entries, normalize_embeddings=True, show_progress_bar=False))
