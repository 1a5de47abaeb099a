"""The Prefect state at the end of a run: Released with its numbers, or Rejected, which Prefect does not show green.

Every flow imports it; a file of its own keeps the code of backfills out of a run's path.
"""

from typing import Any

from prefect import Flow, get_client
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.states import Completed

from flows.presentation import queries
from flows.presentation.model import ended_as
from tasks.contracts.runs import RunState
from tasks.runs.run import Run


def ended(run: Run, why: str = "") -> Any:
    """Return the state with the run as data, and a sentence with both numbers of its model.

    As in Released: `Released as 5, recall@10 0.9132 on unseen queries and 0.9411 on seen queries`.

    Args:
        why: the sentence instead, of a run that was not released.
    """
    measured = f", {said}" if (said := queries.sentence(run.by_queries)) else ""
    text = ended_as(run.state, run.release.number if run.release is not None else None)
    return Completed(name=run.state.value, message=why or f"{text}{measured}", data=run)


def show_rejection(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    """Give a rejection the type Failed, so that Prefect does not show it green; its name stays. A hook at completion.

    The flow itself ends as Completed, since a rejection is a result: the caller gets the run, and nothing is retried.
    """
    if state.name == RunState.REJECTED.value:
        shown = State[Any](type=StateType.FAILED, name=state.name, message=state.message)
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(flow_run.id, shown, force=True)
