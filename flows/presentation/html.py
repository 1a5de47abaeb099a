"""A page as one self-contained HTML file: no script, no external resources.

One of the three renderers, each in its file.
"""

import functools
import posixpath
import re
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from flows.presentation.figures import WIDTH_PX, data_uri, svg
from flows.presentation.model import Cell, Page
from flows.presentation.wording import moment, now

# Files that `millrace serve` shows.
_SERVED = re.compile(r"(runs|refreshes|publications)/.+\.(html|json|yaml|txt|log|csv|md)|reports/.+\.html")
_ADDRESS = re.compile(r"https?://|/(?!/)")  # elsewhere, or a page of `millrace serve`
_page_key = ContextVar[str]("page_key")  # key of this thread's page, since macros don't see the page


def render(page: Page, template: str | Path = "page", **more: Any) -> bytes:
    """Return the file by `templates/<template>.html.jinja`, which gets `more` as well; all texts are escaped.

    Args:
        template: a name of this folder's templates, or the path of another one, which may extend them.
    """
    _page_key.set(page.key)
    made_at = moment(now().isoformat())
    return _template(template).render(page=page, made_at=made_at, figure_width=WIDTH_PX, **more).encode() + b"\n"


@functools.cache  # compiling the templates takes ten times as long as rendering
def _template(template: str | Path) -> Any:
    if isinstance(template, Path):
        return _environment().from_string(template.read_text(encoding="utf-8"))
    return _environment().get_template(f"{template}.html.jinja")


@functools.cache
def _environment() -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # not needed to start a command

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,  # a message may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"address": _address, "data_uri": lambda figure: data_uri(svg(figure))}
    return environment


def _address(cell: Cell) -> str:
    """Return the address that a cell links to, relative to the page for files that `millrace serve` shows."""
    if cell.key and _SERVED.fullmatch(cell.key):
        return posixpath.relpath(cell.key, posixpath.dirname(_page_key.get()))
    return cell.link if _ADDRESS.match(cell.link) else ""
