"""How often one stage may be tried in one invocation, whoever tries again: Prefect here, or AWS Batch by itself."""

from __future__ import annotations

from typing import Any

import prefect
from prefect.client.schemas.objects import State, TaskRun

from configs.schema import RetryConfig
from tasks.errors import POLICIES, classify
from tasks.sinks import logger, stopped


class Budget:
    """Counts the attempts of the ledger, from the first one of this invocation on."""

    def __init__(self, retry: RetryConfig) -> None:
        self.attempts = retry.attempts
        self.used = 0
        self._first: int | None = None

    def left(self, attempt: int) -> int:
        """How many tries there may be from attempt number `attempt` on, that one included."""
        if self._first is None:
            self._first = attempt
        return max(1, self._first + self.attempts - attempt)

    def use(self, attempt: int) -> None:
        """Attempt number `attempt` has ended."""
        first = attempt if self._first is None else self._first
        self.used = max(self.used, attempt - first + 1)

    def retry_helps(self, task: prefect.Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:
        """Whether Prefect may try again; sets how long it waits first: the class's delay, doubled with each try."""
        error = state.result(raise_on_failure=False)
        policy = POLICIES[classify(error)] if isinstance(error, BaseException) else None
        if policy is None or not policy.transient or self.used >= self.attempts or stopped():
            return False
        delay = task.retry_delay_seconds = policy.delay_seconds * 2 ** (task_run.run_count - 1)
        logger().warning("%s; try %d of %d in about %.0f s", error, self.used + 1, self.attempts, delay)
        return True
