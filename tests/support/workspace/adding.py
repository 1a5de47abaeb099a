"""Releases made by `add`, each with its own small model and vectors, and a second writer at the worst moment."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import tasks.runs.adding_releases
from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import CheckpointRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.runs import releases
from tests.support.fakes.fake_runner import commit_files
from tests.support.workspace.specs import CATALOGUE, MADE_BY


def write_outputs(store: DirectoryStore, run_key: str) -> None:
    commit_files(store, f"models/m-{run_key}", {"weights": run_key}, "model")
    commit_files(store, f"vectors/m-{run_key}/2021-Q1", {"part-0.parquet": run_key}, "vectors")


def add(
    store: DirectoryStore, run_key: str, span: str = "2021-Q1", refreshed: int | None = None, by: str | None = None
) -> Release:
    """A release of run `run_key` with its own small model, or by the model of run `by`, and vectors of its own."""
    version = f"m-{by or run_key}"
    model = ModelRef(version=version, checkpoint=CheckpointRef(prefix="lineages/main/x", step=1, sha256=run_key))
    if not store.list(f"models/m-{run_key}"):
        write_outputs(store, run_key)
    return tasks.runs.adding_releases.add(
        store,
        span=SpanRef(name=span, version=1),
        run_key=run_key,
        model=model,
        exported=ReleaseOutcome(
            model=f"models/m-{run_key}",
            model_sha256=read_manifest(store, f"models/m-{run_key}").sha256,
            min_cosine=1.0,
            probed=8,
            **MADE_BY,
        ),
        inferred=InferOutcome(
            prefix=f"vectors/m-{run_key}/2021-Q1",
            vectors=7,
            width=4,
            shards=1,
            shards_reused=0,
            texts_per_second=1.0,
            catalogue=CATALOGUE,
            ids_sha256="0",
        ),
        metrics={"recall@10": 0.5},
        refreshed=refreshed,
        confirm=lambda: None,
    )


def serving(store: DirectoryStore) -> int | None:
    release = releases.current(store)
    return release.number if release else None


class Rival(DirectoryStore):
    """A store where another writer acts, or the process dies, just before the n-th conditional write to releases/."""

    def __init__(self, other: DirectoryStore, acts: Mapping[int, Callable[[], object]]) -> None:
        super().__init__(other.root)
        self._acts, self._writes = acts, itertools.count()

    def create(self, key: str, data: bytes) -> None:
        self._disturb(key)
        super().create(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        self._disturb(key)
        super().swap(key, data, expected)

    def _disturb(self, key: str) -> None:
        act = self._acts.get(next(self._writes)) if key.startswith("releases/") else None
        if act is not None:
            act()


class Killed(BaseException):
    """As by SIGKILL: nothing catches it."""


def die() -> None:
    raise Killed
