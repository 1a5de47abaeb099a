"""The commit at which each unit was last run: `ran.json` beside this file, shown in docs/nightly.md."""

from __future__ import annotations

from pathlib import Path

from pydantic import TypeAdapter

from tasks.foundation.records import Record
from tests.nightly.units import ROOT, Unit, parts, units

KEPT = Path(__file__).with_name("ran.json")
PAGE = ROOT / "docs" / "nightly.md"
_BEGIN, _END = "<!-- the table: make nightly -->", "<!-- end of the table -->"


class Ran(Record):
    """The last run of a unit. A unit that met the time limit is `cut`, which is no failure."""

    commit: str
    date: str  # as in 2026-11-26
    minutes: float
    result: str  # passed, failed or cut
    said: str = ""  # its last line


_RECORDS = TypeAdapter(dict[str, Ran])


def read(kept: Path = KEPT) -> dict[str, Ran]:
    """Return the last run of each unit by its name."""
    return _RECORDS.validate_json(kept.read_bytes()) if kept.exists() else {}


def write(ran: dict[str, Ran], kept: Path = KEPT) -> None:
    """Write all runs, one unit after the other."""
    kept.write_bytes(_RECORDS.dump_json(dict(sorted(ran.items())), indent=1) + b"\n")


def dealt(ran: dict[str, Ran]) -> list[list[Unit]]:
    """Return the units of each part, by the minutes that they took."""
    return parts(units(), {name: each.minutes for name, each in ran.items() if each.result == "passed"})


def page() -> str:
    """Return docs/nightly.md with the table as it is now."""
    ran = read()
    lines = ["| part | units, each with its last run |", "|---:|---|"]
    for number, part in enumerate(dealt(ran)):
        shown = [f"{unit.name}: {_in_words(ran[unit.name])}" for unit in part if unit.name in ran]
        shown += [unit.name for unit in part if unit.name not in ran]
        lines.append(f"| {number} | {'; '.join(shown)} |")
    text = PAGE.read_text(encoding="utf-8")
    before, after = text[: text.index(_BEGIN)], text[text.index(_END) :]
    return "\n".join([f"{before}{_BEGIN}", "", *lines, "", after])


def _in_words(last: Ran) -> str:
    return f"{last.result} on {last.date} at `{last.commit}` in {last.minutes:.1f} min"
