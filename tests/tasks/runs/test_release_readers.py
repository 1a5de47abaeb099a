"""A reader in another process, while releases, refreshes and rollbacks follow each other as fast as they can."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import Store
from infra.store.manifest import commit, read_manifest
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import CheckpointRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.runs import releases
from tasks.runs.adding_releases import add
from tasks.runs.rollback import rollback
from tests.support.workspace.specs import CATALOGUE, MADE_BY
from tests.support.workspace.stores import STORES

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 3.0
SHARDS = 3


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    return STORES[request.param](request)


class Writer:
    """Makes releases whose vectors name their model, each with a number of vectors of its own."""

    def __init__(self, store: Store) -> None:
        self.store, self.made = store, 0

    def release(self) -> Release:
        """A release of a new model."""
        version = f"m-{self.made}"
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "version.txt").write_text(version)
            commit(self.store, f"models/{version}", Path(folder), "model", {})
        return self._release(version, [version] * SHARDS, None)

    def refresh(self) -> Release:
        """A release of the current model with other vectors."""
        current = self.current()
        return self._release(current.model.version, [current.model.version] * SHARDS, current.number)

    def mixture(self) -> Release:
        """What must never be: a shard by another model."""
        current = self.current()
        return self._release(current.model.version, [current.model.version] * (SHARDS - 1) + ["other"], current.number)

    def rollback(self) -> None:
        """To any release but the current one."""
        others = [number for number in range(1, self.made + 1) if number != self.current().number]
        rollback(self.store, random.choice(others))

    def current(self) -> Release:
        current = releases.current(self.store)
        assert current is not None
        return current

    def _release(self, version: str, by: list[str], refreshed: int | None) -> Release:
        self.made += 1
        prefix = f"vectors/{version}/{self.made}"
        with tempfile.TemporaryDirectory() as folder:
            for number, model in enumerate(by):
                rows = self.made if number == 0 else 1
                shard = {"item_id": [f"{number}-{row}" for row in range(rows)], "model_version": [model] * rows}
                pq.write_table(pa.table(shard), Path(folder) / f"part-{number:05d}.parquet")
            commit(self.store, prefix, Path(folder), "vectors", {"model_version": version})
        return add(
            self.store,
            span=SpanRef(name="2021-Q1", version=1),
            run_key=f"run-{self.made}",
            model=ModelRef(version=version, checkpoint=CheckpointRef(prefix="lineages/main/x", step=1, sha256="x")),
            exported=ReleaseOutcome(
                model=f"models/{version}",
                model_sha256=read_manifest(self.store, f"models/{version}").sha256,
                min_cosine=1.0,
                probed=1,
                **MADE_BY,
            ),
            inferred=InferOutcome(
                prefix=prefix,
                vectors=self.made + SHARDS - 1,
                width=1,
                shards=SHARDS,
                shards_reused=0,
                texts_per_second=1.0,
                catalogue=CATALOGUE,
                ids_sha256="0",
            ),
            metrics={},
            refreshed=refreshed,
            confirm=lambda: None,
        )


@contextlib.contextmanager
def reading(store: Store) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """A reader that works inside the block; the function returns what it saw, and ends it unless `end` is false."""
    command = [sys.executable, "-m", "tests.support.processes.release_reader", store.uri]
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryFile("w+") as seen,  # a pipe that is not read would stop it
        subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=seen, stderr=pipe, text=True) as at,
    ):

        def looks(end: bool = True) -> list[dict[str, Any]]:
            if end:
                _, errors = at.communicate(timeout=60)
                assert at.returncode == 0, errors
            written = os.pread(seen.fileno(), os.fstat(seen.fileno()).st_size, 0)  # the reader shares the file's place
            return [json.loads(line) for line in written.decode().split("\n")[:-1]]

        try:
            until(lambda: at.poll() is not None or os.fstat(seen.fileno()).st_size > 0)
            yield looks
        finally:
            at.kill()


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "the reader does not begin"
        time.sleep(0.05)


def mixtures(looks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What no search may ever meet."""
    return [
        each
        for each in looks
        if each["vectors_by"] != [each["model"]]
        or each["encoder"] != each["model"]
        or each["vectors"] != each["recorded"]
    ]


def test_a_reader_never_sees_a_mixture(store):
    writer = Writer(store)
    writer.release()
    with reading(store) as looks:
        started = time.monotonic()
        while time.monotonic() < started + SECONDS or len({each["release"] for each in looks(end=False)}) <= 3:
            assert time.monotonic() < started + 60, "the reader met only few of the releases"
            for act in (writer.release, writer.refresh, writer.rollback):
                act()
        seen = looks()
    assert mixtures(seen) == []
    numbers = [each["release"] for each in seen]
    assert any(later < earlier for earlier, later in itertools.pairwise(numbers)), "it met no rollback"


def test_this_reader_would_see_a_mixture(store):
    writer = Writer(store)
    writer.release()
    writer.mixture()
    with reading(store) as looks:
        seen = looks()
    assert mixtures(seen) == seen != []
