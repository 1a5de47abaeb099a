"""The format of a user's files, by name, and contents of other formats, which are named with a way to convert them."""

import enum
from pathlib import Path

from tasks.foundation.errors import ConfigError


class Format(enum.StrEnum):
    """The file format of the records; each may be compressed with gzip."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


SUFFIXES = {
    Format.jsonl: (".jsonl", ".ndjson", ".json"),
    Format.csv: (".csv", ".tsv"),
    Format.parquet: (".parquet",),
}
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_ZIP = b"PK\x03\x04"
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"
_PARQUET = b"PAR1"


def format_of_name(name: str) -> Format | None:
    """Return the format that a file's name gives, as `log.csv.gz` gives CSV; None if it gives none."""
    plain = name.lower().removesuffix(".gz")
    return next((form for form, suffixes in SUFFIXES.items() if plain.endswith(suffixes)), None)


def format_of(source: Path) -> Format:
    """Return the format of a file by its name, or of a folder by the names of its files.

    Raises:
        ConfigError: the name does not say, it is a workbook's, or a folder has files of no format or of several.
    """
    names = [source.name] if source.is_file() else [path.name for path in visible_files(source)]
    found = {form for name in names if (form := format_of_name(name))}
    if len(found) == 1:
        return found.pop()
    if found:
        raise ConfigError(
            f"--source {source}: the folder has {' and '.join(sorted(found))} files; say which with --format"
        )
    workbook = next((name for name in names if name.lower().endswith(_WORKBOOKS)), None)
    if workbook:
        raise ConfigError(f"--source {source}: {_workbook(source if source.is_file() else source / workbook)}")
    options = " or ".join(f"--format {form}" for form in Format)
    raise ConfigError(f"--source {source}: the name does not tell the format; give {options}")


def visible_files(folder: Path) -> list[Path]:
    """Return all files below a folder, sorted, except hidden ones."""
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def foreign_content(path: Path, start: bytes, form: Format) -> str:
    """Return the name of a content that is not of `form`, with a way to convert it; empty if none is recognised.

    Args:
        start: the first bytes of the file, a few thousand if it has them, uncompressed.
    """
    if start.startswith(_ZIP):
        if b"xl/" in start:
            return _workbook(path)
        return "a zip archive; unpack it, and name the file or the folder with its files"
    if start.startswith(_OLD_EXCEL):
        return _workbook(path)
    if form is not Format.parquet and start.startswith(_PARQUET):
        return f"a Parquet file, not {form}; give --format parquet"
    if form is not Format.parquet and start.startswith(_UTF_16):
        return f"text in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 {path.name} > utf8-{path.name}"
    if form is Format.jsonl and start.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"[{", b"[\n", b"[\r", b"[ ")):
        return f"a JSON array, not JSON Lines; each line must be one JSON object: jq -c '.[]' {path.name} > rows.jsonl"
    return ""


def _workbook(path: Path) -> str:
    target = f"{path.name.partition('.')[0]}.csv"
    target = f"new-{target}" if target == path.name else target
    return (
        f"{path.name} is an Excel workbook; save it as CSV UTF-8 in Excel, or convert it: "
        f"python -c \"import pandas; pandas.read_excel('{path.name}').to_csv('{target}', index=False)\""
    )
