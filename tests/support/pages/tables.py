"""What the tables and code blocks of a Markdown page show, as its reader sees them."""

from __future__ import annotations

from markdown_it import MarkdownIt
from markdown_it.token import Token

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
            found[-1][-1].append(shown(token))
    return found


def table_of(page: str, column: str) -> list[list[str]]:
    """The rows of the only table that has a column of this name; the names of the columns first."""
    (found,) = [table for table in tables(page) if column in table[0]]
    return found


def blocks(page: str) -> list[str]:
    """The blocks of code."""
    return [token.content for token in MarkdownIt("commonmark").parse(page) if token.type == "fence"]


def shown(token: Token) -> str:
    """The text of one line; an end of line in it is a space."""
    return "".join(_SHOWN[child.type] or child.content for child in token.children or [] if child.type in _SHOWN)
