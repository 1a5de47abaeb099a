"""One reading of a value: the survey, the converter and the item feeds agree, in every format."""

from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.data.canonical import ROWS
from tasks.data.files.formats import Format
from tasks.data.files.shaping import Lookup, Shaping, parse_only
from tasks.data.look import LookOptions, look
from tests.support.workspace.inputs import review, rows_of, run, write_input

SESSION = 1_700_000_000_000_000_001  # float64 rounds it to a multiple of 256


def some_rows() -> list[dict[str, Any]]:
    changes: dict[int, dict[str, Any]] = {3: {"sku": None}, 4: {"brand": None}, 5: {"text": None}, 6: {"price": None}}
    return [
        review(n, "2026-02-01", sku=1000 + n, session=SESSION + n % 6, stock=n, more=[n] if n % 2 else None)
        | changes.get(n, {})
        for n in range(40)
    ]


def test_the_same_rows_are_the_same_span_in_every_format(tmp_path: Path) -> None:
    mapping = {"query": "text", "item": "title", "item_id": "sku", "label": "stars"}
    store = DirectoryStore(tmp_path / "workspace")
    for form in Format:
        rows = [{k: str(v) if k == "more" and v else v for k, v in row.items()} for row in some_rows()]
        summary = run(store, write_input(tmp_path / f"x.{form}", rows, form), form, mapping=mapping)
        assert [each.version for each in summary.spans] == [1], "another version has other rows"
    table = rows_of(store, "2026-02")
    assert table["session"].to_pylist() == [str(SESSION + n % 6) for n in range(40)]
    assert table["item_id"].to_pylist() == [None if n == 3 else str(1000 + n) for n in range(40)]
    assert [str(table.schema.field(name).type) for name in ("session", "stock")] == ["string", "double"]


@pytest.mark.parametrize("form", list(Format))
def test_the_survey_sees_the_missing_values_and_types_of_the_span(tmp_path: Path, form: Format) -> None:
    words = ["NaN", "null", None, " ", r"\N", "None"]
    rows = [review(n, "2026-02-01", sku=(["A1", "B2", *words])[n % 8], session=SESSION + n, brand=str(words[n % 6]))
            for n in range(48)]  # fmt: skip
    path = write_input(tmp_path / f"x.{form}", rows, form)
    mapping = {"query": "text", "item": "title", "item_id": "sku"}
    store = DirectoryStore(tmp_path / "workspace")
    summary = run(store, path, form, mapping=mapping)
    table = rows_of(store, "2026-02")
    found = {
        "ingest": summary.columns,
        "look": look(path, ROWS, LookOptions(form=form, mapping=mapping, time_column="at")).columns,
    }
    for columns in found.values():
        by_name = {each.name: each for each in columns}
        assert by_name["sku"].nulls == table["item_id"].null_count == 36
        assert by_name["session"].type == "text"
        assert by_name["session"].suggests is None
        assert by_name["brand"].nulls == table["brand"].null_count
    assert [each.kind for each in summary.problems] == ["empty"]


def test_ids_that_a_spreadsheet_has_cut_and_placeholders_are_named(tmp_path: Path) -> None:
    rows = [review(n, "2026-02-01", sku="4.00638E+12", text="(not set)" if n % 9 == 0 else f"q {n}") for n in range(40)]
    path = write_input(tmp_path / "x.csv", rows, Format.csv)
    said = {
        each.kind: each for each in look(path, ROWS, LookOptions(mapping={"query": "text", "item": "title"})).problems
    }
    assert said["scientific"].column == "sku"
    assert "'(not set)' (5)" in said["placeholder"].text


@pytest.mark.parametrize("form", list(Format))
def test_a_whole_number_with_a_point_is_the_same_key_and_condition(tmp_path: Path, form: Format) -> None:
    rows = [{"at": "2026-02-01", "text": f"lamp {n}", "sku": float(n), "click": float(n % 2)} for n in range(4)]
    titles = write_input(tmp_path / "titles.csv", [{"sku": n, "title": f"Lamp {n}"} for n in range(4)], Format.csv)
    for clicked in ("1", "1.0"):
        shaping = Shaping(lookup=Lookup(titles, "sku"), only=parse_only([f"click={clicked}"]))
        store = DirectoryStore(tmp_path / f"workspace-{clicked}")
        mapping = {"query": "text", "item": "title", "item_id": "sku"}
        run(store, write_input(tmp_path / f"x.{form}", rows, form), form, mapping=mapping, shaping=shaping)
        table = rows_of(store, "2026-02")
        assert table.select(["item_id", "item"]).to_pylist() == [
            {"item_id": "1", "item": "Lamp 1"},
            {"item_id": "3", "item": "Lamp 3"},
        ]
