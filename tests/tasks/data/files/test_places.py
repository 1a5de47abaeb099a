"""Sources in a bucket are read as local ones are."""

from __future__ import annotations

import gzip
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tasks.data.files.formats import Format
from tasks.data.files.sources import SourceReader, source_path
from tasks.data.look import ROWS_THAT_TELL
from tasks.foundation.errors import ConfigError, StoreError
from tests.support.cloud.s3 import Fault, S3Server
from tests.support.processes.command import call
from tests.support.workspace.inputs import encoded, write_input

LONG = [
    {"at": "2026-10-01", "q": f"bright light {n % 9}", "title": f"Lamp {n}", "sku": f"S{n}"}
    for n in range(2 * ROWS_THAT_TELL)
]


def put(s3: S3Server, files: dict[str, bytes]) -> str:
    """The URI of a prefix with these objects."""
    uri = s3.new_workspace().removesuffix("/some/workspace")
    for key, content in files.items():
        s3.client.put_object(Bucket=uri.removeprefix("s3://"), Key=f"in/{key}", Body=content)
    return f"{uri}/in"


@pytest.mark.parametrize("form", list(Format))
def test_objects_are_read_as_files_are(s3: S3Server, tmp_path: Path, form: Format) -> None:
    local = write_input(tmp_path / f"log.{form}", LONG, form)
    packed = gzip.compress(local.read_bytes())
    uri = put(
        s3,
        {
            f"event=click/0.{form}": local.read_bytes(),
            f"event=view/0.{form}.gz": packed,
            f"_temporary/1.{form}": b"unfinished",
            "event=view/": b"",
        },
    )
    rows = [row.values for row in SourceReader(local)]
    reader = SourceReader(source_path(uri))
    assert [row.values for row in reader] == [{"event": name, **row} for name in ("click", "view") for row in rows]
    assert (reader.bytes_read, reader.bytes_total) == (reader.bytes_total, len(packed) + local.stat().st_size)
    assert [row.values for row in SourceReader(source_path(f"{uri}/event=click/0.{form}"))] == rows


def test_a_connection_that_breaks_is_taken_up_and_a_changed_object_is_refused(s3: S3Server) -> None:
    uri = put(s3, {"log.csv": b"a,b\n" + b"".join(b"%d,%s\n" % (n, b"x" * 90) for n in range(5000))})
    reader = SourceReader(source_path(f"{uri}/log.csv"))
    s3.faults = [Fault("GET", when="during", about="log.csv")] * 2
    rows = iter(reader)
    assert [next(rows).values["a"] for _ in range(4000)] == [str(n) for n in range(4000)]
    assert not s3.faults
    s3.faults = [Fault("GET", when="during", about="log.csv")]
    rows = iter(reader)
    next(rows)
    bucket = uri.removeprefix("s3://").removesuffix("/in")
    s3.client.put_object(Bucket=bucket, Key="in/log.csv", Body=b"a,b\n" + b"1,2\n" * 200_000)
    with pytest.raises(StoreError, match=r"in/log\.csv was changed"):
        list(rows)


def test_a_bucket_or_prefix_that_is_not_there_is_named(s3: S3Server) -> None:
    uri = put(s3, {"log.csv": b"a,b\n1,2\n"})
    for wrong, said in ((f"{uri}/lo", "no such object"), ("s3://no-such-bucket/x", "no-such-bucket")):
        with pytest.raises(ConfigError, match=said):
            SourceReader(source_path(wrong))
    for text in ("s3://", "gs://bucket/x"):
        with pytest.raises(ConfigError, match=r"s3://bucket/prefix"):
            source_path(text)


def test_the_printed_command_ingests_a_prefix(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = put(s3, {"day=1/0.parquet": encoded(LONG, Format.parquet), "day=2/0.parquet": encoded(LONG, Format.parquet)})
    shown = call(capsys, "look", uri)
    assert shown.code == 0, shown.err
    ingested = call(capsys, *shlex.split(shown.out.splitlines()[-1])[1:])
    assert ingested.code == 0, ingested.err
    rows = [row for path in Path("workspace").rglob("part-*.parquet") for row in pq.read_table(path).to_pylist()]
    assert sorted(row["item_id"] for row in rows) == sorted(2 * [row["sku"] for row in LONG])
    assert {row["day"] for row in rows} == {1.0, 2.0}
