"""The one place that decides in which state a run is."""

from collections.abc import Sequence

from infra.store.base import Store
from tasks.contracts.runs import RunState
from tasks.foundation.errors import FailureClass
from tasks.runs import releases
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import Judgement, read_judgement


def run_state(
    released: bool,
    judged: Judgement | None,
    invocation: Invocation | None = None,
    attempts: Sequence[LedgerRecord] = (),
    held: bool = False,
) -> RunState:
    """Return the state of a run.

    Args:
        invocation: the last one. Running means here that no end is recorded; its process may be lost.
        attempts: by start; they decide where no invocation is recorded, as in workspaces of old versions.
        held: whether its release waits until a hold is lifted.
    """
    if released:
        return RunState.HELD if held else RunState.RELEASED
    if judged is not None and judged.refused:
        return RunState.REJECTED
    if invocation is not None and invocation.state not in (RunState.RELEASED, RunState.REJECTED):
        return invocation.state
    if any(attempt.ended_at is None for attempt in attempts):
        return RunState.RUNNING
    failure = attempts[-1].failure if attempts else None
    if failure is None:
        return RunState.UNFINISHED
    return RunState.CANCELLED if failure is FailureClass.CANCELLED else RunState.FAILED


def reached_state(store: Store, run_key: str) -> RunState:
    """Return Released, Rejected or Unfinished: how far a run has come, whether or not it runs now.

    Raises:
        StoreError: a release or the verdicts are not readable; names the file.
    """
    return run_state(releases.of_run(store, run_key) is not None, read_judgement(store, run_key))
