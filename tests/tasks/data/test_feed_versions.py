"""The record of the item feeds' latest versions: it always says what a listing of all versions would."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import FeedRef
from tasks.contracts.spans import SpanKind, in_order
from tasks.data.canonical import ITEMS
from tasks.data.files.formats import Format
from tasks.data.ingest import ingest
from tasks.data.mapping import parse_map
from tasks.data.span_versions import FEEDS, FEW, LatestFeeds, latest_versions, list_feeds, note_all
from tests.support.fakes.fake_runner import ingest_feed
from tests.support.workspace.inputs import write_input

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")


class Killed(BaseException):
    """As by SIGKILL: nothing catches it."""


class Mortal(DirectoryStore):
    """Dies just before its n-th write, and counts listings."""

    dies_at: int | None = None

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed: list[str] = []
        self.writes = itertools.count()

    def list(self, prefix: str) -> list[str]:
        self.listed.append(prefix)
        return super().list(prefix)

    def create(self, key: str, data: bytes) -> None:
        self._live()
        super().create(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self._live()
        super().swap(key, data, expected)

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        self._live()
        super().upload(source, key, instead_of)

    def delete(self, prefix: str) -> None:
        if self.dies_at != -1:  # the dead don't tidy up
            super().delete(prefix)

    def _live(self) -> None:
        if next(self.writes) == self.dies_at:
            self.dies_at = -1
            raise Killed


@pytest.fixture
def store(tmp_path: Path) -> Mortal:
    return Mortal(tmp_path / "workspace")


def export(store: DirectoryStore, *titles: str) -> None:
    """One ingest of an item a day, with these texts."""
    rows = [
        {"sku": day, "title": title, "at": f"{day}T08:00:00Z", "gone": False}
        for day, title in zip(DAYS, titles, strict=False)
    ]
    source = write_input(store.root.parent / "export.jsonl", rows, Format.jsonl)
    ingest(store, source, Format.jsonl, "at", SpanKind.day, parse_map("id=sku,text=title,deleted=gone", ITEMS), ITEMS)


def listed(store: DirectoryStore) -> list[FeedRef]:
    """The latest versions as a listing of all of them says."""
    latest = latest_versions(store, "items")
    return [FeedRef(name=name, version=latest[name]) for name in in_order(list(latest))]


def test_no_listing_is_made_once_an_ingest_has_noted_what_there_is(store: Mortal) -> None:
    for day in DAYS:
        ingest_feed(store, day, version=24)
    export(store, "a lamp")
    expected = listed(store)
    assert expected == [FeedRef(name=DAYS[0], version=25), *(FeedRef(name=day, version=24) for day in DAYS[1:])]
    store.listed.clear()
    assert list_feeds(store) == expected
    assert store.listed == []
    export(store, "a lamp", "a chair")
    assert "items" not in store.listed, "an export lists its own spans alone"
    assert list_feeds(store) == listed(store)


@pytest.mark.parametrize("write", range(8))
def test_an_ingest_that_is_killed_hides_no_version_and_the_next_one_goes_on(store: Mortal, write: int) -> None:
    export(store, "a lamp", "a chair")
    store.writes, store.dies_at = itertools.count(), write
    with pytest.raises(Killed):
        export(store, "a lamp, new", "a chair, new", "a sofa")
    store.dies_at = None
    assert list_feeds(store) == listed(store)
    export(store, "a lamp, newer")
    assert list_feeds(store) == listed(store)
    export(store, "a lamp, new", "a chair, new", "a sofa")
    assert list_feeds(store) == listed(store)
    store.listed.clear()
    list_feeds(store)
    assert store.listed == []


def test_many_versions_that_were_announced_are_not_looked_for_one_by_one(store: Mortal) -> None:
    export(store, "a lamp")
    many = {f"2026-{number // 28 + 2:02}-{number % 28 + 1:02}": 1 for number in range(FEW + 1)}
    store.write(FEEDS, LatestFeeds(complete={DAYS[0]: 1}, announced=many).to_json())
    store.listed.clear()
    assert list_feeds(store) == [FeedRef(name=DAYS[0], version=1)]
    assert store.listed == ["items"]


@pytest.mark.parametrize("damage", [None, b'{"version": 1, "comp'])
def test_a_lost_or_damaged_record_is_made_again(store: Mortal, damage: bytes | None) -> None:
    export(store, "a lamp", "a chair")
    expected = listed(store)
    if damage is None:
        store.delete(FEEDS)
    else:
        store.write(FEEDS, damage)
    assert list_feeds(store) == expected
    export(store, "a lamp, new")
    store.listed.clear()
    assert list_feeds(store) == [FeedRef(name=DAYS[0], version=2), FeedRef(name=DAYS[1], version=1)]
    assert store.listed == []


def test_what_a_person_deleted_is_found_by_a_comparison_which_waits_for_an_ingest(store: Mortal, monkeypatch) -> None:
    note_all(store)
    assert not store.exists(FEEDS), "a workspace without feeds needs none"
    export(store, "a lamp", "a chair")
    export(store, "a lamp, new", "a chair")
    store.delete(f"items/{DAYS[0]}/v2")
    before = store.read(FEEDS)
    note_all(store)
    assert list_feeds(store) == listed(store) == [FeedRef(name=day, version=1) for day in DAYS[:2]]

    def and_meanwhile(prefix: str) -> list[str]:
        found = DirectoryStore.list(store, prefix)
        if prefix == "items":
            monkeypatch.undo()
            export(store, "a lamp", "a chair, new")
        return found

    store.write(FEEDS, before)
    monkeypatch.setattr(store, "list", and_meanwhile)
    note_all(store)
    assert FeedRef(name=DAYS[1], version=2) in list_feeds(store)
