"""Convert a source record to a canonical row: ids, alike in every format, time, texts, label, other columns unchanged.

Bad texts and nulls pass, because validate judges them. An unreadable time, a label that is not a number, and invalid
Unicode are errors.
"""

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from tasks.contracts.spans import SpanKind, span_of
from tasks.data.files.facts import FALSE_WORDS, TRUE_WORDS
from tasks.data.files.formats import Format
from tasks.data.files.names import written
from tasks.data.files.readers import SourceRow
from tasks.data.files.spelling import (
    COMMA_NUMBER,
    DAY_FIRST,
    PLAIN,
    Spelling,
    as_bool,
    as_float,
    kind_of,
    type_of_kinds,
)
from tasks.data.files.times import ANY_TIME, TimeRange, microseconds, parse_time, way_to_write
from tasks.data.files.values import Scalar, as_text, is_missing_word, short
from tasks.data.ids import NUL, hash_of, id_of, scalar_of, unpublishable
from tasks.data.rows import CORE, DELETED, FEED_KIND, ITEM, ITEM_ID, LABEL, LIVE, QUERY, ROW_ID, SPAN_KIND, natural_id
from tasks.foundation.errors import DataError


class Layout(NamedTuple):
    """A kind of source: name in `--map` -> core column, the required names, and the folder and kind of its spans."""

    columns: Mapping[str, str]
    needed: tuple[str, ...]
    root: str
    kind: str


ROWS = Layout(
    {"query": QUERY, "item": ITEM, "id": ROW_ID, "item_id": ITEM_ID, "label": LABEL},
    needed=("query", "item"),
    root="spans",
    kind=SPAN_KIND,
)
ITEMS = Layout(
    {"id": ITEM_ID, "text": ITEM, "deleted": DELETED, "live": LIVE},
    needed=("id", "text"),
    root="items",
    kind=FEED_KIND,
)
_OF_WORDS = (
    "; for grades or classes in words leave label out of --map: heads.multiclass.column or a table of events "
    "(validate.events) reads the column, and millrace init writes the settings"
)
_DRAFT = "-1"  # of WooCommerce's `Published`, whose 0 is private and whose 1 is public


Spelled = tuple[str, bool | float]  # a text that the source's spelling makes a value, and the value


class UnknownFlag(DataError):
    """A value of `deleted` or `live` that is neither true nor false; `column` of the source has it."""

    def __init__(self, message: str, column: str) -> None:
        super().__init__(message)
        self.column = column


class CanonicalRow(NamedTuple):
    """`core` in the order of `rows.CORE`, the time in microseconds since the epoch; `others` by source column."""

    span: str
    core: tuple[str, int, str | None, str | None, str | None, float | None]
    others: dict[str, Scalar | Spelled]

    @property
    def item_id(self) -> str | None:
        return self.core[4]

    @property
    def item(self) -> str | None:
        return self.core[3]

    @property
    def values(self) -> dict[str, object]:
        """All values by column; of one that the source spells in its own way, the text."""
        others = {name: value[0] if isinstance(value, tuple) else value for name, value in self.others.items()}
        return {**others, **dict(zip(CORE, self.core, strict=True))}

    def to_line(self, record: SourceRow) -> bytes:
        """Return the row as one line of JSON.

        Raises:
            DataError: a text is not valid Unicode; names its column in `record`.
        """
        try:
            return json.dumps([*self.core, self.others], ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        except UnicodeEncodeError as error:
            broken = (name for name, value in record.values.items() if _not_unicode(name) or _not_unicode(value))
            column = next(broken, "").encode(errors="backslashreplace").decode()
            raise record.error(column, "half of a surrogate pair is not valid text; repair the \\u escape") from error


class Canonicaliser:
    """Converts records one by one, and collects the value types of each column over the whole input."""

    def __init__(
        self,
        form: Format,
        time: str | dt.datetime,
        span: SpanKind,
        mapping: Mapping[str, str],
        layout: Layout = ROWS,
        times: TimeRange = ANY_TIME,
        spelling: Spelling = PLAIN,
    ) -> None:
        self._texts_are_values = form.texts_are_values
        self.layout = layout
        self.time_column = time if isinstance(time, str) else None
        self._at = None if isinstance(time, str) else time
        self.mapping = mapping
        self._span = span
        self._times = times
        self.spelling = spelling
        self._source = {layout.columns[name]: column for name, column in mapping.items()}
        self._mapped = {*mapping.values()} if self.time_column is None else {self.time_column, *mapping.values()}
        self._kinds: dict[str, set[str]] = {}

    @property
    def ids_alone(self) -> bool:
        """True if rows name their items by id, without a text."""
        return self.layout is ROWS and ITEM not in self._source

    def convert(self, record: SourceRow) -> CanonicalRow:
        """Return the canonical row of one record.

        Raises:
            DataError: a time or label is not readable, a time is out of range, or an item of a feed has no id, no text
                or an unreadable `deleted`; names file, row, column and value.
        """
        moment = self._moment(record)
        item = self._text(record, ITEM)
        item_id = self._id(record, ITEM_ID)
        if ITEM_ID not in self._source and item is not None:
            item_id = hash_of(item)
        core = (
            self._id(record, ROW_ID) or self._made_id(record, moment),
            microseconds(moment),
            self._text(record, QUERY),
            item,
            item_id,
            self._label(record),
        )
        others = self._others(record)
        if self.layout is ITEMS:
            others[DELETED] = self._deleted(record)
        return CanonicalRow(span_of(moment, self._span), core, others)

    def _moment(self, record: SourceRow) -> dt.datetime:
        if self._at is not None:
            return self._at
        column = str(self.time_column)
        moment = _moment(record, column, self.spelling.dayfirst)
        if problem := self._times.problem(moment):
            near = way_to_write(record.values.get(column))
            raise record.error(column, f"{problem.partition(';')[0]}; {near}" if near else problem)
        return moment

    def columns(self) -> dict[str, tuple[str, str]]:
        """Return source column -> (name in the span, type) for the unmapped columns, sorted by name.

        The type is that of `type_of_kinds`, or `code`: text of whole numbers, in which words such as null are missing.
        A name of a core column gets the suffix `_source`.
        """
        if self.layout is ITEMS:
            self._kinds[DELETED] = {"bool"}
        taken = {*CORE, *self._kinds}
        named: dict[str, tuple[str, str]] = {}
        for column in sorted(self._kinds):
            name = column
            if column in CORE:
                while name in taken:
                    name += "_source"
                taken.add(name)
            named[column] = (name, "code" if column in self.codes() else type_of_kinds(self._kinds[column]))
        return named

    def codes(self) -> set[str]:
        """Return the source columns of whole numbers that are text, since float64 can't hold one of them."""
        return {column for column, kinds in self._kinds.items() if "code" in kinds <= {"code", "whole"}}

    def empty_columns(self) -> set[str]:
        """Return the source columns that have only nulls."""
        return {column for column, kinds in self._kinds.items() if not kinds}

    def _made_id(self, record: SourceRow, moment: dt.datetime) -> str:
        """Return the id of a row whose source has none."""
        if self.layout is ITEMS:
            return hash_of(_canonical_json(record.values))
        item = self._id(record, ITEM_ID) or self._text(record, ITEM)
        return natural_id(microseconds(moment), self._text(record, QUERY), item)

    def _text(self, record: SourceRow, canonical: str) -> str | None:
        column = self._source.get(canonical)
        if column is None:
            return None
        value = scalar_of(record, column)
        return None if value is None else as_text(value)

    def _id(self, record: SourceRow, canonical: str) -> str | None:
        column = self._source.get(canonical)
        return None if column is None else id_of(record, column, scalar_of(record, column), self._texts_are_values)

    def _deleted(self, record: SourceRow) -> bool:
        """Return True if the feed deletes the item. Raises DataError: the record is not usable."""
        item_id, text = self._id(record, ITEM_ID), self._text(record, ITEM)
        if not item_id:
            raise record.error(self._source[ITEM_ID], "no id; every item of a feed needs its id")
        if problem := unpublishable(item_id, text):
            raise record.error(self._source[ITEM if NUL in (text or "") else ITEM_ID], problem)
        deleted = self._flag(record, self._source.get(DELETED, DELETED), missing=False)
        if LIVE in self._source:
            deleted |= not self._flag(record, self._source[LIVE], missing=True)
        if not deleted and text is None:
            raise record.error(self._source[ITEM], "empty; an item that is not deleted needs a text")
        return deleted

    def _flag(self, record: SourceRow, column: str, missing: bool) -> bool:
        """Return a value as true or false. Raises DataError: it is neither."""
        value = scalar_of(record, column)
        known = {None: missing, "true": True, "false": False, "1": True, "0": False}
        known |= {_DRAFT: False} if missing else {}
        known |= dict.fromkeys(self.spelling.true, True) | dict.fromkeys(self.spelling.false, False)
        value = None if is_missing_word(value) else value
        flag = known.get(None if value is None else as_text(value).strip().casefold())
        if flag is None:
            problem = f"{short(value)} is not true or false, nor 1 or 0"
            raise UnknownFlag(str(record.error(column, problem)), column)
        return flag

    def _label(self, record: SourceRow) -> float | None:
        column = self._source.get(LABEL)
        value = None if column is None else scalar_of(record, column)
        if column is None or value is None:
            return None
        if isinstance(value, str):
            text = value.strip()
            if is_missing_word(text):
                return None
            kind, spelled = self.spelling.typed(text)
            if kind == "string":
                hint = _hint(text) or (_OF_WORDS if text[0].isalpha() else "")
                raise record.error(column, f"{short(value)} is not a number; the label must be a number{hint}")
            return float(as_bool(text) or 0 if kind == "bool" else text) if spelled is None else float(spelled)
        return as_float(value)

    def _others(self, record: SourceRow) -> dict[str, Scalar | Spelled]:
        others: dict[str, Scalar | Spelled] = {}
        for column in record.values:
            if column in self._mapped or (self.layout is ITEMS and column == DELETED):
                continue
            kinds = self._kinds.setdefault(column, set())
            if (value := scalar_of(record, column)) is not None:
                kind, spelled = self._typed(value)
                if kind is not None:
                    kinds.add(kind)
                others[column] = value if spelled is None else (str(value), spelled)
        return others

    def _typed(self, value: bool | int | float | str) -> tuple[str | None, bool | float | None]:
        """Return the type of a value, and the value that the spelling gives a text; None: as it stands."""
        if isinstance(value, str) and self._texts_are_values:
            return self.spelling.typed(value)
        return kind_of(value), None


def _moment(record: SourceRow, column: str, dayfirst: bool) -> dt.datetime:
    value = record.values.get(column)
    if column not in record.values:
        raise record.error(
            column, f"missing, but the time is read from it; the columns are {', '.join(map(written, record.values))}"
        )
    if is_missing_word(value) or scalar_of(record, column) is None:
        raise record.error(column, "no time; every row needs one, which selects its span")
    try:
        return parse_time(value, dayfirst)
    except (ValueError, OverflowError, TypeError) as error:
        raise record.error(
            column,
            f"{short(value)} is not a time; write ISO 8601 (2026-11-20T08:30:00Z), or seconds (or milli-, micro- or "
            f"nanoseconds) since 1970{_hint(str(value))}",
        ) from error


def _hint(text: str) -> str:
    """Return the option that may read a text, or the way to write it; empty if nothing helps."""
    if near := way_to_write(text):
        return f"; {near}"
    if DAY_FIRST.fullmatch(text.strip()):
        return "; if it begins with the day: --dayfirst"
    if text.strip().casefold() in TRUE_WORDS | FALSE_WORDS:
        return "; words for true and false: give them, as in --true yes --false no"
    comma = "," in text and COMMA_NUMBER.fullmatch(text.strip())
    return "; if its comma is a decimal comma: --decimal ," if comma else ""


def _canonical_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), default=str)


def _not_unicode(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return True
    return False
