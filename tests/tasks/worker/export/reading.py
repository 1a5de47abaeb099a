"""What consumers of a place get, compared with a release."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release
from tasks.data.rows import part_name, partition_of
from tests.support.workspace.releases import PARTITIONS
from tests.tasks.worker.export.places import Place


def vector_of(store: DirectoryStore, release: Release, item_id: str) -> np.ndarray:
    part = part_name(partition_of(item_id, PARTITIONS))
    table = pq.read_table(store.path(f"{release.vectors_prefix}/{part}"), columns=["item_id", "vector"])
    return np.asarray(table["vector"][table["item_id"].to_pylist().index(item_id)].as_py(), dtype=np.float32)


def served(store: DirectoryStore, place: Place, release: Release) -> bool:
    """Whether consumers get this release, all of it and nothing else."""
    found = place.search(vector_of(store, release, "i0007"), release.vectors + 1)
    version, ids = release.model.version, [f"i{number:04d}" for number in range(release.vectors)]
    return sorted(found or []) == [(each, f'item {each} of {version}, it\'s "new"\n', version) for each in ids]
