import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder, commit
from tasks.contracts.references import RowsRef, SpanRef
from tasks.data.label_columns import label_classes, pair_mask
from tasks.data.rows import (
    CORE,
    ROWS_KIND,
    below_share,
    distinct_items,
    group_keys,
    hold_places,
    normal_text,
    read_rows,
    unseen_places,
)
from tasks.foundation.errors import DataError
from tests.support.workspace.jobs import CLASSIFIER, tiny_config


def table(*ids: str, **others: Any) -> pa.Table:
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    core = [
        {"row_id": i, "time": moment, "query": f"q{i}", "item": f"t{i}", "item_id": f"i{i}", "label": None} for i in ids
    ]
    columns = {name: pa.array([row[name] for row in core], kind) for name, kind in CORE.items()}
    return pa.table({**columns, **{name: pa.array([value] * len(ids)) for name, value in others.items()}})


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def write(store: DirectoryStore, tmp_path: Path, span: str, *tables: pa.Table) -> RowsRef:
    folder = tmp_path / "made" / span
    folder.mkdir(parents=True)
    for number, part in enumerate(tables):
        pq.write_table(part, folder / f"part-{number:05d}.parquet")
    prefix = f"runs/r/validate/attempt-1/{span}"
    commit(store, prefix, folder, ROWS_KIND, {})
    return RowsRef(span=SpanRef(name=span, version=1), prefix=prefix, rows=sum(len(part) for part in tables))


def test_rows_are_in_the_order_of_spans_and_files(store: DirectoryStore, tmp_path: Path) -> None:
    later = write(store, tmp_path, "2026-02", table("e", "d", price=2.0))
    earlier = write(store, tmp_path, "2026-01", table("c", price=1.0), table("b", "a", price=3.0))
    rows = pa.concat_tables(read_rows(store, [earlier, later], ["price"]))
    assert rows.column_names == [*CORE, "price"]
    assert rows["row_id"].to_pylist() == ["c", "b", "a", "e", "d"]
    assert rows["price"].to_pylist() == [1.0, 3.0, 3.0, 2.0, 2.0]


def test_the_newest_rows_come_first_if_asked_for_and_no_more_is_read(store: DirectoryStore, tmp_path: Path) -> None:
    later = write(store, tmp_path, "2026-02", table("c"), table("d", "e"))
    gone = RowsRef(span=SpanRef(name="2026-01", version=1), prefix="runs/r/gone", rows=1)
    newest = read_rows(store, [gone, later], [], newest_first=True)
    assert [next(newest)["row_id"].to_pylist() for _ in range(2)] == [["d", "e"], ["c"]]
    with pytest.raises(MissingFolder):
        next(newest)


def test_only_the_named_columns_are_read_and_each_once(store: DirectoryStore, tmp_path: Path) -> None:
    ref = write(store, tmp_path, "2026-01", table("a", price=1.0, brand="acme"))
    assert next(read_rows(store, [ref], ["brand", "label", "brand"])).column_names == [*CORE, "brand"]


def test_a_missing_column_is_an_error_that_names_span_and_column(store: DirectoryStore, tmp_path: Path) -> None:
    has = write(store, tmp_path, "2026-01", table("a", price=1.0))
    lacks = write(store, tmp_path, "2026-02", table("b", brand="acme"))
    with pytest.raises(DataError, match=r"2026-02: .*'price'.*brand"):
        list(read_rows(store, [has, lacks], ["price"]))


def test_incomplete_rows_are_not_read(store: DirectoryStore) -> None:
    with pytest.raises(MissingFolder):
        next(read_rows(store, [RowsRef(span=SpanRef(name="2026-01", version=1), prefix="runs/r/gone", rows=1)], []))


def test_the_last_row_about_an_item_counts() -> None:
    rows = pa.table({"item_id": ["b", "a", "b", "c"], "item": ["old", "only", "new", "other"]})
    assert distinct_items(rows).to_pylist() == [
        {"item_id": "a", "item": "only"},
        {"item_id": "b", "item": "new"},
        {"item_id": "c", "item": "other"},
    ]


@pytest.mark.parametrize("text", ["Straße No 5", " STRASSE\u3000no\t５ ", "strasse no\n5"])
def test_texts_that_look_alike_have_one_normal_form(text: str) -> None:
    assert normal_text(text) == "strasse no 5"


def test_rows_are_grouped_by_texts_or_by_a_column() -> None:
    rows = table("a", "b", shop="x").set_column(2, "query", pa.array(["Red", " red "]))
    assert group_keys(rows, "query_and_item") == ["red\nta", "red\ntb"]
    assert group_keys(rows, "query") == ["red", "red"]
    assert group_keys(rows, "item") == ["ta", "tb"]
    assert group_keys(rows, "row_id") == ["a", "b"]
    assert group_keys(rows, "shop") == ["x", "x"]


def test_rows_without_a_group_are_grouped_by_their_texts() -> None:
    rows = table("a", "b").append_column("user", pa.array([None, 7.0]))
    assert group_keys(rows, "user") == ["qa\nta", "7"]


def test_a_group_has_one_name_whatever_type_its_column_has_in_a_span() -> None:
    names = [group_keys(table("a", user=value), "user") for value in (7.0, "7", 7)]
    assert names == [["7"]] * 3


# A row that was held out once must always be: these places were computed when the rule was made.
IDS = ["", "r0", "r1", "b0b09b2d6879259d", "zoë"]
PLACES = {
    "query": [0.97237, 0.76832, 0.62271, 0.01877, 0.19316],
    "row_id": [1.0, 0.70573, 1.0, 0.03754, 0.38632],
    "query_and_item": [0.27241, 1.0, 0.69207, 0.03754, 0.38632],
}


@pytest.mark.parametrize(("group", "places"), PLACES.items())
def test_the_holdout_never_changes(group: str, places: list[float]) -> None:
    rows = pa.table({"row_id": IDS, "query": IDS, "item": ["x"] * len(IDS)})
    assert (hold_places(rows, group) / 2**64).tolist() == pytest.approx(places, abs=1e-5)


@given(st.lists(st.text(), min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_out_the_rows_of_a_smaller_one(texts: list[str], one: float, other: float) -> None:
    rows = pa.table({"query": texts, "item": texts[::-1]})
    for places in (hold_places(rows, "query_and_item"), unseen_places(rows, "query_and_item")):
        assert (below_share(places, min(one, other)) <= below_share(places, max(one, other))).all()
        assert not below_share(places, 0.0).any()


LABELS = pa.table({"label": pa.array([1.0, 2.0, 3.0, 4.0, 5.0, None])})


def test_labels_are_mapped_to_classes():
    assert label_classes(LABELS, tiny_config(CLASSIFIER).heads).tolist() == [0, 0, -1, 1, 1, -1]
    assert label_classes(LABELS, tiny_config().heads).tolist() == [-1] * 6


def test_pairs_are_all_rows_or_the_positive_ones():
    assert pair_mask(LABELS, tiny_config(CLASSIFIER).heads).all()
    positives = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true")
    assert pair_mask(LABELS, positives.heads).tolist() == [False, False, False, True, True, False]
