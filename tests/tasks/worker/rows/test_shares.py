"""The comparison with earlier spans by several workers gives the sides that one worker writes, byte for byte."""

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec, ValidateInputs
from tasks.contracts.references import RowsRef, SpanRef
from tasks.foundation.errors import CodeError
from tasks.judging.golden_set import store_golden_set
from tasks.worker.process import shared_work
from tasks.worker.process.cores import Cores
from tasks.worker.process.job import Job, PhaseClock, Rank
from tasks.worker.process.shared_work import divide
from tasks.worker.rows import duplicates
from tasks.worker.rows.duplicates import LeftOut, find_sides
from tasks.worker.rows.shares import answer, asking
from tests.support.cloud.s3 import S3Server
from tests.support.workspace.jobs import commit_rows, tiny_config

CONFIG = tiny_config("evaluate.group=row_id", "evaluate.holdout_share=0.3")
WORDS = [f"word{number}" for number in range(40)]
Found = tuple[tuple[RowsRef, ...], tuple[LeftOut, ...]]


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_work, "WAIT_SECONDS", 0.01)
    monkeypatch.setattr(shared_work, "GRACE_SECONDS", 0.05)


def rows_of(draw: random.Random, span: str, count: int) -> pa.Table:
    """Rows of few texts, some of which differ by a word or not at all, and of few ids."""
    texts = []
    for _ in range(count):
        kind = draw.randrange(25)
        words = [f"{word}x{kind}" for word in WORDS]
        for _ in range(draw.choice([0, 0, 1, 2, 8])):
            words[draw.randrange(len(words))] = f"other{draw.randrange(1000)}"
        texts.append(" ".join(words))
    return pa.table(
        {
            "row_id": [f"{draw.choice(['r', span])}{draw.randrange(4 * count)}" for _ in range(count)],
            "time": pa.array([None] * count, pa.timestamp("us", "UTC")),
            "query": texts,
            "item": [f"lamp {draw.randrange(3)}" for _ in range(count)],
            "item_id": [f"i{draw.randrange(9)}" for _ in range(count)],
            "label": pa.array([1.0] * count),
        }
    )


class Lineage:
    """A history and a window of random rows in a workspace, and the validations of the window."""

    def __init__(self, folder: Path, seed: int, spans: int = 6, window: int = 2, golden: bool = True) -> None:
        self.folder, self.store, draw = folder, DirectoryStore(folder / "workspace"), random.Random(seed)
        names = [f"2026-W{number:02d}" for number in range(10, 10 + spans + window)]
        tables = {name: rows_of(draw, name, draw.randrange(40, 80)) for name in names}
        plain = [commit_rows(self.store, name, table, folder / "made") for name, table in tables.items()]
        self.window, self.history, self.golden = plain[spans:], list[RowsRef](), None
        for number, ref in enumerate(plain[:spans]):
            (ref,), _ = find_sides(
                self.store, [ref], self.history, CONFIG, f"runs/{draw.randrange(2**32):08x}/validate/sides",
                self.scratch(f"before-{number}"), Cores(()),
            )  # fmt: skip
            self.history.append(ref)
        if golden:
            file = folder / "golden.jsonl"
            row = tables[names[-1]].slice(0, 1).to_pylist()[0]
            file.write_text(f'{{"query": "{row["query"]}", "item": "{row["item"]}"}}\n')
            self.golden = store_golden_set(self.store, str(file))

    def scratch(self, name: str) -> Path:
        made = self.folder / "scratch" / name
        made.mkdir(parents=True)
        return made

    def job(self, index: int, workers: int, store: Store | None = None, attempt: int = 1, run: str = "") -> Job:
        store = store or self.store
        inputs = ValidateInputs(
            window=tuple(ref.span for ref in self.window), history=tuple(self.history), feeds=(), bases=()
        )
        spec = JobSpec(
            run_key=run or f"by-{workers}", span=SpanRef(name="2026-W20", version=1), attempt=attempt,
            submitted_as=attempt, workspace=store.uri, workers=workers, config=CONFIG, inputs=inputs,
        )  # fmt: skip
        return Job(spec, store, Rank(index, workers, index), PhaseClock(0.0))

    def first(self, job: Job, name: str = "first") -> Found:
        """The sides by the first worker; their names are hashes of their bytes."""
        with asking(job, no_keys) as asked:
            return find_sides(
                job.store, self.window, self.history, CONFIG, "runs/k/validate/sides", self.scratch(name), Cores(()),
                self.golden, asked.meet if asked is not None else None,
            )  # fmt: skip

    def alone(self) -> Found:
        return self.first(self.job(0, 1), "alone")


def no_keys(rows: Sequence[RowsRef], earlier: Sequence[RowsRef], folder: Path, scratch: Path) -> None:
    raise NotImplementedError("nobody asks for pairs")


def helped(jobs: Sequence[Job]) -> list[threading.Thread]:
    threads = [threading.Thread(target=answer, args=(job, no_keys)) for job in jobs]
    for thread in threads:
        thread.start()
    return threads


def end(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


@pytest.mark.parametrize(("seed", "compared"), [(1, 20), (2, 1), (3, 3)])
def test_the_sides_are_those_of_one_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, compared: int
) -> None:
    """Many rows have more rows like them, in several shares, than they are compared with."""
    monkeypatch.setattr(duplicates, "COMPARED", compared)
    lineage = Lineage(tmp_path, seed)
    alone = lineage.alone()
    assert min(sum(left.training for left in alone[1]), sum(left.held for left in alone[1])) > 3
    assert sum(left.golden for left in alone[1]) > 0
    for workers in (2, 3, 8):
        others = helped([lineage.job(index, workers) for index in range(1, workers)])
        assert lineage.first(lineage.job(0, workers), f"by-{workers}") == alone
        end(others)


def test_the_sides_are_those_of_one_worker_if_a_share_is_read_in_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duplicates, "COMPARED", 2)
    lineage = Lineage(tmp_path, 4)
    alone = lineage.alone()
    monkeypatch.setattr(duplicates, "BYTES_AT_ONCE", 1)
    assert lineage.first(lineage.job(0, 2)) == alone


def test_the_first_worker_does_all_shares_if_no_other_comes(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 5, golden=False)
    assert lineage.first(lineage.job(0, 3)) == lineage.alone()


class Dead(BaseException):
    """A worker is killed."""


def test_a_lost_workers_share_is_taken_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found its rows, and dies before it has written them."""
    lineage = Lineage(tmp_path, 6, window=1)
    alone = lineage.alone()
    real, lost, died = shared_work.commit, threading.Event(), list[str]()

    def commit(store: Store, prefix: str, *rest: object) -> object:
        if threading.current_thread() is not threading.main_thread() and not lost.is_set():
            died.append(prefix)
            raise Dead
        assert lost.wait(60)
        return real(store, prefix, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_work, "commit", commit)

    def die() -> None:
        with pytest.raises(Dead):
            answer(lineage.job(1, 3), no_keys)
        lost.set()

    thread = threading.Thread(target=die)
    thread.start()
    assert lineage.first(lineage.job(0, 3)) == alone
    thread.join(60)
    assert lineage.store.exists(f"{died[0]}/MANIFEST.json")


def test_a_twin_and_a_later_attempt_change_nothing(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 7, window=1)
    first = lineage.first(lineage.job(0, 2))
    before = {key: lineage.store.read(key) for key in lineage.store.list("runs/by-2/validate/shares")}
    assert lineage.first(lineage.job(0, 2), "twin") == first
    assert lineage.first(lineage.job(0, 2, attempt=2), "later") == first
    after = {key: lineage.store.read(key) for key in lineage.store.list("runs/by-2/validate/shares")}
    assert {key: content for key, content in after.items() if not key.endswith(".lease")} == {
        key: content for key, content in before.items() if not key.endswith(".lease")
    }


def test_a_damaged_share_is_done_again(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 8, window=1)
    first = lineage.first(lineage.job(0, 2))
    damaged = [key for key in lineage.store.list("runs/by-2/validate/shares") if key.endswith(".parquet")]
    lineage.store.path(damaged[0]).write_bytes(b"no Parquet")
    assert lineage.first(lineage.job(0, 2, attempt=2), "again") == first
    assert lineage.store.list("quarantine")


def test_others_leave_once_the_first_worker_has_failed(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 9, spans=2, window=1)
    others = helped([lineage.job(1, 2)])
    with pytest.raises(CodeError), asking(lineage.job(0, 2), no_keys):
        raise CodeError("it is not fit to train on")
    end(others)


def test_others_leave_without_a_sign_of_the_first_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_work, "PATIENCE_SECONDS", 0.1)
    end(helped([Lineage(tmp_path, 10, spans=2, window=1).job(1, 2)]))


def test_nobody_asks_or_waits_without_earlier_spans(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 11, spans=0, window=1)
    with asking(lineage.job(0, 2), no_keys) as asked:
        assert asked is None
        answer(lineage.job(1, 2), no_keys)


def test_an_array_compares_in_a_bucket(tmp_path: Path, s3: S3Server) -> None:
    lineage = Lineage(tmp_path, 12, spans=3, window=1)
    alone = lineage.alone()
    bucket = open_store(s3.new_workspace())
    for key in lineage.store.list(""):
        bucket.upload(lineage.store.path(key), key)
    others = helped([lineage.job(1, 2, bucket, run="in-a-bucket")])
    assert lineage.first(lineage.job(0, 2, bucket, run="in-a-bucket")) == alone
    end(others)


def test_earlier_rows_that_are_like_none_make_empty_shares(tmp_path: Path) -> None:
    lineage = Lineage(tmp_path, 13, spans=3, window=1, golden=False)
    lineage.window = [commit_rows(lineage.store, "2026-W30", others(rows_of(random.Random(0), "x", 40)), tmp_path)]
    assert lineage.first(lineage.job(0, 2)) == lineage.alone()
    assert not [key for key in lineage.store.list("runs/by-2/validate/shares") if key.endswith(".parquet")]


def others(rows: pa.Table) -> pa.Table:
    texts = [text.replace("word", "another") for text in rows["query"].to_pylist()]
    rows = rows.set_column(rows.column_names.index("query"), "query", pa.array(texts))
    return rows.set_column(0, "row_id", pa.array([f"new{number}" for number in range(rows.num_rows)]))


def test_shares_are_consecutive_and_about_as_large() -> None:
    found = divide(range(50), [7] * 50, 8)
    assert [each for share in found for each in share] == [*range(50)]
    assert {len(share) for share in found} == {6, 7}
    assert [len(share) for share in divide("abcd", [100, 1, 1, 100], 2)] == [2, 2]


def test_more_workers_than_spans_leave_some_without_a_share() -> None:
    assert divide("abc", [5, 5, 5], 8) == [("a",), ("b",), ("c",)]
    assert divide("", [], 8) == []
