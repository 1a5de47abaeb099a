"""A span that the workspace has with other rows: what is asked, replaced and merged."""

from pathlib import Path
from typing import Any

import pytest

from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from tasks.data.files.formats import Format
from tasks.data.new_versions import Difference
from tasks.foundation.errors import ConfigError, StoreError
from tests.support.pages.golden import Golden
from tests.support.workspace.inputs import review, rows_of, run, versions, write_input

DAY = "2026-02-03"
ROWS = [review(number, DAY) for number in range(1, 6)]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    run(store, write_input(tmp_path / "first", ROWS))
    return store


def again(store: DirectoryStore, rows: list[dict[str, Any]], form: Format = Format.jsonl, **options: Any) -> Any:
    return run(store, write_input(store.root.parent / "again", rows, form), form, **options)


def texts(store: DirectoryStore, version: int) -> dict[str, str]:
    table = rows_of(store, "2026-02", version).select(["row_id", "query"])
    return {row["row_id"]: row["query"] for row in table.to_pylist()}


CORRECTED = [review(2, DAY, text="mended"), review(9, DAY)]


def test_other_rows_need_a_word_and_both_counts_are_shown(store: DirectoryStore, golden: Golden) -> None:
    before = store.list("spans")
    march = review(20, "2026-03-01")
    with pytest.raises(ConfigError) as caught:
        again(store, [*CORRECTED, march])
    said = str(caught.value)
    golden(said)
    assert "2026-03" not in said, "it is new"
    assert store.list("spans") == before, "nothing is written, not even the span that is new"


def test_merged_rows_are_those_of_both_and_the_new_ones_win(store: DirectoryStore) -> None:
    summary = again(store, CORRECTED, known="merge")
    assert versions(summary) == [("2026-02", 2, 6, True)]
    assert summary.spans[0].difference == Difference(before=5, changed=1, added=1, gone=4, merged=6)
    expected = {f"r{number}": f"review {number}" for number in (1, 2, 3, 4, 5, 9)} | {"r2": "mended"}
    assert texts(store, 2) == expected
    assert len(texts(store, 1)) == 5, "a version is never edited"
    assert versions(again(store, CORRECTED, known="merge")) == [("2026-02", 2, 6, False)]


def test_two_halves_of_a_span_are_one_span(store: DirectoryStore) -> None:
    again(store, [review(number, DAY) for number in range(6, 9)], known="merge")
    assert sorted(texts(store, 2)) == [f"r{number}" for number in range(1, 9)]


def test_replaced_rows_are_gone(store: DirectoryStore) -> None:
    summary = again(store, CORRECTED, known="replace")
    assert versions(summary) == [("2026-02", 2, 2, True)]
    assert sorted(texts(store, 2)) == ["r2", "r9"]


def test_a_part_of_the_rows_merged_is_no_new_version(store: DirectoryStore) -> None:
    assert versions(again(store, ROWS[1:3], known="merge")) == [("2026-02", 1, 5, False)]


def test_the_same_rows_in_another_order_or_form_are_the_same(store: DirectoryStore) -> None:
    assert versions(again(store, ROWS[::-1])) == [("2026-02", 1, 5, False)]
    assert versions(again(store, ROWS[::-1], Format.parquet)) == [("2026-02", 1, 5, False)]
    without_nulls = [{**row, "extra": None} for row in ROWS]
    assert versions(again(store, without_nulls)) == [("2026-02", 1, 5, False)]


def test_columns_of_both_are_kept_with_a_type_that_fits_both(store: DirectoryStore) -> None:
    odd = review(9, DAY, brand=None, price="from 3", weight=2.5)
    del odd["new"]
    again(store, [odd], known="merge")
    table = rows_of(store, "2026-02", 2).select(["row_id", "brand", "price", "new", "weight"])
    assert [str(field.type) for field in table.schema] == ["string", "string", "string", "bool", "double"]
    rows = {row["row_id"]: row for row in table.to_pylist()}
    assert rows["r1"] == {"row_id": "r1", "brand": "acme", "price": "1.5", "new": False, "weight": None}
    assert rows["r9"] == {"row_id": "r9", "brand": None, "price": "from 3", "new": None, "weight": 2.5}


def test_rows_with_one_id_are_paired_one_by_one(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "workspace")
    twice = [review(1, DAY), review(1, DAY, text="other"), review(2, DAY)]
    again(store, twice)
    assert versions(again(store, [twice[0], twice[2], twice[1]])) == [("2026-02", 1, 3, False)]
    summary = again(store, [review(1, DAY, text="mended")], known="merge")
    assert summary.spans[0].difference == Difference(before=3, changed=1, added=0, gone=2, merged=2)
    assert texts(store, 2) == {"r1": "mended", "r2": "review 2"}, "both old rows with the id are gone"


def test_a_damaged_version_can_be_replaced_but_not_merged(store: DirectoryStore) -> None:
    store.path("spans/2026-02/v1/part-00000.parquet").write_bytes(b"damaged")
    with pytest.raises(StoreError, match=r"v1 of 2026-02 .*--replace"):
        again(store, CORRECTED, known="merge")
    assert versions(again(store, CORRECTED)) == [("2026-02", 2, 2, True)]


@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_a_damaged_version_is_mended_by_the_same_rows(store: DirectoryStore, damage: str) -> None:
    """Errors about a damaged span say: ingest it again. With the same export that must not end as "as before"."""
    path = store.path("spans/2026-02/v1/part-00000.parquet")
    whole = path.read_bytes()
    path.unlink()
    if damage != "gone":
        path.write_bytes(whole[:-1] + (bytes([whole[-1] ^ 1]) if damage == "flipped" else b""))
    summary = again(store, ROWS)
    assert (versions(summary), summary.spans[0].mended) == ([("2026-02", 1, 5, False)], True)
    assert path.read_bytes() == whole
    assert len(store.list("quarantine")) == (damage != "gone")
    assert not again(store, ROWS).spans[0].mended


def test_rows_that_are_written_otherwise_now_become_the_next_version_of_a_damaged_one(store: DirectoryStore) -> None:
    """Another version of a library gives the same rows other bytes."""
    path = store.path("spans/2026-02/v1/part-00000.parquet")
    manifest = store.read("spans/2026-02/v1/MANIFEST.json")
    digest = sha256_of(path)
    store.write("spans/2026-02/v1/MANIFEST.json", manifest.replace(digest.encode(), b"0" * 64))
    assert versions(again(store, ROWS)) == [("2026-02", 2, 5, True)]


def test_a_version_with_an_unreadable_manifest_is_followed_by_the_next(store: DirectoryStore) -> None:
    store.write("spans/2026-02/v1/MANIFEST.json", b"{")
    assert versions(again(store, ROWS)) == [("2026-02", 2, 5, True)]
