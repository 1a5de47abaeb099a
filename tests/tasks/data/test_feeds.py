"""Item feeds: items that nobody interacted with yet, new texts, deletions."""

import datetime as dt
import shlex
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder
from tasks.contracts.references import FeedRef
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS
from tasks.data.files.formats import Format
from tasks.data.files.spelling import parse_spelling
from tasks.data.ingest import IngestOptions, IngestSummary, ingest
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.data.rows import FEED_KIND
from tasks.data.span_versions import list_feeds, list_spans
from tasks.foundation.errors import ConfigError, DataError
from tests.support.workspace.inputs import versions, write_input

MAP = "id=sku,text=title,deleted=gone"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def item(sku: str | None, day: str, title: str | None = "a lamp", **more: Any) -> dict[str, Any]:
    return {"sku": sku, "title": title, "at": f"{day}T08:30:00Z", **more}


def feed(
    store: DirectoryStore, *rows: dict[str, Any], form: Format = Format.jsonl, columns: str = MAP, **options: Any
) -> IngestSummary:
    source = write_input(store.root.parent / f"feed.{form}", rows, form)
    said = IngestOptions.model_validate(options)
    return ingest(store, source, form, "at", SpanKind.month, parse_map(columns, ITEMS), ITEMS, options=said)


@pytest.mark.parametrize("form", list(Format))
def test_a_feed_becomes_spans_of_items(store: DirectoryStore, form: Format) -> None:
    rows = [
        item("a", "2026-01-05", gone=False, price=2.5),
        item("b", "2026-01-07", title=None, gone=True, price=None),
        item("c", "2026-02-01", gone=False, price=3.0),
    ]
    assert versions(feed(store, *rows, form=form)) == [("2026-01", 1, 2, True), ("2026-02", 1, 1, True)]
    assert list_feeds(store) == [FeedRef(name="2026-01", version=1), FeedRef(name="2026-02", version=1)]
    assert list_spans(store) == [], "a feed is not trained on"
    folder, manifest = open_folder(store, "items/2026-01/v1", FEED_KIND)
    assert manifest.facts["rows"] == 2
    found = pq.read_table(folder / "part-00000.parquet").select(["item_id", "item", "time", "deleted", "price"])
    assert [(row["item_id"], row["deleted"], row["price"]) for row in found.to_pylist()] == [
        ("a", False, 2.5),
        ("b", True, None),
    ]
    assert found["time"][0].as_py() == dt.datetime(2026, 1, 5, 8, 30, tzinfo=dt.UTC)


def test_a_feed_span_is_versioned_like_any_other(store: DirectoryStore) -> None:
    feed(store, item("a", "2026-01-05", gone=False))
    assert versions(feed(store, item("a", "2026-01-05", gone=False))) == [("2026-01", 1, 1, False)]
    assert versions(feed(store, item("a", "2026-01-05", gone=True))) == [("2026-01", 2, 1, True)]
    assert list_feeds(store) == [FeedRef(name="2026-01", version=2)]


def test_a_full_export_is_asked_nothing_though_items_move_to_later_spans(store: DirectoryStore) -> None:
    feed(store, item("a", "2026-01-05", gone=False), item("b", "2026-01-06", gone=False))
    moved = feed(store, item("a", "2026-02-05", title="new", gone=False), item("b", "2026-01-06", gone=False))
    assert versions(moved) == [("2026-01", 1, 2, False), ("2026-02", 1, 1, True)], "the newer record of a counts"


def test_a_feed_of_changes_alone_would_drop_items_and_must_say_so(store: DirectoryStore) -> None:
    feed(store, item("a", "2026-01-05", gone=False), item("b", "2026-01-06", gone=False))
    changes = (item("b", "2026-01-09", title="new", gone=False), item("c", "2026-01-09", gone=False))
    with pytest.raises(ConfigError, match=r"0 changed, 2 new, 1 of v1"):
        feed(store, *changes)
    assert versions(feed(store, *changes, known="merge")) == [("2026-01", 2, 4, True)]
    assert versions(feed(store, *changes, known="replace")) == [("2026-01", 3, 2, True)]


def test_a_feed_has_times_that_are_believed(store: DirectoryStore) -> None:
    """A time in a wrong unit is mostly of 1970, so that old texts would win."""
    with pytest.raises(DataError, match=r"row 1, .* 1970-01-01 is"):
        feed(store, item("a", "1970-01-01", gone=False))
    feed(store, item("a", "1970-01-01", gone=False), not_before=dt.date(1970, 1, 1))
    with pytest.raises(DataError, match=r"row 1, .* 3000-01-01 is"):
        feed(store, item("a", "3000-01-01", gone=False))


def test_a_feed_without_times_gets_one(store: DirectoryStore) -> None:
    source = write_input(store.root.parent / "feed.csv", [{"sku": "a", "title": "A lamp"}], Format.csv)
    at = dt.datetime(2026, 2, 3, 8, 30, tzinfo=dt.UTC)
    mapping = {"id": "sku", "text": "title"}
    assert versions(ingest(store, source, None, at, SpanKind.month, mapping, ITEMS)) == [("2026-02", 1, 1, True)]
    assert pq.read_table(store.path("items/2026-02/v1/part-00000.parquet"))["time"].to_pylist() == [at]
    facts = look(source, ITEMS, LookOptions())
    assert f"--at {dt.datetime.fromtimestamp(source.stat().st_mtime, dt.UTC):%Y-%m-%dT%H:%M:%SZ}" in facts.command
    assert "--at TIME" in facts.problems[0].text


def test_a_feed_without_a_column_for_deletions_deletes_nothing(store: DirectoryStore) -> None:
    feed(store, item("a", "2026-01-05"), columns="id=sku,text=title")
    assert pq.read_table(store.path("items/2026-01/v1/part-00000.parquet"))["deleted"].to_pylist() == [False]


@pytest.mark.parametrize(
    ("wrong", "column"),
    [
        (item(None, "2026-01-06", gone=False), "sku"),
        (item("b", "2026-01-06", title=" ", gone=False), "title"),
        (item("b", "2026-01-06", gone="maybe"), "gone"),
        (item("b\0", "2026-01-06", gone=False), "sku"),
        (item("b" * 2001, "2026-01-06", gone=True), "sku"),
        (item("b", "2026-01-06", title="a\0lamp", gone=False), "title"),
    ],
)
def test_an_item_that_cannot_be_used_is_named_and_nothing_is_written(
    store: DirectoryStore, wrong: dict[str, Any], column: str
) -> None:
    with pytest.raises(DataError, match=rf"feed\.jsonl.*row 2.*{column}"):
        feed(store, item("a", "2026-01-05", gone=False), wrong)
    assert not store.list("items")


ACTIVE_AND_GONE = ("active", "archived", "Active", None)


@pytest.mark.parametrize("form", list(Format))
def test_a_column_of_states_is_proposed_as_deleted_and_read_as_proposed(store: DirectoryStore, form: Format) -> None:
    """Else the deleted items stay on sale without a word."""
    rows = [item(f"a{n}", "2026-01-05", f"lamp {n}", condition=ACTIVE_AND_GONE[n % 4]) for n in range(40)]
    source = write_input(store.root.parent / f"feed.{form}", rows, form)
    facts = look(source, ITEMS, LookOptions())
    words = shlex.split(facts.command)
    assert facts.mapping == {"id": "sku", "text": "title", "deleted": "condition"}
    assert words[-4:] == ["--true", "archived", "--false", "active"]
    said = IngestOptions(spelling=parse_spelling(".", False, words[-3], words[-1]))
    ingest(store, source, None, "at", SpanKind.month, facts.mapping, ITEMS, options=said)
    gone = pq.read_table(store.path("items/2026-01/v1/part-00000.parquet"))["deleted"].to_pylist()
    assert gone == [n % 4 == 1 for n in range(40)]


@pytest.mark.parametrize(
    ("words", "column", "deleted", "problem"),
    [
        (("active", "deleted", "backorder"), "status", None, "'backorder' taken as on sale"),
        (("active", "active", "active"), "status", "status", None),
        (("red", "hidden", "green"), "colour", None, None),
        (("ja", "nein", "nein"), "status", None, None),
        (("open", "closed", "pending"), "order_state", None, None),
        ((0, 1, 2), "status", None, "has the numbers"),
    ],
)
def test_states_are_told_from_other_words(
    tmp_path: Path, words: tuple[Any, ...], column: str, deleted: str | None, problem: str | None
) -> None:
    rows = [item(f"a{n}", "2026-01-05", **{column: words[n % 3]}) for n in range(40)]
    facts = look(write_input(tmp_path / "feed.jsonl", rows), ITEMS, LookOptions())
    assert facts.mapping.get("deleted") == deleted
    said = [each.text for each in facts.problems if each.kind == "status"]
    assert len(said) == (problem is not None)
    assert (problem or "") in "".join(said)


def test_states_that_no_column_is_mapped_for_are_named(store: DirectoryStore) -> None:
    rows = [item(f"a{n}", "2026-01-05", status="deleted" if n == 7 else "active") for n in range(40)]
    named = {each.kind: each.text for each in feed(store, *rows, columns="id=sku,text=title").problems}
    assert "in 2.5%" in named["status"]
    assert "--true deleted --false active" in named["status"]


def test_the_error_of_a_state_names_all_words_of_its_column_and_their_options(store: DirectoryStore) -> None:
    rows = [item(f"a{n}", "2026-01-05", gone="deleted" if n == 7 else "active") for n in range(40)]
    with pytest.raises(DataError, match=r"row 1, .*--true deleted"):
        feed(store, *rows)
    with pytest.raises(DataError, match=r"\(2\): --false active"):
        feed(store, *(item(each, "2026-01-05", gone="active") for each in "ab"))
    with pytest.raises(DataError, match="many values"):
        feed(store, *(item("a", "2026-01-05", gone=f"word {n}") for n in range(40)))


def test_a_column_named_deleted_needs_no_map(store: DirectoryStore) -> None:
    feed(store, item("a", "2026-01-05", deleted=True), columns="id=sku,text=title")
    assert pq.read_table(store.path("items/2026-01/v1/part-00000.parquet"))["deleted"].to_pylist() == [True]
    with pytest.raises(DataError, match=r"deleted.*'perhaps'"):
        feed(store, item("a", "2026-01-05", deleted="perhaps"), columns="id=sku,text=title")


def test_the_names_of_a_feed_are_those_of_items() -> None:
    with pytest.raises(ConfigError, match=r"'query'.*--map id=COLUMN"):
        parse_map("query=text,item=title", ITEMS)
    with pytest.raises(ConfigError, match="'text' is missing"):
        parse_map("id=sku", ITEMS)


def test_the_same_feed_in_another_format_changes_nothing(tmp_path: Path) -> None:
    rows = [
        {"sku": f"S{n}", "title": f"lamp {n}", "at": f"2026-02-{n + 1:02}", "price": n / 2, "new": n == 1}
        for n in range(3)
    ]
    store = DirectoryStore(tmp_path / "workspace")
    for form in (Format.csv, Format.jsonl, Format.parquet):
        path = write_input(tmp_path / f"feed.{form}", rows[::-1] if form is Format.jsonl else rows, form)
        summary = ingest(store, path, form, "at", SpanKind.month, {"id": "sku", "text": "title"}, ITEMS)
        assert [each.version for each in summary.spans] == [1]
