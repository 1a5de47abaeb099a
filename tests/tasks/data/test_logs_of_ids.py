"""Logs of ids: rows that name their item by `item_id` alone; the item feed has the texts."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder, read_manifest
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS
from tasks.data.files.formats import Format
from tasks.data.ingest import IngestOptions, IngestSummary, ingest
from tasks.data.mapping import parse_map
from tasks.data.new_versions import Known
from tasks.data.rows import SPAN_KIND, has_ids_alone
from tasks.foundation.errors import ConfigError
from tests.support.pages.golden import Golden
from tests.support.workspace.inputs import versions, write_input

IDS = "query=q,item_id=sku"
TEXTS = "query=q,item_id=sku,item=title"
JANUARY = SpanRef(name="2026-01", version=1)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def click(query: str, sku: str, day: str = "2026-01-05", **more: Any) -> dict[str, Any]:
    return {"q": query, "sku": sku, "at": f"{day}T08:30:00Z", **more}


def log(
    store: DirectoryStore, *rows: dict[str, Any], columns: str = IDS, form: Format = Format.jsonl, **options: Any
) -> IngestSummary:
    source = write_input(store.root.parent / f"log.{form}", rows, form)
    said = IngestOptions.model_validate(options)
    return ingest(store, source, form, "at", SpanKind.month, parse_map(columns), options=said)


@pytest.mark.parametrize("form", list(Format))
def test_rows_without_texts_become_a_span(store: DirectoryStore, form: Format) -> None:
    assert versions(log(store, click("lamp", "7", event="click"), click("mug", "008", event="cart"), form=form)) == [
        ("2026-01", 1, 2, True)
    ]
    folder, _ = open_folder(store, JANUARY.prefix, SPAN_KIND)
    found = pq.read_table(folder / "part-00000.parquet").select(["query", "item_id", "item", "event"])
    assert found.to_pylist() == [
        {"query": "lamp", "item_id": "7", "item": None, "event": "click"},
        {"query": "mug", "item_id": "008", "item": None, "event": "cart"},
    ]


def test_the_span_records_that_its_texts_come_from_the_feed(store: DirectoryStore) -> None:
    log(store, click("lamp", "7"))
    assert has_ids_alone(store, JANUARY)
    log(store, click("lamp", "7", "2026-02-01", title="a lamp"), columns=TEXTS)
    assert not has_ids_alone(store, SpanRef(name="2026-02", version=1))
    assert "texts" not in read_manifest(store, "spans/2026-02/v1").facts


def test_a_note_says_where_the_texts_come_from_and_how_to_bring_them(store: DirectoryStore, golden: Golden) -> None:
    golden(log(store, click("lamp", "7")).notes)
    source = write_input(store.root.parent / "feed.jsonl", [{"sku": "7", "title": "a lamp", "at": "2026-01-01"}])
    ingest(store, source, Format.jsonl, "at", SpanKind.month, parse_map("id=sku,text=title", ITEMS), ITEMS)
    assert "--items" not in log(store, click("lamp", "7")).notes[0]


def test_the_same_log_again_changes_nothing_and_late_rows_merge(store: DirectoryStore) -> None:
    log(store, click("lamp", "7"), click("mug", "8"))
    assert versions(log(store, click("mug", "8"), click("lamp", "7"))) == [("2026-01", 1, 2, False)]
    assert versions(log(store, click("mug", "9"), known=Known.merge)) == [("2026-01", 2, 3, True)]
    assert has_ids_alone(store, SpanRef(name="2026-01", version=2))


@pytest.mark.parametrize(("first", "second"), [(IDS, TEXTS), (TEXTS, IDS)])
def test_rows_with_and_without_texts_are_not_merged(store: DirectoryStore, first: str, second: str) -> None:
    log(store, click("lamp", "7", title="a lamp"), columns=first)
    with pytest.raises(ConfigError, match=r"2026-01.*--replace"):
        log(store, click("mug", "8", title="a mug"), columns=second, known=Known.merge)
    log(store, click("mug", "8", title="a mug"), columns=second, known=Known.replace)
    assert has_ids_alone(store, SpanRef(name="2026-01", version=2)) == (second == IDS)


@pytest.mark.parametrize("columns", ["query=q", "query=q,id=sku"])
def test_a_map_without_item_and_item_id_is_refused_with_both_ways(columns: str) -> None:
    with pytest.raises(ConfigError, match=r"'item' .*item_id=COLUMN"):
        parse_map(columns)
