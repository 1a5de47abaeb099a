"""Which tries AWS Batch repeats by itself: those that were lost with their host, or ended in a transient class.

Generated from the table of failure classes. What is left of the budget after that is Prefect's.
"""

from __future__ import annotations

from tasks.errors import POLICIES, FailureClass

HOST_LOST = "Host EC2"
MOST_ATTEMPTS = 10  # that Batch takes
MOST_RULES = 5


def evaluate_on_exit() -> list[dict[str, str]]:
    """The rules, in the order in which Batch tries them; it repeats what fits none, so the last one fits all."""
    return [
        {"onStatusReason": f"{HOST_LOST}*", "action": "RETRY"},
        *({"onExitCode": str(code), "action": "RETRY"} for code in _transient_codes()),
        {"onReason": "*", "action": "EXIT"},
    ]


def is_repeated(status_reason: str, exit_code: int | None) -> bool:
    """Whether the rules let Batch repeat a try that ended like this."""
    return status_reason.startswith(HOST_LOST) or exit_code in _transient_codes()


def _transient_codes() -> list[int]:
    """CAPACITY is left out: what runs in a container has its machine."""
    return [
        policy.exit_code
        for failure, policy in POLICIES.items()
        if policy.transient and failure is not FailureClass.CAPACITY
    ]
