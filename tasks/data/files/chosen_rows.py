"""The option --only: the rows of a source that are read, by the value of a column."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from tasks.data.files.values import as_text, is_missing, scalar
from tasks.foundation.errors import ConfigError, DataError


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
        plain = scalar(value)
        return not self.values or (plain is not None and as_text(plain).strip().casefold() in self.values)


def parse_only(texts: Sequence[str]) -> tuple[Only, ...]:
    """Parse `COLUMN` (it has a value) or `COLUMN=VALUE,VALUE`. Raises ConfigError: a text is neither."""
    found = []
    for text in texts:
        column, separator, said = text.partition("=")
        values = tuple(each.strip().casefold() for each in said.split(",")) if separator else ()
        if not column.strip() or (separator and "" in values):
            raise ConfigError(f"--only {text!r}: write COLUMN for rows with a value in it, or COLUMN=VALUE,VALUE")
        found.append(Only(column.strip(), values))
    return tuple(found)


def no_row_chosen(source: PurePath, only: Sequence[Only], columns: Iterable[str]) -> DataError:
    """Return the error for a source without a row that all conditions choose."""
    said = " ".join(f"--only {each}" for each in only)
    return DataError(f"{source}: no row is chosen by {said}; the columns are {', '.join(sorted(columns))}")
