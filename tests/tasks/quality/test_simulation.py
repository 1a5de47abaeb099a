"""How often the default gate on recall@10 is right: many champions and challengers whose true difference is known."""

from collections import Counter

import numpy as np
import pytest
import scipy.stats

from tasks.contracts.evaluation import Role
from tasks.quality.comparisons import Measured
from tasks.quality.verdicts import judge
from tests.benchmarks.quality.errors import Truth, first_gate, independent, of_items, of_users, rates
from tests.support.measures.results import row_results

SEEDS = 200
DISCORDANT = 0.06  # share of queries on which exactly one of the two models finds the item


def answers(queries: int, true_difference: float) -> Counter[str | None]:
    """The gate's answers to `SEEDS` challengers that differ from the champion by so much on all queries there are."""
    gate = first_gate()
    assert (gate.metric, gate.baseline, gate.confidence) == ("recall@10", "champion", 0.95)
    found: Counter[str | None] = Counter()
    for seed in range(SEEDS):
        random = np.random.default_rng([queries, seed])
        where = random.random(queries)
        won, lost = (DISCORDANT + true_difference) / 2, (DISCORDANT - true_difference) / 2
        champion = random.random(queries) < 0.5
        champion = np.where(where < won, False, np.where(where < won + lost, True, champion))
        challenger = np.where(where < won, True, np.where(where < won + lost, False, champion))
        ranks = {
            Role.challenger: np.where(challenger, 1, 11),
            Role.champion: np.where(champion, 1, 11),
        }
        rows = row_results(ranks)
        metrics = {role: rows.metrics(role) for role in ranks}
        found[judge(Measured(metrics, rows), [gate])[0].answer] += 1
    return found


def most(rate: float) -> int:
    """How often something of this rate happens at most, but for one time in a thousand."""
    return int(scipy.stats.binom.ppf(0.999, SEEDS, rate))


def test_an_equal_model_is_rejected_no_more_often_than_stated() -> None:
    assert answers(563, 0.0)["fail"] <= SEEDS * 0.05
    assert answers(2000, 0.0)["fail"] <= SEEDS * 0.05


def test_at_the_margin_itself_both_errors_are_as_rare_as_stated() -> None:
    found = answers(2000, -0.005)
    assert found["fail"] <= most(0.05)
    assert found["pass"] <= most(0.05)
    assert found["fail"] + found["pass"] > 0, "an interval that is far too wide would never tell"


def test_a_loss_of_one_point_does_not_pass_on_2000_queries() -> None:
    assert answers(2000, -0.01)["pass"] <= SEEDS * 0.05


def test_a_loss_of_one_point_is_undecided_on_500_queries() -> None:
    found = answers(500, -0.01)
    assert found["pass"] <= SEEDS * 0.05
    assert found["undecided"] > SEEDS / 2
    assert found["undecided"] > 3 * found["fail"]


@pytest.mark.parametrize("rows", [20, 60, 500])
def test_a_model_three_points_worse_does_not_pass_on_few_queries_either(rows: int) -> None:
    for differ in (0.03, 0.07):
        worse = Truth("", "recall@10", -0.005, independent(differ, -0.03))
        assert rates(worse, rows, SEEDS)["pass"] * SEEDS <= most(0.01)


@pytest.mark.parametrize("metric", ["recall@10", "mrr@10"])
def test_head_items_leave_both_errors_as_rare_as_stated(metric: str) -> None:
    """Drawn by query alone, a third of these equal models failed."""
    found = rates(Truth("", metric, 0.0, of_items(1.0)), 1000, SEEDS)
    assert found["fail"] * SEEDS <= most(0.05)
    assert found["pass"] * SEEDS <= most(0.05)


def test_users_leave_both_errors_as_rare_as_stated() -> None:
    found = rates(Truth("", "recall@10", 0.0, of_users(20)), 1000, SEEDS)
    assert found["fail"] * SEEDS <= most(0.05)
    assert found["pass"] * SEEDS <= most(0.05)
    assert found["fail"] + found["pass"] > 0
