"""The files of a partition, read as one: which row counts, and when deltas are merged."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.manifest import CorruptFolder, FileEntry, Manifest
from tasks.data.layers import (
    DELTA_SHARE,
    MOST_DELTAS,
    Layers,
    layers_below,
    layers_of,
    merged,
    next_generation,
)
from tasks.data.rows import delta_name, part_name


def rows(**contents: str | None) -> pa.Table:
    """Items with a content; None removes one."""
    ids, found = list(contents), list(contents.values())
    return pa.table({"item_id": ids, "content_sha256": pa.array(found, pa.string())})


def written(folder: Path, *tables: pa.Table) -> list[Path]:
    paths = [folder / f"{number}.parquet" for number in range(len(tables))]
    for table, path in zip(tables, paths, strict=True):
        pq.write_table(table, path)
    return paths


SHARD = rows(a="1", c="1", e="1", g="1")
DELTAS = [rows(b="1", c="2", e=None), rows(a=None, c="3", e="2", z=None), rows(d="1", e=None, é="1")]


def test_the_newest_row_of_an_item_counts_and_removed_items_are_not_there(tmp_path: Path) -> None:
    opened = Layers.open(written(tmp_path, SHARD, *DELTAS))
    assert opened.table(["item_id", "content_sha256"]).to_pydict() == {
        "item_id": ["b", "c", "d", "g", "é"],
        "content_sha256": ["1", "3", "1", "1", "1"],
    }
    assert opened.items == 5
    assert [batch["item_id"].to_pylist() for batch in opened.batches(["item_id"], 3)] == [["b", "c", "d"], ["g", "é"]]


def test_merged_deltas_say_the_same_as_all_of_them(tmp_path: Path) -> None:
    one = merged(DELTAS)
    assert one["item_id"].to_pylist() == ["a", "b", "c", "d", "e", "z", "é"], "removed ones stay: the shard has some"
    every = Layers.open(written(tmp_path, SHARD, *DELTAS)).table(["item_id"])
    for delta in (one, merged([merged(DELTAS[:2]), DELTAS[2]])):
        assert Layers.open(written(tmp_path, SHARD, delta)).table(["item_id"]) == every
    above = Layers.open(written(tmp_path, one), above=True)
    assert above.table(["item_id"])["item_id"].to_pylist() == ["b", "c", "d", "é"]


def test_files_are_few_their_share_is_bounded_and_a_change_is_written_few_times() -> None:
    sizes, written_bytes, hours = [4_000_000], 0, 0
    while True:
        stay = layers_below(sizes, 4_000)
        if stay == 0:
            break
        sizes[stay:] = [4_000 + sum(sizes[stay:])]
        written_bytes, hours = written_bytes + sizes[-1], hours + 1
        assert len(sizes) <= 1 + MOST_DELTAS
    assert hours == DELTA_SHARE * 4_000_000 / 4_000
    assert written_bytes < 8 * hours * 4_000, "a single delta that takes up all would be written again each hour"


def test_a_large_change_is_a_new_shard() -> None:
    assert layers_below([1000], 251) == 0
    assert layers_below([1000, 200], 60) == 0, "with the deltas below it"
    assert layers_below([1000], 250) == 1


def test_names_say_what_lies_over_what() -> None:
    names = [delta_name(7, 12), part_name(3), delta_name(7, 3), part_name(7)]
    entries = [FileEntry(name=name, bytes=1, sha256="0") for name in names]
    found = layers_of(Manifest(kind="vectors", files=tuple(entries), facts={}))
    assert {number: [entry.name for entry in layers] for number, layers in found.items()} == {
        3: [part_name(3)],
        7: [part_name(7), delta_name(7, 3), delta_name(7, 12)],
    }
    assert [next_generation(found[number]) for number in (3, 7)] == [1, 13]


@pytest.mark.parametrize("name", [delta_name(7, 1), "other.parquet"])
def test_a_file_that_lies_over_nothing_is_not_read(name: str) -> None:
    entry = FileEntry(name=name, bytes=1, sha256="0")
    with pytest.raises(CorruptFolder, match=name.replace(".", r"\.")):
        layers_of(Manifest(kind="vectors", files=(entry,), facts={}))
