"""The evidence that programs write into docs/: their data files, and the pages made from these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks import figures
from tests.benchmarks.chaos.page import Column, cell, in_columns
from tests.benchmarks.disturbed.page import PAGE
from tests.benchmarks.faults import page as faults
from tests.benchmarks.faults.cases import CASES
from tests.benchmarks.traps.months import MONTHS
from tests.benchmarks.traps.page import USUAL, Failed, Outcome, read, rows_of


def test_every_fault_has_its_row_and_the_page_is_made_from_them() -> None:
    rows = faults.read()
    assert [(row.group, row.fault, row.outcome) for row in rows] == [(c.group, c.fault, c.outcome) for c in CASES]
    assert f"\n{faults.tables(rows)}\n" in PAGE.read_text(encoding="utf-8")


def test_every_month_has_its_row() -> None:
    assert {row.month: row.kind == "wrong" for row in read()} == {name: each.wrong for name, each in MONTHS.items()}


def test_a_month_that_is_released_in_silence_is_found() -> None:
    """A month with no other warnings than an ordinary one counts as unnoticed, too."""
    warning, critical = (Failed(name=kind, severity=kind, sentence="") for kind in ("warning", "critical"))
    found = {
        USUAL: Outcome(state="Released", failed=(warning,), vectors=1, recall=1.0),
        "silent": Outcome(state="Released", failed=(warning,), vectors=1, recall=1.0),
        "caught": Outcome(state="Stopped", failed=(warning, critical), vectors=0, recall=None),
    }
    rows = {row.month: row for row in rows_of(found, ("silent", "caught"))}
    assert {month: row.holds for month, row in rows.items()} == {USUAL: True, "silent": False, "caught": True}
    assert rows["caught"][3:] == ("critical", "", "")


def test_kept_figures_are_shown_between_the_marks_of_their_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(figures, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(figures, "PAGE", tmp_path / "benchmarks.md")
    marks = "<!-- swim, written by `make docs` -->\n", "<!-- end of swim -->\n"
    figures.PAGE.write_text("A pool.\n\n" + "earlier figures\n".join(marks), encoding="utf-8")
    with figures.measuring("swim", keep=True) as sheet:
        sheet.table("length", "seconds", "strokes", "of the record")
        sheet.row("25 m", 12.3456, 1089.6, 0.01234, good=False)
        sheet.row("none", 0.0, 12_345, "")
    table = "| length | seconds | strokes | of the record |\n|---|---:|---:|---:|\n"
    table += "| 25 m | 12.3 | 1,090 | 0.0123 (missed) |\n| none | 0.0 | 12,345 |  |\n"
    assert sheet.missed == 1
    assert capsys.readouterr().out == f"\n{table}"
    text = figures.page()
    assert text.startswith("A pool.\n\n" + marks[0])
    assert text.endswith(f":\n\n{table}\n{marks[1]}")
    assert "earlier figures" not in text

    figures.PAGE.write_text("A pool.\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"swim\.json: .*<!-- swim,"):
        figures.page()


def test_runs_with_violations_are_shown() -> None:
    text = in_columns([Column("here", "1 of 2", {"conflicts": cell(1, 0, 1, 1)})])
    assert text == "- 1 of 2\n\n| act | here |\n|---|---:|\n| `conflicts` | 1/0, 1 not, 1 with violations |"
