"""The rows and commands of sections and all their parts."""

from __future__ import annotations

from collections.abc import Iterator

from flows.presentation.model import Cell, Section


def parts(section: Section) -> Iterator[Section]:
    """The section and all that is below it."""
    yield section
    for part in section.parts:
        yield from parts(part)


def rows(section: Section) -> list[list[str]]:
    """The cells of all tables as texts."""
    tables = [table for part in parts(section) for table in part.tables]
    return [[shown(cell) for cell in row] for table in tables for row in table.rows]


def row(section: Section, name: str) -> list[str]:
    """The other cells of the only row with this name."""
    (found,) = [cells for cells in rows(section) if cells[0] == name]
    return found[1:]


def part(section: Section, title: str) -> Section:
    """The only part that has this title."""
    (found,) = [each for each in parts(section) if each.title == title]
    return found


def commands(section: Section) -> list[str]:
    """What can be copied."""
    return ["\n".join(command.lines) for each in parts(section) for command in each.commands]


def shown(cell: Cell) -> str:
    return f"{cell.sign} {cell.text or cell.key}".lstrip()
