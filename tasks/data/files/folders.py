"""Find the files of a source: a file, or a folder with partitions in its paths."""

import urllib.parse
from collections.abc import Mapping
from pathlib import PurePath
from typing import NamedTuple

from tasks.data.files.formats import PACKINGS, SUFFIXES, Format
from tasks.data.files.places import Listing, Place
from tasks.data.files.values import NUMBER
from tasks.foundation.errors import ConfigError

_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_TABLES = {  # folder of a table's log -> name, and its function in DuckDB
    "_delta_log": ("a Delta table", "delta_scan"),
    "metadata": ("an Iceberg table", "iceberg_scan"),
    ".hoodie": ("a Hudi table", ""),
}


class SourceFile(NamedTuple):
    """A file, and the columns that its path gives: `event` of `event=click/part-0.parquet`."""

    place: Place
    partition: Mapping[str, str | int | None]


def find_files(source: PurePath, listing: Listing, form: Format) -> list[SourceFile]:
    """Return the file itself, or all visible files below a folder with a suffix of the format, sorted.

    Raises:
        ConfigError: the folder has no such file, has one under two packings, or is a table whose log says which of its
            files count.
    """
    if listing.is_file:
        return [SourceFile(listing.places[0], {})]
    suffixes = [f"{suffix}{packing}" for suffix in SUFFIXES[form] for packing in ("", *PACKINGS)]
    found = [each for each in visible(source, listing) if each.path.name.lower().endswith(tuple(suffixes))]
    if not found:
        plain = ", *".join(SUFFIXES[form])
        raise ConfigError(f"--source {source}: no {form.value} file in this folder; looked for *{plain}")
    _refuse_two_packings(source, [each.path for each in found])
    return [SourceFile(each, partition_of(each.path.relative_to(source))) for each in found]


def visible(source: PurePath, listing: Listing) -> list[Place]:
    """Return all files below a folder except hidden and writers' own ones: names with `.` or `_` first."""
    return [each for each in listing.places if not any(map(_is_hidden, each.path.relative_to(source).parts))]


def partition_of(path: PurePath) -> dict[str, str | int | None]:
    """Return the columns in the folders of a path, as Hive and Spark write them: `day=2026-11-20/hour=7/x.csv`.

    A whole number without leading zeros is a number, `__HIVE_DEFAULT_PARTITION__` is null, the rest is text.
    """
    found: dict[str, str | int | None] = {}
    for part in path.parts[:-1]:
        name, separator, value = part.partition("=")
        if separator and name:
            text = urllib.parse.unquote(value)
            whole = NUMBER.fullmatch(text) and text.lstrip("-").isdecimal()
            found[urllib.parse.unquote(name)] = None if text == _NO_VALUE else int(text) if whole else text
    return found


def refuse_tables(folder: PurePath, listing: Listing) -> None:
    """Raise ConfigError for a folder that is a table with a log, which keeps replaced and deleted rows in its files."""
    inside = [each.path.relative_to(folder) for each in listing.places]
    for log, (name, function) in _TABLES.items():
        logs = [path for path in inside if path.parts[0] == log and len(path.parts) > 1]
        if not logs or (log == "metadata" and not any(path.name.endswith(".metadata.json") for path in logs)):
            continue
        target = f"{folder.name}.parquet"
        export = f"python -c \"import duckdb; duckdb.sql(\\\"COPY (FROM {function}('{folder}')) TO '{target}'\\\")\""
        way_out = f"export its rows first: {export}" if function else "export its rows with the engine that wrote it"
        raise ConfigError(
            f"--source {folder}: {name}; its files hold replaced and deleted rows too, and its log ({log}) says which "
            f"count. Name what has the rows alone: {way_out}"
        )


def _refuse_two_packings(source: PurePath, found: list[PurePath]) -> None:
    plain: dict[PurePath, PurePath] = {}
    for path in found:
        packing = next((each for each in PACKINGS if path.name.lower().endswith(each)), "")
        stem = path.with_name(path.name[: len(path.name) - len(packing)])
        if stem in plain:
            names = f"{plain[stem].relative_to(source)} and {path.relative_to(source)}"
            raise ConfigError(f"--source {source}: {names} are one file in two packings; remove one of them")
        plain[stem] = path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
