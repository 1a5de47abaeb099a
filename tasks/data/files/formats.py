"""The format of a user's files, by name, and contents of other formats, which are named with a way to convert them."""

import enum
import json
import re
from collections.abc import Sequence
from pathlib import PurePath

from tasks.foundation.errors import ConfigError


class Format(enum.StrEnum):
    """The file format of the records; each may be packed with gzip, bzip2, xz or Zstandard."""

    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"
    xml = "xml"

    @property
    def texts_are_values(self) -> bool:
        """True if the format has no types, so that a text may mean a number or a boolean."""
        return self in (Format.csv, Format.xml)


SUFFIXES = {
    Format.jsonl: (".jsonl", ".ndjson", ".json"),
    Format.csv: (".csv", ".tsv"),
    Format.parquet: (".parquet",),
    Format.xml: (".xml",),
}
PACKINGS = (".gz", ".bz2", ".xz", ".zst")
_ARCHIVES = {  # -> the command that unpacks it into a folder
    ".zip": "python -m zipfile -e {name} rows",
    (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz"): "mkdir rows; tar xf {name} -C rows",
    (".7z", ".rar"): "7z x -orows {name}",
}
_WORKBOOKS = (".xlsx", ".xlsm", ".xls", ".ods")
_HEADER = re.compile(rb"[A-Za-z_][\w .-]*(?:[,;\t|][A-Za-z_][\w .-]*)+")
_TO_CSV = "python -c \"import pandas; pandas.read_{0}('{{name}}').to_csv('rows.csv', index=False)\""
_FOREIGN = {
    b"ARROW1": f"an Arrow (Feather) file; convert it: {_TO_CSV.format('feather')}",
    b"ORC": f"an ORC file; convert it: {_TO_CSV.format('orc')}",
    b"Obj\x01": "an Avro file; export it as Parquet or JSON Lines",
    b"SQLite format 3\x00": "an SQLite database; export its table as CSV",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it, and name the file or the folder with its files",
    b"version https://git-lfs": "a pointer of Git LFS; fetch the file itself: git lfs pull",
}
_ARRAY_IN_OBJECT = re.compile(rb'\{\s*"([^"\\]+)"\s*:\s*\[\s*\{')
_BULK = re.compile(rb'\{\s*"(?:index|create|update|delete)"\s*:\s*\{[^{}]*\}\s*\}$')
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_ZIP = b"PK\x03\x04"
_OLD_EXCEL = b"\xd0\xcf\x11\xe0"
_PARQUET = b"PAR1"


def format_of_name(name: str) -> Format | None:
    """Return the format that a file's name gives, as `log.csv.gz` gives CSV; None if it gives none."""
    plain = name.lower()
    for packing in PACKINGS:
        plain = plain.removesuffix(packing)
    return next((form for form, suffixes in SUFFIXES.items() if plain.endswith(suffixes)), None)


def format_of(source: PurePath, names: Sequence[str], is_file: bool) -> Format:
    """Return the format of a source by the names of its files.

    Raises:
        ConfigError: no name says it, one is a workbook's, or they are of several formats.
    """
    found = {form for name in names if (form := format_of_name(name))}
    if len(found) == 1:
        return found.pop()
    if found:
        raise ConfigError(
            f"--source {source}: the folder has {' and '.join(sorted(found))} files; say which with --format"
        )
    workbook = next((name for name in names if name.lower().endswith(_WORKBOOKS)), None)
    if workbook:
        raise ConfigError(f"--source {source}: {_workbook(source if is_file else source / workbook)}")
    for suffixes, unpack in _ARCHIVES.items():
        if packed := next((name for name in names if name.lower().endswith(suffixes)), None):
            raise ConfigError(
                f"--source {source}: {packed} is an archive; unpack it, and name the folder: "
                f"{unpack.format(name=source if is_file else source / packed)}"
            )
    options = " or ".join(f"--format {form}" for form in Format)
    raise ConfigError(f"--source {source}: the name does not tell the format; give {options}")


def content_by_magic(path: PurePath, start: bytes) -> str:
    """Return the name of a content that no format is, by its first bytes, with a way to convert it; empty: unknown."""
    if start.startswith(_ZIP):
        if b"xl/" in start:
            return _workbook(path)
        return "a zip archive; unpack it, and name the file or the folder with its files"
    if start.startswith(_OLD_EXCEL):
        return _workbook(path)
    return next((said.format(name=path.name) for magic, said in _FOREIGN.items() if start.startswith(magic)), "")


def foreign_content(path: PurePath, start: bytes, form: Format) -> str:
    """Return the name of a content that is not of `form`, with a way to convert it; empty if none is recognised.

    Args:
        start: the first bytes of the file, a few thousand if it has them, uncompressed.
    """
    if known := content_by_magic(path, start):
        return known
    if form is not Format.parquet and start.startswith(_PARQUET):
        return f"a Parquet file, not {form}; give --format parquet"
    if form is Format.parquet:
        return ""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:5].lower() in (b"<html", b"<!doc"):
        return "HTML, which is not read; export it as CSV or JSON Lines"
    if form is Format.xml:
        return "" if text.startswith((b"<", *_UTF_16)) else "not XML; give --format csv or jsonl"
    if encoding := _utf_16(start):
        return f"text in {encoding}; convert it: iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}"
    if text[:5].lower() in (b"<?xml", b"<rss ", b"<feed"):
        return f"XML, not {form}; give --format xml"
    if form is Format.csv and _is_json_line(text):
        return "JSON Lines, not csv; give --format jsonl"
    if form is Format.jsonl and _is_header(text):
        return "lines of fields, not jsonl; give --format csv"
    if form is Format.jsonl and (wrapper := _wrapper(text)):
        return wrapper.format(name=path.name)
    if form in (Format.jsonl, Format.csv) and text.startswith((b"[{", b"[\n", b"[\r", b"[ ")):
        other = "csv" if form is Format.csv else "JSON Lines"
        return f"a JSON array, not {other}; each line must be one JSON object: jq -c '.[]' {path.name} > rows.jsonl"
    return ""


def _utf_16(start: bytes) -> str:
    """Return the name of UTF-16 with a byte order mark, or without one by its zero bytes; empty for other texts."""
    if start.startswith(_UTF_16):
        return "UTF-16"
    pairs = len(start) // 2
    if pairs < 4:
        return ""
    even, odd = (start[place : 2 * pairs : 2].count(0) / pairs for place in (0, 1))
    if max(even, odd) > 0.4 and min(even, odd) < 0.1:  # Latin letters have one zero byte each
        return "UTF-16LE" if odd > even else "UTF-16BE"
    return ""


def _is_json_line(start: bytes) -> bool:
    line = start.partition(b"\n")[0].strip()
    try:
        return line.startswith(b"{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _wrapper(start: bytes) -> str:
    """Return the name of JSON that is not one record a line, with a way to convert it; empty for JSON Lines."""
    line = start.partition(b"\n")[0].strip()
    if line == b"{":
        return "JSON over several lines, not JSON Lines; write one object a line: jq -c . {name} > rows.jsonl"
    if found := _ARRAY_IN_OBJECT.match(line):
        key = found[1].decode(errors="replace")
        rows = f"jq -c '.[\"{key}\"][]' {{name}} > rows.jsonl"
        return f"an object around an array, not JSON Lines; take its rows out: {rows}"
    if _BULK.match(line):
        return "a bulk request of Elasticsearch; leave its action lines out: sed -n 'n;p' {name} > rows.jsonl"
    if line.startswith((b"{'", b"{\"'")):
        return "Python's own form of records, not JSON; write each with json.dumps"
    if line.startswith((b"data:", b"event:")):
        return "a stream of server-sent events; take their data out: sed -n 's/^data: //p' {name} > rows.jsonl"
    return ""


def _is_header(start: bytes) -> bool:
    """Return True for a first line of plain names with delimiters between them."""
    return _HEADER.fullmatch(start.partition(b"\n")[0].strip()) is not None


def _workbook(path: PurePath) -> str:
    target = f"{path.name.partition('.')[0]}.csv"
    target = f"new-{target}" if target == path.name else target
    return (
        f"{path.name} is an Excel workbook; save it as CSV UTF-8 in Excel, or convert it: "
        f"python -c \"import pandas; pandas.read_excel('{path.name}').to_csv('{target}', index=False)\""
    )
