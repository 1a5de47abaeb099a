"""The smallest loss that a gate can see: by the binomial bound before the first evaluation, then by the last spread."""

from __future__ import annotations

import math
from typing import Any

import pytest

from configs.schema.gates import GateConfig
from tasks.contracts.evaluation import Verdict
from tasks.quality.intervals import student
from tasks.quality.sight import sight
from tests.support.pages.golden import Golden

Z = 1.6449 + 0.8416  # of 95 % confidence, and of seeing it four times out of five


def gate(**changes: Any) -> GateConfig:
    settings = {"metric": "recall@10", "direction": "higher", "threshold": -0.005, "baseline": "champion"}
    return GateConfig.model_validate(settings | {"severity": "critical", "confidence": 0.95} | changes)


def verdict(**changes: Any) -> Verdict:
    numbers = {"metric": "recall@10", "severity": "critical", "answer": "pass", "value": 0.9, "baseline": 0.9}
    told = {"sentence": "", "against": "champion", "groups": 400, "standard_error": 0.02, "degrees": 1e9}
    return Verdict.model_validate(numbers | told | changes)


def binomial(differ: float) -> float:
    """The gap in queries that so many differing ones can tell, with the query more that each interval counts."""
    return (student(0.95, 2 * (differ + 1)) + 0.8416) * math.sqrt(differ + 1)


def test_before_the_first_evaluation_two_models_of_the_stated_recall_err_apart(golden: Golden) -> None:
    seen = sight(gate(), 100)
    assert seen.smallest == pytest.approx(binomial(2 * 0.8 * 0.2 * 100) / 100 + 0.005, abs=1e-4)
    golden(seen.sentence, seen.basis)


def test_a_gate_without_baseline_has_the_spread_of_one_model(golden: Golden) -> None:
    seen = sight(gate(baseline="none", threshold=0.5), 100)
    assert seen.smallest == pytest.approx(binomial(0.8 * 0.2 * 100) / 100, abs=1e-4)
    golden(seen.sentence)


def test_the_last_spread_is_scaled_to_these_queries() -> None:
    seen = sight(gate(), 100, verdict())
    assert seen.smallest == pytest.approx(Z * 0.04 + 0.005, abs=1e-4)
    assert "last evaluation" in seen.basis


def test_without_a_spread_the_bound_is_at_the_last_value() -> None:
    seen = sight(gate(), 100, None, 0.95)
    assert seen.smallest == pytest.approx(binomial(2 * 0.95 * 0.05 * 100) / 100 + 0.005, abs=1e-4)
    assert "at recall@10 0.95" in seen.basis


def test_a_relative_threshold_is_a_share_of_the_level() -> None:
    seen = sight(gate(relative=True, threshold=-0.1), 400, verdict())
    assert seen.smallest == pytest.approx(Z * 0.02 + 0.09, abs=1e-4)


def test_a_rise_of_a_metric_that_should_be_low_is_a_loss() -> None:
    seen = sight(gate(metric="loss", direction="lower", threshold=0.1), 400, verdict(metric="loss", value=2.0))
    assert seen.smallest == pytest.approx(Z * 0.02 + 0.1, abs=1e-4)
    assert "a rise of 0.15" in seen.sentence


def test_of_few_queries_the_degrees_of_the_last_evaluation_count() -> None:
    known = verdict(degrees=40.0)
    seen = sight(gate(), 20, known)
    assert seen.smallest == pytest.approx((2.92 + 0.8416) * 0.02 * math.sqrt(20) + 0.005, abs=1e-3)
    certain = sight(gate(), 20, verdict(standard_error=1e-6))
    assert certain.smallest == pytest.approx(Z / 20 + 0.005, abs=1e-4), "20 queries without a difference tell little"


def test_of_too_few_queries_no_loss_at_all_is_seen(golden: Golden) -> None:
    golden(sight(gate(), 3).sentence)


@pytest.mark.parametrize(
    ("changes", "queries", "words"),
    [
        ({"confidence": None}, 100, "the number alone decides"),
        ({"metric": "effective_rank", "confidence": None}, 100, "one number of all vectors"),
        ({"slice": "locale"}, None, "each part has its own rows"),
        ({"min_rows": 200}, 100, "undecided: about 100 queries, and it needs 200 rows"),
        ({}, 0, "undecided: about 0 queries"),
        ({"metric": "auc"}, 100, "not known before the first evaluation"),
    ],
)
def test_a_gate_without_a_number_says_why(changes: dict[str, Any], queries: int | None, words: str) -> None:
    seen = sight(gate(**changes), queries)
    assert (seen.smallest, seen.basis) == (None, "")
    assert words in seen.sentence
