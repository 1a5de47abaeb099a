"""What pages and sections show: their words, tables, commands, images and addresses, as their reader sees them."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

from flows.presentation.model import Cell, Section

_EMPTY = {"meta", "link", "img", "br", "hr", "input"}
_LINES = {"p", "h1", "h2", "h3", "h4", "tr", "li", "dt", "figcaption", "summary", "caption", "pre", "div", "section"}


class Tag(NamedTuple):
    name: str
    attributes: dict[str, str]


class Page(HTMLParser):
    """A parsed page; raises AssertionError where its tags are not well nested."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[Tag] = []
        self.words: list[str] = []
        self.rows: list[list[str]] = []
        self._open: list[str] = []
        self.feed(data.decode())
        self.close()
        assert not self._open, f"never closed: {self._open}"

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def lines(self) -> str:
        """The text with a line for each paragraph, heading and row of a table."""
        lines = (" ".join(line.split()) for line in " ".join(self.words).split("\n"))
        return "\n".join(line for line in lines if line)

    @property
    def ids(self) -> list[str]:
        return [tag.attributes["id"] for tag in self.tags if "id" in tag.attributes]

    def all(self, name: str) -> list[dict[str, str]]:
        return [tag.attributes for tag in self.tags if tag.name == name]

    @property
    def fetched(self) -> list[str]:
        """Addresses that a browser loads by itself."""
        loading = {"img": "src", "script": "src", "link": "href", "iframe": "src", "source": "src", "object": "data"}
        return [tag.attributes.get(loading[tag.name], "") for tag in self.tags if tag.name in loading]

    def row(self, name: str) -> list[str]:
        """The cells of the first table row whose first cell is `name`."""
        return next(row for row in self.rows if row and row[0] == name)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(Tag(tag, {name: value or "" for name, value in attrs}))
        if tag in _LINES:
            self.words.append("\n")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> closes nothing"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["style"]:
            return
        self.words.append(data.replace("\n", " "))
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data}".strip()
            self.rows[-1][-1] = " ".join(self.rows[-1][-1].split())


_SHOWN = {"text": None, "text_special": None, "code_inline": None, "softbreak": " ", "html_inline": " "}


def tables(page: str) -> list[list[list[str]]]:
    """All tables of a page: rows of cells, the names of the columns first."""
    found: list[list[list[str]]] = []
    for token in MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(page):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type == "inline" and token.level > 2:
            found[-1][-1].append(shown_in_markdown(token))
    return found


def table_of(page: str, column: str) -> list[list[str]]:
    """The rows of the only table that has a column of this name; the names of the columns first."""
    (found,) = [table for table in tables(page) if column in table[0]]
    return found


def blocks(page: str) -> list[str]:
    """The blocks of code."""
    return [token.content for token in MarkdownIt("commonmark").parse(page) if token.type == "fence"]


def shown_in_markdown(token: Token) -> str:
    """The text of one line; an end of line in it is a space."""
    return "".join(_SHOWN[child.type] or child.content for child in token.children or [] if child.type in _SHOWN)


def parts(section: Section) -> Iterator[Section]:
    """The section and all that is below it."""
    yield section
    for part in section.parts:
        yield from parts(part)


def rows(section: Section) -> list[list[str]]:
    """The cells of all tables as texts."""
    tables = [table for part in parts(section) for table in part.tables]
    return [[shown_in_sections(cell) for cell in row] for table in tables for row in table.rows]


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


def shown_in_sections(cell: Cell) -> str:
    return f"{cell.sign} {cell.text or cell.key}".lstrip()


def written(section: Section, parts: bool = True) -> str:
    """All that people read of a section, and of its parts; a row of a table is a line."""
    lines = [f"# {section.title}", *section.lines, *([section.quote] if section.quote else [])]
    for figure in section.figures:
        lines += [f"[{figure.title}] {figure.caption}", figure.alt]
    for table in section.tables:
        names = " | ".join(column.name for column in table.columns)
        rows = (" | ".join(shown_in_sections(cell).replace("\n", "; ") for cell in each) for each in table.rows)
        lines += ["", *([table.caption] if table.caption else []), *([] if table.facts else [names]), *rows]
    for command in section.commands:
        lines += ["", command.does, *(f"    {line}" for line in command.lines)]
    lines += [f"{name}: {key}" for name, key in section.files]
    return "\n".join([*lines, *(f"\n{written(each)}" for each in section.parts if parts)])
