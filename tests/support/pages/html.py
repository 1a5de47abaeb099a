"""What an HTML page shows: its words, tables, images and addresses."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import NamedTuple

_EMPTY = {"meta", "link", "img", "br", "hr", "input"}


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
        self.words.append(data)
        if {"td", "th"} & set(self._open):
            self.rows[-1][-1] = f"{self.rows[-1][-1]} {data}".strip()
            self.rows[-1][-1] = " ".join(self.rows[-1][-1].split())
