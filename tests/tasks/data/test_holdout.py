from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder, commit
from tasks.contracts.references import HoldoutRule, RowsRef, SpanRef
from tasks.data.holdout import LEFT_OUT, SIDES_KIND, held_out, read_sides, unseen
from tasks.data.query_places import hash_queries, query_places
from tasks.data.rows import CORE, ROWS_KIND
from tasks.foundation.errors import DataError

RULE = HoldoutRule(group="row_id", share=0.8, measured=0.8)  # places: r0 0.706, r1 1, zoë 0.642


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def write(store: DirectoryStore, folder: Path, span: str, ids: list[str], left_out: list[str] | None = None) -> RowsRef:
    texts = dict.fromkeys(("query", "item", "item_id"), ["x"] * len(ids))
    rows = pa.table({"row_id": ids, "time": [0] * len(ids), **texts, "label": [1.0] * len(ids), "user": ids})
    rows = rows.cast(pa.schema([*CORE.items(), ("user", pa.string())]))
    files = {"rows": ("part-00000.parquet", rows, ROWS_KIND)}
    if left_out is not None:
        files["sides"] = (LEFT_OUT, pa.table({"row_id": pa.array(left_out, pa.string())}), SIDES_KIND)
    for name, (file, table, kind) in files.items():
        made = folder / name / span
        made.mkdir(parents=True)
        pq.write_table(table, made / file)
        commit(store, f"runs/k/{name}/{span}", made, kind, {})
    sides = f"runs/k/sides/{span}" if left_out is not None else None
    return RowsRef(span=SpanRef(name=span, version=1), prefix=f"runs/k/rows/{span}", rows=len(ids), sides=sides)


def test_rows_left_out_are_on_neither_side_of_their_own_span_only(store: DirectoryStore, tmp_path: Path) -> None:
    refs = [
        write(store, tmp_path, "2026-01", ["r0", "r1"]),
        write(store, tmp_path, "2026-02", ["r0", "r1", "zoë", "b0b09b2d6879259d"], ["r0", "b0b09b2d6879259d"]),
    ]
    found = [[side["row_id"].to_pylist() for side in sides] for sides in read_sides(store, refs, RULE, [])]
    assert found == [[["r1"], ["r0"]], [["r1"], ["zoë"]]]
    newest = [sides.held["row_id"].to_pylist() for sides in read_sides(store, refs, RULE, [], newest_first=True)]
    assert newest == [["zoë"], ["r0"]]


def test_a_lost_list_of_rows_left_out_is_no_empty_list(store: DirectoryStore, tmp_path: Path) -> None:
    ref = write(store, tmp_path, "2026-01", ["r0"], ["r0"])
    store.delete(f"{ref.sides}")
    with pytest.raises(MissingFolder):
        list(read_sides(store, [ref], RULE, []))


def test_the_column_that_groups_rows_is_read(store: DirectoryStore, tmp_path: Path) -> None:
    ref = write(store, tmp_path, "2026-01", ["r0"])
    assert next(read_sides(store, [ref], HoldoutRule(group="user", share=0.8, measured=0.8), [])).held[
        "user"
    ].to_pylist() == ["r0"]
    with pytest.raises(DataError, match=r"span 2026-01: .*'shop'"):
        next(read_sides(store, [ref], HoldoutRule(group="shop", share=0.8, measured=0.8), []))


QUERIES, ITEMS = 4000, 5  # a log in which each query has five items


@pytest.fixture(scope="module")
def log() -> pa.Table:
    queries = [f"query {number}" for number in range(QUERIES) for _ in range(ITEMS)]
    return pa.table({"query": queries, "item": [f"item {number}" for number in range(len(queries))]})


def test_half_of_the_share_holds_out_queries_and_half_pairs(log: pa.Table) -> None:
    rule = HoldoutRule(group="query_and_item", share=0.2, measured=0.2)
    held, alone = held_out(log, rule), unseen(log, rule)
    of_query = alone.reshape(QUERIES, ITEMS)
    assert (of_query.all(axis=1) == of_query.any(axis=1)).all(), "a query is held out with all its rows, or not at all"
    assert (held | ~alone).all()
    assert alone.mean() == pytest.approx(0.1, abs=0.02)  # four standard deviations
    assert (held & ~alone).mean() == pytest.approx(0.1 * 0.9, abs=0.01)
    assert held[alone].all()


def test_a_group_of_queries_holds_out_unseen_queries_alone(log: pa.Table) -> None:
    rule = HoldoutRule(group="query", share=0.2, measured=0.2)
    assert (held_out(log, rule) == unseen(log, rule)).all()
    assert held_out(log, rule).mean() == pytest.approx(0.2, abs=0.026)


@pytest.mark.parametrize("group", ["query", "query_and_item"])
def test_queries_are_sampled_in_an_order_that_does_not_know_which_are_unseen(log: pa.Table, group: str) -> None:
    rule = HoldoutRule(group=group, share=0.2, measured=0.2)
    places = query_places(hash_queries(log["query"].to_pylist()))
    first = places <= np.quantile(places, 0.25)
    for kind in (unseen(log, rule), held_out(log, rule)):
        assert kind[first].mean() == pytest.approx(kind.mean(), abs=0.05)
