"""How often one stage may be tried in one invocation: tries by Prefect and by AWS Batch count together."""

from configs.schema.compute import RetryConfig


class Budget:
    """Counts the attempts of the ledger, from the first one of this invocation on."""

    def __init__(self, retry: RetryConfig) -> None:
        self.attempts = retry.attempts
        self.used = 0
        self._first: int | None = None

    def left(self, attempt: int) -> int:
        """Return how many tries may still be made, attempt number `attempt` included."""
        if self._first is None:
            self._first = attempt
        return max(1, self._first + self.attempts - attempt)

    def use(self, attempt: int) -> None:
        """Count attempt number `attempt`, which has ended, and those before it."""
        first = attempt if self._first is None else self._first
        self.used = max(self.used, attempt - first + 1)
