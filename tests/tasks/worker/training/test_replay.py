from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import RowsRef, SpanRef
from tasks.data.holdout import split_holdout
from tasks.worker.process.job import Rank
from tasks.worker.training.forgetting import Replay, ReplayedRows
from tasks.worker.training.training_rows import read_replayed_rows
from tests.support.workspace.jobs import FEATURES, all_rows, make_job, make_workspace, tiny_config, write_rows

IDS = [f"row {number}" for number in range(20_000)]


def span(rows: int, name: str = "2026-01") -> RowsRef:
    return RowsRef(span=SpanRef(name=name, version=1), prefix=name, rows=rows)


def ids(rows: ReplayedRows) -> list[str]:
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
        read_replayed_rows(make_job(store, config, inputs, rank=rank), inputs, {})
        for rank in (None, Rank(0, 2, 0), Rank(1, 2, 1))
    ]
    first, *others = [ids(sample) for sample in samples]
    assert [ids(samples[0]), *others] == [first] * 3, "also when they are read again"
    assert 120 < len(first) < 200, "a third of 600 rows, without those held out"
    assert first == [row_id for row_id in known if row_id in set(first)], "in order, and training rows alone"
    assert {row_id.rpartition("-")[0] for row_id in first} == {"2026-01", "2026-02"}
    assert set(next(iter(samples[0])).column_names) >= {"price", "locale", "gift"}
