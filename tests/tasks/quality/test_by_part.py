"""Metrics of each span apart."""

import numpy as np
import pytest

from tasks.contracts.evaluation import GOLDEN, Role
from tasks.quality import by_part
from tasks.quality.by_part import metrics_by_span
from tasks.quality.row_results import RowResults

SPANS = ["2026-02", "2026-01", "2026-01", GOLDEN, "2026-03"]


def results() -> RowResults:
    count = len(SPANS)
    ranks = {Role.challenger: np.array([1, 1, 20, 1, 2]), Role.champion: np.array([20, 1, 1, 1, 20])}
    text = np.array(["x"] * count, dtype=object)
    return RowResults(
        row_id=text,
        span=np.array(SPANS, dtype=object),
        group=np.arange(count),
        item_id=text,
        unseen=np.zeros(count, dtype=bool),
        query_trained=np.ones(count, dtype=bool),
        pair=np.ones(count, dtype=bool),
        label_class=np.full(count, -1),
        columns={},
        ranks=ranks,
        competitors=np.full(count, 100),
        losses={},
        probabilities={},
        predicted={},
    )


def test_each_span_has_the_numbers_of_each_model_without_the_golden_set():
    found = metrics_by_span(results(), ["2026-01", "2026-02", "2026-03", "2026-04"])
    assert [(each.span, each.rows) for each in found] == [("2026-01", 2), ("2026-02", 1), ("2026-03", 1)]
    recall = [{role: metrics["recall@10"] for role, metrics in each.metrics.items()} for each in found]
    assert recall[0] == {Role.challenger: 0.5, Role.champion: 1.0}, "the challenger forgot a row of the oldest span"
    assert recall[2] == {Role.challenger: 1.0, Role.champion: 0.0}


def test_of_many_spans_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(by_part, "MOST_SPANS", 1)
    assert [each.span for each in metrics_by_span(results(), ["2026-01", "2026-02", "2026-03"])] == ["2026-03"]
