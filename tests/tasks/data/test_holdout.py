from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder, commit
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.references import RowsRef, SpanRef
from tasks.data.holdout import LEFT_OUT, SIDES_KIND, read_sides
from tasks.data.rows import CORE, ROWS_KIND
from tasks.foundation.errors import DataError

RULE = HoldoutRule(group="row_id", share=0.4, measured=0.4)  # r0 has the place 0.35, r1 0.52


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
    assert next(read_sides(store, [ref], HoldoutRule(group="user", share=0.4, measured=0.4), [])).held[
        "user"
    ].to_pylist() == ["r0"]
    with pytest.raises(DataError, match=r"span 2026-01: no column 'shop', which the configuration uses as .* group"):
        next(read_sides(store, [ref], HoldoutRule(group="shop", share=0.4, measured=0.4), []))
