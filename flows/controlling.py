"""Pausing, resuming and cancelling a backfill through its flow run, as the buttons of the Prefect UI do.

The backfill looks at the state of its flow run every few seconds (flows/children.py).
"""

from __future__ import annotations

from typing import Any, Literal
from uuid import UUID

from prefect import get_client
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Paused

from tasks.errors import ConfigError


def ask(flow_run: UUID, action: Literal["pause", "resume", "cancel"]) -> str:
    """Bring the flow run into the state that is asked for; a sentence for people.

    Raises:
        ConfigError: the server does not know the flow run, or it is in no state for this.
    """
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run).state
        except ObjectNotFound as error:
            raise ConfigError(
                f"this Prefect server does not know flow run {flow_run}; set PREFECT_API_URL to the one it runs under"
            ) from error
        if state is None or state.is_final():
            how = state.name if state else "without a state"
            raise ConfigError(f"its flow run is {how}, so it does not run; asked for again, it goes on with the rest")
        match action:
            case "pause":
                _accepted(client.set_flow_run_state(flow_run, Paused(name="Paused")), action, state)
                return (
                    "it is paused; what runs comes to the end of its stage, and nothing new starts until it is resumed"
                )
            case "resume":
                _accepted(client.resume_flow_run(flow_run), action, state)
                return "it goes on"
            case "cancel":
                _accepted(client.set_flow_run_state(flow_run, Cancelling()), action, state)
                return "it is being cancelled; what is finished is kept"


def _accepted(result: OrchestrationResult[Any], action: str, state: State[Any]) -> None:
    if result.status != SetStateStatus.ACCEPT:
        why = getattr(result.details, "reason", None) or "the server refused"
        raise ConfigError(f"it can't {action} now, as its flow run is {state.name}: {why}")
