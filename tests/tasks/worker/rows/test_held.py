"""The held-out side of a span, against the rows themselves."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder
from tasks.contracts.references import HoldoutRule, RowsRef
from tasks.data.holdout import read_sides
from tasks.data.query_places import QUERY_PLACE, hash_queries, query_places
from tasks.data.rows import CORE, QUERY, other_columns, read_rows
from tasks.foundation.errors import DataError
from tasks.worker.process.cores import Cores
from tasks.worker.rows import holdout
from tasks.worker.rows.holdout import PAIRS, ROWS, TRAINED_ON, HeldSpan, file_name, write_held
from tests.support.workspace.jobs import change_rows, make_workspace

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers
RULE = HoldoutRule(group="query_and_item", share=0.4, measured=0.4)


@pytest.fixture
def many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holdout, "FIRST_ROWS", 8)


@pytest.fixture
def shop(tmp_path: Path) -> tuple[DirectoryStore, RowsRef]:
    """A span of 400 rows with about 40 queries of several items each."""

    def few_queries(table: pa.Table) -> pa.Table:
        queries = [f"query {number * 7 % 41}" for number in range(table.num_rows)]
        return table.set_column(table.column_names.index(QUERY), QUERY, pa.array(queries))

    store, rows = make_workspace(tmp_path, rows=400, distinct=90)
    return store, change_rows(store, rows, "2026-02", few_queries, tmp_path)


def written(shop: tuple[DirectoryStore, RowsRef], folder: Path, rule: HoldoutRule = RULE) -> RowsRef:
    return write_held(*shop, rule, f"held/{shop[1].span.name}", folder, Cores(()))


def held_rows(store: DirectoryStore, ref: RowsRef, rule: HoldoutRule = RULE) -> pa.Table:
    return pa.concat_tables(sides.held for sides in read_sides(store, [ref], rule, other_columns(store, ref)))


def test_all_held_rows_stand_as_in_the_span(shop: tuple[DirectoryStore, RowsRef], tmp_path: Path, many_files: None):
    ref = written(shop, tmp_path / "scratch")
    span, expected = HeldSpan(shop[0], ref, RULE.share), held_rows(shop[0], ref)
    assert span.count() == expected.num_rows > 100
    assert span.rows(["price"], span.count()).equals(expected)


def test_a_smaller_share_is_a_part_of_what_was_held_out(shop: tuple[DirectoryStore, RowsRef], tmp_path: Path):
    ref = written(shop, tmp_path / "scratch")
    less = RULE.model_copy(update={"share": 0.1, "measured": 0.1})
    span, expected = HeldSpan(shop[0], ref, less.share), held_rows(shop[0], ref, less)
    assert span.count() == expected.num_rows > 10
    assert span.rows([], span.count()).equals(expected)


def test_a_sample_has_whole_queries_and_a_larger_one_adds_to_it(
    shop: tuple[DirectoryStore, RowsRef], tmp_path: Path, many_files: None
):
    ref = written(shop, tmp_path / "scratch")
    span = HeldSpan(shop[0], ref, RULE.share)
    total = held_rows(shop[0], ref)[QUERY].to_pylist()
    before: set[str] = set()
    for most in range(1, span.count(), 7):
        queries = span.rows([], most)[QUERY].to_pylist()
        assert len(queries) <= max(most, total.count(queries[0])), "only the first query may be larger"
        assert all(queries.count(query) == total.count(query) for query in set(queries))
        assert before <= set(queries)
        before = set(queries)
    assert len(before) > 20


def test_files_beyond_a_sample_are_not_read(shop: tuple[DirectoryStore, RowsRef], tmp_path: Path, many_files: None):
    ref = written(shop, tmp_path / "scratch")
    few = HeldSpan(shop[0], ref, RULE.share).rows([], 10)
    for name in (file_name(ROWS, 4), file_name(PAIRS, 4)):
        shop[0].path(f"{ref.held}/{name}").write_bytes(b"damaged")
    again = HeldSpan(shop[0], ref, RULE.share)
    assert again.rows([], 10).equals(few)
    lowest = np.sort(query_places(hash_queries(few[QUERY].to_pylist())))[:1]
    assert again.pairs(lowest).num_rows
    with pytest.raises(CorruptFolder, match=r"rows-04.parquet does"):
        again.rows([], again.count())


@pytest.mark.parametrize("share", [RULE.share, RULE.share / 2])
def test_the_newest_rows_are_the_last_of_the_span_and_its_other_rows_are_not_read(
    shop: tuple[DirectoryStore, RowsRef],
    tmp_path: Path,
    many_files: None,
    share: float,
    monkeypatch: pytest.MonkeyPatch,
):
    ref = written(shop, tmp_path / "scratch")
    held = held_rows(shop[0], ref, RULE.model_copy(update={"share": share, "measured": share}))
    shop[0].delete(ref.prefix)
    monkeypatch.setattr(holdout, "_AT_ONCE", 7)
    span = HeldSpan(shop[0], ref, share)
    assert held.num_rows > 20
    for most in (1, 20, held.num_rows, 10_000):
        found = span.newest(["price"], most, lambda rows: np.ones(rows.num_rows, dtype=bool))
        assert found.equals(held.select(found.column_names).slice(max(0, held.num_rows - most)))
    dear = held.filter(pc.greater(held["price"], 20.0))
    found = span.newest(["price"], 3, lambda rows: pc.fill_null(pc.greater(rows["price"], 20.0), False).to_numpy())
    assert found.equals(dear.select(found.column_names).slice(dear.num_rows - 3))


def test_a_span_of_few_rows_that_holds_out_none_has_a_holdout_of_no_rows(
    shop: tuple[DirectoryStore, RowsRef], tmp_path: Path
):
    few = change_rows(*shop, "2026-03", lambda rows: rows.slice(0, 2), tmp_path)
    none = HoldoutRule(group="query_and_item", share=1e-9, measured=1e-9)
    span = HeldSpan(shop[0], written((shop[0], few), tmp_path / "scratch", none), none.share)
    found = span.newest(["price"], 10, lambda rows: np.ones(rows.num_rows, dtype=bool))
    assert (found.num_rows, found.column_names) == (0, [*CORE, "price"])
    with pytest.raises(DataError, match="'colour'"):
        span.newest(["colour"], 10, lambda rows: np.ones(rows.num_rows, dtype=bool))


def test_the_pairs_of_queries_are_those_of_all_rows(
    shop: tuple[DirectoryStore, RowsRef], tmp_path: Path, many_files: None
):
    ref = written(shop, tmp_path / "scratch")
    rows = pa.concat_tables(read_rows(shop[0], [ref], [])).to_pylist()
    wanted = sorted({row[QUERY] for row in rows})[::3]
    places = np.sort(query_places(hash_queries([*wanted, "no row has it"])))
    found = HeldSpan(shop[0], ref, RULE.share).pairs(places)
    of_query = dict(zip(query_places(hash_queries(wanted)).tolist(), wanted, strict=True))
    names = (QUERY_PLACE, "item_id", "label", TRAINED_ON)
    pairs = zip(*(found[name].to_pylist() for name in names), strict=True)
    (sides,) = read_sides(shop[0], [ref], RULE, [])
    trained = {(row[QUERY], row["item_id"], row["label"]) for row in sides.training.to_pylist()}
    every = {(row[QUERY], row["item_id"], row["label"]) for row in rows if row[QUERY] in wanted}
    expected = [(*pair, pair in trained) for pair in every]
    assert len({pair[3] for pair in expected}) == 2
    assert sorted((of_query[place], *pair) for place, *pair in pairs) == sorted(expected)


def test_the_same_rows_are_the_same_folder(shop: tuple[DirectoryStore, RowsRef], tmp_path: Path):
    assert written(shop, tmp_path / "one").held == written(shop, tmp_path / "other").held
