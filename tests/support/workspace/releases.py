"""Releases with vectors that no model made, for all that comes after a release."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import commit
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.contracts.workspace import NUMBER
from tasks.data.rows import VECTORS_KIND, part_name, partition_of
from tasks.runs.releases import CURRENT, Numbered, Pointer
from tests.support.workspace.specs import MADE_BY

WIDTH = 16
PARTITIONS = 4
PLACES = 8  # around which the items are


def write_release(
    store: Store,
    number: int,
    items: int = 24,
    fp16: bool = False,
    spread: float = 0.5,
    vectors: np.ndarray | None = None,
    texts: Mapping[str, str] | None = None,
) -> Release:
    """A current release of items `i0000` and so on, as docs/data.md describes its vectors; each by its own model.

    Args:
        vectors: (items, WIDTH), in the order of the ids; default: random ones around PLACES places.
        texts: the items by id, in place of `items` ones with usual texts.
    """
    items = items if texts is None else len(texts)
    numbers = np.random.default_rng(number)
    around = numbers.normal(size=(PLACES, WIDTH))[np.arange(items) % PLACES]
    some = around + spread * numbers.normal(size=(items, WIDTH)) if vectors is None else vectors
    unit = (some / np.linalg.norm(some, axis=1, keepdims=True)).astype(np.float16 if fp16 else np.float32)
    version, ids = f"main-{number:08d}", sorted(texts or (f"i{each:04d}" for each in range(items)))
    catalogue = CatalogueRef(prefix=f"catalogue/c{number}", items=items, partitions=PARTITIONS, sha256="0")
    prefix, hashes = f"vectors/{version}/c{number}", []
    with tempfile.TemporaryDirectory() as folder:
        for partition in range(PARTITIONS):
            rows = [row for row, item_id in enumerate(ids) if partition_of(item_id, PARTITIONS) == partition]
            hashes.append(hashlib.sha256("".join(f"{ids[row]}\n" for row in rows).encode()).hexdigest())
            if rows:
                pq.write_table(_table(version, ids, unit, rows, texts or {}), Path(folder) / part_name(partition))
        facts = {
            "model_version": version,
            "catalogue": catalogue.model_dump(),
            "vectors": items,
            "bad": 0,
            "width": WIDTH,
            "type": "fp16" if fp16 else "fp32",
            "max_tokens": 32,
            "ids_sha256": hashlib.sha256("".join(hashes).encode()).hexdigest(),
        }
        manifest = commit(store, prefix, Path(folder), VECTORS_KIND, facts)
    release = Release(
        number=number,
        previous=number - 1 or None,
        model_before=number - 1 or None,
        span=SpanRef(name=f"2026-{number:02d}", version=1),
        run_key=f"{number:016x}",
        model=ModelRef(version=version, checkpoint=CheckpointRef(prefix=f"lineages/{number}", step=number, sha256="0")),
        model_prefix=f"models/{version}",
        vectors_prefix=prefix,
        vectors=items,
        catalogue=catalogue,
        metrics={},
        created_at="2026-11-22T12:00:00+00:00",
        model_sha256=manifest.sha256,  # tests that need a model folder copy that of the vectors
        vectors_sha256=manifest.sha256,
        ids_sha256=facts["ids_sha256"],
        **MADE_BY,
    )
    store.write(NUMBER.key(run=release.run_key), Numbered(number=number).to_json())
    store.write(f"releases/{number}.json", release.to_json())
    make_current(store, release)
    return release


def make_current(store: Store, release: Release) -> None:
    store.write(CURRENT, Pointer(release=release.number).to_json())


def _table(version: str, ids: list[str], vectors: np.ndarray, rows: list[int], texts: Mapping[str, str]) -> pa.Table:
    flat = pa.array(vectors[rows].reshape(-1))
    return pa.table(
        {
            "item_id": [ids[row] for row in rows],
            "text": [texts.get(ids[row], f'item {ids[row]} of {version}, it\'s "new"\n') for row in rows],
            "vector": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
            "model_version": pa.DictionaryArray.from_arrays(np.zeros(len(rows), dtype=np.int32), [version]),
            "content_sha256": [f"{row:064x}" for row in rows],
        }
    )
