"""Bytes and requests that validate and train need for the spans before a run's own, by the number of these spans.

    python -m tests.benchmarks.history [--rows 2000] [--spans 3 10 50] [--keep]

Spans of equal size are made up and validated one after the other, each once with new pairs and once with one half that
an earlier span has too. Requests are counted as a bucket would get them.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from configs.load import load_config
from infra.store.directory import DirectoryStore
from tasks.contracts.references import RowsRef, SpanRef
from tasks.worker.process.cores import Cores
from tasks.worker.rows.duplicates import find_sides
from tasks.worker.training.known_pairs import LineageKeys
from tasks.worker.training.replay import ReplayedRows
from tasks.worker.training.row_keys import write_span_keys
from tests.benchmarks.figures import add_keep, measuring
from tests.benchmarks.training_memory import write_span
from tests.support.workspace.jobs import change_rows

CONFIG = load_config()
UNITS = ("requests", "bytes a row before")
KINDS = (("new", False, 0.0), ("half again", True, 0.0), ("new, 30 % replayed", False, 0.3))


class Bucket(DirectoryStore):
    """A directory that counts requests and bytes as a bucket would; a file is fetched once."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.begin()

    def begin(self) -> None:
        self.requests, self.bytes, self._fetched = 0, 0, set[Path]()

    def read(self, key: str) -> bytes:
        content = super().read(key)
        self.requests, self.bytes = self.requests + 1, self.bytes + len(content)
        return content

    def exists(self, key: str) -> bool:
        self.requests += 1
        return super().exists(key)

    def local(self, key: str, names: Collection[str] | None = None) -> Path:
        path = super().local(key, names)
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
        files = [file for file in files if names is None or file.name in names]
        new = [file for file in files if file not in self._fetched]
        self._fetched |= {*new}
        self.requests += (1 if path.is_file() or names is not None else 2) + len(new)
        self.bytes += sum(file.stat().st_size for file in new)
        return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000)
    parser.add_argument("--spans", type=int, nargs="+", default=[3, 10, 50])
    add_keep(parser)
    arguments = parser.parse_args()
    with measuring("history", arguments.keep) as sheet:
        sheet.table("rows", "spans before", *(f"{stage}: {what}" for stage in ("validate", "train") for what in UNITS))
        for what, again, replay in KINDS:
            with tempfile.TemporaryDirectory(prefix="millrace-history-") as name:
                lineage = Lineage(Path(name), arguments.rows, again, replay)
                for before in range(max(arguments.spans) + 1):
                    requests, size = lineage.validate()
                    if before in arguments.spans:
                        of_train, read = lineage.train()
                        rows = before * arguments.rows
                        sheet.row(what, before, requests, size / rows, of_train, read / rows)


class Lineage:
    """Spans that go through the parts of validate and train that read the history."""

    def __init__(self, folder: Path, rows: int, again: bool, replay: float) -> None:
        self._config = load_config(None, (f"train.replay={replay}",))
        self._bucket, self._folder, self._rows, self._again = Bucket(folder / "workspace"), folder, rows, again
        self._refs: list[RowsRef] = []
        self._plain: list[RowsRef] = []

    def validate(self) -> tuple[int, int]:
        """Validate the next span; return the requests, and bytes read."""
        number = len(self._refs)
        span = SpanRef(name=f"2026-{number:03d}", version=1)
        ref = write_span(self._bucket, self._rows, span, number)
        if self._again and number:
            half = (self._bucket, self._plain[number // 2])
            ref = change_rows(self._bucket, ref, span.name, lambda rows: _half_again(rows, half), self._folder)
        self._plain.append(ref)
        scratch = self._folder / span.name
        scratch.mkdir()
        self._bucket.begin()
        (ref,), _ = find_sides(self._bucket, [ref], self._refs, CONFIG, f"runs/{number}/sides", scratch, Cores(()))
        prefix = f"runs/{number}/validate"
        ref = write_span_keys(
            self._bucket, ref, CONFIG.heads, f"{prefix}/keys/{span.name}", scratch / "keys", Cores(())
        )
        replayed = ReplayedRows.of(self._bucket, self._config, (ref,), (*self._refs,), None)
        drawn = replayed.commit(f"{prefix}/replayed/{span.name}", scratch / "replayed")
        replayed = dataclasses.replace(replayed, folder=drawn)
        self._keys = LineageKeys(self._bucket, (ref,), (*self._refs,), None, CONFIG.heads, replayed)
        self._positives = self._keys.commit_known(f"{prefix}/positives/{span.name}", scratch / "positives")
        self._refs.append(ref)
        return self._bucket.requests, self._bucket.bytes

    def train(self) -> tuple[int, int]:
        """Learn the pairs of the last span; return the requests, and bytes read."""
        self._bucket.begin()
        keys = dataclasses.replace(self._keys, positives=self._positives)
        assert keys.open_committed() is not None
        sum(rows.num_rows for rows in keys.replayed)  # reads them
        return self._bucket.requests, self._bucket.bytes


def _half_again(rows: pa.Table, other: tuple[DirectoryStore, RowsRef]) -> pa.Table:
    store, ref = other
    (file,) = store.path(ref.prefix).glob("*.parquet")
    half = rows.num_rows // 2
    return pa.concat_tables([rows.slice(0, half), pq.read_table(file).slice(half)])


if __name__ == "__main__":
    main()
