"""`millrace look` as a person calls it, before any workspace exists."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.support.pages.golden import Golden
from tests.support.processes.command import call

LINES = [f"2025-11-{day:02};rain jacket {day};Waterproof jacket {day};4,5;{day % 2}" for day in range(1, 29)]
FILE = "\n".join(["when;search;title;price;click", *LINES])

MAP = ("--map", "query=search,item=title")
IN_WEEKS = ("--workspace", "weeks", "--time-column", "when", "--span", "week", *MAP)


def test_the_command_that_it_prints_ingests_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text(FILE)
    shown = call(capsys, "look", "log.csv")
    assert shown.code == 0, shown.err
    assert not Path("workspace").exists()
    golden(shown.out)
    command = next(line.strip() for line in shown.out.splitlines() if line.startswith("  millrace ingest"))
    result = call(capsys, *shlex.split(command)[1:])
    assert result.code == 0, result.err
    manifest = next(Path("workspace/spans").glob("*/v1/MANIFEST.json"))
    assert json.loads(manifest.read_text())["facts"]["columns"]["price"] == "double"
    assert call(capsys, "ingest", "--source", "log.csv", *IN_WEEKS).code == 0
    again = json.loads(call(capsys, "look", "log.csv", "--workspace", "weeks", "--json").out)
    assert (again["span"], shlex.split(again["command"])[-2:]) == ("week", ["--workspace", str(tmp_path / "weeks")])


def test_ingest_and_dry_run_name_zeros_that_no_head_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], golden: Golden
) -> None:
    (tmp_path / "log.csv").write_text(FILE)
    there = ("--workspace", str(tmp_path / "w"))
    told = ("--source", str(tmp_path / "log.csv"), "--time-column", "when", "--span", "month", f"{MAP[1]},label=click")
    ingested = call(capsys, "ingest", *there, *told[:-1], "--map", told[-1])
    golden(ingested.out)
    unread = ("run", "--dry-run", *there, "--set", "validate.min_rows=2")
    assert "14 of them" in call(capsys, *unread).out
    head = "heads.classification={weight: 1, input: pair, negative_max: 0, positive_min: 1}"
    assert "labels:  14 rows" in call(capsys, *unread, "--set", head).out
    refused = call(capsys, *unread, "--set", "schedule.cron=99 6 * * 1")
    assert (refused.code, "99 6 * * 1" in refused.err) == (78, True)


def test_the_settings_decide_if_a_label_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text(FILE)
    asked = call(capsys, "look", str(tmp_path / "log.csv"), "--config", "configs/demo.yaml", "--json")
    assert [each["kind"] for each in json.loads(asked.out)["problems"]] == ["decimal"]
    assert json.loads(asked.out)["mapping"]["label"] == "click"
