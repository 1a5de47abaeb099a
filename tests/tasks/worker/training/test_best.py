import pytest

from configs.schema.training import KeepBestConfig
from tasks.contracts.checkpoints import CurvePoint
from tasks.worker.training.forgetting import best_step, is_out_of_patience


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
