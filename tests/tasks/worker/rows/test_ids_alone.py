"""validate over logs of ids: texts from the feed, rows of unknown items apart."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import open_files, read_manifest
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.rows import read_rows
from tasks.foundation.errors import DataError
from tasks.worker import validate
from tasks.worker.process.job import Job
from tasks.worker.rows import ids_alone
from tests.support.pages.golden import Golden
from tests.support.workspace.logs import click, item, write_feed, write_log
from tests.support.workspace.spans import APRIL, MARCH, check, failed, job, quarantined, rows, write_span

FEED = FeedRef(name="2026-01", version=1)
LATER = FeedRef(name="2026-02", version=1)


def with_feeds(job: Job, *feeds: FeedRef) -> Job:
    inputs = job.spec.inputs.model_copy(update={"feeds": feeds, "texts": feeds})
    return Job(job.spec.model_copy(update={"inputs": inputs}), job.store, job.rank, job.clock)


def validated(store: DirectoryStore, *feeds: FeedRef, overrides: Sequence[str] = (), **more: Any) -> ValidateOutcome:
    return validate.judge(with_feeds(job(store, overrides=overrides, **more), *feeds))


def some_items(count: int, **more: Any) -> list[dict[str, Any]]:
    return [item(f"i{number}", f"Lamp No. {number}", **more) for number in range(count)]


@pytest.fixture
def feed(store: DirectoryStore, tmp_path: Path) -> FeedRef:
    return write_feed(store, tmp_path, FEED, some_items(40))


def test_rows_take_their_texts_and_the_outcome_names_the_feed(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef, golden: Golden
):
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(40)])
    outcome = validated(store, feed)
    assert (outcome.rows_in, outcome.rows_clean, failed(outcome)) == (40, 40, [])
    assert outcome.texts == (feed,)
    golden(check(outcome, "items in the feed").sentence)
    read = pa.concat_tables(read_rows(store, outcome.rows, ["price", "brand", "locale"])).to_pylist()
    assert [(row["item_id"], row["item"], row["price"]) for row in read[:2]] == [
        ("i0", "Lamp No. 0", 9.5),
        ("i1", "Lamp No. 1", 9.5),
    ]


def test_rows_of_unknown_items_are_set_apart_and_counted(store: DirectoryStore, tmp_path: Path, feed: FeedRef):
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(43)])
    outcome = validated(store, feed)
    assert (outcome.rows_in, outcome.rows_clean, outcome.rows_quarantined) == (43, 40, 3)
    assert outcome.reasons == {"unknown item": 3}
    assert failed(outcome) == ["items in the feed"]
    found = check(outcome, "items in the feed")
    assert found.observed == 3
    assert "40 of 43 rows" in found.sentence
    assert "'i40', 'i41', 'i42'" in found.sentence
    apart = quarantined(store, outcome)
    assert [(row["item_id"], row["reason"], row["span"]) for row in apart] == [
        (f"i{number}", "unknown item", "2026-03") for number in (40, 41, 42)
    ]


def test_rows_of_a_deleted_item_without_a_text_have_their_own_reason(
    store: DirectoryStore, tmp_path: Path, golden: Golden
):
    sold_out = item("i7", "Lamp No. 7", "2026-02-02", deleted=True)
    feed = write_feed(store, tmp_path, FEED, [*some_items(40), item("gone", None), sold_out])
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(41)])
    write_log(store, tmp_path, APRIL, [click(number, "gone" if number else "i1", "2026-04") for number in range(2)])
    outcome = validated(store, feed, window=[MARCH, APRIL], overrides=["validate.min_rows=1"])
    assert outcome.reasons == {"unknown item": 1, "deleted item without a text": 1}
    found = check(outcome, "items in the feed")
    assert found.observed == 2
    golden(found.sentence)
    assert [row["reason"] for row in quarantined(store, outcome)] == ["unknown item", "deleted item without a text"]


def test_too_many_unknown_items_end_the_run_with_the_feed_and_the_way_out(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef
):
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(60)])
    with pytest.raises(DataError) as failure:
        validated(store, feed)
    said = str(failure.value)
    assert "items of 20 of them" in said
    assert "millrace ingest --items" in said


def test_an_empty_item_id_has_its_own_reason(store: DirectoryStore, tmp_path: Path, feed: FeedRef):
    write_log(store, tmp_path, MARCH, [*(click(number, f"i{number}") for number in range(38)), click(38, None)])
    outcome = validated(store, feed)
    assert "item_id is null" in quarantined(store, outcome)[0]["reason"]
    assert "unknown item" not in outcome.reasons


def test_spans_with_and_without_texts_are_one_window(store: DirectoryStore, tmp_path: Path, feed: FeedRef):
    write_span(store, tmp_path, MARCH, rows(40))
    write_log(store, tmp_path, APRIL, [click(number, f"i{number}", "2026-04") for number in range(40)])
    outcome = validated(store, feed, window=[MARCH, APRIL])
    assert [ref.rows for ref in outcome.rows] == [40, 40]
    assert ["texts" in read_manifest(store, ref.prefix).facts for ref in outcome.rows] == [False, True]


def test_the_catalogue_has_the_feeds_newest_text_not_that_of_a_later_row(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef
):
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(40)])
    first = validated(store, feed)
    write_feed(store, tmp_path, LATER, [item("i7", "Renamed lamp", "2026-02-01")])  # older than the rows of March
    write_log(store, tmp_path, APRIL, [click(number, f"i{number}", "2026-04") for number in range(40)])
    second = validated(store, feed, LATER, window=[APRIL], history=first.rows)
    assert second.catalogue is not None
    items = pa.concat_tables(
        pq.read_table(path) for path in open_files(store, second.catalogue.prefix, "catalogue")
    ).to_pylist()
    assert len(items) == 40
    assert {each["text"] for each in items if each["item_id"] == "i7"} == {"Renamed lamp"}


def test_a_column_that_neither_log_nor_feed_has_is_named(store: DirectoryStore, tmp_path: Path):
    feed = write_feed(store, tmp_path, FEED, some_items(40), brand=None)
    write_log(store, tmp_path, MARCH, [click(number, f"i{number}") for number in range(40)])
    with pytest.raises(DataError, match="no column 'brand'"):
        validated(store, feed)


def test_the_same_feed_gives_the_same_rows(store: DirectoryStore, tmp_path: Path, feed: FeedRef):
    rows = [click(number, f"i{number % 41}", query=f"a light of kind {number}, bright") for number in range(80)]
    write_log(store, tmp_path, MARCH, rows)
    first = validated(store, feed)
    later = write_feed(store, tmp_path, LATER, [item("i7", "Renamed lamp", "2026-02-01"), item("i40", "New lamp")])
    assert validated(store, feed, attempt=2).rows == first.rows
    assert validated(store, feed, later, attempt=3).rows != first.rows


# --- rows that wait ---------------------------------------------------------------------------------------------


def waiting_at(job: Job, folder: str | None) -> Job:
    inputs = job.spec.inputs.model_copy(update={"waiting": folder})
    return Job(job.spec.model_copy(update={"inputs": inputs}), job.store, job.rank, job.clock)


def clicks(span: str, *numbers: int, **more: Any) -> list[dict[str, Any]]:
    return [click(place, f"i{number}", span, **more) for place, number in enumerate(numbers)]


def next_run(
    store: DirectoryStore, before: ValidateOutcome, *feeds: FeedRef, window: SpanRef = APRIL
) -> ValidateOutcome:
    made = with_feeds(job(store, [window], history=before.rows, attempt=2), *feeds)
    return validate.judge(waiting_at(made, before.waiting))


@pytest.fixture
def first(store: DirectoryStore, tmp_path: Path, feed: FeedRef) -> ValidateOutcome:
    """March with rows of i40, i41 and i42, which the feed does not know."""
    write_log(store, tmp_path, MARCH, clicks("2026-03", *range(43)))
    return validated(store, feed)


def test_a_later_run_takes_the_rows_whose_items_came(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef, first: ValidateOutcome
):
    later = write_feed(store, tmp_path, LATER, [item("i41", "Lamp No. 41"), item("i50", "Lamp No. 50")])
    write_log(store, tmp_path, APRIL, clicks("2026-04", *range(39), 60))
    second = next_run(store, first, feed, later)
    assert (second.rows_in, second.rows_clean, second.rows_late) == (41, 40, 1)
    assert second.reasons == {"unknown item": 1}, "rows that still wait are not counted again"
    late = [
        row
        for table in read_rows(store, second.rows, ["price"])
        for row in table.to_pylist()
        if row["item_id"] == "i41"
    ]
    assert [(row["row_id"], row["item"], row["price"], row["time"].month) for row in late] == [
        ("2026-03-00041", "Lamp No. 41", 9.5, 3)
    ]
    assert "now: 1." in check(second, "items in the feed").sentence
    assert ids_in(store, second) == ["i40", "i42", "i60"]


def ids_in(store: DirectoryStore, outcome: ValidateOutcome) -> list[str]:
    assert outcome.waiting is not None
    return pq.read_table(store.root / outcome.waiting / "part-00000.parquet")["item_id"].to_pylist()


def test_rows_wait_through_a_span_with_texts(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef, first: ValidateOutcome
):
    write_span(store, tmp_path, APRIL, rows(40))
    second = next_run(store, first, feed)
    assert (second.waiting, second.rows_late) == (first.waiting, 0)


def test_rows_wait_for_ninety_days(store: DirectoryStore, tmp_path: Path, feed: FeedRef, first: ValidateOutcome):
    june = SpanRef(name="2026-06", version=1)  # 90 days before it is 3 March
    write_log(store, tmp_path, june, clicks("2026-06", *range(40)))
    assert next_run(store, first, feed, window=june).waiting is None
    write_log(store, tmp_path, APRIL, clicks("2026-04", *range(40)))
    assert ids_in(store, next_run(store, first, feed)) == ["i40", "i41", "i42"]


def test_late_rows_are_judged_by_their_own_span_and_take_the_columns_of_the_new_one(
    store: DirectoryStore, tmp_path: Path, feed: FeedRef
):
    bad = click(43, "i40", query="")
    write_log(store, tmp_path, MARCH, [*clicks("2026-03", *range(41), place="shelf"), bad], place=pa.string())
    before = validated(store, feed)
    later = write_feed(store, tmp_path, LATER, [item("i40", "Lamp No. 40")])
    write_log(
        store, tmp_path, APRIL, clicks("2026-04", *range(40), place=7.0, kind="x"), place=pa.float64(), kind=pa.string()
    )
    second = next_run(store, before, feed, later)
    assert second.reasons == {"query is empty": 1}
    assert quarantined(store, second)[0]["span"] == "2026-03"
    read = pa.concat_tables(read_rows(store, second.rows, ["place", "kind"])).to_pylist()
    assert [(row["place"], row["kind"]) for row in read if row["item_id"] == "i40"] == [(None, None)]
    assert second.waiting is None


def test_values_of_another_type_than_today_are_named_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    waited = pa.table({"price": ["cheap"], "brand": ["Ada"]})
    like = pa.schema([("price", pa.float64()), ("brand", pa.string()), ("colour", pa.string())])
    rows = ids_alone._with_columns(waited, like)
    assert rows.to_pylist() == [{"price": None, "brand": "Ada", "colour": None}]
    assert "column 'price' of 1" in capsys.readouterr().out
