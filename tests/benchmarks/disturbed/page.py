"""The tables of disturbed runs in docs/proofs.md, each between the marks of the program that writes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "proofs.md"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns that begin with `>` are flush right."""
    dashes = ["---:" if column.startswith(">") else "---" for column in columns]
    head = [f"| {' | '.join(column.removeprefix('>') for column in columns)} |", f"|{'|'.join(dashes)}|"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def put(program: str, tables: str) -> None:
    """Write the tables of a program into the page, in place of the earlier ones; all other text stays."""
    text, begin, end = PAGE.read_text(encoding="utf-8"), f"<!-- {program} -->\n", f"<!-- end of {program} -->"
    before, after = text[: text.index(begin)], text[text.index(end) :]
    PAGE.write_text(f"{before}{begin}\n{tables}\n\n{after}", encoding="utf-8")
