import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import IngestOptions, IngestSummary, ingest
from tasks.data.mapping import parse_map
from tasks.data.new_versions import Known
from tasks.data.rows import number_alike


def review(label: float, **changes: Any) -> dict[str, Any]:
    return {"at": "2026-01-05", "q": "good", "t": "Lamp", "stars": label} | changes


def take_in(store: DirectoryStore, tmp_path: Path, rows: list[dict[str, Any]]) -> IngestSummary:
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    mapping, replace = parse_map("query=q,item=t,label=stars"), IngestOptions(known=Known.replace)
    return ingest(store, source, Format.jsonl, "at", SpanKind.month, mapping, options=replace)


def ids(store: DirectoryStore, version: int) -> list[str]:
    return pq.read_table(store.path(f"spans/2026-01/v{version}") / "part-00000.parquet")["row_id"].to_pylist()


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def test_a_corrected_row_keeps_its_id(store: DirectoryStore, tmp_path: Path) -> None:
    take_in(store, tmp_path, [review(1), review(2, q="bad"), review(3, t="Chair")])
    take_in(store, tmp_path, [review(5, source="corrected"), review(2, q="Bad "), review(3, t="Table")])
    before, after = ids(store, 1), ids(store, 2)
    assert before[:2] == after[:2]
    assert before[2] != after[2]


def test_rows_that_are_alike_are_numbered_and_copies_are_not(store: DirectoryStore, tmp_path: Path) -> None:
    take_in(store, tmp_path, [review(1), review(2, q="bad"), review(3), review(1), review(4)])
    first, other, second, copy, third = ids(store, 1)
    assert (second, copy, third) == (f"{first}-2", first, f"{first}-3")
    assert other not in (first, second, third)


def test_the_numbers_do_not_depend_on_how_many_rows_are_compared_at_once(tmp_path: Path) -> None:
    made = [f'["auto-{number % 7:032x}",{number}]\n' for number in range(30)]
    lines = "".join([*made, '["r1",1]\n', '["r1",2]\n'])
    found = []
    for at_once in (4, 1000):
        path = tmp_path / f"{at_once}.jsonl"
        path.write_text(lines)
        number_alike(path, at_once)
        found.append(path.read_text())
    assert found[0] == found[1]
    numbered = [json.loads(line)[0] for line in found[0].splitlines()]
    assert numbered[7:14] == [f"{row_id}-2" for row_id in numbered[:7]]
    assert len(set(numbered)) == 31, "ids of the source are not touched"
