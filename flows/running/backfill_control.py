"""Pause, resume or cancel a backfill through the state of its flow run, as the buttons of the Prefect UI do.

The backfill reads that state every few seconds (flows/running/span_run_pool.py).
"""

from typing import Any, Literal
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Paused

from tasks.foundation.errors import ConfigError


def control_flow_run(flow_run: UUID, action: Literal["pause", "resume", "cancel"]) -> str:
    """Set the flow run's state for the action; return its effect in a sentence.

    Raises:
        ConfigError: the server does not know the flow run, or its state does not allow the action.
    """
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run).state
        except ObjectNotFound as error:
            raise ConfigError(
                f"this Prefect server does not know flow run {flow_run}; set PREFECT_API_URL to its server"
            ) from error
        if state is None or state.is_final():
            how = state.name if state else "without a state"
            raise ConfigError(
                f"its flow run is {how}, so it does not run; to continue with the rest, start the same backfill again"
            )
        match action:
            case "pause":
                _accepted(client.set_flow_run_state(flow_run, Paused(name="Paused")), action, state)
                return "it is paused; each running stage ends, and no other stage starts until it is resumed"
            case "resume":
                _accepted(client.resume_flow_run(flow_run), action, state)
                return "it continues"
            case "cancel":
                _accepted(client.set_flow_run_state(flow_run, Cancelling()), action, state)
                return "it is being cancelled; finished stages are kept"


def _accepted(result: OrchestrationResult[Any], action: str, state: State[Any]) -> None:
    if result.status != SetStateStatus.ACCEPT:
        why = getattr(result.details, "reason", None) or "the server refused"
        raise ConfigError(f"can't {action} it now: its flow run is {state.name}; {why}")
