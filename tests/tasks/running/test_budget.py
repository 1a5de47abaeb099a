from configs.schema.compute import RetryConfig
from tasks.running.context import Budget


def test_the_budget_counts_from_the_first_attempt_of_this_invocation():
    budget = Budget(RetryConfig(attempts=3, jitter=0.0))
    assert [budget.left(7), budget.left(8), budget.left(9)] == [3, 2, 1]
    assert budget.left(12) == 1, "a started attempt gets at least one try"


def test_a_runners_own_retries_count_like_prefects():
    budget = Budget(RetryConfig(attempts=3, jitter=0.0))
    budget.left(1)
    budget.use(2)
    assert budget.used == 2
    assert budget.left(3) == 1
    budget.use(3)
    assert budget.used == 3
    budget.use(1)
    assert budget.used == 3, "an attempt reported late gives nothing back"
