"""What a worker process of a command that shows results said when it failed."""

from tasks.foundation.errors import ERRORS, POLICIES, FailureClass, StageError


def failure_of(code: int, said: str) -> StageError:
    """Return the error that a process ended with, from its exit code and its error output."""
    failure = next((f for f, policy in POLICIES.items() if policy.exit_code == code), FailureClass.CODE)
    return ERRORS[failure](said.strip() or f"the worker ended with status {code}")
