"""Which attempts AWS Batch repeats: those that lost their host or ended in a transient failure class.

The rules come from the table of failure classes. Prefect has what is left of the budget after that.
"""

from tasks.foundation.errors import POLICIES, FailureClass

HOST_LOST = "Host EC2"
MOST_ATTEMPTS = 10  # AWS Batch takes no more


def evaluate_on_exit() -> list[dict[str, str]]:
    """Return the rules in order; AWS Batch repeats what matches no rule, so the last rule matches everything."""
    return [
        {"onStatusReason": f"{HOST_LOST}*", "action": "RETRY"},
        *({"onExitCode": str(code), "action": "RETRY"} for code in _transient_codes()),
        {"onReason": "*", "action": "EXIT"},
    ]


def is_repeated(status_reason: str, exit_code: int | None) -> bool:
    """Return whether the rules let AWS Batch repeat an attempt that ended like this."""
    return status_reason.startswith(HOST_LOST) or exit_code in _transient_codes()


def _transient_codes() -> list[int]:
    """Return the exit codes of the transient classes, without CAPACITY: a container that runs has its machine."""
    return [
        policy.exit_code
        for failure, policy in POLICIES.items()
        if policy.transient and failure is not FailureClass.CAPACITY
    ]
