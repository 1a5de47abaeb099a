"""The survey of a source: facts of its columns, collected one row at a time, in bounded memory."""

import datetime as dt
import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from decimal import Decimal
from typing import Any

from tasks.contracts.profiles import Shared
from tasks.data.files.facts import FALSE_WORDS, TRUE_WORDS, ColumnFacts, Shape
from tasks.data.files.lists import looks_like_a_list, members
from tasks.data.files.spelling import COMMA_NUMBER, DAY_FIRST, Spelling, day_comes_first, kind_of, type_of_kinds
from tasks.data.files.times import RFC_822, parse_time, year_comes_first
from tasks.data.files.values import as_text, is_missing, is_missing_word, legible, scalar, short
from tasks.foundation.languages import languages

_LONGEST_WORD = 9
_ISO = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


def shape_of(value: object, spelling: Spelling) -> Shape | None:
    """Return the shape of a value; None for a missing one."""
    if is_missing(value):
        return None
    match value:
        case bool():
            return Shape.boolean
        case int():
            return Shape.number
        case float() | Decimal():
            return Shape.number
        case str():
            return _shape_of_text(value.strip(), spelling)
        case dt.date():  # also a time of a day
            return Shape.time
        case dict() | list() | tuple():
            return Shape.nested
        case _:
            return Shape.text


def _shape_of_text(text: str, spelling: Spelling) -> Shape:
    kind, _ = spelling.typed(text)
    if kind not in (None, "string"):
        return Shape.boolean if kind == "bool" else Shape.number
    if text[0].isdigit() or text[0] in "+-":
        if COMMA_NUMBER.fullmatch(text):
            return Shape.decimal_comma
        if DAY_FIRST.fullmatch(text):
            return Shape.time if spelling.dayfirst else Shape.day_first
        if _ISO.match(text) and _is_time(text):
            return Shape.time
    if RFC_822.fullmatch(text) and _is_time(text):
        return Shape.time
    if len(text) <= _LONGEST_WORD and text.casefold() in TRUE_WORDS | FALSE_WORDS:
        return Shape.word
    return Shape.text


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except (ValueError, OverflowError):
        return False
    return True


SAMPLE_ROWS = 2_000
CELL_CHARS = 1_000  # per text of the sample
NEARLY_ALL = 0.95  # share of a column's values
_LANGUAGE_TEXTS = 300  # the detector reads some thousand texts a second
_LEAST_LANGUAGE = 0.02
_COMMON = 12
_COMMON_CHARS = 60
_LONGEST_ID = 40
_TYPES = {"bool": "boolean", "float64": "number", "string": "text"}
_ID = re.compile(r"(?=.*[0-9])[^\s.,]+(?:[.:][^\s.,]+)*")


class _Column:
    def __init__(self) -> None:
        self.filled = 0  # rows with a value
        self.words = 0  # among them rows with a word that means a missing id or number
        self.kinds: set[str] = set()
        self.shapes: Counter[Shape] = Counter()
        self.first: dict[Shape, str] = {}  # the first value of a shape, with its row
        self.texts = 0
        self.shortest = self.longest = 0


class Survey:
    """The columns of a source. Add all its rows; `sample` holds a uniform sample of them, the same in every process.

    Values are counted in all rows. Their types are found in all rows too, or with `whole=False` in some thousand: that
    takes a tenth of the time.
    """

    def __init__(self, texts_are_values: bool, spelling: Spelling, whole: bool = True) -> None:
        self._whole = whole
        self._texts_are_values = texts_are_values
        self._spelling = spelling
        self._columns: dict[str, _Column] = {}
        self._random = random.Random(0)
        self.rows = 0
        self.binary: dict[str, int] = {}  # column with bytes that are no text -> the first row with such
        self.sample: list[Mapping[str, Any]] = []

    def add(self, values: Mapping[str, Any]) -> None:
        """Add a row."""
        self.rows += 1
        place = self.rows - 1 if self.rows <= SAMPLE_ROWS else self._random.randrange(self.rows)
        closely = self._whole or place < SAMPLE_ROWS
        for name, value in values.items():
            column = self._columns.get(name) or self._columns.setdefault(name, _Column())
            if is_missing(value):
                continue
            if isinstance(value, bytes):
                value = self._legible(name, value)
            column.filled += 1
            column.words += is_missing_word(value)
            if closely:
                self._count(column, value)
        if place < SAMPLE_ROWS:
            texts = {name: legible(value) for name, value in values.items()}
            cut = {name: value[:CELL_CHARS] if isinstance(value, str) else value for name, value in texts.items()}
            self.sample[place : place + 1] = [cut]

    def _legible(self, name: str, value: bytes) -> object:
        try:
            return value.decode()
        except UnicodeDecodeError:
            self.binary.setdefault(name, self.rows)
            return legible(value)

    def _count(self, column: _Column, value: Any) -> None:
        column.kinds |= self._kinds(value)
        if is_missing_word(value):
            return
        shape = shape_of(value, self._spelling) or Shape.text
        if shape not in column.shapes:
            column.first[shape] = f"{short(value)} in row {self.rows:,}"
        column.shapes[shape] += 1
        if isinstance(value, str):
            length = len(value)
            column.shortest = min(column.shortest, length) if column.texts else length
            column.longest = max(column.longest, length)
            column.texts += 1

    def _kinds(self, value: Any) -> set[str]:
        """Return the kind of a value, as the converter finds it; empty if it fits any."""
        if isinstance(value, str) and self._texts_are_values:
            kind, _ = self._spelling.typed(value)
            return set() if kind is None else {kind}
        plain = scalar(value)
        return set() if plain is None else {kind_of(plain)}

    def columns(self, detect_languages: bool = True, ids: Set[str] = frozenset()) -> list[ColumnFacts]:
        """Return the facts of each column, in the order of the source.

        Args:
            ids: the columns that are mapped as ids, in which words such as `null` are missing values.
        """
        return [self._facts(name, column, detect_languages, name in ids) for name, column in self._columns.items()]

    def texts(self, name: str) -> list[str]:
        """Return the values of a column in the sample as texts, without missing ones."""
        return [text for row in self.sample if (text := cell(row, name)) is not None]

    def ids(self, name: str) -> list[str]:
        """Return the values of a column of ids in the sample, without missing ones and words for them."""
        return [text for text in self.texts(name) if not is_missing_word(text)]

    def _facts(self, name: str, column: _Column, detect_languages: bool, mapped_as_id: bool) -> ColumnFacts:
        texts = self.ids(name)
        count = column.shapes.total()
        shape = _most(column.shapes, count)
        if shape is Shape.day_first and day_comes_first(texts) is False:
            shape = Shape.month_first
        elif shape is Shape.day_first and year_comes_first(texts):
            shape = Shape.short_year
        kind = _TYPES[type_of_kinds(column.kinds)]
        code = kind == "text" and column.kinds <= {"code", "whole"}
        ids = bool(texts) and shape in (None, Shape.text, Shape.number) and _look_like_ids(texts)
        without = mapped_as_id or ids or code or kind != "text"
        texts = texts if without else self.texts(name)
        plain = kind == "text" and shape in (None, Shape.text) and not ids
        usual = (Shape.decimal_comma, Shape.number) if shape is Shape.decimal_comma else (shape, Shape.day_first)
        others = [first for each, first in column.first.items() if each not in usual]
        tally = Counter(texts)
        lengths = (column.shortest, _median([len(text) for text in texts]), column.longest)
        return ColumnFacts.model_validate(
            {
                "name": name,
                "type": kind,
                "suggests": None if shape in (None, Shape.text) or shape == kind or code else shape,
                "nulls": self.rows - column.filled + column.words * without,
                "distinct": len(tally),
                "lengths": lengths if column.texts else None,
                "languages": _languages(texts) if plain and detect_languages else (),
                "common": tuple(_shared(text[:_COMMON_CHARS], n, len(texts)) for text, n in tally.most_common(_COMMON)),
                "ids": ids,
                "odd": others[0] if shape not in (None, Shape.text) and others else None,
            }
        )


def cell(row: Mapping[str, Any], name: str) -> str | None:
    """Return a value of a row as text; None if it is missing or blank."""
    value = scalar(legible(row.get(name)))
    text = None if value is None else as_text(value)
    return text if text and text.strip() else None


def _most(shapes: Counter[Shape], count: int) -> Shape | None:
    """Return the shape of nearly all values; None if they share none. Whole numbers fit either decimal sign."""
    commas = shapes[Shape.decimal_comma]
    if commas and commas + shapes[Shape.number] >= NEARLY_ALL * count and commas > (1 - NEARLY_ALL) * count:
        return Shape.decimal_comma
    return next((shape for shape, n in shapes.most_common(1) if n >= NEARLY_ALL * count), None)


def _look_like_ids(texts: Sequence[str]) -> bool:
    matching = sum(all(map(_is_id, members(text) if looks_like_a_list(text) else [text])) for text in texts)
    return len(set(texts)) > 1 and matching >= NEARLY_ALL * len(texts)


def _is_id(value: object) -> bool:
    text = str(value)
    return len(text) <= _LONGEST_ID and _ID.fullmatch(text.strip()) is not None


def _languages(texts: Sequence[str]) -> tuple[Shared, ...]:
    step = max(1, len(texts) // _LANGUAGE_TEXTS)
    few = texts[::step]
    try:
        found = Counter(languages(few))
    except ImportError:
        return ()
    return tuple(_shared(name, n, len(few)) for name, n in found.most_common() if n >= _LEAST_LANGUAGE * len(few))


def _shared(value: str, count: int, total: int) -> Shared:
    return Shared(value=value, share=round(count / total, 4))


def _median(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) // 2] if numbers else 0
