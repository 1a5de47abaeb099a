"""Batch's own retries follow the table of failure classes."""

import pytest

from infra.compute.batch.job import evaluate_on_exit, is_repeated
from tasks.foundation.errors import POLICIES, FailureClass


def repeated_by(rules: list[dict[str, str]], status_reason: str, reason: str, exit_code: int | None) -> bool:
    """As Batch documents it: the first rule with matching conditions decides; without one it repeats."""
    ending = {
        "onStatusReason": status_reason,
        "onReason": reason,
        "onExitCode": "" if exit_code is None else str(exit_code),
    }
    for rule in rules:
        conditions = {key: pattern for key, pattern in rule.items() if key != "action"}
        if all(ending[k].startswith(p[:-1]) if p.endswith("*") else ending[k] == p for k, p in conditions.items()):
            return rule["action"].upper() == "RETRY"
    return True


@pytest.mark.parametrize("failure", FailureClass)
def test_exit_codes_are_repeated_as_the_table_says(failure) -> None:
    policy = POLICIES[failure]
    expected = policy.transient and failure is not FailureClass.CAPACITY
    ended = "Essential container in task exited"
    assert repeated_by(evaluate_on_exit(), ended, "", policy.exit_code) == expected
    assert is_repeated(ended, policy.exit_code) == expected


@pytest.mark.parametrize(
    ("status_reason", "reason", "exit_code", "expected"),
    [
        ("Host EC2 (instance i-0abc) terminated.", "", None, True),
        ("Task failed to start", "CannotPullContainerError: no such image", None, False),
        ("Essential container in task exited", "OutOfMemoryError: Container killed", 137, False),
        ("Essential container in task exited", "", 1, False),
        ("", "", None, False),
    ],
)
def test_a_lost_host_is_repeated_and_everything_else_exits(status_reason, reason, exit_code, expected) -> None:
    assert repeated_by(evaluate_on_exit(), status_reason, reason, exit_code) == expected
    assert is_repeated(status_reason, exit_code) == expected


def test_batch_takes_the_rules_and_the_last_one_fits_all() -> None:
    rules = evaluate_on_exit()
    assert len(rules) <= 5  # the most that AWS Batch takes
    assert rules[-1] == {"onReason": "*", "action": "EXIT"}
