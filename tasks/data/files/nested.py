"""Nested values: records in records, lists of keys and values, which are records too, and rows taken apart by lists."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tasks.data.files.lists import has_brackets, looks_like_a_list, members
from tasks.data.files.names import parted, unwritten, written
from tasks.data.files.values import as_text, is_missing, legible, scalar
from tasks.foundation.errors import ConfigError, DataError

_KEY, _VALUE = "key", "value"
EVENT = "event"  # column with the name of the column that a value came from, if several are taken apart
_SOME = 0.05  # cells with several ids, as a share of a column's; most searches have one click
# Words in names of columns: bought, in the cart, clicked, shown.
_NAMES = (
    frozenset(["purchased", "purchases", "bought", "ordered", "orders"]),
    frozenset(["cart", "carts", "carted", "basket"]),
    frozenset(["clicked", "clicks", "click", "selected", "chosen", "opened", "geklickt"]),
    frozenset(["shown", "impressions", "displayed", "results", "returned", "hits", "seen", "viewed", "gezeigt"]),
)
# Names of columns that mostly have one id; their lists are told by brackets, since an id may have a `|`.
_ITEMS = frozenset(f"{name}{end}" for name in ("item", "product", "doc", "article") for end in ("_id", "_ids", "s"))


def fields_of(value: object) -> Mapping[str, Any] | None:
    """Return the fields of a nested value by name; None for another value.

    A map of Parquet, and a list of objects with `key` and `value` as GA4 has its parameters, have a field for each key.
    A record of typed values (`{"string_value": "pan", "int_value": null}`) is the value in it.
    """
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, list) or not value:
        return None
    pairs = [_pair(each) for each in value]
    return None if None in pairs else dict(reversed([pair for pair in pairs if pair]))  # the first of a key counts


def flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record whose nested columns are columns, named by their path."""
    if not any(isinstance(value, Mapping | list) for value in values.values()):
        return {**values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        fields = fields_of(value)
        if fields is None:
            found.setdefault(name, value)
        else:
            for part, each in flat(fields).items():
                found.setdefault(f"{name}.{part}", each)
    return found


def _pair(entry: object) -> tuple[str, Any] | None:
    if isinstance(entry, tuple) and len(entry) == 2:  # an entry of a map of Parquet; JSON has no tuples
        return str(entry[0]), entry[1]
    match entry:
        case {"key": str() as key, **rest} if rest.keys() <= {_VALUE}:
            value = rest.get(_VALUE)
            if isinstance(value, Mapping) and value and all(name.endswith("_value") for name in value):
                value = next((each for each in value.values() if each is not None), None)
            return key, value
        case _:
            return None


def exploded(
    values: Mapping[str, Any], columns: Sequence[str], id_column: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield a record for each value in the cells of `columns`: the first column has it, the others are left out.

    A value with fields, as in a list of objects, has a column for each.

    With several columns, EVENT has the name of the value's column; a value that an earlier column has is not taken
    again, so an item that was shown and clicked is clicked.

    Args:
        id_column: the column with the id of the record, to which the value is added, so that ids stay distinct.
    """
    first, *others = columns
    rest = {name: value for name, value in values.items() if name not in columns}
    seen: set[str] = set()
    for column in columns:
        for each in members(values.get(column)):
            if (key := each if isinstance(each, str) else json.dumps(each, sort_keys=True, default=str)) not in seen:
                seen.add(key)
                is_record = isinstance(each, Mapping)
                parts = {f"{first}.{name}": part for name, part in flat(each).items()} if is_record else {first: each}
                made = {**rest, **parts, **({EVENT: column} if others else {})}
                if id_column is not None and not is_missing(rest.get(id_column)):
                    made[id_column] = (
                        f"{as_text(scalar(legible(rest[id_column])) or 0)}-{len(seen) if is_record else key}"
                    )
                yield made


def parse_explode(text: str | None) -> tuple[str, ...]:
    """Parse `clicked,shown`. Raises ConfigError: a name is empty or given twice."""
    names = () if text is None else tuple(map(unwritten, parted(text)))
    if "" in names or len({*names}) < len(names):
        raise ConfigError(f"--explode {text!r}: write the columns with lists of ids, as clicked or clicked,shown")
    return names


def require_lists(values: Mapping[str, Any], columns: Sequence[str], file: PurePath, complete: bool) -> None:
    """Check the columns of --explode by a record.

    Args:
        complete: the record has all columns of its file; False: it may leave out empty ones.

    Raises:
        DataError: a column is missing, or the source has a column EVENT of its own, which several columns need.
    """
    missing = [name for name in columns if complete and name not in values]
    if missing:
        there = ", ".join(map(written, sorted(values)))
        raise DataError(f"{file}: missing column {missing[0]!r}, which --explode names; the columns are {there}")
    if len(columns) > 1 and EVENT in values:
        raise DataError(
            f"{file}: it has a column {EVENT!r}, in which --explode {','.join(columns)} writes the column of each id; "
            f"rename it in the source, or give --explode {columns[0]} alone"
        )


def likely_lists(records: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the columns of a log with lists of ids, the chosen ones before the shown ones; empty if none was chosen.

    A column of other lists, such as tags, has another name. A column of single ids counts if a list has them too.
    """
    found: dict[str, int] = {}
    single: dict[str, int] = {}
    for name in dict.fromkeys(name for record in records for name in record):
        words = {*re.split(r"[^\w]+|_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).casefold())}
        rank = next((rank for rank, kind in enumerate(_NAMES) if words & kind), None)
        cells = [value for record in records if not is_missing(value := record.get(name))]
        if name.rpartition(".")[2].casefold() in _ITEMS and cells and all(map(has_brackets, cells)):
            found[name] = len(_NAMES) - 2
            continue
        if rank is None or not all(looks_like_a_list(value) or len(str(value).split()) == 1 for value in cells):
            continue
        several = sum(map(looks_like_a_list, cells)) >= max(_SOME * len(cells), 1)
        (found if several else single)[name] = rank
    shown = [name for name in found if found[name] == len(_NAMES) - 1]
    found |= {name: rank for name, rank in single.items() if _all_within(records, name, shown)}
    chosen = sorted(found, key=lambda name: found[name])
    return tuple(chosen) if len(shown) < len(chosen) else ()


def _all_within(records: Sequence[Mapping[str, Any]], name: str, lists: Sequence[str]) -> bool:
    """Return True if some cells of a column have values, and each of these is in a list of its record."""
    some = [({*map(str, members(record.get(name)))}, record) for record in records]
    some = [(found, record) for found, record in some if found]
    return bool(some) and all(
        any(found <= {*map(str, members(record.get(each)))} for each in lists) for found, record in some
    )
