"""The table of docs/cost.md: published speeds that a prediction from three of them misses by 15 % or more.

`make docs` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tasks.laboratory.published import PublishedRow, published
from tasks.laboratory.step_time import predicted, published_points

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cost.md"
_TABLE = re.compile(r"(<!-- Published rows, written by `make docs`[^>]*-->\n\n).*?(?=\n\n)", re.S)

# Training at two lengths, and embedding; each has a share of the peak of its own.
FITTED = ("SDK 2.28, AdamW, 1 node", "SDK 2.15, phase 2, 16 nodes", "bert-base on trn1")
_OLD = "SDK of 2022"
_FP32 = "fp32"
_HOST = "host of inf2"
_OTHER_CHIP = "another chip"
REASONS = {  # of an error of 15 % or more
    "deck 2022, phase 1, 1 node": _OLD,
    "deck 2022, phase 1, 16 nodes": _OLD,
    "SDK 2.14, fp32, 16 nodes": _FP32,
    "SDK 2.28, fp32, 16 nodes": _FP32,
    "distilbert on inf2": _HOST,
    "bert-base on inf2": _HOST,
    "MLPerf 2.1, 8 A100": _OTHER_CHIP,
    "MLPerf 3.1, 8 H100": _OTHER_CHIP,
}


class Predicted(NamedTuple):
    """A published row, its speed by the fitted rows and by all other rows, in sequences a second."""

    row: PublishedRow
    by_three: float
    by_others: float

    @property
    def error(self) -> float:
        return self.by_three / self.row.sequences_per_second - 1

    @property
    def error_by_others(self) -> float:
        return self.by_others / self.row.sequences_per_second - 1


def rows() -> list[Predicted]:
    """Return all published rows with their predictions."""
    known = published().rows
    three = published_points(row for row in known if row.name in FITTED)
    found = []
    for row in known:
        by_three = predicted(row, three)
        by_others = predicted(row, published_points(other for other in known if other is not row))
        assert by_three is not None
        assert by_others is not None
        found.append(Predicted(row, by_three, by_others))
    return found


def page() -> str:
    """Return the page with its table."""
    text = PAGE.read_text(encoding="utf-8")
    found = _TABLE.search(text)
    assert found is not None, f"{PAGE} lost the comment before its table"
    return text[: found.end(1)] + "\n".join(_table()) + text[found.end() :]


def _table() -> list[str]:
    lines = [
        "| row | machine | tokens | sequences/s | error | from all others | reason |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for each in (one for one in rows() if one.row.name in REASONS):
        row, error = each.row, f"{each.error:+.1%}".replace("%", " %")
        cells = (
            row.name,
            f"{row.nodes} x {row.instance}",
            str(row.length),
            f"{row.sequences_per_second:,.0f}",
            error,
            f"{each.error_by_others:+.1%}".replace("%", " %"),
            REASONS[row.name],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return lines
