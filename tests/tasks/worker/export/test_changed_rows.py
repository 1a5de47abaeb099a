"""Publications after refreshes: what differs between two releases, and a table that becomes the next one by that."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from configs.schema.stages import KINDS
from infra.store.manifest import FileEntry
from tasks.contracts.runs import Release
from tasks.foundation.errors import DataError
from tasks.worker.export import opensearch
from tasks.worker.export.changed_rows import Changes, changes, comparable, gathered
from tasks.worker.export.table_contents import ReleaseVectors
from tasks.worker.export.target import Changeable, Target
from tasks.worker.export.targets import open_target
from tests.support.processes.postgres import Postgres
from tests.support.workspace.changing_shop import MODEL, Shop, vector_of
from tests.support.workspace.releases import make_current
from tests.tasks.worker.export.places import Place, empty_place
from tests.tasks.worker.export.refreshing import (
    CHANGEABLE,
    ITEMS,
    WIDTH,
    Interrupted,
    bring,
    in_place,
    interrupt,
    refreshed,
    serves,
)
from tests.tasks.worker.export.watched import Watched


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """So many items that refreshes write deltas."""
    shop = Shop(tmp_path, WIDTH, 3000, 2)
    shop.patch(monkeypatch)
    shop.refresh(None)
    return shop


def vectors_of(shop: Shop, release: Release, width: int | None = None) -> ReleaseVectors:
    return ReleaseVectors(shop.store, release.vectors_prefix, MODEL.version, release.vectors_sha256, width)


def test_changes_lead_from_any_release_to_any_other_and_name_no_row_that_is_the_same(large: Shop) -> None:
    """Deltas are merged with each other, and with their shards; also backwards, as for a rollback."""
    shop = large
    for hour in range(20):
        refreshed(shop, changed=hour % 7 * 20, gone=hour % 3, new=hour % 4)
    some = [vectors_of(shop, release) for release in shop.releases]
    shards = {entries[0].sha256 for release in some for entries in release.files.values()}
    assert len(shards) > shop.partitions, "no delta was merged with its shard"
    assert max(len(entries) for release in some for entries in release.files.values()) > 2, "no delta lies over another"
    for one, other in itertools.permutations(shop.releases[::4], 2):
        before, now = vectors_of(shop, one), vectors_of(shop, other)
        assert comparable(before, now)
        was, is_ = shop.of[one.number], shop.of[other.number]
        written, gone = dict[str, str](), set[str]()
        for each in changes(before, now):
            rows = each.rows.to_pylist()
            assert all(row["vector"] == pytest.approx(vector_of(row["text"], WIDTH).tolist()) for row in rows)
            written |= {row["item_id"]: row["text"] for row in rows}
            gone |= set(each.gone)
        assert written == {item: text for item, text in is_.items() if was.get(item) != text}
        assert {item: text for item, text in (was | written).items() if item not in gone} == is_
        assert not gone & is_.keys()


def test_a_partition_with_a_new_delta_is_read_without_its_shard(large: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = large
    first, second = shop.releases[-1], refreshed(shop, changed=3)
    before, now = vectors_of(shop, first), vectors_of(shop, second)
    opened: list[FileEntry] = []
    read = ReleaseVectors.open_files
    monkeypatch.setattr(
        ReleaseVectors, "open_files", lambda self, files, above: opened.extend(files) or read(self, files, above)
    )
    assert sum(each.rows.num_rows for each in changes(before, now)) == 3
    shards = {entry.sha256 for layers in before.files.values() for entry in layers}
    assert opened
    assert not shards & {entry.sha256 for entry in opened}


def test_changes_of_few_rows_are_gathered_and_none_is_lost_or_split() -> None:
    each = [Changes(pa.table({"item_id": [str(number)] * rows}), gone) for number, (rows, gone) in enumerate(
        [(1, []), (1, ["a"]), (0, ["b"]), (5, []), (1, []), (1, ["c"])]
    )]  # fmt: skip
    joined = list(gathered(each, 3))
    assert [(one.rows["item_id"].to_pylist(), one.gone) for one in joined] == [
        (["0", "1"], ["a"]), ([], ["b"]), (["3"] * 5, []), (["4", "5"], ["c"])
    ]  # fmt: skip


def test_only_releases_of_one_kind_are_compared(shop: Shop) -> None:
    release = shop.releases[-1]
    assert not comparable(vectors_of(shop, release, width=8), vectors_of(shop, release))


# --- targets ------------------------------------------------------------------------------------------------------


def test_each_service_that_takes_over_changes_has_the_tests_of_it() -> None:
    modules = {kind: importlib.import_module(f"tasks.worker.export.{kind}") for kind in KINDS}
    able = {kind for kind, module in modules.items() if issubclass(getattr(module, kind.capitalize()), Changeable)}
    assert able == set(CHANGEABLE)


@pytest.fixture(params=CHANGEABLE)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(opensearch, "POLL_SECONDS", 0.0)
    return empty_place(request.param, request, tmp_path / "target")


def test_a_refresh_brings_the_changed_rows_alone(shop, place, at_target, monkeypatch):
    first = bring(shop, place, shop.releases[0])
    watched = Watched.instead_of_targets(monkeypatch)
    for number in (2, 3):
        release = refreshed(shop, changed=4, gone=2, new=2)
        outcome = bring(shop, place, release)
        assert 4 <= outcome.loaded <= 6
        assert (outcome.vectors, outcome.recall) == (release.vectors, 1.0)
        assert str(outcome.table).startswith(f"look_r{number}_")
        assert outcome.served_before != outcome.table
        assert serves(shop, place, release)
        there = [outcome.table] if in_place(place) else [outcome.served_before, outcome.table]
        assert at_target(lambda target: (target.serving(), target.tables())) == (outcome.table, there)
        assert outcome.index == at_target(lambda target, table=outcome.table: target.index(table)).name
    assert "load" not in watched.calls
    assert first.loaded == ITEMS
    assert bring(shop, place, release).loaded == 0


def test_a_rollback_to_an_earlier_refresh_takes_the_changes_back(shop, place):
    first, second = shop.releases[0], refreshed(shop, changed=5, gone=1, new=1)
    for release in (first, second):
        bring(shop, place, release, only_current=False)
    make_current(shop.store, first)
    if in_place(place):
        assert bring(shop, place, first, swap_alone=True).table is None, "no table has it any more"
        assert serves(shop, place, second)
        assert 5 <= bring(shop, place, first).loaded <= 7
    else:
        assert bring(shop, place, first, swap_alone=True).table is not None
        assert bring(shop, place, first).loaded == 0
    assert serves(shop, place, first)
    make_current(shop.store, second)
    assert bring(shop, place, second).loaded in (range(5, 8) if in_place(place) else (0,))
    assert serves(shop, place, second)


@pytest.mark.parametrize("step", ["change", "count", "item_ids", "index"])
def test_an_interruption_leaves_the_release_before_and_the_next_publication_ends(
    shop, place, at_target, monkeypatch, step
):
    first = shop.releases[0]
    bring(shop, place, first)
    tables = at_target(lambda target: target.tables())
    second, watched = refreshed(shop, changed=4, gone=2, new=1), Watched.instead_of_targets(monkeypatch)
    watched.after[step] = interrupt
    with pytest.raises(Interrupted):
        bring(shop, place, second)
    assert serves(shop, place, first)
    assert at_target(lambda target: target.tables()) == tables
    watched.after.clear()
    assert 4 <= bring(shop, place, second).loaded <= 5
    assert serves(shop, place, second)


def test_a_release_that_differs_too_much_is_loaded_beside(shop, place, at_target, capfd):
    bring(shop, place, shop.releases[0])
    release = refreshed(shop, changed=ITEMS // 3)
    assert bring(shop, place, release).loaded == release.vectors
    assert "than a quarter of" in capfd.readouterr().out
    assert serves(shop, place, release)
    assert len(at_target(lambda target: target.tables())) == 2, "the one before stays for a rollback"


def test_a_served_table_that_is_not_its_release_is_replaced(shop, place, at_target, capfd):
    first = bring(shop, place, shop.releases[0])
    rows = vectors_of(shop, shop.releases[0]).rows(0)
    at_target(lambda target: target.load(first.table, 0, rows.slice(1), again=True))  # an item is missing
    release = refreshed(shop, changed=2)
    assert bring(shop, place, release).loaded == release.vectors
    assert "loaded beside" in capfd.readouterr().out
    assert serves(shop, place, release)


def test_a_pruned_release_is_no_beginning(shop, place):
    bring(shop, place, shop.releases[0])
    release = refreshed(shop, changed=2)
    shop.store.delete("releases/1.json")
    assert bring(shop, place, release).loaded == release.vectors
    assert serves(shop, place, release)


def test_changes_that_spoil_the_index_are_undone(shop, place, monkeypatch):
    first = shop.releases[0]
    bring(shop, place, first)
    release, watched = refreshed(shop, changed=2), Watched.instead_of_targets(monkeypatch)
    watched.answers = lambda hits: [*hits[:9], hits[0]]
    with pytest.raises(DataError, match=r"recall@10"):  # of the new table, too
        bring(shop, place, release)
    assert {"change", "load"} <= set(watched.calls)
    assert serves(shop, place, first)


# --- Postgres -----------------------------------------------------------------------------------------------------


@pytest.fixture
def dsn(postgres: Postgres) -> str:
    return postgres.empty_database()


def pgvector(dsn: str) -> Target:
    (settings,) = Place(f"{{kind: pgvector, name: look, dsn: '{dsn}'}}", lambda *_: None).config().publish.targets
    return open_target(settings)


def test_readers_see_all_changes_at_once_and_are_never_kept_waiting(shop, dsn):
    place = Place(f"{{kind: pgvector, name: look, dsn: '{dsn}'}}", lambda *_: None)
    first = bring(shop, place, shop.releases[0])
    assert first.table is not None
    release = refreshed(shop, changed=3)
    found = list(changes(vectors_of(shop, shop.releases[0]), vectors_of(shop, release)))
    with contextlib.closing(pgvector(dsn)) as target, psycopg.connect(dsn, autocommit=True) as reader:
        assert isinstance(target, Changeable)
        reader.execute("SET lock_timeout = '1ms'")
        new = "SELECT count(*) FROM look WHERE text LIKE '% of 1'"
        with target.changing(first.table, "look_r2_00000000") as table:
            for each in found:
                target.change(table, each.rows, each.gone)
                assert reader.execute(new).fetchone() == (0,)
        assert reader.execute(new).fetchone() == (3,)
        assert target.serving() == "look_r2_00000000"


def test_two_publications_at_once_end_one_after_the_other(shop, dsn, monkeypatch):
    """As after a pause that was longer than the lease."""
    monkeypatch.setattr("tasks.worker.export.pgvector.LOCK_TIMEOUT", "50ms")
    place = Place(f"{{kind: pgvector, name: look, dsn: '{dsn}'}}", lambda *_: None)
    table = str(bring(shop, place, shop.releases[0]).table)
    one, other = pgvector(dsn), pgvector(dsn)
    with contextlib.closing(one), contextlib.closing(other):
        assert isinstance(one, Changeable)
        assert isinstance(other, Changeable)
        with (
            one.changing(table, "look_r2_00000000"),
            pytest.raises(Exception, match="lock timeout"),
            other.changing(table, "look_r3_00000000"),
        ):
            raise AssertionError("both change it")
        with pytest.raises(Exception, match="does not exist"), other.changing(table, "look_r3_00000000"):
            raise AssertionError("it is another release by now")
        assert one.tables() == ["look_r2_00000000"]
        with psycopg.connect(dsn) as reader:
            names = reader.execute("SELECT indexname FROM pg_indexes WHERE tablename LIKE 'look%'").fetchall()
        assert {"look_r2_00000000_nearest", "look_r2_00000000_partition"} <= {name for (name,) in names}
