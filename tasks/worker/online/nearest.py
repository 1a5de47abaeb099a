"""The nearest items of a release to one vector, exactly, from memory and without torch.

`Index` in tasks/worker/search gives the same hits, and also ranks thousands of queries on a device. A release
whose vectors are too many for the memory of a process is searched in a target.
"""

import numpy as np
import pyarrow as pa

from infra.store.base import Store
from infra.store.manifest import expect_manifest, open_files, read_fact, read_manifest
from tasks.contracts.references import ReleasedRef
from tasks.contracts.search import Hit
from tasks.data.layers import open_layers
from tasks.data.rows import ITEM_ID, TEXT, VECTOR, VECTORS_KIND
from tasks.worker.catalogue.reuse import as_matrix, expect_vectors

MOST_BYTES = 2**30  # bytes of vectors in float32; a scan of them takes a tenth of a second
BATCH_VECTORS = 8192


class Vectors:
    """The vectors of a release with ids and texts, in memory."""

    def __init__(self, store: Store, release: ReleasedRef) -> None:
        """Read the vectors. Raises MissingFolder, CorruptFolder: they are missing, damaged, or another model's."""
        prefix = release.vectors_prefix
        manifest = read_manifest(store, prefix)
        expect_manifest(store, prefix, manifest, release.vectors_sha256)
        expect_vectors(store, prefix, manifest, release.vectors_by)
        parts = open_layers(manifest, open_files(store, prefix, VECTORS_KIND))
        tables = [part.table([ITEM_ID, TEXT, VECTOR]) for part in parts.values()]
        self._vectors = [as_matrix(table[VECTOR]) for table in tables]
        self._items = pa.concat_tables(table.drop_columns([VECTOR]) for table in tables)

    def __len__(self) -> int:
        return self._items.num_rows

    def nearest(self, vector: np.ndarray, k: int) -> tuple[Hit, ...]:
        """Return the `k` items with the highest cosine, best first; of equal ones the first.

        Args:
            vector: float32 (width,), of unit length.
        """
        scores = np.concatenate([part.astype(np.float32, copy=False) @ vector for part in self._parts()])
        k = min(k, len(scores))
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        near = np.flatnonzero(scores >= least)
        places = near[np.argsort(-scores[near], kind="stable")][:k]
        rows = self._items.take(pa.array(places)).to_pylist()
        return tuple(
            Hit(score=round(float(score), 6), item_id=row[ITEM_ID], text=row[TEXT])
            for score, row in zip(scores[places], rows, strict=True)
        )

    def _parts(self) -> list[np.ndarray]:
        return [shard[at : at + BATCH_VECTORS] for shard in self._vectors for at in range(0, len(shard), BATCH_VECTORS)]


def fits(store: Store, release: ReleasedRef) -> bool:
    """Return whether the vectors of a release are few enough to search here. Raises as `read_fact`."""
    facts = [read_fact(store, release.vectors_prefix, name, int) for name in ("vectors", "width")]
    return facts[0] * facts[1] * np.dtype(np.float32).itemsize <= MOST_BYTES
