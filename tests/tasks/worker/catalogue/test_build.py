"""Catalogues built from rows and item feeds, at once and in steps."""

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.manifest import CorruptFolder, commit, open_folder, read_manifest
from tasks.contracts.references import CatalogueRef, RowsRef, SpanRef
from tasks.data.rows import ROWS_KIND, deleted_name, is_deleted_name, part_name, partition_of
from tasks.worker.catalogue import build as building
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.sources import Sources
from tests.support.workspace.catalogues import World, day
from tests.support.workspace.jobs import tiny_config


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_an_item_has_its_newest_text_by_time_not_by_the_order_of_rows(world: World):
    one = world.rows(
        {"id": "a", "text": "newest", "day": 9, "price": 3.0, "colour": "red"},
        {"id": "a", "text": "older", "day": 2, "price": 1.0},
        {"id": "b", "text": "other", "day": 1},
    )
    two = world.rows({"id": "a", "text": "in between", "day": 5})
    for sources in ((one, two), (two, one)):
        found = world.items(world.build(*sources))
        assert {name: row["text"] for name, row in found.items()} == {"a": "newest", "b": "other"}
        assert (found["a"]["price"], found["a"]["colour"], found["a"]["updated_at"]) == (3.0, "red", day(9))


class Case(NamedTuple):
    feed: list[dict[str, Any]]
    text: str | None


ROW = {"id": "a", "text": "seen", "day": 5}
CASES = {
    "only in the feed": Case([{"id": "b", "text": "never seen", "day": 1}], "seen"),
    "newer in the feed": Case([{"id": "a", "text": "renamed", "day": 6}], "renamed"),
    "older in the feed": Case([{"id": "a", "text": "first name", "day": 4}], "seen"),
    "deleted": Case([{"id": "a", "day": 6, "deleted": True}], None),
    "deleted, and its text stays": Case([{"id": "a", "text": "x", "day": 6, "deleted": True}], None),
    "deleted before it was seen last": Case([{"id": "a", "day": 4, "deleted": True}], None),
    "back again": Case([{"id": "a", "day": 6, "deleted": True}, {"id": "a", "text": "back", "day": 7}], "back"),
    "deleted at that moment": Case([{"id": "a", "text": "x", "day": 6}, {"id": "a", "day": 6, "deleted": True}], None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_feed_adds_renames_and_deletes_items(world: World, case: str):
    feed, text = CASES[case]
    sources = (world.rows(ROW), world.feed(*feed))
    found = world.items(world.build(*sources))
    assert found.get("a", {}).get("text") == text
    assert {row["id"] for row in feed} - {"a"} <= set(found)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1), (1, 3, 2, 0)])
def test_a_catalogue_made_in_steps_equals_one_made_at_once(world: World, order: tuple[int, ...]):
    sources = [
        world.rows({"id": "a", "text": "a1", "day": 1}, {"id": "b", "text": "b1", "day": 2}),
        world.feed({"id": "a", "day": 3, "deleted": True}, {"id": "c", "text": "c1", "day": 3}),
        world.rows({"id": "a", "text": "a2", "day": 9}, {"id": "c", "text": "c2", "day": 4}),
        world.feed({"id": "a", "text": "a3", "day": 5}, {"id": "b", "day": 1, "deleted": True}),
    ]
    at_once = world.build(*sources, settings=("infer.shard_rows=2",))
    expected = world.items(at_once)
    assert {name: row["text"] for name, row in expected.items()} == {"a": "a2", "c": "c2"}
    bases: list[CatalogueRef] = []
    for count in range(1, 5):
        world.store.delete(at_once.prefix)
        some = [sources[number] for number in order[:count]]
        bases = [world.build(*some, bases=bases, settings=("infer.shard_rows=2",))]
    assert world.items(bases[0]) == expected


def test_a_step_reads_only_what_is_new(world: World):
    one, two = world.rows({"id": "a", "text": "a1", "day": 1}), world.rows({"id": "b", "text": "b1", "day": 2})
    first = world.build(one)
    world.store.delete(one.prefix)
    assert set(world.items(world.build(one, two, bases=(first,)))) == {"a", "b"}


def test_a_corrected_source_leaves_nothing_of_its_old_version(world: World):
    wrong, right = (
        world.feed({"id": "wrong", "text": "x", "day": 1}),
        world.feed({"id": "right", "text": "x", "day": 1}),
    )
    first = world.build(wrong)
    assert set(world.items(world.build(right, bases=(first,)))) == {"right"}


def test_other_features_need_a_catalogue_of_their_own(world: World):
    one = world.rows({"id": "a", "text": "a1", "day": 1, "price": 2.0})
    first = world.build(one)
    second = build(world.store, Sources((one,), ()), (first,), tiny_config())
    assert second != first
    assert "price" not in world.items(second)["a"]


def test_partitions_are_by_the_hash_of_the_id_and_only_split(world: World):
    rows = [{"id": f"item-{number}", "text": "t", "day": 1} for number in range(100)]
    one = world.rows(*rows[:30])
    small = world.build(one, settings=("infer.shard_rows=10",))
    large = world.build(one, world.rows(*rows[30:]), bases=(small,), settings=("infer.shard_rows=10",))
    assert (small.partitions, large.partitions) == (4, 16)
    for ref in (small, large):
        folder, manifest = open_folder(world.store, ref.prefix, "catalogue")
        for entry in manifest.files:
            number = int(entry.name[5:10])
            ids = pq.read_table(folder / entry.name)["item_id"].to_pylist()
            assert {partition_of(item_id, ref.partitions) for item_id in ids} == {number}
            assert ids == sorted(ids)


def test_deleted_items_are_in_files_of_their_own(world: World):
    ref = world.build(world.rows(ROW), world.feed({"id": "a", "day": 6, "deleted": True}))
    folder, manifest = open_folder(world.store, ref.prefix, "catalogue")
    assert [is_deleted_name(entry.name) for entry in manifest.files] == [True]
    assert (ref.items, manifest.facts["deleted"]) == (0, 1)
    assert pq.read_table(folder / manifest.files[0].name)["text"].to_pylist() == ["seen"]


def test_the_content_hash_changes_with_text_and_features_alone(world: World):
    def hash_of(**change: Any) -> str:
        return world.items(world.build(world.rows({**ROW, **change})))["a"]["content_sha256"]

    assert hash_of() == hash_of() == hash_of(day=7)
    assert len({hash_of(), hash_of(text="else"), hash_of(price=1.0), hash_of(colour="red")}) == 4


def test_a_category_that_is_a_number_in_one_source_and_text_in_another_becomes_text(world: World):
    one = world.rows({"id": "a", "text": "a1", "day": 1, "colour": "red"})
    folder = world.folder / "numbers"
    folder.mkdir()
    table = pq.read_table(world.store.path(one.prefix) / "part-00000.parquet")
    table = table.set_column(table.column_names.index("colour"), "colour", pa.array([7.0]))
    table = table.set_column(table.column_names.index("item_id"), "item_id", pa.array(["b"]))
    pq.write_table(table, folder / "part-00000.parquet")
    commit(world.store, "runs/numbers/rows", folder, ROWS_KIND, {"rows": 1})
    two = RowsRef(span=SpanRef(name="2026-02", version=1), prefix="runs/numbers/rows", rows=1)
    found = world.items(world.build(one, two))
    assert (found["a"]["colour"], found["b"]["colour"]) == ("red", "7.0")


def test_the_same_sources_are_built_once(world: World, monkeypatch: pytest.MonkeyPatch):
    one = world.rows(ROW)
    first = world.build(one)
    monkeypatch.setattr(building, "connect", lambda _: pytest.fail("built again"))
    assert world.build(one) == first


def test_a_damaged_partition_is_found_when_it_is_read(world: World):
    ref = world.build(world.rows(ROW))
    path = world.store.path(f"{ref.prefix}/part-00000.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFolder, match="its checksum") as caught:
        world.items(ref)
    assert str(path) in str(caught.value)


def test_one_item_is_written_with_its_partition_alone(world: World):
    rows = [{"id": f"i{number}", "text": f"text {number}", "day": 1, "colour": "red"} for number in range(60)]
    first = world.build(one := world.rows(*rows), settings=("infer.shard_rows=8",))
    assert first.partitions == 8
    feed = world.feed({"id": "i7", "text": "changed", "day": 9}, {"id": "i8", "day": 9, "deleted": True})
    bases, sources = (first,), [one, feed]
    for step in range(3):
        changed = world.build(*sources, bases=bases, settings=("infer.shard_rows=8",))
        entries = read_manifest(world.store, changed.prefix).files
        own = [entry.name for entry in entries if entry.at is None]
        if step == 0:
            seven, eight = partition_of("i7", 8), partition_of("i8", 8)
            assert sorted(own) == sorted({part_name(seven), part_name(eight), deleted_name(eight)})
        else:
            assert own == [part_name(partition_of(f"new {step - 1}", 8))]
        assert all(world.store.exists(entry.key(changed.prefix)) for entry in entries), "the true places"
        items = world.items(changed)
        assert (len(items), items["i7"]["text"], "i8" in items) == (59 + step, "changed", False)
        sources.append(world.feed({"id": f"new {step}", "text": "new", "day": 10}))
        bases = (changed,)


EXPORTS: dict[str, tuple[list[dict[str, Any]], set[str]]] = {  # the feed's records that change, and the items
    "one more": ([{"id": "new", "text": "new", "day": 1}], {"new"}),
    "a later text": ([{"id": "f1", "text": "later", "day": 9}], {"f1"}),
    "an earlier text, so the rows' is the newest again": ([{"id": "f2", "text": "early", "day": 1}], {"f2"}),
    "another text at the same time": ([{"id": "f3", "text": "A", "day": 5}], {"f3"}),
    "deleted later": ([{"id": "f4", "day": 9, "deleted": True}], {"f4"}),
    "gone": ([{"id": "f5"}], {"f5"}),
    "all of these, and one of a known row": (
        [{"id": "f5"}, {"id": "f1", "text": "later", "day": 9}, {"id": "r1", "text": "of the feed", "day": 9}],
        {"f1", "f5", "r1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", EXPORTS)
def test_another_version_of_a_feed_writes_the_partitions_of_its_changes(world: World, case: str):
    """A record that is gone must uncover the one below it, and every file must be as in a catalogue made at once."""
    changes, items = EXPORTS[case]
    settings = ("infer.shard_rows=2",)
    rows = world.rows(
        *({"id": f"r{number}", "text": f"row {number}", "day": 3} for number in range(30)),
        *({"id": f"f{number}", "text": f"row of {number}", "day": 4} for number in range(2, 20)),
    )
    feed = {f"f{number}": {"id": f"f{number}", "text": f"feed {number}", "day": 5} for number in range(20)}
    base = world.build(rows, world.feed(*feed.values()), settings=settings)
    feed |= {change["id"]: change for change in changes}
    sources = (rows, world.feed(*(record for record in feed.values() if "day" in record)))
    changed = world.build(*sources, bases=(base,), settings=settings)
    found = read_manifest(world.store, changed.prefix)
    own = {entry.name for entry in found.files if entry.at is None}
    numbers = {partition_of(item, base.partitions) for item in items}
    assert own <= {name(number) for number in numbers for name in (part_name, deleted_name)}
    world.store.delete(changed.prefix)
    at_once = world.build(*sources, settings=settings)
    expected = read_manifest(world.store, at_once.prefix)
    assert {entry.name: entry.sha256 for entry in found.files} == {entry.name: entry.sha256 for entry in expected.files}
    assert found.facts == expected.facts


def test_a_feed_that_only_grows_needs_no_other_source(world: World):
    rows, feed = world.rows(ROW), world.feed({"id": "f", "text": "f", "day": 1})
    base = world.build(rows, feed)
    world.store.delete(f"{rows.prefix}/part-00000.parquet")
    more = world.feed({"id": "f", "text": "f", "day": 2}, {"id": "g", "text": "g", "day": 2})
    assert set(world.items(world.build(rows, more, bases=(base,)))) == {"a", "f", "g"}


def test_without_the_earlier_version_all_sources_are_read(world: World):
    feed = world.feed({"id": "f", "text": "f", "day": 1})
    base = world.build(feed)
    world.store.delete(feed.prefix)
    assert set(world.items(world.build(world.feed({"id": "g", "text": "g", "day": 2}), bases=(base,)))) == {"g"}


def test_content_that_stays_is_named_though_its_partition_was_read(world: World):
    one = world.rows({"id": "a", "text": "newest", "day": 9})
    first = world.build(one)
    again = world.build(one, world.rows({"id": "a", "text": "older", "day": 2}), bases=(first,))
    (entry,) = read_manifest(world.store, again.prefix).files
    assert entry.at == f"{first.prefix}/part-00000.parquet"
    assert world.store.list(again.prefix) == [f"{again.prefix}/MANIFEST.json"]


def test_a_feature_of_another_type_writes_all_partitions(world: World):
    """The content hash is over the values: a category that was a text everywhere stays one."""
    one = world.rows({"id": "a", "text": "one", "day": 1, "colour": "red"})
    first = world.build(one)
    numbers = world.rows({"id": "b", "text": "two", "day": 2})
    path = world.store.path(numbers.prefix) / "part-00000.parquet"
    table = pq.read_table(path)
    pq.write_table(table.set_column(4, "colour", pa.array([1.5])), source := world.folder / "numbers.parquet")
    folder = world.folder / "numbers"
    folder.mkdir()
    source.rename(folder / "part-00000.parquet")
    commit(world.store, "runs/r9/validate/rows/2026-01", folder, ROWS_KIND, {"rows": 1})
    other = numbers.model_copy(update={"prefix": "runs/r9/validate/rows/2026-01"})
    assert world.items(world.build(one, other, bases=(first,)))["b"]["colour"] == "1.5"


@pytest.mark.parametrize("flipped", [False, True])
@pytest.mark.parametrize("settings", [(), ("infer.shard_rows=1",)], ids=["merged", "split"])
def test_a_damaged_base_is_built_again_from_the_sources(world: World, settings: tuple[str, ...], flipped: bool):
    one, two = world.rows({"id": "a", "text": "one", "day": 1}), world.rows({"id": "b", "text": "two", "day": 1})
    first = world.build(one)
    path = world.store.path(f"{first.prefix}/part-00000.parquet")
    whole = path.read_bytes()
    path.unlink()
    if flipped:
        path.write_bytes(whole[:50] + bytes([whole[50] ^ 1]) + whole[51:])
    built = world.build(one, two, bases=(first,), settings=settings)
    assert set(world.items(built)) == {"a", "b"}
    assert not any(entry.at for entry in read_manifest(world.store, built.prefix).files)
