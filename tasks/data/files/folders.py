"""Find the files of a source: a file, or a folder with partitions in its paths."""

import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tasks.data.files.formats import PACKINGS, SUFFIXES, Format
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

    path: Path
    partition: Mapping[str, str | int | None]


def find_files(source: Path, form: Format) -> list[SourceFile]:
    """Return the file itself, or all visible files below a folder with a suffix of the format, sorted.

    Raises:
        ConfigError: the folder has no such file, has one under two packings, or is a table whose log says which of its
            files count.
    """
    if source.is_file():
        return [SourceFile(source, {})]
    refuse_tables(source)
    suffixes = [f"{suffix}{packing}" for suffix in SUFFIXES[form] for packing in ("", *PACKINGS)]
    found = [path for path in visible_files(source) if path.name.lower().endswith(tuple(suffixes))]
    if not found:
        plain = ", *".join(SUFFIXES[form])
        raise ConfigError(f"--source {source}: no {form.value} file in this folder; looked for *{plain}")
    _refuse_two_packings(source, found)
    return [SourceFile(path, partition_of(path.relative_to(source))) for path in found]


def visible_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted, except hidden and writers' own ones: names with `.` or `_` first."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(map(_is_hidden, path.relative_to(folder).parts))
    ]


def partition_of(path: Path) -> dict[str, str | int | None]:
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


def refuse_tables(folder: Path) -> None:
    """Raise ConfigError for a folder that is a table with a log, which keeps replaced and deleted rows in its files."""
    for log, (name, function) in _TABLES.items():
        if not (folder / log).is_dir() or (log == "metadata" and not any((folder / log).glob("*.metadata.json"))):
            continue
        target = f"{folder.name}.parquet"
        export = f"python -c \"import duckdb; duckdb.sql(\\\"COPY (FROM {function}('{folder}')) TO '{target}'\\\")\""
        way_out = f"export its rows first: {export}" if function else "export its rows with the engine that wrote it"
        raise ConfigError(
            f"--source {folder}: {name}; its files hold replaced and deleted rows too, and its log ({log}) says which "
            f"count. Name what has the rows alone: {way_out}"
        )


def _refuse_two_packings(source: Path, found: list[Path]) -> None:
    plain: dict[Path, Path] = {}
    for path in found:
        packing = next((each for each in PACKINGS if path.name.lower().endswith(each)), "")
        stem = path.with_name(path.name[: len(path.name) - len(packing)])
        if stem in plain:
            names = f"{plain[stem].relative_to(source)} and {path.relative_to(source)}"
            raise ConfigError(f"--source {source}: {names} are one file in two packings; remove one of them")
        plain[stem] = path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name)
