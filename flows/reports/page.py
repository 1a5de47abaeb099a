"""From a template and what it shows to the bytes of one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flows.reports.figures import WIDTH_PX, Picture
from flows.reports.tables import Cell, Table
from flows.reports.wording import moment, now


class Tile(NamedTuple):
    """One number at the top of a page, with what to hold it against."""

    name: str
    cell: Cell
    note: str = ""


class Section(NamedTuple):
    """A heading with sentences, pictures and tables; `folded` tables are shown when asked for."""

    id: str
    title: str
    lines: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()


def render(template: str, title: str, workspace: str, **shown: Any) -> bytes:
    """The page; all that is put into it is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not needed to start a command

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # a message may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["picture_width"] = WIDTH_PX
    page = environment.get_template(template)
    made_at = moment(now().isoformat())
    return page.render(title=title, workspace=workspace, made_at=made_at, **shown).encode() + b"\n"
