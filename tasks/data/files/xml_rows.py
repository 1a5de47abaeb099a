"""Read the records of a feed in XML: the elements `item` of RSS and `entry` of Atom, as Google Merchant has them.

The file streams through expat. A document type, which alone can define entities, is refused: entities may expand to
gigabytes, or name other files.
"""

import io
from collections.abc import Iterator
from typing import Any, NamedTuple
from xml.parsers import expat

from tasks.data.files.cursor import MAX_ROW_BYTES, Cursor

RECORDS = ("item", "entry")
CHUNK_BYTES = 2**16
_MOST_NESTED = 32  # elements in each other; no feed has more than a few
_GOOGLE = "http://base.google.com/ns/"  # the namespace of `g:` and of `c:`, a merchant's own attributes
_SHOWN = 8  # names of elements in an error


class _Element(NamedTuple):
    name: str
    of_google: bool
    link: str  # the attribute `href`, which holds the value of Atom's `link`
    text: list[str]
    values: dict[str, Any]
    theirs: set[str]  # names in `values` that are of Google's namespace


class _Records:
    """Handlers of expat that collect whole records."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._open: list[_Element] = []  # from the record inwards; empty outside of a record
        self._chars = 0
        self.found: list[dict[str, Any]] = []
        self.seen: dict[str, None] = {}  # names of elements outside of records

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        space, _, name = tag.rpartition(" ")
        if not self._open and name not in RECORDS:
            if len(self.seen) < _SHOWN:
                self.seen[name] = None
            return
        if len(self._open) == _MOST_NESTED:
            raise self._cursor.error(f"more than {_MOST_NESTED} elements in each other; it is no feed of items")
        of_google = space.startswith(_GOOGLE)
        self._open.append(_Element(name, of_google, attributes.get("href", ""), [], {}, set()))

    def data(self, text: str) -> None:
        if self._open:
            self._open[-1].text.append(text)
            self._chars += len(text)
            if self._chars > MAX_ROW_BYTES:
                raise self._cursor.error(f"an item of more than {MAX_ROW_BYTES // 2**20} MiB; check --format")

    def end(self, _: str) -> None:
        if not self._open:
            return
        element = self._open.pop()
        if not self._open:
            self.found.append(element.values)
            self._chars = 0
            return
        value = element.values or "".join(element.text).strip() or element.link or None
        _put(self._open[-1], element, value)

    def doctype(self, *_: object) -> None:
        raise self._cursor.error(
            "it has a document type (<!DOCTYPE), which may define entities without bounds; a feed needs none: take "
            "that line out, or export the feed as CSV or TSV"
        )


def read_xml(stream: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield the items as name -> text, without namespaces; a dict of nested elements, and a list of repeated ones.

    Raises:
        DataError: the file is not well-formed, has a document type, or has neither `item` nor `entry`.
    """
    records = _Records(cursor)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.StartElementHandler = records.start
    parser.EndElementHandler = records.end
    parser.CharacterDataHandler = records.data
    parser.StartDoctypeDeclHandler = records.doctype
    more = True
    while more:
        content = stream.read(CHUNK_BYTES)
        more = bool(content)
        broken: expat.ExpatError | None = None
        try:
            parser.Parse(content, not more)
        except expat.ExpatError as error:
            broken = error
        for values in records.found:  # also in the part before an error
            cursor.row += 1
            yield values
        records.found.clear()
        if broken:
            said = f"not readable as XML: {expat.ErrorString(broken.code)} in line {broken.lineno}"
            way_out = "export it again" if more else "it is cut off; fetch it again"
            raise cursor.error(f"{said}; {way_out}") from broken
    if not cursor.row:
        names = ", ".join(f"<{name}>" for name in records.seen)
        raise cursor.error(
            f"no <item> of RSS and no <entry> of Atom in it, but {names}; export it as CSV or JSON Lines"
        )


def _put(into: _Element, element: _Element, value: Any) -> None:
    """Add a value. Google's element wins over one of the same name, such as RSS's own `link`; others make a list."""
    name, values = element.name, into.values
    if name not in values or (element.of_google and name not in into.theirs):
        values[name] = value
    elif element.of_google == (name in into.theirs):
        values[name] = [*(values[name] if isinstance(values[name], list) else [values[name]]), value]
    if element.of_google:
        into.theirs.add(name)
