import bz2
import datetime as dt
import gzip
import io
import json
import lzma
import os
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.data.files import csv_rows, readers
from tasks.data.files.csv_rows import CsvOptions, Quote
from tasks.data.files.formats import Format
from tasks.data.files.readers import Cursor, Unread, Unreadable
from tasks.data.files.sources import SourceReader
from tasks.foundation.errors import ConfigError, DataError
from tests.support.workspace.inputs import encoded, write_input

ROWS = [
    {"id": "a", "text": "süß, and\nsour", "price": 1.5},
    {"id": "b", "text": None, "price": None},
    {"id": "c", "text": 'a "quote"', "price": 3.0},
]
AS_TEXTS = [{key: None if value is None else str(value) for key, value in row.items()} for row in ROWS]


def read(path: Path, form: Format) -> list[tuple[str, int, dict[str, Any]]]:
    return [(row.file.name, row.row, row.values) for row in SourceReader(path, form)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", list(Format))
def test_rows_are_read_as_they_were_written(tmp_path: Path, form: Format, packed: bool) -> None:
    path = write_input(tmp_path / "named-like-nothing", ROWS, form, packed)
    expected = AS_TEXTS if form.texts_are_values else ROWS
    assert read(path, form) == [(path.name, number, row) for number, row in enumerate(expected, start=1)]


def test_items_of_a_feed_in_xml_are_rows_of_their_elements(tmp_path: Path) -> None:
    path = tmp_path / "feed.xml"
    path.write_text(
        '<?xml version="1.0" encoding="ISO-8859-1"?><feed xmlns="http://www.w3.org/2005/Atom" '
        'xmlns:g="http://base.google.com/ns/1.0"><id>feed</id><entry><title>Pan &amp; lid</title>'
        '<link href="https://shop.example/1"/><id>tag:1</id><g:id>S1</g:id><link>second</link>'
        "<g:shipping><g:country>DE</g:country><g:price>5 EUR</g:price></g:shipping>"
        "<g:label> a </g:label><g:label><![CDATA[<b>]]></g:label></entry><entry><g:id>\u00e9</g:id></entry></feed>",
        "latin-1",
    )
    assert [row.values for row in SourceReader(path)] == [
        {
            "title": "Pan & lid",
            "link": ["https://shop.example/1", "second"],
            "id": "S1",
            "shipping": {"country": "DE", "price": "5 EUR"},
            "label": ["a", "<b>"],
        },
        {"id": "\u00e9"},
    ]


@pytest.mark.parametrize("form", list(Format))
def test_a_folder_is_read_in_the_order_of_names_without_hidden_or_other_files(tmp_path: Path, form: Format) -> None:
    ending = f".{form.value}"
    write_input(tmp_path / f"b{ending}", ROWS[:1], form)
    write_input(tmp_path / "a" / f"z{ending.upper()}.gz", ROWS[1:], form, packed=True)
    write_input(tmp_path / f".hidden{ending}", ROWS, form)
    write_input(tmp_path / ".hidden" / f"c{ending}", ROWS, form)
    (tmp_path / "README.md").write_text("what this is")
    (tmp_path / f"folder{ending}").mkdir()
    found = [(name, row) for name, row, _ in read(tmp_path, form)]
    assert found == [(f"z{ending.upper()}.gz", 1), (f"z{ending.upper()}.gz", 2), (f"b{ending}", 1)]


def test_another_delimiter_in_the_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").write_text("when;text;title\n2026-11-01;lamp;Lamp\n")
    with pytest.raises(DataError, match=r"--delimiter semicolon"):
        list(SourceReader(tmp_path / "log.csv", Format.csv, CsvOptions(",")))


def test_the_row_of_jsonl_is_its_line_with_blank_lines_counted(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": "\xe2\x80\xa8"}')
    assert read(path, Format.jsonl) == [("x", 1, {"a": 1}), ("x", 4, {"a": "\u2028"})]


def test_the_row_of_csv_counts_records_and_not_lines(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'\xef\xbb\xbfa,b\r\n"x\ny",\r\n\r\n3,4')
    assert read(path, Format.csv) == [("x", 1, {"a": "x\ny", "b": None}), ("x", 2, {"a": "3", "b": "4"})]


def test_a_csv_cell_may_be_longer_than_the_standard_limit(tmp_path: Path) -> None:
    path = write_input(tmp_path / "x", [{"a": "x" * 200_000}], Format.csv)
    assert len(read(path, Format.csv)[0][2]["a"]) == 200_000


def test_gzip_may_consist_of_several_members(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(b'{"a": 1}\n') + gzip.compress(b'{"a": 2}\n'))
    assert [row for _, _, row in read(path, Format.jsonl)] == [{"a": 1}, {"a": 2}]


def test_parquet_timestamps_of_any_unit_are_datetimes(tmp_path: Path) -> None:
    moment = dt.datetime(2026, 11, 20, 8, 30, tzinfo=dt.UTC)
    columns = {unit: pa.array([moment], pa.timestamp(unit, "UTC")) for unit in ("ms", "us", "ns")}
    pq.write_table(pa.table(columns), tmp_path / "x")
    ((_, _, row),) = read(tmp_path / "x", Format.parquet)
    assert row == dict.fromkeys(columns, moment)
    assert {type(value) for value in row.values()} == {dt.datetime}


def test_times_of_spark_do_not_wrap_around(tmp_path: Path) -> None:
    moments = [dt.datetime(2026, 11, 20, 8, 30), dt.datetime(2611, 2, 1), dt.datetime(9999, 12, 31)]
    table = pa.table({"at": pa.array(moments, pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "x", use_deprecated_int96_timestamps=True)
    assert [row["at"] for _, _, row in read(tmp_path / "x", Format.parquet)] == moments


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", list(Format))
def test_progress_counts_the_bytes_of_the_files(tmp_path: Path, form: Format, packed: bool) -> None:
    for name in ("a", "b"):
        write_input(tmp_path / f"{name}.{form.value}", ROWS, form, packed)
    reader = SourceReader(tmp_path, form)
    counts = [reader.bytes_read for _ in reader]
    assert counts == sorted(counts)
    assert 0 < counts[0] <= counts[-1] <= reader.bytes_read
    assert reader.bytes_read == reader.bytes_total == sum(Path(f).stat().st_size for f in reader.files)


def parquet_of(table: pa.Table) -> bytes:
    content = io.BytesIO()
    pq.write_table(table, content)
    return content.getvalue()


def packed(data: bytes) -> bytes:
    """The same bytes at any time, because they are in the names of tests."""
    return gzip.compress(data, mtime=0)


def zstandard(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


GOOD = b'{"a": 1}\n'
NOISE = random.Random(0).randbytes(20_000).hex()
PACKED = packed(json.dumps({"a": NOISE}).encode() + b"\n")
WORKBOOK = io.BytesIO()
with zipfile.ZipFile(WORKBOOK, "w", zipfile.ZIP_DEFLATED) as archive:
    for member in ("[Content_Types].xml", "_rels/.rels", "xl/workbook.xml"):
        archive.writestr(zipfile.ZipInfo(member), f"<x>{member}</x>")
BAD = [
    (Format.jsonl, b"", "the file is empty"),
    (Format.csv, b"", "the file is empty"),
    (Format.parquet, b"", "the file is empty"),
    (Format.csv, WORKBOOK.getvalue(), r"an Excel workbook; save it as CSV UTF-8.*python -c .*read_excel\('input'\)"),
    (Format.jsonl, b"\xd0\xcf\x11\xe0\xa1\xb1", "an Excel workbook"),
    (Format.csv, b"PK\x03\x04 log.csv", "a zip archive; unpack it"),
    (Format.csv, encoded(ROWS, Format.parquet), "a Parquet file, not csv; give --format parquet"),
    (Format.csv, "a,b\n".encode("utf-16"), "UTF-16; convert it: iconv -f UTF-16 -t UTF-8 input"),
    (Format.jsonl, b"\n\n", "no rows"),
    (Format.csv, b"a,b\n", "no rows"),
    (Format.parquet, parquet_of(pa.table({"a": pa.array([], pa.string())})), "no rows"),
    (Format.jsonl, packed(b""), "no rows"),
    (Format.jsonl, PACKED[:-20], "the compressed data is cut off"),
    (Format.jsonl, packed(GOOD * 9999) + PACKED[:5000], "row [0-9]+ or later: the compressed data is cut off"),
    (Format.csv, PACKED[:-20], "the compressed data is cut off"),
    (Format.parquet, PACKED[:-20], "the compressed data is cut off"),
    (Format.jsonl, PACKED[:5000] + b"\x00" * 50 + PACKED[5050:], "the compressed data is cut off or damaged"),
    (Format.jsonl, packed(GOOD) + b"garbage", "the compressed data is cut off or damaged"),
    (Format.jsonl, lzma.compress(GOOD * 99)[:-20], "the compressed data is cut off or damaged"),
    (Format.jsonl, bz2.compress(NOISE.encode())[:-20], "the compressed data is cut off or damaged"),
    (Format.csv, b"BZh" + NOISE.encode(), "the compressed data is cut off or damaged .Invalid data stream"),
    (Format.jsonl, zstandard(NOISE.encode())[:-20], "the compressed data is cut off or damaged"),
    (Format.jsonl, GOOD + b'{"a": 1', "row 2: not JSON"),
    (Format.jsonl, GOOD + b"\n[1, 2]\n", "row 3: a JSON list"),
    (Format.jsonl, b"[\n", "a JSON array, not JSON Lines; each line must be one JSON object"),
    (Format.jsonl, b"[" * 100_000, "row 1: not JSON"),
    (Format.jsonl, GOOD + b'{"a": "\xff"}\n', "row 2: byte 0xff is not valid UTF-8"),
    (Format.csv, b"a,b\n1,2\n3,\xe4\n", "row 2: byte 0xe4 is not valid UTF-8.*iconv -f WINDOWS-1252"),
    (Format.csv, b"a,b\n1,2\n3\n", "row 2: 1 of 2 fields: column 'b' is missing"),
    (Format.csv, b"a,b\n1,2,3\n", "row 1: 3 fields, but the header ends after 2, with column 'b'"),
    (Format.csv, b"a,a\n1,2\n", "the header has column 'a' twice"),
    (Format.csv, b'a,b\n1,2\n3,"4, 5\n5,6\n', "row 2: not CSV.*a quote opens in .* never closed.*--quote none"),
    (Format.csv, b'a,b\n1,2\n3,"4" x, 5\n5,6\n', "row 2: not CSV: text follows a closing quote.*--quote backslash"),
    (Format.csv, b"a,b\r1,2\r", r"lines end with CR alone.*tr '\\r' '\\n' < input"),
    (Format.csv, "a,b\n1,2\n".encode("utf-16-le"), "UTF-16LE; convert it: iconv -f UTF-16LE"),
    (Format.jsonl, '{"a": 1}\n'.encode("utf-16-be"), "UTF-16BE; convert it"),
    (Format.jsonl, b'{\n "a": 1\n}\n', r"over several lines.*jq -c \. input"),
    (Format.jsonl, b'{"products": [{"a": 1}]}', r"""around an array.*jq -c '.\["products"\]\[\]' input"""),
    (Format.jsonl, b'{"index":{"_id":"1"}}\n' + GOOD, "bulk request of Elasticsearch.*sed -n 'n;p' input"),
    (Format.jsonl, b"{'a': 1}\n", "Python's own form"),
    (Format.jsonl, b'data: {"a": 1}\n', "server-sent events.*sed -n 's/"),
    (Format.csv, GOOD, "JSON Lines, not csv; give --format jsonl"),
    (Format.jsonl, b"at,q\n2026-01-01,x\n", "lines of fields, not jsonl; give --format csv"),
    (Format.csv, b"<?xml version='1.0'?><rss/>", "XML, not csv; give --format xml"),
    (Format.xml, b"<!doctype html><item/>", "HTML, which is not read"),
    (Format.xml, b"id,title\n1,a\n", "not XML"),
    (Format.xml, b"<rss><item><id>1</id></item><item><id>2", "row 1: .* line 1; it is cut off"),
    (Format.xml, b"<rss><item><id>1</id></item><item><id>2</a></item></rss>", "row 1: .* mismatched tag"),
    (Format.xml, b"<products><product><id>1</id></product></products>", "but <products>, <product>, <id>; export"),
    (Format.xml, b'<?xml version="1.0"?><!DOCTYPE r [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><item>&b;</item>', "<!DOC"),
    (Format.xml, b"<item>" + b"<a>" * 99, "32 elements in each other"),
    (Format.csv, b"ARROW1\x00\x00", "an Arrow .Feather. file; convert it"),
    (Format.parquet, b"not parquet at all", "not readable as Parquet"),
    (Format.parquet, encoded(ROWS, Format.parquet)[:-30], "not readable as Parquet"),
    (Format.parquet, packed(b"not parquet"), "not readable as Parquet"),
    (Format.parquet, parquet_of(pa.table([["x"], ["y"]], names=["a", "a"])), "two columns are named 'a'"),
]


@pytest.mark.parametrize(("form", "content", "message"), BAD)
def test_a_damaged_file_is_an_error_that_names_file_and_row(
    tmp_path: Path, form: Format, content: bytes, message: str
) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"(?s){path}.*{message}"):
        read(path, form)


def test_a_damaged_parquet_page_is_an_error(tmp_path: Path) -> None:
    content = bytearray(parquet_of(pa.table({"a": [NOISE, NOISE[::-1]]})))
    content[4:60] = bytes(56)
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=r"x, row 1: .*Parquet"):
        read(tmp_path / "x", Format.parquet)


def test_a_very_long_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_ROW_BYTES", 1000)
    path = write_input(tmp_path / "x", [{"a": "x" * 900}, {"a": "x" * 1000}])
    with pytest.raises(DataError, match=r"x, row 2: .*--format"):
        read(path, Format.jsonl)


def test_a_row_of_many_lines_is_no_longer_than_one_of_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MAX_ROW_BYTES", 1000)
    (tmp_path / "x").write_text("a,b\n" + "1,2\n" * 1000 + '"a\n",' * 1000)
    with pytest.raises(DataError, match=r"x, row 1001: a row of"):
        read(tmp_path / "x", Format.csv)


def test_empty_lines_before_the_header_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("\n\na,b\n1,2\n")
    assert read(tmp_path / "x", Format.csv) == [("x", 1, {"a": "1", "b": "2"})]


def test_a_header_of_many_names_is_read_in_a_moment(tmp_path: Path) -> None:
    """Each name compared with each other one would take an hour."""
    names = [f"c{number}" for number in range(200_000)]
    (tmp_path / "x").write_text(f"{','.join([*names, 'c7'])}\n")
    with pytest.raises(DataError, match="column 'c7' twice"):
        read(tmp_path / "x", Format.csv)


def test_a_zone_that_nobody_knows_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(parquet_of(pa.table({"t": pa.array([0], pa.timestamp("us", "Mars/Olympus"))})))
    with pytest.raises(DataError, match=r"row 1: .*'Mars/Olympus'"):
        read(tmp_path / "x", Format.parquet)


def test_a_quote_that_is_never_closed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MAX_FIELD_CHARS", 1000)
    path = tmp_path / "x"
    path.write_text('a,b\n1,"2, 3\n' + "3 4\n" * 1000)
    with pytest.raises(DataError, match="x, row 1: not CSV"):
        read(path, Format.csv)


BEFORE = "at,q,t\n" + "2026-01-01,lamp,Lamp\n" * 5000  # more lines than the form is told of
LINES_OF_ROWS = '2026-01-02,"kettle,Kettle\n2026-01-03,mug,Mug\n2026-01-04,24",Screen\n'


def test_a_cell_that_holds_rows_is_refused_unless_a_person_says_it_is_a_text(tmp_path: Path) -> None:
    """The rows between two stray quotes would vanish in one text."""
    path = tmp_path / "x.csv"
    path.write_text(BEFORE + LINES_OF_ROWS)
    with pytest.raises(DataError, match=r"row 5001: .*--quote none"):
        read(path, Format.csv)
    asked = {quote: list(SourceReader(path, csv=CsvOptions(quote=quote))) for quote in (Quote.none, Quote.double)}
    assert [len(rows) for rows in asked.values()] == [5003, 5001]
    assert asked[Quote.none][5000].values["q"] == '"kettle'


def test_quotes_after_backslashes_are_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('a,b\n1,"24\\" screen, \\\\ wide"\n2,C:\\temp\n')
    assert [row["b"] for _, _, row in read(tmp_path / "x", Format.csv)] == ['24" screen, \\ wide', "C:\\temp"]


def test_a_column_without_a_name_is_named_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "x").write_text(",q\n0,lamp\n")
    assert read(tmp_path / "x", Format.csv) == [("x", 1, {"column_1": "0", "q": "lamp"})]


@pytest.mark.parametrize("error", [TimeoutError("timed out"), ConnectionResetError(), OSError(5, "Input/output error")])
def test_a_connection_or_disk_that_fails_is_no_damaged_file(error):
    with pytest.raises(type(error)), Cursor(Path("log.csv"), Format.csv, Unread(None)).explaining():
        raise error


@pytest.mark.parametrize("pack", [bz2.compress, lzma.compress, zstandard, lambda data: packed(packed(data))])
@pytest.mark.parametrize("form", list(Format))
def test_packed_files_are_read(tmp_path: Path, form: Format, pack: Callable[[bytes], bytes]) -> None:
    (tmp_path / "x").write_bytes(pack(encoded(ROWS, form)))
    assert [row for _, _, row in read(tmp_path / "x", form)] == (AS_TEXTS if form.texts_are_values else ROWS)


def test_objects_that_a_log_service_joined_are_rows(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{"a": 1}{"a": {"b": 2}} {"a": 3}\n{"a": 4}')
    assert [(number, row) for _, number, row in read(tmp_path / "x", Format.jsonl)] == [
        (1, {"a": 1}), (1, {"a": {"b": 2}}), (1, {"a": 3}), (2, {"a": 4})
    ]  # fmt: skip


def read_and_set_aside(path: Path, form: Format) -> tuple[list[Any], list[tuple[int, bytes]]]:
    bad: list[Unreadable] = []
    rows = [row.values for row in SourceReader(path, form, unreadable=lambda found, error: bad.append(found))]
    return rows, [(each.line, each.content) for each in bad]


@pytest.mark.parametrize(
    ("form", "lines", "bad"),
    [
        (Format.csv, [b"a,b,c\n", b"1,x,z\n", b"2,caf\xe9,z\n", b"3,tea, green,z\n", b"4,y\n", b"5,z,z\n"], [3, 4, 5]),
        (Format.csv, [b"a,b,c\n", b"1,x,z\n", b'2,"a\n', b'\xe9",z\n', b"5,z,z\n"], [(3, 2)]),  # one record
        (Format.csv, [b"a,b,c\n", b"1,x,z\n", b'2,"q, r,z\n', b"3,s,z\n", b'4,"t, u"v,z\n', b"5,z,z\n"], [3, 5]),
        (Format.jsonl, [b'{"a":1}\n', b'{"a":"la\n', b'{"a":"\xff"}\n', b"7\n", b'{"a":5}\n'], [2, 3, 4]),
    ],
)
def test_rows_that_cant_be_read_are_set_aside_with_their_bytes(
    tmp_path: Path, form: Format, lines: list[bytes], bad: list[int | tuple[int, int]]
) -> None:
    (tmp_path / "x").write_bytes(b"".join(lines))
    rows, aside = read_and_set_aside(tmp_path / "x", form)
    places = [(each, 1) if isinstance(each, int) else each for each in bad]
    assert aside == [(first, b"".join(lines[first - 1 : first - 1 + count])) for first, count in places]
    header = form is Format.csv
    assert len(rows) == len(lines) - header - sum(count for _, count in places), "rows in = rows out and aside"
    assert str(rows[-1]["a"]) == "5"


def test_too_many_rows_that_cant_be_read_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{"a":1}\n' * 150 + b"no\n" * 10)
    assert len(read_and_set_aside(tmp_path / "x", Format.jsonl)[1]) == 10
    (tmp_path / "x").write_bytes(b'{"a":1}\n' * 150 + b"no\n" * 11)
    with pytest.raises(DataError, match=r"11 of 161 rows .*5%"):
        read_and_set_aside(tmp_path / "x", Format.jsonl)


def test_the_folders_of_a_path_are_columns(tmp_path: Path) -> None:
    for place in ("event=click/day=2026-10-01", "event=click/day=__HIVE_DEFAULT_PARTITION__", "event=a%2Fb/hour=7"):
        write_input(tmp_path / "log" / place / "0.jsonl", [{"a": 1}])
    write_input(tmp_path / "log" / "event=click" / "_temporary" / "0.jsonl", ROWS)
    assert [row for _, _, row in read(tmp_path / "log", Format.jsonl)] == [
        {"event": "a/b", "hour": 7, "a": 1},
        {"event": "click", "day": "2026-10-01", "a": 1},
        {"event": "click", "day": None, "a": 1},
    ]


def test_files_without_rows_pass_if_another_has_some(tmp_path: Path) -> None:
    write_input(tmp_path / "b.csv", ROWS, Format.csv)
    (tmp_path / "a.csv").write_text("id,text,price\n")
    (tmp_path / "c.csv").touch()
    reader = SourceReader(tmp_path)
    assert (len(list(reader)), reader.empty_files) == (3, 2)
    (tmp_path / "b.csv").write_text("id,text,price\n")
    with pytest.raises(DataError, match="2 other files"):
        list(SourceReader(tmp_path))


def test_one_file_in_two_packings_is_refused(tmp_path: Path) -> None:
    """Its rows would count twice."""
    write_input(tmp_path / "log.csv", ROWS, Format.csv)
    write_input(tmp_path / "log.csv.gz", ROWS, Format.csv, packed=True)
    with pytest.raises(ConfigError, match=r"log\.csv and log\.csv\.gz"):
        SourceReader(tmp_path)


@pytest.mark.parametrize(
    ("log", "name"), [("_delta_log/0.json", "Delta"), ("metadata/v1.metadata.json", "Iceberg"), (".hoodie/x", "Hudi")]
)
def test_a_table_with_a_log_is_refused_by_name(tmp_path: Path, log: str, name: str) -> None:
    """Its files hold replaced and deleted rows too."""
    write_input(tmp_path / "tbl" / "part-0.parquet", ROWS, Format.parquet)
    write_input(tmp_path / "tbl" / log, ROWS)
    with pytest.raises(ConfigError, match=rf"an? {name} table"):
        SourceReader(tmp_path / "tbl", Format.parquet)


def test_a_missing_path_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere: no such file"):
        SourceReader(tmp_path / "nowhere", Format.jsonl)


def test_a_folder_without_files_of_the_format_is_a_config_error(tmp_path: Path) -> None:
    write_input(tmp_path / "a.jsonl", ROWS)
    with pytest.raises(ConfigError, match=r"for \*\.csv, \*\.tsv"):
        SourceReader(tmp_path, Format.csv)


def test_a_pipe_is_a_config_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="neither a file"):
        SourceReader(tmp_path / "pipe", Format.jsonl)


@pytest.mark.parametrize("line", [b"sep=;\r\n", b'"sep=;"\r\n', b"\xef\xbb\xbfsep=;\n"])
def test_the_first_line_of_excel_that_names_the_delimiter_is_no_header(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "x").write_bytes(line + b"a;b\r\n1;2,5\r\n")
    assert read(tmp_path / "x", Format.csv) == [("x", 1, {"a": "1", "b": "2,5"})]


def test_a_file_named_tsv_has_tabs_if_its_lines_do_not_tell(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a,b\tc\n1,2\t3\n")
    assert [row.values for row in SourceReader(tmp_path / "x.tsv")] == [{"a,b": "1,2", "c": "3"}]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", list(Format))
def test_the_name_of_a_file_tells_its_format(tmp_path: Path, form: Format, packed: bool) -> None:
    path = write_input(tmp_path / f"Log.{form.value.upper()}{'.gz' if packed else ''}", ROWS, form, packed)
    assert SourceReader(path).form is form
    assert SourceReader(tmp_path).form is form


def test_a_name_that_tells_no_format_asks_for_it(tmp_path: Path) -> None:
    write_input(tmp_path / "log.dat", ROWS)
    for source in (tmp_path, tmp_path / "log.dat"):
        with pytest.raises(ConfigError, match="give --format jsonl or"):
            SourceReader(source)
    assert len(list(SourceReader(tmp_path / "log.dat", Format.jsonl))) == len(ROWS)


def test_a_folder_of_two_formats_asks_for_one(tmp_path: Path) -> None:
    write_input(tmp_path / "a.jsonl", ROWS)
    write_input(tmp_path / "a.csv", ROWS, Format.csv)
    with pytest.raises(ConfigError, match="say which with --format"):
        SourceReader(tmp_path)


def test_a_workbook_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "log.xlsx").write_bytes(WORKBOOK.getvalue())
    for source in (tmp_path, tmp_path / "log.xlsx"):
        with pytest.raises(ConfigError, match=r"log\.xlsx .*to_csv"):
            SourceReader(source)
