"""The rows that a record of a source gives: --explode makes several, --lookup completes them, --only chooses some.

The file of --lookup is read once, into a table on disk, so that memory does not grow with it.
"""

import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from tasks.data.files.formats import format_of_name
from tasks.data.files.names import written
from tasks.data.files.nested import EVENT, exploded, flat, require_lists
from tasks.data.files.readers import SourceRow
from tasks.data.files.sources import SourceReader
from tasks.data.files.values import as_text, is_missing, legible, scalar, whole_text
from tasks.foundation.errors import ConfigError, DataError, StageError

Values = dict[str, Any]
_MOST_BESIDE = 20  # files of a folder that are opened to find the one with the other columns
_FIRST_ROWS = 20  # read of each


class Only(NamedTuple):
    """A condition on a row: the column has one of these values, or any value at all."""

    column: str
    values: tuple[str, ...] = ()  # in lower case; empty: any value

    def __str__(self) -> str:
        return f"{self.column}={','.join(self.values)}" if self.values else self.column

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return True if a row, nested columns taken apart, is to be read."""
        value = values.get(self.column)
        if is_missing(value) or value in ([], {}):
            return False
        plain = scalar(legible(value))
        return not self.values or (plain is not None and whole_text(as_text(plain).strip()).casefold() in self.values)


def parse_only(texts: Sequence[str]) -> tuple[Only, ...]:
    """Parse `COLUMN` (it has a value) or `COLUMN=VALUE,VALUE`. Raises ConfigError: a text is neither."""
    found = []
    for text in texts:
        column, separator, said = text.partition("=")
        values = tuple(whole_text(each.strip()).casefold() for each in said.split(",")) if separator else ()
        if not column.strip() or (separator and "" in values):
            raise ConfigError(f"--only {text!r}: write COLUMN for rows with a value in it, or COLUMN=VALUE,VALUE")
        found.append(Only(column.strip(), values))
    return tuple(found)


class Lookup(NamedTuple):
    """Another file, and the column that it shares with the rows."""

    path: PurePath
    by: str

    @property
    def options(self) -> tuple[str, ...]:
        return ("--lookup", str(self.path), "--by", self.by)


class LookedUp:
    """The records of another file by their key; the first of a key counts."""

    def __init__(self, tables: sqlite3.Connection, lookup: Lookup) -> None:
        """Read the file.

        Args:
            tables: an open database, as `open_tables` gives it.

        Raises:
            ConfigError: the path or the format is wrong.
            DataError: the file is damaged, or no record has the key.
        """
        self._tables = tables
        self.by = lookup.by
        self.columns: dict[str, None] = {}
        self.without = 0  # rows whose key the file does not have
        tables.execute("CREATE TABLE lookup (key TEXT PRIMARY KEY, record TEXT) WITHOUT ROWID")
        for row in SourceReader(lookup.path):
            values = flat(row.values)
            self.columns.update(dict.fromkeys(values))
            if (key := _key(values, lookup.by)) is not None:
                rest = {name: value for name, value in values.items() if name != lookup.by}
                tables.execute("INSERT OR IGNORE INTO lookup VALUES (?, ?)", (key, json.dumps(rest, default=str)))
        if lookup.by not in self.columns:
            names = ", ".join(map(written, sorted(self.columns)))
            raise DataError(f"{lookup.path}: missing column {lookup.by!r} of --by; the columns are {names}")

    def complete(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row with the columns of the other file; its own values stay."""
        key = _key(values, self.by)
        found = self._tables.execute("SELECT record FROM lookup WHERE key = ?", [key]).fetchone()
        self.without += found is None
        theirs = json.loads(found[0]) if found else dict.fromkeys(name for name in self.columns if name != self.by)
        return {**values, **{name: value for name, value in theirs.items() if is_missing(values.get(name))}}


def find_beside(source: PurePath, by: str, wanted: str) -> PurePath | None:
    """Return the one file in the folder of `source` whose first records have both columns; None: none, or several."""
    if not isinstance(source, Path) or not source.is_file():
        return None
    found = [path for path in _beside(source) if {by, wanted} <= _columns(path)]
    return found[0] if len(found) == 1 else None


def _beside(source: Path) -> Iterator[Path]:
    there = sorted(path for path in source.parent.iterdir() if path.is_file() and path != source)
    return iter([path for path in there if format_of_name(path.name)][:_MOST_BESIDE])


def _columns(path: Path) -> set[str]:
    names: set[str] = set()
    try:
        for number, row in enumerate(SourceReader(path)):
            names |= flat(row.values).keys()
            if number == _FIRST_ROWS:
                break
    except StageError:
        return set()  # not a source
    return names


def _key(values: Mapping[str, Any], by: str) -> str | None:
    value = scalar(legible(values.get(by)))
    return None if value is None else whole_text(as_text(value).strip())


class Shaping(NamedTuple):
    """The options; without any, a record is a row."""

    explode: tuple[str, ...] = ()  # columns of lists; each value in them gives a row
    lookup: Lookup | None = None  # another file with columns of the rows
    only: tuple[Only, ...] = ()  # conditions on rows

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the options name."""
        return (*self.explode, *([self.lookup.by] if self.lookup else []), *(each.column for each in self.only))

    @property
    def options(self) -> list[str]:
        """The words of a command line that give this shaping."""
        words = ["--explode", ",".join(map(written, self.explode))] if self.explode else []
        words += self.lookup.options if self.lookup else ()
        return words + [word for each in self.only for word in ("--only", str(each))]


AS_IT_STANDS = Shaping()


class Shaper:
    """Makes rows of records, and counts the records and rows that it leaves out."""

    def __init__(
        self,
        shaping: Shaping,
        take_apart: Callable[[Values], Values],
        to_lists: Callable[[Values], Values],
        id_column: str | None,
        complete: bool | None,
        tables: sqlite3.Connection | None,
    ) -> None:
        """Read the file of --lookup.

        Args:
            take_apart: makes columns of nested values.
            to_lists: the same, for the columns of --explode alone.
            id_column: the column with the ids of records, which differ in each row of a record.
            complete: a record has all columns of its file, which are checked; False: it may leave out empty ones; None:
                --explode was not given by a person, so nothing is checked.
            tables: a database for the file of --lookup; None: no file is looked up.

        Raises:
            ConfigError, DataError: that file can't be read, or lacks the column.
        """
        self.shaping = shaping
        self._take_apart = take_apart
        self._to_lists = to_lists
        self._id_column = id_column
        self._complete = complete
        self.looked_up = LookedUp(tables, shaping.lookup) if tables is not None and shaping.lookup else None
        self.left_out = 0  # rows
        self.without = 0  # records without a value in the columns of --explode
        self._seen: dict[str, None] = {}  # columns of records

    @property
    def completed(self) -> Sequence[str]:
        """The columns that come from the other file."""
        return tuple(self.looked_up.columns) if self.looked_up else ()

    def rows(self, record: SourceRow) -> list[Values]:
        """Return the rows of a record, nested columns taken apart. Raises DataError: a column of --explode is wrong."""
        values = record.values
        if explode := self.shaping.explode:
            lists = self._to_lists({**values})
            self._seen.update(dict.fromkeys(lists))
            if self._complete is not None:
                require_lists(lists, explode, record.file, self._complete)
            rows = [self._take_apart(each) for each in exploded(lists, explode, self._id_column)]
            self.without += not rows
        else:
            rows = [self._take_apart({**values})]
        if self.looked_up:
            rows = [self.looked_up.complete(row) for row in rows]
        chosen = [row for row in rows if all(each.holds(row) for each in self.shaping.only)]
        self.left_out += len(rows) - len(chosen)
        if not chosen:
            self._seen.update(dict.fromkeys(name for row in rows for name in row))
        return chosen

    def require_lists(self, file: PurePath) -> None:
        """Check the columns of --explode in all records so far. Raises DataError: no record has one of them."""
        there = {name: None for name in self._seen if name != EVENT}
        require_lists(there, self.shaping.explode, file, complete=True)

    def no_row(self, source: PurePath) -> DataError:
        """Return the error for a source of which no row is left."""
        if self.without and not self.left_out:
            named = " or ".join(self.shaping.explode)
            return DataError(f"{source}: no row has a value in {named}, which --explode names")
        said, names = " ".join(self.shaping.options), ", ".join(sorted(self._seen))
        return DataError(f"{source}: no row is left by {said}; the columns are {names}")
