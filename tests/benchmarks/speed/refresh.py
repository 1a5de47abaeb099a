"""The cost of a refresh for one new item among many: seconds, bytes, memory, and requests to a bucket.

    python -m tests.benchmarks.speed.refresh [--items 20000 200000 1000000] [--keep]

Items are embedded by a tiny model of the installed command's own training. Then one more comes: in a feed of its own,
in a bucket, and last in an export of all items. CPU seconds are the command's and its workers', without the Prefect
server's.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import re
import resource
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from flows.demo.search_log import write_shop
from infra.prefect_server import client_environment, down, up
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.manifest import read_manifest
from tasks.runs import releases
from tests.benchmarks.figures import Cell, Sheet, add_keep, measuring
from tests.benchmarks.scale import CONFIG_FILE, ITEM_MAP, QUICK
from tests.benchmarks.scale_input import write_items
from tests.benchmarks.watched import Watched
from tests.support.cloud.s3 import S3Server

# The default shard size in place of the demo's.
USUAL = ["infer.shard_rows=4096", "validate.max_text_chars=2000"]
VERBS = ("LIST", "GET", "HEAD", "PUT", "DELETE", "POST")


class Measured(NamedTuple):
    """One refresh: seconds by the clock and of the processor, peak MiB of its largest process, and the new files."""

    seconds: float
    cpu: float
    mib: float
    bytes: int
    files: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--items", type=int, nargs="+", default=[20_000, 200_000, 1_000_000])
    add_keep(parser)
    arguments = parser.parse_args()
    with (
        measuring("refresh", arguments.keep) as sheet,
        tempfile.TemporaryDirectory(prefix="millrace-refresh-") as name,
    ):
        folder = Path(name)
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(client_environment(up(folder / "prefect")))
        os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
        server = S3Server()  # one for all: moto keeps the buckets of a stopped one
        try:
            first = _released(folder)
            sheet.table("items", "a feed of", "seconds", "CPU seconds", "bytes", "of all vectors'", "files", "peak MiB")
            asked = [_measure(sheet, folder, first, items, server) for items in arguments.items]
            sheet.table("items", "partitions", *(f"{verb} requests" for verb in VERBS), "all")
            for cells in asked:
                sheet.row(*cells)
        finally:
            server.stop()
            down(folder / "prefect")


def _released(folder: Path) -> Path:
    """Return a workspace with the release of a tiny model."""
    write_shop(folder / "shop.jsonl.gz", spans=1, rows_per_span=2000, seed=7)
    form = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month")
    columns = "id=query_id,query=query,item=product,item_id=product_id,label=bought"
    workspace = folder / "first"
    _run(workspace, "ingest", "--source", str(folder / "shop.jsonl.gz"), *form, "--map", columns)
    sets = [part for each in (*QUICK, *USUAL) for part in ("--set", each)]
    _run(workspace, "run", "--config", str(CONFIG_FILE), *sets)
    return workspace


def _measure(sheet: Sheet, folder: Path, first: Path, items: int, server: S3Server) -> tuple[Cell, ...]:
    """Add the refreshes in a folder; return the row of the one in a bucket."""
    workspace, feed = folder / str(items), folder / "items.jsonl"
    shutil.copytree(first, workspace)
    _ingest(workspace, write_items(feed, items))
    _refresh(workspace)
    store = DirectoryStore(workspace)
    release = releases.current(store)
    assert release is not None
    one = write_items(folder / "one.jsonl", 1, changed=True, first=items + 1)
    bucket = folder / f"{items}-bucket"
    shutil.copytree(workspace, bucket)
    _ingest(workspace, one)
    vectors = sum(entry.bytes for entry in read_manifest(store, release.vectors_prefix).files)
    for lines, source in ((1, None), (items + 1, write_items(feed, items + 1))):
        if source is not None:
            _ingest(workspace, source, "--replace")
        found = _refresh(workspace)
        share = f"{found.bytes / vectors:.2%}"
        sheet.row(items, lines, found.seconds, found.cpu, found.bytes, share, found.files, found.mib)
    requests = _in_a_bucket(server, bucket, one)
    shutil.rmtree(workspace)
    shutil.rmtree(bucket)
    return items, release.catalogue.partitions, *(requests[verb] for verb in VERBS), requests.total()


def _ingest(workspace: Path | str, source: Path, *more: str) -> None:
    form = ("--format", "jsonl", "--time-column", "updated_at", "--span", "month", "--map", ITEM_MAP)
    _run(workspace, "ingest", "--items", str(source), *form, *more)


def _run(workspace: Path | str, *arguments: str) -> Watched:
    with Watched(workspace, *arguments, "--json") as command:
        output = json.loads(command.finish())
    if "release" in output and output["release"] is None:
        raise RuntimeError(f"millrace {' '.join(arguments)} released nothing: {output}")
    return command


def _refresh(workspace: Path | str) -> Measured:
    """Refresh as a user would."""
    before, used = _files(workspace), _cpu()
    command = _run(workspace, "refresh", "--config", str(CONFIG_FILE))
    new = [size for file, (size, _) in (_files(workspace).items() - before.items())]
    return Measured(command.seconds, _cpu() - used, max(command.peaks.values()), sum(new), len(new))


def _files(workspace: Path | str) -> dict[str, tuple[int, int]]:
    """Return size and time of change of each file; empty for a bucket."""
    found = (path for path in Path(workspace).rglob("*") if path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _in_a_bucket(server: S3Server, workspace: Path, one: Path) -> collections.Counter[str]:
    """Copy a workspace into a bucket, add one item, and return the requests of the refresh by verb."""
    os.environ["AWS_ENDPOINT_URL"] = server.url
    try:
        uri = server.new_workspace()
        store = open_store(uri)
        for path in (path for path in workspace.rglob("*") if path.is_file() and ".locks" not in path.parts):
            store.upload(path, path.relative_to(workspace).as_posix())
        _ingest(uri, one)
        server.requests.clear()
        _refresh(uri)
        return collections.Counter(map(_verb, server.requests))
    finally:
        del os.environ["AWS_ENDPOINT_URL"]


def _verb(request: str) -> str:
    return "LIST" if re.match(r"GET .*[?&]list-type=", request) else request.split()[0]


if __name__ == "__main__":
    main()
