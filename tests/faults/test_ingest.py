import errno
import gzip
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import Conflict
from tasks.contracts.spans import SpanKind
from tasks.data import source_spans
from tasks.data.files.formats import Format
from tasks.data.mapping import parse_map
from tasks.data.span_versions import list_spans
from tasks.foundation.errors import ConfigError, DataError, DiskError, StoreError
from tests.support.workspace.inputs import MAP, ROWS, files_in, review, rows_of, run, versions, write_input


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, which must be empty afterwards."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_map_is_read_from_the_command_line() -> None:
    assert parse_map("query=text, item=product_title,label=a=b") == {
        "query": "text",
        "item": "product_title",
        "label": "a=b",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query=text", "'item' is missing"),
        ("item=title", "'query' is missing"),
        ("", "'' is not name=column"),
        ("query,item=title", "'query' is not name=column"),
        ("query=,item=title", "'query=' is not name=column"),
        ("query=a,query=b,item=c", "'query' is given twice"),
        ("query=a,item=b,lable=c", "unknown name 'lable'; the nearest is 'label'"),
        ("query=a,item=b,xyz=c", "unknown name 'xyz'; known are query, item, id, item_id, label"),
    ],
)
def test_a_wrong_map_is_refused_with_the_right_form(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"{message}.* --map query="):
        parse_map(text)


BAD_ROWS = [
    (review(9, "2026-03-01", at="yesterday"), r"input, row 5, column 'at': 'yesterday' is not a time"),
    (review(9, "2026-03-01", at=None), "input, row 5, column 'at': no time"),
    (review(9, "2026-03-01", stars="five"), "input, row 5, column 'stars': 'five' is not a number"),
]


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize(("bad", "message"), BAD_ROWS)
def test_a_bad_value_leaves_nothing(
    store: DirectoryStore, tmp_path: Path, scratch: Path, bad: dict[str, Any], message: str, form: Format
) -> None:
    rows = [*ROWS, bad]
    if form is not Format.jsonl:  # their columns have one type
        rows = [{k: None if v is None else str(v) for k, v in row.items()} for row in rows]
    if form is Format.csv and bad["at"] is None:
        message = "input, row 5, column 'at'"
    with pytest.raises(DataError, match=message):
        run(store, write_input(tmp_path / "input", rows, form), form)
    assert files_in(scratch) == []
    assert not store.root.exists()


@pytest.mark.parametrize("content", [gzip.compress(json.dumps(ROWS[0]).encode() * 50, mtime=0)[:-8], b'{"at": 0\n'])
def test_a_damaged_file_leaves_nothing(store: DirectoryStore, tmp_path: Path, scratch: Path, content: bytes) -> None:
    (tmp_path / "in").mkdir()
    write_input(tmp_path / "in" / "1.jsonl", ROWS)
    (tmp_path / "in" / "2.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"2\.jsonl"):
        run(store, tmp_path / "in")
    assert files_in(scratch) == []
    assert not store.root.exists()


@pytest.mark.parametrize("form", list(Format))
@pytest.mark.parametrize("name", ["query", "item", "id", "label"])
def test_a_missing_mapped_column_is_refused(store: DirectoryStore, tmp_path: Path, name: str, form: Format) -> None:
    source = write_input(tmp_path / "input", ROWS, form)
    message = rf"input: missing column 'oops', which --map gives as {name}; the columns are at, brand, .*title"
    with pytest.raises(DataError, match=message):
        run(store, source, form, mapping=MAP | {name: "oops"})
    assert not store.root.exists()


@pytest.mark.parametrize("form", [Format.csv, Format.parquet])
def test_the_one_file_without_a_mapped_column_is_named(store: DirectoryStore, tmp_path: Path, form: Format) -> None:
    write_input(tmp_path / "in" / f"1.{form.value}", ROWS, form)
    renamed = [{("heading" if key == "title" else key): value for key, value in row.items()} for row in ROWS]
    write_input(tmp_path / "in" / f"2.{form.value}", renamed, form)
    with pytest.raises(DataError, match=rf"2\.{form.value}: .*'title'"):
        run(store, tmp_path / "in", form)


def test_a_missing_time_column_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", [{"text": "a", "title": "b"}])
    with pytest.raises(DataError, match=r"row 1, column 'at'"):
        run(store, source, mapping={"query": "text", "item": "title"})


def test_a_workspace_has_spans_of_one_length(store: DirectoryStore, tmp_path: Path) -> None:
    source = write_input(tmp_path / "input", ROWS)
    run(store, source, span=SpanKind.month)
    with pytest.raises(ConfigError, match=r"such as '2026-01'"):
        run(store, source, span=SpanKind.quarter)
    assert [span.name for span in list_spans(store)] == ["2026-01", "2026-02"]


class FullStore(DirectoryStore):
    """Takes `room` uploads, then writes half of the next one and has no space left."""

    room = 1

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        if not self.room:
            super().upload(source, f"{key}.half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= 1
        super().upload(source, key, instead_of)


def test_a_full_workspace_keeps_only_complete_spans(tmp_path: Path, scratch: Path) -> None:
    store = FullStore(tmp_path / "workspace")
    source = write_input(tmp_path / "input", ROWS)
    with pytest.raises(StoreError, match=r"no space .*workspace"):
        run(store, source)
    assert store.list("spans") == ["spans/2026-01/v1/MANIFEST.json", "spans/2026-01/v1/part-00000.parquet"]
    assert files_in(scratch) == []
    store.room = 9
    assert versions(run(store, source)) == [("2026-01", 1, 1, False), ("2026-02", 1, 3, True)]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a file on a full disk")
@pytest.mark.parametrize("full", ["2026-02.jsonl", "2026-02/part-00000.parquet"])
def test_a_full_temporary_disk_leaves_nothing(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    prepared = tmp_path / "prepared"
    (prepared / full).parent.mkdir(parents=True)
    (prepared / full).symlink_to("/dev/full")
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *_, **__: str(prepared))
    many = [review(number, "2026-02-01", text="x" * 1000) for number in range(100)]
    with pytest.raises(StoreError, match=r"no space .*temporary"):
        run(store, write_input(tmp_path / "input", many))
    assert not prepared.exists()
    assert not store.root.exists()


def test_a_disk_that_is_full_of_tables_is_named(
    store: DirectoryStore, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(store, write_input(tmp_path / "input", ROWS))
    source = write_input(tmp_path / "more", [review(number, "2026-02-01") for number in range(9)])
    monkeypatch.setattr(source_spans, "SETTINGS", (*source_spans.SETTINGS, "max_page_count = 2"))
    with pytest.raises(DiskError, match=r"no space .*TMPDIR"):
        run(store, source, known="merge")
    assert files_in(scratch) == []


def test_the_files_of_a_killed_ingest_are_deleted(store: DirectoryStore, tmp_path: Path) -> None:
    store.write("spans/2026-02/v1/part-00007.parquet", b"half a span")
    run(store, write_input(tmp_path / "input", ROWS))
    assert store.list("spans/2026-02") == ["spans/2026-02/v1/MANIFEST.json", "spans/2026-02/v1/part-00000.parquet"]
    assert len(rows_of(store, "2026-02")) == 3


def test_the_next_ingest_deletes_the_temporary_files_of_a_killed_one(
    store: DirectoryStore, tmp_path: Path, scratch: Path
) -> None:
    (scratch / "millrace-ingest-killed").mkdir()
    (scratch / "millrace-ingest-killed" / "2026-02.jsonl").write_bytes(b"rows in clear text")
    run(store, write_input(tmp_path / "input", ROWS))
    assert list(scratch.iterdir()) == []


def test_an_ingest_that_waited_in_vain_names_the_other(
    store: DirectoryStore, tmp_path: Path, scratch: Path, impatient: None
) -> None:
    source = write_input(tmp_path / "input", ROWS)
    with store.lock("ingest"), pytest.raises(Conflict, match=f"in use by process {os.getpid()} on "):
        run(store, source)
    assert store.list("spans") == []
    assert files_in(scratch) == []


def test_five_ingests_at_once_all_succeed(
    store: DirectoryStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    days = [f"2026-{month:02}-03" for month in range(1, 6)]
    sources = [write_input(tmp_path / day, [review(1, day)]) for day in days]
    with ThreadPoolExecutor(len(sources)) as pool:
        with store.lock("ingest"):
            ingests = [pool.submit(run, store, source) for source in sources]
            deadline = time.monotonic() + 60
            while len(caplog.messages) < len(sources) and time.monotonic() < deadline:
                time.sleep(0.01)
        assert all(one.result(60).rows == 1 for one in ingests)
    assert [ref.name for ref in list_spans(store)] == [day[:7] for day in days]
    assert len(caplog.messages) == len(sources)
    assert all("ingest" in line and "10 minutes" in line for line in caplog.messages)
