"""A feed given as a log and a log given as a feed are refused; data that only resembles them is not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.ingest import ingest
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.foundation.errors import DataError
from tests.support.workspace.inputs import write_input

Rows = list[dict[str, Any]]
FEED = [{"sku": f"p{n}", "name": f"Lamp No. {n}", "at": "2026-01-02"} for n in range(60)]
LOG = [{"sku": f"p{n * 7 % 60}", "q": f"lamp {n % 45}", "at": "2026-01-05"} for n in range(400)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def feed(store: DirectoryStore, rows: Rows, columns: str = "id=sku,text=name") -> None:
    source = write_input(store.root.parent / "feed.jsonl", rows)
    ingest(store, source, None, "at", SpanKind.month, parse_map(columns, ITEMS), ITEMS)


def log(store: DirectoryStore, rows: Rows, columns: str = "query=q,item_id=sku") -> None:
    source = write_input(store.root.parent / "log.jsonl", rows)
    ingest(store, source, None, "at", SpanKind.month, parse_map(columns), ROWS)


def test_a_feed_as_a_log_is_refused_once_the_feed_is_known(store: DirectoryStore) -> None:
    feed(store, FEED)
    with pytest.raises(DataError, match=r"60 of 60 .*No\. 0.*--items"):
        log(store, FEED, "query=name,item_id=sku")
    assert not store.list("spans")


def test_a_feed_as_a_log_is_named_before_the_feed_is_known(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "feed.jsonl", FEED)
    facts = look(source, ROWS, LookOptions(mapping={"query": "name", "item_id": "sku"}))
    assert [each.kind for each in facts.problems if "--items" in each.text and each.kind == "swapped"]


def test_queries_that_are_the_mapped_texts_are_refused(store: DirectoryStore) -> None:
    with pytest.raises(DataError, match="text of their own item"):
        log(store, [{**row, "title": row["name"].upper()} for row in FEED], "query=name,item=title")


@pytest.mark.parametrize(
    ("rows", "columns"),
    [(LOG, "id=sku,text=q"), ([{**row, "q": f"search {n}"} for n, row in enumerate(LOG)], "id=sku,text=q")],
    ids=["searches for several items", "a column named as searches"],
)
def test_a_log_as_a_feed_is_refused(store: DirectoryStore, rows: Rows, columns: str) -> None:
    with pytest.raises(DataError, match=r"60 of 60 .*--source"):
        feed(store, rows, columns)
    facts = look(store.root.parent / "feed.jsonl", ITEMS, LookOptions(mapping={"id": "sku", "text": "q"}))
    assert "swapped" in {each.kind for each in facts.problems}


def renamed(n: int) -> str:
    return f"Lamp No. {n % 60}, model {n // 60}"


def variants(n: int) -> str:
    return f"Lamp No. {n // 4}"


@pytest.mark.parametrize("name", [renamed, variants], ids=["each item renamed", "variants with one title"])
def test_feeds_of_many_names_are_not_refused(store: DirectoryStore, name: Callable[[int], str]) -> None:
    many = 60 if name is renamed else 240
    feed(store, [{"sku": f"p{n % many}", "name": name(n), "at": f"2026-01-{1 + n // 60:02}"} for n in range(240)])
    assert store.list("items")


def test_a_log_in_which_some_search_a_title_word_by_word_is_not_refused(store: DirectoryStore) -> None:
    feed(store, FEED)
    log(store, [{"sku": row["sku"], "q": row["name"] if n % 3 else f"lamp {n}"} | {"at": row["at"]}
                for n, row in enumerate(FEED)])  # fmt: skip
    assert store.list("spans")
