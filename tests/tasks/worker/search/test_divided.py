"""Vectors divided among workers are read and searched as by one worker, bit for bit."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from infra.store.manifest import CorruptFolder, read_manifest
from tasks.contracts.jobs import ReleaseInputs
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef, RowsRef, SpanRef
from tasks.contracts.workspace import ASKED_FOLDER, SHARE
from tasks.worker.process import shared_work
from tasks.worker.process.job import Job, Rank
from tasks.worker.process.shared_work import answer, asking
from tasks.worker.search import divided
from tasks.worker.search.divided import DividedIndex, VectorShares
from tasks.worker.search.index import ABSENT, Found, Index
from tests.support.workspace.jobs import make_job, tiny_config
from tests.tasks.worker.search.test_index import MODEL, PREFIX, SHARDS, WIDTH, write

QUERIES = 40
ROWS = RowsRef(span=SpanRef(name="2026-01", version=1), prefix="runs/r/validate/rows/2026-01", rows=QUERIES)


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_work, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(shared_work, "GRACE_SECONDS", 0.05)
    monkeypatch.setattr("tasks.worker.search.index.BATCH_VECTORS", 50)


class Searches:
    """Vectors with many equal scores, and searches for them by some workers."""

    def __init__(self, folder: Path) -> None:
        drawn = np.random.default_rng(3).integers(-1, 2, size=(sum(SHARDS), WIDTH)).astype(np.float32)
        self.store = write(folder, drawn / np.maximum(np.linalg.norm(drawn, axis=1, keepdims=True), 1))
        chance = np.random.default_rng(4)
        self.queries = drawn[chance.integers(0, len(drawn), QUERIES)]
        self.own = np.where(chance.random(QUERIES) < 0.8, chance.integers(0, len(drawn), QUERIES), -1)
        self.shared = chance.random(len(drawn)) < 0.5
        at = np.sort(chance.integers(0, len(drawn), 30))
        self.relevant = chance.integers(0, QUERIES, 30), at

    def job(self, child: int, workers: int) -> Job:
        checkpoint = CheckpointRef(prefix="lineages/main/step-00000001", step=1, sha256="0" * 64)
        inputs = ReleaseInputs(
            model=ModelRef(checkpoint=checkpoint, version=MODEL), vectors=PREFIX, rows=(ROWS,), metrics={},
            catalogue=CatalogueRef(prefix="catalogues/c", items=1, partitions=4, sha256="0" * 64),
        )  # fmt: skip
        return make_job(self.store, tiny_config(), inputs, f"by-{workers}", rank=Rank(0, 1, 0, 1, child, workers))

    @contextlib.contextmanager
    def index(self, workers: int, others: bool = False) -> Iterator[Index]:
        """The vectors as the first of some workers sees them.

        Args:
            others: the other workers come too.
        """
        jobs = [self.job(child, workers) for child in range(1, workers) if others]
        threads = [threading.Thread(target=answer, args=(job, VectorShares(job).of)) for job in jobs]
        for thread in threads:
            thread.start()
        job = self.job(0, workers)
        with asking(job, VectorShares(job).of) as asked:
            yield Index(self.store, PREFIX, MODEL) if asked is None else DividedIndex(job, asked, PREFIX, MODEL)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()

    def found(self, index: Index, k: int = 10) -> Found:
        return index.search(self.queries, k, self.own, shared=self.shared, relevant=self.relevant)


@pytest.fixture
def searches(tmp_path: Path) -> Searches:
    return Searches(tmp_path)


def same(one: Found, other: Found) -> None:
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("k", [1, 10, 100, 1000])
def test_a_search_finds_what_one_worker_finds(searches: Searches, k: int) -> None:
    """Of equal scores the first counts, also if they are in several shares; a share may have fewer vectors than k."""
    with searches.index(1) as index:
        alone = searches.found(index, k)
    assert (alone.ranks != ABSENT).sum() > 20
    assert (np.diff(alone.scores[:, :5]) == 0).any() or k == 1
    for workers in (2, 3, 8):
        with searches.index(workers, others=True) as index:
            same(searches.found(index, k), alone)


def read(index: Index) -> list[Any]:
    """What a reader gets of an index, besides searches."""
    places = index.places_of(["i161", "i3", "none", "i40", "i3"])
    return [
        index.vectors, index.width, index.max_tokens, places.tolist(), index.at(places).tolist(),
        index.at(np.array([-1, -1])).tolist(), index.items(places), index.items(np.array([-1])),
        np.concatenate([hashes for _, hashes in index.text_hashes()]).tolist(),
        [row for _, rows in index.tables(["item_id", "content_sha256"]) for row in rows.to_pylist()],
    ]  # fmt: skip


def test_items_texts_and_vectors_are_those_that_one_worker_reads(searches: Searches) -> None:
    with searches.index(1) as index:
        alone = read(index)
    for workers in (2, 3):
        with searches.index(workers, others=True) as index:
            assert read(index) == alone


def test_the_first_worker_does_all_if_no_other_comes(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the others once, and not at each question."""
    with searches.index(1) as index:
        alone = searches.found(index)
    slept = list[float]()
    monkeypatch.setattr(shared_work, "sleep", slept.append)
    monkeypatch.setattr(shared_work, "uptime", lambda: sum(slept))
    with searches.index(3) as index:
        same(searches.found(index), alone)
        read(index)
    assert sum(slept) == pytest.approx(shared_work.GRACE_SECONDS, abs=0.02)


def test_each_worker_opens_its_share_alone(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[tuple[str, tuple[int, ...]]]()
    real = divided.Index

    def index(*args: Any, partitions: tuple[int, ...]) -> Index:
        opened.append((threading.current_thread().name, partitions))
        return real(*args, partitions=partitions)

    monkeypatch.setattr(divided, "Index", index)
    monkeypatch.setattr(shared_work, "GRACE_SECONDS", 60)
    with searches.index(2, others=True) as whole:
        searches.found(whole)
        read(whole)
    assert sorted(partitions for _, partitions in opened) == [(0, 1, 2), (3,)]
    assert len({name for name, _ in opened}) == 2


def test_a_later_attempt_takes_the_shares_that_are_done(searches: Searches, monkeypatch: pytest.MonkeyPatch) -> None:
    with searches.index(2) as index:
        first = searches.found(index)
    monkeypatch.setattr(VectorShares, "_open", None)
    with searches.index(2) as index:
        same(searches.found(index), first)
    assert searches.store.list(SHARE.within(run="by-2", stage="release"))


def test_questions_name_the_rows_and_vectors_they_are_made_of(searches: Searches) -> None:
    """So an erasure of a row takes the vector of its query too."""
    with searches.index(2) as index:
        searches.found(index)
    questions = {
        key.rpartition("/")[0] for key in searches.store.list(ASKED_FOLDER.within(run="by-2", stage="release"))
    }
    asked = [key for key in questions if "/asked/" in key]
    assert len(asked) == 3
    assert all(read_manifest(searches.store, key).facts["of"] == [PREFIX, ROWS.prefix] for key in asked)


def test_a_damaged_shard_is_the_first_workers_to_report(searches: Searches) -> None:
    searches.store.path(f"{PREFIX}/part-00003.parquet").write_bytes(b"no Parquet")
    with pytest.raises(CorruptFolder, match="part-00003"), searches.index(2, others=True):
        raise NotImplementedError("it was opened")
