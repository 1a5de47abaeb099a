"""A user's input files, in each format, plain or gzip, and their ingest into a workspace."""

import csv
import gzip
import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.directory import DirectoryStore
from infra.store.manifest import open_folder
from tasks.contracts.jobs import Progress
from tasks.contracts.spans import SpanKind
from tasks.data.files.formats import Format
from tasks.data.ingest import IngestOptions, IngestSummary, ingest
from tasks.data.rows import SPAN_KIND

GOOGLE = "http://base.google.com/ns/1.0"
CR = {"\r": "&#13;"}  # else a parser reads a line feed


def encoded(rows: Sequence[dict[str, Any]], form: Format) -> bytes:
    """The rows as the content of a file."""
    match form:
        case Format.jsonl:
            return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
        case Format.csv:
            text = io.StringIO(newline="")
            writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
            return text.getvalue().encode()
        case Format.parquet:
            content = io.BytesIO()
            some_groups = max(2, len(rows) // 20)  # also in a small file
            pq.write_table(pa.Table.from_pylist(list(rows)), content, row_group_size=some_groups)
            return content.getvalue()
        case Format.xml:
            items = "".join(f"<item>{''.join(map(_element, row.items()))}</item>\n" for row in rows)
            return f'<?xml version="1.0"?>\n<rss xmlns:g="{GOOGLE}"><channel>{items}</channel></rss>'.encode()


def _element(named: tuple[str, Any]) -> str:
    """A value as Google Merchant writes it, lists as repeated elements and nulls as empty ones."""
    name, value = named
    match value:
        case None:
            return f"<g:{name}/>"
        case list():
            return "".join(_element((name, each)) for each in value)
        case dict():
            return f"<g:{name}>{''.join(map(_element, value.items()))}</g:{name}>"
        case _:
            return f"<g:{name}>{escape(str(value), CR)}</g:{name}>"


def write_input(path: Path, rows: Sequence[dict[str, Any]], form: Format = Format.jsonl, packed: bool = False) -> Path:
    """One input file. With `packed` it is gzip, whatever its name."""
    content = encoded(rows, form)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return path


MAP = {"query": "text", "item": "title", "id": "id", "label": "stars"}


def review(number: int, day: str, **changes: Any) -> dict[str, Any]:
    row = {"id": f"r{number}", "at": f"{day}T08:30:00Z", "text": f"review {number}", "title": f"lamp {number % 3}"}
    return row | {"stars": float(number % 5), "price": 1.5 * number, "brand": "acme", "new": number % 2 == 0} | changes


ROWS = [
    review(1, "2026-02-01"),
    review(2, "2026-01-31", price=None),
    review(3, "2026-02-28", stars=None, brand="zen"),
    review(4, "2026-02-10", text=None),
]


def run(
    store: DirectoryStore,
    source: Path,
    form: Format = Format.jsonl,
    span: SpanKind = SpanKind.month,
    mapping: dict[str, str] = MAP,
    report: Callable[[Progress], None] = lambda _: None,
    **options: Any,
) -> IngestSummary:
    return ingest(
        store, source, form, "at", span, mapping, report=report, options=IngestOptions.model_validate(options)
    )


def versions(summary: IngestSummary) -> list[tuple[str, int, int, bool]]:
    return [(span.name, span.version, span.rows, span.new) for span in summary.spans]


def rows_of(store: DirectoryStore, span: str, version: int = 1) -> pa.Table:
    folder, _ = open_folder(store, f"spans/{span}/v{version}", SPAN_KIND)
    return pa.concat_tables(pq.read_table(part) for part in sorted(folder.glob("part-*.parquet")))


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
