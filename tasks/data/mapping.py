"""The option --map: the source columns of query, item, ids and label, also inside nested values.

`request.text` is the field `text` of the column `request`. A column in such a name is flattened: each of its fields
becomes a column of its own, named by its path.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

from tasks.data.canonical import ITEMS, ROWS, Layout
from tasks.data.files.formats import Format
from tasks.data.files.names import parted, unwritten, written
from tasks.data.files.nested import fields_of, flat
from tasks.data.files.readers import SourceRow
from tasks.data.files.times import parse_time
from tasks.data.files.values import NUMBER
from tasks.foundation.errors import ConfigError, DataError

Values = dict[str, Any]
_MOST_NAMED = 20  # columns
_LONGEST_NAME = 64  # characters of a column name; a longer one is a text

_SYNTAX = {
    ROWS.root: "--map query=COLUMN,item=COLUMN[,id=COLUMN][,item_id=COLUMN][,label=COLUMN], or without item=COLUMN if "
    "an item feed has the texts: --map query=COLUMN,item_id=COLUMN",
    ITEMS.root: "--map id=COLUMN,text=COLUMN[,deleted=COLUMN][,live=COLUMN]",
}


def parse_map(text: str, layout: Layout = ROWS) -> dict[str, str]:
    """Parse `query=text,item=product_title` into a mapping from canonical names to source columns.

    A column may be in quotes, as in `query="words, typed"`.

    Raises:
        ConfigError: a pair is not name=column, a name appears twice, or `check_map` refuses it.
    """
    mapping: dict[str, str] = {}
    if any(";" in pair and pair.count("=") > 1 and '"' not in pair for pair in parted(text)):
        raise ConfigError(f"--map {text!r}: commas separate the pairs: --map {text.replace(';', ',')}")
    for pair in parted(text):
        name, separator, column = pair.partition("=")
        name, column = name.strip(), unwritten(column)
        if not (name and separator and column):
            raise ConfigError(f"--map {text!r}: {pair!r} is not name=column; write it as {_SYNTAX[layout.root]}")
        if name in mapping:
            raise ConfigError(f"--map {text!r}: {name!r} is given twice; write it as {_SYNTAX[layout.root]}")
        mapping[name] = column
    check_map(mapping, layout)
    return mapping


def check_map(mapping: Mapping[str, str], layout: Layout) -> None:
    """Check the names.

    Raises:
        ConfigError: a name is unknown, a required one is missing, or query and item are one column; names the remedy.
    """
    for name in mapping:
        if name not in layout.columns:
            close = difflib.get_close_matches(name, layout.columns, n=1)
            hint = f"the nearest is {close[0]!r}" if close else f"known are {', '.join(layout.columns)}"
            raise ConfigError(f"--map: unknown name {name!r}; {hint}; write it as {_SYNTAX[layout.root]}")
    for name in layout.needed:
        if name not in mapping and not (name == "item" and "item_id" in mapping):
            raise ConfigError(f"--map: {name!r} is missing; write it as {_SYNTAX[layout.root]}")
    if mapping.get("query", "") == mapping.get("item"):
        raise ConfigError(
            f"--map: column {mapping['query']!r} is given as query and as item, so each query would find itself and "
            "teach nothing; give each its own column"
        )


def require_columns(
    record: SourceRow, form: Format, time_column: str | None, mapping: Mapping[str, str], others: Sequence[str] = ()
) -> None:
    """Check the columns of a file by its first record, before nested columns are flattened.

    JSON Lines and XML are not checked here, since a record may leave out nulls.

    Args:
        others: columns that are not in the file, but come from another one.

    Raises:
        DataError: a column is missing, perhaps because the file has no header; names file and column.
    """
    if form in (Format.jsonl, Format.xml):
        return
    wanted = {column: f"--map gives as {name}" for name, column in mapping.items()}
    wanted |= {} if time_column is None else {time_column: "has the time"}
    missing = [column for column in wanted if not {column, root_of(column)} & {*record.values, *others}]
    if form is Format.csv and len(missing) == len(wanted) and looks_like_a_row(list(record.values)):
        raise DataError(
            f"{record.file}: its first line is no header: {', '.join(list(record.values)[:5])}; put a line with the "
            "names of the columns first"
        )
    for column in missing:
        raise _missing(record.file, column, wanted[column], record.values.keys())


def looks_like_a_row(header: Sequence[str]) -> bool:
    """Return True if a header has an unlikely column name: a number, a time, a long, empty or repeated text."""
    return len(set(header)) < len(header) or any(_is_a_value(name) for name in header)


def _is_a_value(name: str) -> bool:
    text = name.strip()
    if not text or len(text) > _LONGEST_NAME or NUMBER.fullmatch(text):
        return True
    try:
        parse_time(text)
    except (ValueError, OverflowError):
        return False
    return True


def require_seen(file: PurePath, mapping: Mapping[str, str], seen: Set[str]) -> None:
    """Check the columns of all records together. Raises DataError: no record has a column that --map names."""
    for name, column in mapping.items():
        if column not in seen:
            raise _missing(file, column, f"--map gives as {name}", seen)


def _missing(file: PurePath, column: str, why: str, there: Set[str]) -> DataError:
    return DataError(f"{file}: missing column {column!r}, which {why}; {columns_in_words(column, there)}")


def columns_in_words(wanted: str, there: Iterable[str]) -> str:
    """Return the columns of a source in words, the nearest to a wanted one first if there are many."""
    names = [written(name) for name in sorted(there)]
    if len(names) > _MOST_NAMED:
        near = difflib.get_close_matches(wanted, names, n=3)
        names = list(dict.fromkeys([*near, *names]))
        return f"the columns are {', '.join(names[:_MOST_NAMED])} and {len(names) - _MOST_NAMED:,} more"
    return f"the columns are {', '.join(names)}"


def taken_apart(names: Iterable[str]) -> Callable[[Values], Values]:
    """Return a function that flattens the values of a record, so that all `names` are columns.

    A column whose own name has a dot stays as it is. A list is a nested column if it has keys and values. A null and
    an empty list have no fields.
    """
    roots: dict[str, list[str]] = {}
    for name in names:
        if "." in name:
            roots.setdefault(root_of(name), []).append(name)

    def take_apart(values: Values) -> Values:
        entered = {root: _fields(values[root]) for root in roots if root in values}
        entered = {
            root: fields
            for root, fields in entered.items()
            if fields is not None and not all(name in values for name in roots[root])
        }
        if not entered:
            return values
        apart: Values = {name: value for name, value in values.items() if name not in entered}
        for root, fields in entered.items():
            for name, part in flat(fields).items():
                apart.setdefault(f"{root}.{name}", part)
        return apart

    return take_apart if roots else lambda values: values


def _fields(value: object) -> Mapping[str, Any] | None:
    return {} if value is None or value == [] else fields_of(value)


def root_of(name: str) -> str:
    """Return the column of a name: `request` of `request.text`."""
    return name.partition(".")[0]
