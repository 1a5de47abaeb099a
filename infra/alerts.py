"""Alerts: a webhook, and automations of the Prefect server that call it when something is wrong or was released.

Each alert is one POST of JSON with the key `text`, as chats accept it, and the event. The server sends them, so they
arrive even if no worker is alive.
"""

import json
from typing import NamedTuple
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.types import SecretDict
from pydantic import SecretStr

BLOCK = "millrace-alerts"

_OF_EVENT = '(event.payload.sentence or "look at the event in the UI")'
_OF_RUN = '(flow.name ~ " " ~ flow_run.name ~ ", " ~ flow_run.state.name ~ ": " ~ (flow_run.state.message or ""))'


class Alert(NamedTuple):
    """One reason for an alert. `match` and `related` are labels of the event's resource and of related resources."""

    name: str
    events: set[str]
    text: str  # an expression of Jinja over the event
    path: str = '""'  # another expression: the page to look at, below the UI's address
    match: dict[str, str] | None = None
    related: dict[str, str] | None = None


def alerts(pool: str) -> tuple[Alert, ...]:
    """Return all alerts; of flow runs only those of a work pool's workers, since a person watches the others."""
    return (
        Alert(
            "millrace: a flow run failed",
            {"prefect.flow-run.Failed", "prefect.flow-run.Crashed"},
            text=_OF_RUN,
            path='"/runs/flow-run/" ~ flow_run.id',
            match={"prefect.resource.id": "prefect.flow-run.*"},
            related={"prefect.resource.role": "work-pool", "prefect.resource.name": pool},
        ),
        Alert("millrace: a run is late", {"millrace.run.late"}, text=_OF_EVENT),
        Alert("millrace: a run was given up", {"millrace.run.given-up"}, text=_OF_EVENT),
        Alert("millrace: the vectors are stale", {"millrace.stale"}, text=_OF_EVENT),
        Alert("millrace: the catalogue is stale", {"millrace.catalogue.stale"}, text=_OF_EVENT),
        Alert("millrace: a release was made", {"millrace.release.released"}, text=_OF_EVENT),
        Alert("millrace: a release was brought up to date", {"millrace.release.refreshed"}, text=_OF_EVENT),
        Alert("millrace: a model was rejected", {"millrace.release.rejected"}, text=_OF_EVENT),
        Alert("millrace: a release was rolled back", {"millrace.release.rolled-back"}, text=_OF_EVENT),
        Alert(
            "millrace: no worker is alive",
            {"prefect.work-pool.not-ready"},
            text=json.dumps(f"scheduled runs do not start; start a worker: prefect worker start --pool {pool}"),
            path='"/work-pools"',
            match={"prefect.resource.id": "prefect.work-pool.*", "prefect.resource.name": pool},
        ),
    )


def install(url: str, ui_url: str, pool: str) -> None:
    """Make or replace the webhook and the automations.

    Args:
        url: the address to call; kept as a secret on the server.
        ui_url: where the server's pages are, for the links.
        pool: the work pool of the deployments.
    """
    webhook = Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
    block = webhook.save(BLOCK, overwrite=True)
    assert isinstance(block, UUID)  # outside of an event loop it is no coroutine
    with get_client(sync_client=True) as client:
        for alert in alerts(pool):
            automation = _automation(alert, block, ui_url)
            there = client.read_automations_by_name(alert.name)
            for before in there[1:]:
                client.delete_automation(before.id)
            if there:
                client.update_automation(there[0].id, automation)
            else:
                client.create_automation(automation)


def installed(pool: str) -> list[str]:
    """Return the names of the automations that the server has."""
    with get_client(sync_client=True) as client:
        return [alert.name for alert in alerts(pool) if client.read_automations_by_name(alert.name)]


def _automation(alert: Alert, block: UUID, ui_url: str) -> AutomationCore:
    trigger = {
        "type": "event",
        "posture": "Reactive",
        "threshold": 1,
        "expect": alert.events,
        "match": alert.match or {},
        "match_related": alert.related or {},
    }
    return AutomationCore.model_validate(
        {
            "name": alert.name,
            "description": "Made by `millrace deploy --alert-url`, and replaced each time.",
            "trigger": trigger,
            "actions": [{"type": "call-webhook", "block_document_id": block, "payload": _payload(alert, ui_url)}],
        }
    )


def _payload(alert: Alert, ui_url: str) -> str:
    """Return a template that the server fills in; `tojson` escapes what comes with the event."""
    name, ui = json.dumps(alert.name), json.dumps(ui_url)
    return (
        f'{{{{ {{"text": {name} ~ ": " ~ {alert.text}, "alert": {name}, "page": {ui} ~ {alert.path}, '
        '"event": event.event, "at": event.occurred | string, "payload": event.payload} | tojson }}'
    )
