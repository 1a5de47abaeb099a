"""Which vectors of a release its model still stands for, and new ones of the items that it reads otherwise today."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.schema.model import EntityPrompts, Prompts
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.references import CatalogueRef
from tasks.data.rows import CATALOGUE_KIND, VECTORS_KIND, part_name, partition_of
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.reuse import EarlierVectors, as_matrix
from tasks.worker.evaluation.models import Reader, ReleasedItems, served_partition
from tasks.worker.model.features import FeatureTable, Scale
from tasks.worker.process.job import Share

WIDTH = 4
ALONE = Share(0, 1)
READER = Reader(
    FeatureTable(
        numeric={"price": Scale(mean=0.0, deviation=1.0, low=-1e9, high=1e9)}, categorical={"shop": ("a", "b")},
        query=(), rows={"shop": 8}, entity="kind",
    ),
    Prompts(item="item: ", by_entity={"book": EntityPrompts(item="book: ")}),
)  # fmt: skip

Item = dict[str, Any]


def item(name: str, **other: Any) -> Item:
    fields = {"text": f"text of {name}", "price": 1.0, "shop": "a", "kind": "toy", "stock": 5.0} | other
    return {"item_id": name, **fields, "content_sha256": json.dumps(fields)}


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def catalogue(store: DirectoryStore, items: list[Item], partitions: int, key: str) -> CatalogueRef:
    prefix, folder = f"catalogue/{key}", store.root / f"making-{key}"
    folder.mkdir(parents=True)
    for number in range(partitions):
        if mine := [each for each in items if partition_of(each["item_id"], partitions) == number]:
            pq.write_table(pa.Table.from_pylist(mine), folder / part_name(number))
    commit(store, prefix, folder, CATALOGUE_KIND, {})
    return CatalogueRef(prefix=prefix, items=len(items), partitions=partitions, sha256="")


def vectors_of(items: pa.Table | list[Item]) -> np.ndarray:
    """A vector for each item's text and price, as a model of both would give."""
    rows = items if isinstance(items, list) else items.to_pylist()
    seeds = [sum(map(ord, f"{row['text']} {row['price']}")) for row in rows]
    return np.stack([np.random.default_rng(seed).random(WIDTH, dtype=np.float32) for seed in seeds])


def release(
    store: DirectoryStore, items: list[Item], partitions: int, kind: str = "fp32", reader: Reader = READER
) -> ReleasedItems:
    of, folder = catalogue(store, items, partitions, "then"), store.root / "making-vectors"
    folder.mkdir()
    for number in range(partitions):
        if mine := [each for each in items if partition_of(each["item_id"], partitions) == number]:
            made = vectors_of(mine).astype(np.float16 if kind == "fp16" else np.float32)
            column = pa.FixedSizeListArray.from_arrays(pa.array(made.reshape(-1)), WIDTH)
            table = pa.Table.from_pylist(mine).select(["item_id", "text", "content_sha256"])
            pq.write_table(table.append_column("vector", column), folder / part_name(number))
    facts = {"model_version": "m", "catalogue": of.model_dump(), "max_tokens": 16, "type": kind}
    commit(store, "vectors/m/k", folder, VECTORS_KIND, facts)
    return ReleasedItems(store, store, EarlierVectors(store, "vectors/m/k", "m"), reader)


def embed(tables: Iterator[pa.Table]) -> Iterator[tuple[pa.Table, np.ndarray]]:
    return ((table, vectors_of(table)) for table in tables)


NOW = [
    item("same"),
    item("time alone"),
    item("another stock", stock=0.0),
    item("another text", text="new"),
    item("another price", price=2.0),
    item("another shop", shop="b"),
    item("no price", price=None),
    item("another prompt", kind="book"),
    item("another kind without prompt", kind="game"),
    item("new one"),
]
THEN = [item(each["item_id"]) for each in NOW if each["item_id"] != "new one"] + [item("gone one")]
READ_OTHERWISE = {"another text", "another price", "another shop", "no price", "another prompt"}


def test_an_item_keeps_its_vector_unless_its_text_or_a_feature_of_the_model_differs(store: DirectoryStore) -> None:
    released = release(store, THEN, 4)
    which, vectors = released.known(pa.Table.from_pylist(NOW), WIDTH, ALONE)
    kept = {each["item_id"] for each, known in zip(NOW, which, strict=True) if known}
    assert kept == {each["item_id"] for each in NOW} - READ_OTHERWISE - {"new one"}
    assert (vectors[which] == vectors_of([each for each in NOW if each["item_id"] in kept])).all()
    assert not vectors[~which].any()
    halves = [released.known(pa.Table.from_pylist(NOW), WIDTH, Share(index, 2)) for index in range(2)]
    assert (halves[0][0] ^ halves[1][0]).tolist() == which.tolist(), "each is found by one worker"


def test_without_the_catalogue_of_then_an_item_with_another_content_hash_is_embedded_again(
    store: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    release(store, THEN, 4)
    shutil.rmtree(store.root / "catalogue" / "then")
    released = ReleasedItems(store, store, EarlierVectors(store, "vectors/m/k", "m"), READER)
    which, _ = released.known(pa.Table.from_pylist(NOW), WIDTH, ALONE)
    assert {each["item_id"] for each, known in zip(NOW, which, strict=True) if known} == {"same", "time alone"}
    assert "embedded again" in capsys.readouterr().out


@pytest.mark.parametrize(("then", "now"), [(4, 4), (2, 8), (8, 2)])
@pytest.mark.parametrize("workers", [1, 2])
def test_partitions_serve_new_vectors_of_changed_items_and_old_ones_of_the_others(
    store: DirectoryStore, tmp_path: Path, then: int, now: int, workers: int
) -> None:
    """However the catalogue was split before: it splits as it grows, and starts anew with other settings."""
    released = release(store, THEN, then)
    opened = Catalogue(store, catalogue(store, NOW, now, "now"))
    many, found = 0, []
    for index in range(workers):
        (folder := tmp_path / str(index)).mkdir()
        many += released.embed_changed(opened, Share(index, workers), embed, folder)
        for number in range(now)[index::workers]:
            served = served_partition(released.vectors, number, now, folder)
            if served is not None:
                mine = [partition_of(name, now) == number for name in served["item_id"].to_pylist()]
                found.append(served.filter(pa.array(mine)))
    assert many == len(READ_OTHERWISE)
    table = pa.concat_tables(found)
    by_id = dict(zip(table["item_id"].to_pylist(), as_matrix(table["vector"]), strict=True))
    assert len(by_id) == table.num_rows, "each once"
    assert by_id.keys() == {each["item_id"] for each in THEN}
    today = [each for each in NOW if each["item_id"] != "new one"]
    assert (np.stack([by_id[each["item_id"]] for each in today]) == vectors_of(today)).all()


def test_new_vectors_are_as_exact_as_the_release_stores_them(store: DirectoryStore, tmp_path: Path) -> None:
    released = release(store, THEN, 1, kind="fp16")
    released.embed_changed(Catalogue(store, catalogue(store, NOW, 1, "now")), ALONE, embed, tmp_path)
    served = served_partition(released.vectors, 0, 1, tmp_path)
    assert served is not None
    assert as_matrix(served["vector"]).dtype == np.float16


def test_a_feature_that_the_catalogue_no_longer_has_is_missing(store: DirectoryStore) -> None:
    released = release(store, THEN, 1)
    columns = ["item_id", "text", "content_sha256", "shop", "kind"]
    now = pa.Table.from_pylist([item("same", price=None)]).select(columns)
    assert not released.known(now, WIDTH, ALONE)[0].any(), "the model reads the mean in place of the price"
