"""Measures against forgetting: replayed rows, the best step, and averages of weights."""

from pathlib import Path

import pytest
import torch
from torch import nn

from configs.schema.training import KeepBestConfig
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import CurvePoint, HoldoutRule, RowsRef, SpanRef
from tasks.data.holdout import split_holdout
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.forgetting import (
    Replay,
    ReplayedRows,
    RunningAverage,
    average_weights,
    best_step,
    ema_share,
    is_out_of_patience,
    put_weights,
)
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


def settings(patience: int | None = None, rows: int = 100) -> KeepBestConfig:
    return KeepBestConfig(metric="mrr@10", rows=rows, patience=patience)


def curve(*values: float) -> list[CurvePoint]:
    """At steps 5, 10, ..."""
    return [CurvePoint(step=5 * number, metrics={"mrr@10": value}) for number, value in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("values", "step"),
    [
        ((0.1, 0.3, 0.2), 10),
        ((0.3, 0.3, 0.2), 5),
        ((0.1,), 5),
        ((float("nan"), 0.1, float("nan")), 10),
        ((float("nan"),), None),
        ((), None),
    ],
)
def test_the_first_of_the_best_steps_is_kept(values: tuple[float, ...], step: int | None):
    assert best_step(curve(*values), settings()) == step


def test_without_the_metric_there_is_no_best_step():
    assert best_step([CurvePoint(step=5, metrics={"auc": 0.9})], settings()) is None


@pytest.mark.parametrize(
    ("values", "patience", "ended"),
    [
        ((0.1, 0.3, 0.2, 0.1), 2, True),
        ((0.1, 0.3, 0.2), 2, False),
        ((0.3, 0.3), 1, True),
        ((0.1, 0.3, 0.2, 0.1), None, False),
        ((float("nan"), float("nan")), 1, False),
    ],
)
def test_a_run_ends_after_so_many_evaluations_without_a_gain(
    values: tuple[float, ...], patience: int | None, ended: bool
):
    assert is_out_of_patience(curve(*values), settings(patience)) is ended


CPU = CpuAccelerator(Rank(0, 1, 0))


def linear(*weights: float, dtype: torch.dtype = torch.float32) -> nn.Linear:
    layer = nn.Linear(len(weights), 1, bias=False, dtype=dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([weights]))
    return layer


def values(average: RunningAverage) -> list[float]:
    return [value for weight in average.model.parameters() for value in weight.flatten().tolist()]


def test_a_running_average_computed_by_hand():
    """Half life of one step, far from the start: each step halves the distance to the weights."""
    average = RunningAverage(linear(0.0, 8.0), 1.0, CPU)
    for step, weights in ((100, (4.0, 8.0)), (101, (4.0, 0.0)), (102, (0.0, 0.0))):
        average.update(linear(*weights), average.share(step))
    assert values(average) == [1.5, 2.0]


def test_after_its_half_life_a_weight_counts_half():
    average = RunningAverage(linear(1.0), 50.0, CPU)
    for step in range(10_000, 10_050):
        average.update(linear(0.0), average.share(step))
    assert values(average) == pytest.approx([0.5], rel=1e-5)


def test_the_weights_of_a_new_model_are_soon_forgotten():
    average = RunningAverage(linear(1.0), 1000.0, CPU)
    for step in range(20):
        average.update(linear(0.0), average.share(step))
    assert values(average)[0] < 1e-6
    assert ema_share(0, 1000.0) == 0.9
    assert ema_share(100_000, 1000.0) == 1.0 - 0.5**0.001


def test_the_average_of_bf16_weights_is_finer_than_they_are():
    average = RunningAverage(linear(1.0), 1.0, CPU)
    average.update(linear(1.0 + 2**-7, dtype=torch.bfloat16), average.share(1000))
    assert values(average) == [1.0 + 2**-8]


def test_a_merge_is_the_weighted_mean():
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([4.0], dtype=torch.bfloat16)}
    earlier = {"a": torch.tensor([5.0, 2.0]), "b": torch.tensor([0.0])}
    found = average_weights(weights, earlier, 0.25)
    assert {name: value.tolist() for name, value in found.items()} == {"a": [2.0, 2.0], "b": [3.0]}
    assert {value.dtype for value in found.values()} == {torch.float32}


def test_weights_are_put_in_the_precision_of_the_model():
    model = linear(1.0, 2.0, dtype=torch.bfloat16)
    parameter = model.weight
    put_weights(model, {"weight": torch.tensor([[3.0, 4.001]])}, CPU)
    assert model.weight is parameter, "an optimiser knows its parameters by identity"
    assert (parameter.dtype, parameter.tolist()) == (torch.bfloat16, [[3.0, 4.0]])
