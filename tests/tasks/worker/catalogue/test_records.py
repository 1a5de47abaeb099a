"""Records split into partitions, in one pass and in several, and parts of a catalogue."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import CatalogueRef
from tasks.worker.catalogue import records as catalogue_records
from tasks.worker.catalogue.records import PART, choose, remove, scatter, scattered
from tests.support.workspace.jobs import FEATURES, make_catalogue, make_workspace, tiny_config


@pytest.mark.parametrize("partitions", [1, 4, 8, 64])
def test_each_partition_gets_its_records_in_any_number_of_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partitions: int
) -> None:
    monkeypatch.setattr(catalogue_records, "FILES", 4)
    monkeypatch.setattr(catalogue_records, "BATCH_RECORDS", 20)
    numbers = np.random.default_rng(3).integers(0, partitions, 500).astype(np.int32)
    numbers[numbers == partitions - 2] = 0  # one partition has no records
    records = pa.table({"id": [f"i{row}" for row in range(500)], PART: numbers})

    scatter(_batches(records), tmp_path, partitions)

    for number in range(partitions):
        wanted = [f"i{row}" for row in np.flatnonzero(numbers == number)]
        found = scattered(tmp_path, number)
        assert (found["id"].to_pylist() if found is not None else []) == wanted
        remove(tmp_path, number)
    assert list(tmp_path.iterdir()) == []


def _batches(records: pa.Table) -> Iterator[pa.RecordBatch]:
    return iter(records.to_batches(max_chunksize=64))


NOTHING = np.empty(0, dtype=np.uint64)

Made = tuple[DirectoryStore, CatalogueRef]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Two hundred items in eight partitions."""
    store, rows = make_workspace(tmp_path_factory.mktemp("choose"), rows=200)
    return store, make_catalogue(store, tiny_config(*FEATURES), rows)


def ids(table: pa.Table) -> list[str]:
    return table["item_id"].to_pylist()


def test_named_items_and_a_sample_come_by_id_each_once(made: Made):
    store, ref = made
    everything = ids(choose(store, ref, (), 1000, ()))
    assert everything == sorted(everything)
    assert len(set(everything)) == 200 == ref.items
    named = everything[:3]
    part = ids(choose(store, ref, [*named, "never heard of"], 20, ()))
    assert part == sorted(part)
    assert set(named) < set(part)
    assert len(part) == 23
    assert ids(choose(store, ref, named, 0, ())) == named


def test_the_sample_of_an_item_does_not_depend_on_the_others(made: Made, tmp_path: Path):
    store, ref = made
    small, large = (set(ids(choose(store, ref, (), count, ()))) for count in (10, 30))
    assert small < large
    other_store, rows = make_workspace(tmp_path, rows=260)
    grown = make_catalogue(other_store, tiny_config("infer.shard_rows=500"), rows)
    assert grown.partitions != ref.partitions
    sample = set(ids(choose(other_store, grown, (), 30, ())))
    assert sample & set(ids(choose(store, ref, (), 1000, ()))) <= large, "new items only take places"
    assert len(sample & large) >= 20


def test_a_feature_that_the_catalogue_lacks_is_null(made: Made):
    store, ref = made
    table = choose(store, ref, (), 1000, ["price", "weight", "price"])
    assert table.column_names == ["item_id", "text", "content_sha256", "price", "weight"]
    assert table["weight"].null_count == 200
    assert pc.min(table["price"]).as_py() >= 10.0  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize(("free", "taken"), [(1, "768.0 MiB"), (16, "2.0 GiB"), (512, "3.0 GiB")])
def test_a_database_takes_an_eighth_of_the_free_memory_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, taken: str
) -> None:
    monkeypatch.setattr(catalogue_records, "free_host_bytes", lambda: free * 2**30)
    with catalogue_records.connect(tmp_path) as database:
        assert database.sql("SELECT current_setting('memory_limit')").fetchall() == [(taken,)]
