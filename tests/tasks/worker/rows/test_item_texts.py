"""Rows of a log of ids, joined with the newest records of an item feed."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder
from tasks.contracts.references import FeedRef
from tasks.data.rows import SPAN_KIND
from tasks.worker.rows import ids_alone
from tasks.worker.rows.ids_alone import Filled, with_texts
from tests.support.workspace.logs import click, item, write_feed, write_log
from tests.support.workspace.spans import FEATURES, MARCH, SCRATCH

JANUARY, FEBRUARY = FeedRef(name="2026-01", version=1), FeedRef(name="2026-02", version=1)
NUMBERS = {"price": pa.float64(), "locale": pa.string()}


def filled(
    store: DirectoryStore,
    tmp_path: Path,
    rows: list[dict[str, Any]],
    feeds: list[FeedRef],
    *settings: str,
    **types: Any,
) -> Filled:
    write_log(store, tmp_path, MARCH, rows, **types)
    folder, manifest = open_folder(store, MARCH.prefix, SPAN_KIND)
    config: Config = load_config(None, [SCRATCH, *FEATURES, *settings])
    files = [folder / entry.name for entry in manifest.files]
    (tmp_path / "filled").mkdir()
    return with_texts(store, files, feeds, config, tmp_path / "filled")


def known(found: Filled, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(found.known, columns=list(columns)).to_pylist()]


def test_a_row_takes_text_and_features_from_the_newest_record(store: DirectoryStore, tmp_path: Path) -> None:
    write_feed(
        store, tmp_path, JANUARY, [item("a", "old lamp", price=1.0), item("b", "mug", "2026-01-09", brand="zen")]
    )
    write_feed(store, tmp_path, FEBRUARY, [item("a", "new lamp", "2026-02-03", price=2.0)])
    rows = [click(1, "a"), click(2, "b"), click(3, "a")]
    found = filled(store, tmp_path, rows, [FEBRUARY, JANUARY])
    assert known(found, "row_id", "item", "price", "brand", "locale") == [
        ("2026-03-00001", "new lamp", 2.0, "acme", "de"),
        ("2026-03-00002", "mug", 9.5, "zen", "de"),
        ("2026-03-00003", "new lamp", 2.0, "acme", "de"),
    ]
    assert found.unknown is None


def test_a_deleted_item_keeps_its_last_text(store: DirectoryStore, tmp_path: Path) -> None:
    write_feed(store, tmp_path, JANUARY, [item("a", "lamp"), item("a", None, "2026-01-20", price=None)])
    assert known(filled(store, tmp_path, [click(1, "a")], [JANUARY]), "item", "price") == [("lamp", 9.5)]


def test_a_full_export_has_the_last_text_of_a_deleted_item_in_the_deletion_itself(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """Its older record is gone, so that rows from before the deletion would lose their item."""
    gone = item("a", "lamp", "2026-02-20", price=3.0, deleted=True)
    write_feed(store, tmp_path, JANUARY, [gone, item("b", " ", deleted=True), item("c", None)])
    found = filled(store, tmp_path, [click(1, "a"), click(2, "b"), click(3, "c"), click(4, "x")], [JANUARY])
    assert known(found, "item_id", "item", "price") == [("a", "lamp", 3.0)]
    assert found.deleted == {"b", "c"}


def test_rows_of_items_that_no_feed_knows_are_apart_as_they_came(store: DirectoryStore, tmp_path: Path) -> None:
    write_feed(store, tmp_path, JANUARY, [item("a", "lamp"), item("gone", None)])
    rows = [click(1, "x"), click(2, "a"), click(3, "gone"), click(4, None), click(5, " ")]
    found = filled(store, tmp_path, rows, [JANUARY], place=pa.string())
    assert [name for (name,) in known(found, "row_id")] == ["2026-03-00002", "2026-03-00004", "2026-03-00005"]
    assert found.unknown is not None
    apart = pq.read_table(found.unknown)
    assert apart["item_id"].to_pylist() == ["x", "gone"]
    assert apart.column_names == ["row_id", "time", "query", "item", "item_id", "label", "place"]


def test_without_a_feed_all_rows_are_apart(store: DirectoryStore, tmp_path: Path) -> None:
    found = filled(store, tmp_path, [click(1, "a"), click(2, "b")], [])
    assert found.unknown is not None
    assert (pq.read_metadata(found.known).num_rows, pq.read_metadata(found.unknown).num_rows) == (0, 2)


@pytest.mark.parametrize(
    ("settings", "column", "expected"),
    [
        ((), "price", 9.5),
        (("features.query=[price]",), "price", 1.25),
        (("features.query=[price]",), "brand", "acme"),
        (("features.entity=locale",), "locale", "ja"),
        ((), "locale", "ja"),
    ],
    ids=["a feature of items", "a feature of queries", "a feature that the log lacks", "the entity", "a slice"],
)
def test_the_log_keeps_columns_of_its_own(
    store: DirectoryStore, tmp_path: Path, settings: tuple[str, ...], column: str, expected: Any
) -> None:
    write_feed(store, tmp_path, JANUARY, [item("a", "lamp")])
    found = filled(store, tmp_path, [click(1, "a", price=1.25, locale="ja")], [JANUARY], *settings, **NUMBERS)
    assert known(found, column) == [(expected,)]


def test_a_feed_without_a_feature_leaves_the_column_to_the_check(store: DirectoryStore, tmp_path: Path) -> None:
    write_feed(store, tmp_path, JANUARY, [item("a", "lamp")], brand=None)
    assert "brand" not in pq.read_schema(filled(store, tmp_path, [click(1, "a")], [JANUARY]).known).names


def test_rows_keep_their_order_and_the_files_their_bytes(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ids_alone, "JOINED_ROWS", 7)
    ids = [f"i{number}" for number in range(50)]
    write_feed(store, tmp_path, JANUARY, [item(each, f"lamp {each}") for each in ids])
    rows = [click(number, ids[number * 7 % 50]) for number in range(200)]
    found = filled(store, tmp_path, rows, [JANUARY])
    assert known(found, "row_id", "item") == [(row["row_id"], f"lamp {row['item_id']}") for row in rows]
    again = tmp_path / "again"
    again.mkdir()
    folder, manifest = open_folder(store, MARCH.prefix, SPAN_KIND)
    config = load_config(None, [SCRATCH, *FEATURES])
    second = with_texts(store, [folder / entry.name for entry in manifest.files], [JANUARY], config, again)
    assert second.known.read_bytes() == found.known.read_bytes()
