"""How often a verdict is true if the contents of items have changed since the champion's release.

    python -m tests.benchmarks.quality.changed_contents [--items 20000,200000,1000000] [--shares 0,50,99] [--draws 200]

Two invented models hold the same ids, and a share of the items has another price than in the champion's release. Both
models give such an item a new vector: the challenger's lies in its release, and the champion embeds it again by the
code of evaluate. A search of all items by both models' new vectors, made here, is the truth. The first gate of
base.yaml judges samples of the queries as in `verdicts.py`, in both roles.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.model import Prompts
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.references import CatalogueRef
from tasks.data.rows import CATALOGUE_KIND, CONTENT, ITEM_ID, TEXT, VECTOR, VECTORS_KIND, part_name
from tasks.quality.common_items import CommonItems
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.evaluation.measure import ModelVectors, SharedRanks, rank_in_whole
from tasks.worker.evaluation.models import Reader, ReleasedItems
from tasks.worker.model.features import FeatureTable, Scale
from tasks.worker.model.relevant import RelevantTexts, hash_texts
from tasks.worker.process.job import Rank, Share
from tests.benchmarks.quality import gates as real_models
from tests.benchmarks.quality.verdicts import (
    EQUAL_MODELS,
    PARTITION_ITEMS,
    QUERIES,
    THREE_POINTS_LESS,
    WIDTH,
    Models,
    answered,
    bench_job,
    invented,
    judged,
    true_ranks,
    unit,
)

OVERLAP = 0.75  # share of the ten nearest that both models have
MOVED = 0.3  # length of the change of an item's place by its new price, against 1
READER = Reader(
    FeatureTable(
        numeric={"price": Scale(mean=0.0, deviation=1.0, low=-1e9, high=1e9)}, categorical={}, query=(), rows={}
    ),
    Prompts(),
)
ALONE = Share(0, 1)


class Catalogues(NamedTuple):
    """The vectors of both models for the items then and now, and whether an item has changed, bool (items,)."""

    then: tuple[np.ndarray, np.ndarray]
    now: Models
    changed: np.ndarray


def main() -> None:
    """Print the table as Markdown on standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", default="20000,200000,1000000")
    parser.add_argument("--shares", default="0,50,90,99,100")
    parser.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    real_models.SEEDS = arguments.draws
    print(
        "| items | changed | embedded again | ranks unlike the truth | seconds | equal: refused | equal: undecided "
        "| 3 points worse: passes | 3 points better: refused |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    for items in map(int, arguments.items.split(",")):
        models = invented(items, OVERLAP)
        for share in map(int, arguments.shares.split(",")):
            print(line(models, items, share, arguments.draws), flush=True)


def line(models: Models, items: int, share: int, draws: int) -> str:
    """Return a row of the table; for equal models the worse of both roles counts."""
    made = repriced(models, items, share)
    began = time.monotonic()
    (duel, again), (mirrored, _) = (met(made, items, challenger) for challenger in (0, 1))
    seconds = (time.monotonic() - began) / 2
    true = [true_ranks(made.now, model) for model in (0, 1)]
    unlike = int((duel.challenger != true[0]).sum() + (duel.other != true[1]).sum())
    unlike += int((mirrored.challenger != true[1]).sum() + (mirrored.other != true[0]).sum())
    both = answered(duel.other, duel.challenger, models.own)
    common = CommonItems(duel.items, items)
    assert not common.few(0.5), "all ids are common"
    equal, (worse, better) = (judged(both, true, draws) for true in (EQUAL_MODELS, THREE_POINTS_LESS))
    rates = (
        max(found["fail"] for found in equal), max(found["undecided"] for found in equal), worse["pass"], better["fail"]
    )  # fmt: skip
    cells = " | ".join(map(real_models.rate, rates))
    return f"| {items:,} | {share} % | {again:,} | {unlike} of {4 * QUERIES:,} | {seconds:.1f} | {cells} |"


def repriced(models: Models, items: int, share: int) -> Catalogues:
    """Return the models' vectors of a catalogue with a new price of this percentage of the items."""
    random = np.random.default_rng([items, share])
    changed = random.random(items) < share / 100
    moved = random.standard_normal((items, WIDTH), dtype=np.float32) * MOVED / WIDTH**0.5 * changed[:, None]
    one, other = (unit(vectors + moved) for vectors in models.items)
    queries = unit(models.queries[0] + moved[models.own])
    return Catalogues(models.items, Models((one, other), (queries, queries), models.own), changed)


def met(made: Catalogues, items: int, challenger: int) -> tuple[SharedRanks, int]:
    """Return the ranks of one model against the other as the champion, and the items that this one embedded again."""
    champion = 1 - challenger
    with tempfile.TemporaryDirectory(prefix="millrace-changed-") as folder:
        store, again = DirectoryStore(Path(folder) / "workspace"), Path(folder) / "again"
        again.mkdir()
        then, now = (written(store, items, made.changed, key) for key in ("then", "now"))
        release(store, "champion", made.then[champion], then, np.zeros(items, dtype=bool))
        release(store, "challenger", made.now.items[challenger], now, made.changed)
        vectors = {name: EarlierVectors(store, f"vectors/{name}/k", name) for name in ("champion", "challenger")}
        fresh = made.now.items[champion]

        def embed(tables: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, np.ndarray]]:
            for table in tables:
                yield table, fresh[[int(name.rpartition(" ")[2]) for name in table[ITEM_ID].to_pylist()]]

        released = ReleasedItems(store, store, vectors["champion"], READER)
        many = released.embed_changed(Catalogue(store, now), ALONE, embed, again)
        queries, own = made.now.queries[0], made.now.own
        sides = [
            ModelVectors(queries, made.now.items[challenger][own], vectors["challenger"]),
            ModelVectors(queries, fresh[own], vectors["champion"], again),
        ]
        right = RelevantTexts.of(
            np.arange(QUERIES), hash_texts(names(own)), (np.zeros(0, np.int64), np.zeros(0, np.uint64))
        )
        with (
            open_accelerator("cpu", Rank(0, 1, 0)) as accelerator,
            patch("tasks.worker.evaluation.measure.report"),
        ):
            job = bench_job(store, now)
            found = rank_in_whole(job, accelerator, sides[0], {"champion": sides[1]}, now.partitions, right)
    return found.shared["champion"], many


def names(rows: Sequence[int] | np.ndarray | range) -> list[str]:
    """Return the ids of items, which are their texts too."""
    return [f"item {row}" for row in rows]


def written(store: DirectoryStore, items: int, changed: np.ndarray, key: str) -> CatalogueRef:
    """Write the catalogue of then, or of now with another price of each changed item."""
    partitions, prefix = -(-items // PARTITION_ITEMS), f"catalogue/{key}"
    with tempfile.TemporaryDirectory() as folder:
        for number in range(partitions):
            rows = np.arange(number, items, partitions)
            new = changed[rows] & (key == "now")
            ids = pa.array(names(rows))
            contents = pa.array([f"{row} {price}" for row, price in zip(rows, new, strict=True)])
            table = pa.table({ITEM_ID: ids, TEXT: ids, "price": new.astype(np.float64), CONTENT: contents})
            pq.write_table(table, Path(folder) / part_name(number))
        commit(store, prefix, Path(folder), CATALOGUE_KIND, {})
    return CatalogueRef(prefix=prefix, items=items, partitions=partitions, sha256="")


def release(
    store: DirectoryStore, version: str, vectors: np.ndarray, catalogue: CatalogueRef, changed: np.ndarray
) -> None:
    """Write vectors as a release has them."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(catalogue.partitions):
            rows = np.arange(number, len(vectors), catalogue.partitions)
            ids = pa.array(names(rows))
            flat = pa.array(vectors[rows].reshape(-1))
            contents = pa.array([f"{row} {price}" for row, price in zip(rows, changed[rows], strict=True)])
            columns = {
                ITEM_ID: ids,
                TEXT: ids,
                VECTOR: pa.FixedSizeListArray.from_arrays(flat, WIDTH),
                CONTENT: contents,
            }
            pq.write_table(pa.table(columns), Path(folder) / part_name(number))
        facts = {"model_version": version, "width": WIDTH, "max_tokens": 1, "type": "fp32"}
        commit(store, f"vectors/{version}/k", Path(folder), VECTORS_KIND, facts | {"catalogue": catalogue.model_dump()})


if __name__ == "__main__":
    main()
