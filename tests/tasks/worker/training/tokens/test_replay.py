"""Replayed rows: the sample, the files that are read for it, and the folder that validate writes."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.manifest import FileEntry, commit, open_entry, read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import GroupRange, HoldoutRule, RowsRef, SpanRef
from tasks.data.holdout import split_holdout
from tasks.data.rows import ROWS_KIND, part_name
from tasks.worker.process.job import Rank
from tasks.worker.training import replay as replaying
from tasks.worker.training.replay import Replay, ReplayedRows
from tasks.worker.training.training_rows import replayed_rows
from tests.support.workspace.jobs import (
    FEATURES,
    all_rows,
    change_rows,
    make_job,
    make_workspace,
    tiny_config,
    write_rows,
)

IDS = [f"row {number}" for number in range(20_000)]


def span(rows: int, name: str = "2026-01") -> RowsRef:
    return RowsRef(span=SpanRef(name=name, version=1), prefix=name, rows=rows)


def ids(rows: Iterable[pa.Table]) -> list[str]:
    return [row_id for table in rows for row_id in table["row_id"].to_pylist()]


@pytest.fixture
def history(tmp_path: Path) -> tuple[DirectoryStore, tuple[RowsRef, ...]]:
    store, first = make_workspace(tmp_path, rows=300)
    return store, (first, write_rows(store, "2026-02", 300, tmp_path))


def test_the_sample_has_the_share_of_the_pairs_that_is_asked():
    replay = Replay.of(0.25, [span(3000, "2026-03")], [span(15_000), span(5_000, "2026-02")], first_step=8)
    assert replay.share == pytest.approx(1000 / 20_000)
    assert replay.select(span(20_000), IDS).sum() == pytest.approx(1000, rel=0.15)


def test_a_short_history_is_replayed_whole():
    replay = Replay.of(0.5, [span(3000)], [span(100)], first_step=8)
    assert replay.select(span(100), IDS).all()


@pytest.mark.parametrize(("share", "history"), [(0.0, [span(100)]), (0.5, [])])
def test_without_share_or_history_nothing_is_replayed(share: float, history: list[RowsRef]):
    assert Replay.of(share, [span(100)], history, first_step=8).refs == ()


def test_other_runs_and_other_spans_draw_other_rows():
    one = Replay((span(20_000),), 0.1, first_step=8)
    chosen = one.select(span(20_000), IDS)
    assert (one.select(span(20_000), IDS) == chosen).all()
    for other in (
        Replay(one.refs, 0.1, first_step=9).select(span(20_000), IDS),
        one.select(span(20_000, "2026-02"), IDS),
    ):
        assert (other & chosen).sum() == pytest.approx(200, rel=0.4), "as many as by chance"


def test_no_row_of_the_holdout_is_replayed_and_any_worker_reads_the_same(history):
    store, refs = history
    config = tiny_config(*FEATURES, "train.replay=0.5")
    new = span(200, "2026-03")
    inputs = TrainInputs(rows=(new,), history=refs, parent=None)
    training = split_holdout(all_rows(store, refs, config), HoldoutRule.of(config.evaluate)).training
    known = training["row_id"].to_pylist()
    samples = [
        replayed_rows(make_job(store, config, inputs, rank=rank), inputs)
        for rank in (None, Rank(0, 2, 0), Rank(1, 2, 1))
    ]
    first, *others = [ids(sample) for sample in samples]
    assert [ids(samples[0]), *others] == [first] * 3, "also when they are read again"
    assert 120 < len(first) < 200, "a third of 600 rows, without those held out"
    assert first == [row_id for row_id in known if row_id in set(first)], "in order, and training rows alone"
    assert {row_id.rpartition("-")[0] for row_id in first} == {"2026-01", "2026-02"}
    assert set(next(iter(samples[0])).column_names) >= {"price", "locale", "gift"}


def in_files(store: DirectoryStore, ref: RowsRef, files: int, folder: Path) -> RowsRef:
    """The span with its rows divided into `files` files."""
    (file,) = store.path(ref.prefix).glob("*.parquet")
    rows, prefix, each = pq.read_table(file), f"{ref.prefix}-in-{files}", -(-ref.rows // files)
    (made := folder / f"{ref.span.name} in {files}").mkdir()
    for number in range(files):
        pq.write_table(rows.slice(number * each, each), made / part_name(number))
    commit(store, prefix, made, ROWS_KIND, read_manifest(store, ref.prefix).facts)
    return ref.model_copy(update={"prefix": prefix})


def drawn(store: Store, own: RowsRef, refs: tuple[RowsRef, ...], *settings: str) -> ReplayedRows:
    return ReplayedRows.of(store, tiny_config(*FEATURES, "train.replay=0.5", *settings), (own,), refs, None)


def test_of_many_files_some_are_read_and_as_many_rows_are_drawn(
    history: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    store, refs = history
    many, own = tuple(in_files(store, ref, 30, tmp_path) for ref in refs), span(30, "2026-03")
    every = ids(drawn(store, own, refs))
    assert ids(drawn(store, own, many)) == every, "of up to 64 files each is read, and the sample is that of one file"
    monkeypatch.setattr(replaying, "FEWEST_FILES", 8)
    opened: list[str] = []

    def counted(store: Store, prefix: str, entry: FileEntry) -> Path:
        opened.append(entry.name)
        return open_entry(store, prefix, entry)

    monkeypatch.setattr(replaying, "open_entry", counted)
    lengths = []
    for step in range(20):
        rows = drawn(store, own, many)
        lengths.append(len(ids(replace(rows, replay=replace(rows.replay, first_step=step)))))
    assert len(opened) == pytest.approx(20 * 0.2 * 60, rel=0.15), "four rows are read for one that is replayed"
    assert sum(lengths) / 20 == pytest.approx(30 * 0.8, rel=0.2), "without those held out"


def test_a_history_that_grows_lets_a_run_read_no_more_files() -> None:
    """A span has a million rows in four files; a run replays half a million."""
    read = []
    for spans in (50, 100, 200):
        replay = Replay((), 0.5 / spans, first_step=8)
        read.append(4 * spans * replay.share_of_files(4 * spans))
    assert read == [64, 64, 64]
    assert Replay((), 0.5 / 4, first_step=8).share_of_files(16) == 1.0


@pytest.mark.parametrize("settings", [(), ("train.keep_best={metric: mrr@10, rows: 5, patience: null}",)])
def test_a_training_reads_what_validate_drew_and_nothing_of_the_history(
    history: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, settings: tuple[str, ...]
):
    store, refs = history
    rows = drawn(store, span(200, "2026-03"), refs, *settings)
    expected = pa.concat_tables(rows)
    folder = rows.commit("runs/r/validate/replayed/2026-03", tmp_path / "made")
    assert folder == rows.commit("runs/r/validate/replayed/2026-03", tmp_path / "again"), "as its retry does"
    for ref in refs:
        store.delete(ref.prefix)
    again = replace(rows, folder=folder)
    for _ in range(2):
        assert pa.concat_tables(again).equals(expected)


@pytest.mark.parametrize("why", ["damaged", "pruned", "another share", "another step", "other columns", "other spares"])
def test_what_validate_drew_is_refused_if_it_is_not_of_this_run(
    history: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path, why: str, capsys: pytest.CaptureFixture[str]
):
    store, refs = history
    rows = drawn(store, span(200, "2026-03"), refs)
    folder = rows.commit("runs/r/validate/replayed/2026-03", tmp_path / "made")
    assert folder is not None
    if why == "damaged":
        store.path(f"{folder}/part-00000.parquet").write_bytes(b"damaged!")
    elif why == "pruned":
        store.delete(folder)
    elif why == "another share":
        rows = drawn(store, span(90, "2026-03"), refs)
    elif why == "another step":
        rows = replace(rows, replay=replace(rows.replay, first_step=8))
    elif why == "other columns":
        rows = replace(rows, columns=["price"])
    else:
        rows = replace(rows, spares=lambda: {"2026-01": GroupRange(start=0.2, end=0.9)})
    assert ids(replace(rows, folder=folder)) == ids(rows)
    assert folder in capsys.readouterr().out


def test_a_span_with_another_type_of_a_column_is_drawn_as_it_is(
    history: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path
):
    store, (first, second) = history
    second = change_rows(store, second, "2026-04", _prices_as_texts, tmp_path)
    rows = drawn(store, span(600, "2026-03"), (first, second))
    kinds = [str(table.schema.field("price").type) for table in rows]
    assert set(kinds) == {"double", "string"}
    again = replace(rows, folder=rows.commit("runs/r/validate/replayed/2026-03", tmp_path / "made"))
    assert [table.to_pylist() for table in again] == [table.to_pylist() for table in rows]


def _prices_as_texts(rows: pa.Table) -> pa.Table:
    return rows.set_column(rows.column_names.index("price"), "price", rows["price"].cast(pa.string()))


def test_a_run_without_replay_writes_nothing(history: tuple[DirectoryStore, tuple[RowsRef, ...]], tmp_path: Path):
    store, refs = history
    rows = drawn(store, span(200, "2026-03"), refs, "train.replay=0")
    assert rows.commit("runs/r/validate/replayed/2026-03", tmp_path / "made") is None
    assert ids(rows) == []
