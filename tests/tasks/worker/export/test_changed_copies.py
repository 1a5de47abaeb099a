"""Services whose served table is copied, and the copy changed: until consumers are sent to that, they see nothing."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lancedb.db import LanceDBConnection
from lancedb.table import LanceTable
from opensearchpy import OpenSearch
from opensearchpy.client.indices import IndicesClient

from infra.store.directory import DirectoryStore
from tasks.contracts.erasing import EraseItem
from tasks.foundation.errors import StoreError
from tasks.worker import publish
from tasks.worker.export import lancedb as lancedb_target
from tasks.worker.export import opensearch
from tasks.worker.export.erase_item import erase_item
from tasks.worker.export.target import Target, is_copy
from tasks.worker.export.targets import open_target
from tests.support.cloud.s3 import S3Server
from tests.tasks.erase.scan import found
from tests.tasks.worker.export.places import Place, empty_place, lancedb_place
from tests.tasks.worker.export.refreshing import COPIED, Interrupted, bring, refreshed, serves
from tests.tasks.worker.export.watched import Watched

WRITES: dict[str, list[tuple[type, str]]] = {
    "lancedb": [
        *((LanceTable, name) for name in ("add", "delete", "optimize", "create_index", "drop_index")),
        *((LanceDBConnection, name) for name in ("create_table", "drop_table")),
        *((DirectoryStore, name) for name in ("copy", "move")),
    ],
    "opensearch": [
        *((IndicesClient, name) for name in ("clone", "create", "delete", "put_settings", "put_mapping")),
        (IndicesClient, "update_aliases"),
        *((OpenSearch, name) for name in ("bulk", "delete_by_query")),
    ],
}


class Killed:
    """Ends the process at one of its writes: neither that nor any later one is done, or that one alone still is."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
        self.at, self.done, self.after = -1, list[str](), False
        for owner, name in WRITES[kind]:
            monkeypatch.setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            number = len(self.done)
            self.done.append(name)
            if self.at < 0 or number < self.at:
                return act(*arguments, **named)
            if number == self.at and self.after:
                act(*arguments, **named)
            raise Interrupted

        return write

    @contextlib.contextmanager
    def write(self, number: int, after: bool) -> Iterator[None]:
        self.at, self.done, self.after = number, [], after
        yield
        self.at, self.done = -1, []


@pytest.fixture(params=COPIED)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(opensearch, "POLL_SECONDS", 0.0)
    return empty_place(request.param, request, tmp_path / "target")


def copies(target: Target) -> list[str]:
    return [table for table in target.tables() if is_copy(table)]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_write_leaves_one_whole_release_and_the_next_publication_ends(
    shop, place, at_target, monkeypatch, after
):
    """Each time after another refresh, and so in another table."""
    killed = Killed(monkeypatch, place.config().publish.targets[0].kind)
    for _ in range(2):
        bring(shop, place, refreshed(shop, changed=1))
    killed.done = []
    bring(shop, place, refreshed(shop, changed=4, gone=2, new=1))
    writes = killed.done
    for number, name in enumerate(writes):
        before, release = shop.releases[-1], refreshed(shop, changed=4, gone=2, new=1)
        with killed.write(number, after), pytest.raises(Interrupted):
            bring(shop, place, release)
        assert serves(shop, place, before) or serves(shop, place, release), name
        outcome = bring(shop, place, release)
        assert outcome.loaded <= 5, f"{name}: all rows were loaded"
        assert serves(shop, place, release), name
        assert at_target(copies) == [], name
        assert len(at_target(lambda target: target.tables())) <= 3


def test_consumers_see_no_change_before_they_are_sent_to_the_copy(shop, place, at_target, monkeypatch):
    first = shop.releases[0]
    bring(shop, place, first)
    release, watched, seen = refreshed(shop, changed=3, gone=1), Watched.instead_of_targets(monkeypatch), []
    for step in ("change", "index", "nearest", "item_ids"):
        watched.after[step] = lambda: seen.append(serves(shop, place, first))
    watched.before["serve"] = watched.after["change"]
    bring(shop, place, release)
    assert len(seen) > 4
    assert all(seen)
    assert serves(shop, place, release)


def test_two_publications_at_once_end_with_one_whole_table(shop, place, at_target, monkeypatch):
    """As after a pause that was longer than the lease, while the first one is between two changes."""
    bring(shop, place, shop.releases[0])
    release, watched = refreshed(shop, changed=4, gone=1), Watched.instead_of_targets(monkeypatch)

    def meanwhile() -> None:
        del watched.after["change"]
        monkeypatch.setattr(publish, "open_target", open_target)
        bring(shop, place, release)
        assert serves(shop, place, release)

    watched.after["change"] = meanwhile
    with contextlib.suppress(StoreError):
        bring(shop, place, release)
    assert serves(shop, place, release)
    assert bring(shop, place, release).loaded == 0
    assert at_target(copies) == []


def test_two_copies_for_one_table_do_not_meet(shop, place, at_target):
    table, into = str(bring(shop, place, shop.releases[0]).table), "look_r2_00000000"
    none = pa.table({"item_id": pa.array([], pa.string())})

    def inner(target: Any) -> None:
        with target.changing(table, into) as copy:
            assert target.count(copy) == 160, "it has the changes of the other"

    def outer(target: Any) -> None:
        with target.changing(table, into) as copy:
            target.change(copy, none, ["i00001"])
            at_target(inner)

    with pytest.raises(StoreError, match="exists"):
        at_target(outer)
    assert at_target(lambda target: {each: target.count(each) for each in target.tables()}) == {table: 160, into: 160}


def test_an_erased_item_is_in_no_copy_either(shop, place, at_target, monkeypatch):
    """Neither in the table that was copied, nor in one that a killed publication left."""
    kind = place.config().publish.targets[0].kind
    killed = Killed(monkeypatch, kind)
    bring(shop, place, shop.releases[0])
    bring(shop, place, refreshed(shop, changed=1))
    with killed.write(2, after=True), pytest.raises(Interrupted):
        bring(shop, place, refreshed(shop, changed=1))
    assert at_target(copies)
    item = next(iter(shop.of[1].keys() & shop.of[2].keys()))
    asked = EraseItem(target=place.config().publish.targets[0], item_ids=(item,), dry_run=True)
    looked = erase_item(asked).tables
    assert [line.serving for line in looked] == [False, True]
    assert at_target(copies), "only a look"
    assert erase_item(asked.model_copy(update={"dry_run": False})).tables == looked
    assert at_target(lambda target: [target.count(each) for each in target.tables()]) == [159, 159]
    if kind == "lancedb":
        assert found(Path(asked.target.uri), item) == []  # type: ignore[union-attr]


def test_an_item_that_a_refresh_had_deleted_is_erased_from_the_files_of_its_table_too(shop, tmp_path):
    """A copy shares the files of the table before, and only notes that a row of them is deleted."""
    place = lancedb_place(tmp_path / "target")
    bring(shop, place, shop.releases[0])
    table = bring(shop, place, refreshed(shop, changed=0, gone=1)).table
    (item,) = shop.of[1].keys() - shop.of[2].keys()
    folder = tmp_path / "target" / f"{table}.lance"
    assert found(folder, item), "the scan sees it"
    lines = erase_item(EraseItem(target=place.config().publish.targets[0], item_ids=(item,), dry_run=False)).tables
    assert [line.serving for line in lines] == [False]
    assert found(tmp_path / "target", item) == []
    assert serves(shop, place, shop.releases[-1])


# --- LanceDB --------------------------------------------------------------------------------------------------------


def test_a_changed_copy_of_lancedb_shares_files_with_its_table_and_changes_none(shop, tmp_path):
    place = lancedb_place(tmp_path / "target")
    first = bring(shop, place, shop.releases[0]).table
    before = files_of(tmp_path / "target" / f"{first}.lance")
    second = bring(shop, place, refreshed(shop, changed=3)).table
    assert files_of(tmp_path / "target" / f"{first}.lance") == before
    after = files_of(tmp_path / "target" / f"{second}.lance")
    large = {name: one for name, one in before.items() if name.startswith(("data/", "_indices/"))}
    assert large.items() <= after.items(), "bytes were written again"


def files_of(folder: Path) -> dict[str, tuple[int, str]]:
    """Return the inode and the checksum of each file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (path.stat().st_ino, hashlib.md5(path.read_bytes()).hexdigest())
        for path in files
    }


def test_an_index_of_lancedb_never_gets_many_parts(shop, tmp_path, monkeypatch):
    """Each part, and each file that is not in it, is searched apart."""
    monkeypatch.setattr(lancedb_target, "UNINDEXED_FILES", 1)
    monkeypatch.setattr(lancedb_target, "INDEX_PARTS", 2)
    place = lancedb_place(tmp_path / "target")
    bring(shop, place, shop.releases[0])
    parts, unindexed = [], []
    for _ in range(9):
        release = refreshed(shop, changed=2, gone=1, new=1)
        outcome = bring(shop, place, release)
        table = lancedb_place_table(tmp_path / "target", outcome.table)
        stats = table.index_stats("vector_idx")
        parts, unindexed = [*parts, stats.num_indices], [*unindexed, stats.num_unindexed_rows]
        assert (outcome.loaded <= 3, outcome.recall) == (True, 1.0)
        assert table.stats()["fragment_stats"]["num_fragments"] <= 4
        assert serves(shop, place, release)
    assert (max(parts), min(parts[3:])) == (3, 1), "it grows, and is built again"
    assert max(unindexed) > 0


def lancedb_place_table(folder: Path, table: str | None) -> Any:
    import lancedb

    return lancedb.connect(str(folder)).open_table(str(table))


def test_a_database_on_s3_copies_within_the_bucket(shop, s3: S3Server, monkeypatch):
    place = Place(f"{{kind: lancedb, name: look, uri: '{s3.new_workspace()}'}}", lambda *_: None)
    first = bring(shop, place, shop.releases[0])
    release = refreshed(shop, changed=3, gone=1, new=1)
    outcome = bring(shop, place, release)
    assert (first.loaded, outcome.loaded <= 4, outcome.recall) == (160, True, 1.0)
    with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
        assert target.tables() == [first.table, outcome.table]
        rows = target.rows_of(str(outcome.table), sorted(shop.of[release.number]))
        assert {item: row.text for item, row in rows.items()} == shop.of[release.number]
        target.drop(str(first.table))
        assert target.count(str(outcome.table)) == release.vectors
