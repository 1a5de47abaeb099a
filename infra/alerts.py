"""Alerts: automations of the Prefect server that call a webhook or its notification blocks.

The webhook gets one POST per alert: JSON with the key `text`, as chats accept it, and the event. The server sends
alerts, so they arrive even if no worker is alive.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict
from pydantic import SecretStr

from tasks.foundation.errors import ConfigError

BLOCK = "millrace-alerts"

_OF_EVENT = '(event.payload.sentence or "look at the event in the UI")'
_OF_RUN = '(flow.name ~ " " ~ flow_run.name ~ ", " ~ flow_run.state.name ~ ": " ~ (flow_run.state.message or ""))'


class Alert(NamedTuple):
    """One reason for an alert. `match` and `related` are labels of the event's resource and of related resources."""

    name: str
    events: set[str]
    text: str  # a Jinja expression over the event
    severity: str = "warning"  # for Prefect's own events; the project's events have their own
    path: str = '""'  # a Jinja expression: the page to open, below the UI's address
    match: dict[str, str] | None = None
    related: dict[str, str] | None = None


def alerts(pool: str) -> tuple[Alert, ...]:
    """Return all alerts. Flow runs outside the work pool send none: a person watches them."""
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
        Alert("millrace: a problem is over", {"millrace.problem.resolved"}, text=_OF_EVENT),
        Alert("millrace: a release was made", {"millrace.release.released"}, text=_OF_EVENT),
        Alert("millrace: a release was brought up to date", {"millrace.release.refreshed"}, text=_OF_EVENT),
        Alert("millrace: a model was rejected", {"millrace.release.rejected"}, text=_OF_EVENT),
        Alert("millrace: a gate asks a person", {"millrace.gate.asks"}, text=_OF_EVENT),
        Alert("millrace: a release was rolled back", {"millrace.release.rolled-back"}, text=_OF_EVENT),
        Alert("millrace: a job runs beyond its plan", {"millrace.job.beyond-plan"}, text=_OF_EVENT),
        Alert("millrace: a budget is nearly used", {"millrace.budget.near"}, text=_OF_EVENT),
        Alert(
            "millrace: no worker is alive",
            {"prefect.work-pool.not-ready"},
            text=json.dumps("scheduled runs do not start; the command that starts a worker: millrace doctor"),
            path='"/work-pools"',
            severity="critical",
            match={"prefect.resource.id": "prefect.work-pool.*", "prefect.resource.name": pool},
        ),
    )


def block_of(name: str) -> UUID:
    """Return the id of a notification block on the server; `name` as in `slack-webhook/team`.

    Raises:
        ConfigError: the block doesn't exist, or it sends no notifications.
    """
    slug, slash, document = name.partition("/")
    if not slash:
        raise ConfigError(f"--alert-block {name!r} must be TYPE/NAME, as in slack-webhook/team")
    with get_client(sync_client=True) as client:
        try:
            block = client.read_block_document_by_name(document, slug, include_secrets=False)
        except ObjectNotFound as error:
            raise ConfigError(
                f"the Prefect server has no block {name}; make it on the page Blocks of its UI, or list what there is: "
                "prefect block ls"
            ) from error
    if block.block_schema is None or "notify" not in block.block_schema.capabilities:
        raise ConfigError(f"the block {name} sends no notifications; take one as slack-webhook or pager-duty-webhook")
    return block.id


def install(url: str | None, blocks: Sequence[UUID], ui_url: str, pool: str) -> None:
    """Make or replace the automations, and the webhook if `url` is given.

    Args:
        url: the address to call; stored as a secret on the server.
        blocks: notification blocks of the server; each sends every alert.
        ui_url: the address of the server's pages, for links.
        pool: the work pool of the deployments.
    """
    webhook = None
    if url is not None:
        block = Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
        webhook = block.save(BLOCK, overwrite=True)
        assert isinstance(webhook, UUID)  # outside of an event loop it is no coroutine
    with get_client(sync_client=True) as client:
        for alert in alerts(pool):
            automation = _automation(alert, webhook, blocks, ui_url)
            there = client.read_automations_by_name(alert.name)
            for before in there[1:]:
                client.delete_automation(before.id)
            if there:
                client.update_automation(there[0].id, automation)
            else:
                client.create_automation(automation)


def list_installed(pool: str) -> list[str]:
    """Return the names of the automations that the server has."""
    with get_client(sync_client=True) as client:
        return [alert.name for alert in alerts(pool) if client.read_automations_by_name(alert.name)]


def _automation(alert: Alert, webhook: UUID | None, blocks: Sequence[UUID], ui_url: str) -> AutomationCore:
    trigger = {
        "type": "event",
        "posture": "Reactive",
        "threshold": 1,
        "expect": alert.events,
        "match": alert.match or {},
        "match_related": alert.related or {},
    }
    actions: list[dict[str, Any]] = [_notification(alert, block, ui_url) for block in blocks]
    if webhook is not None:
        actions.append({"type": "call-webhook", "block_document_id": webhook, "payload": _payload(alert, ui_url)})
    return AutomationCore.model_validate(
        {
            "name": alert.name,
            "description": "Made by `millrace deploy` with --alert-url or --alert-block, and replaced each time.",
            "trigger": trigger,
            "actions": actions,
        }
    )


def _notification(alert: Alert, block: UUID, ui_url: str) -> dict[str, Any]:
    """Return the action of a notification block; the templates are filled in by the server."""
    page = f"{{{{ {json.dumps(ui_url)} ~ {alert.path} }}}}"
    return {
        "type": "send-notification",
        "block_document_id": block,
        "subject": f"[{{{{ {_severity(alert)} }}}}] {alert.name}",
        "body": f"{{{{ {alert.text} }}}}\n\n{page}",
    }


def _payload(alert: Alert, ui_url: str) -> str:
    """Return a template that the server fills in; `tojson` escapes the event's values."""
    name, ui = json.dumps(alert.name), json.dumps(ui_url)
    return (
        f'{{{{ {{"text": {name} ~ ": " ~ {alert.text}, "alert": {name}, "page": {ui} ~ {alert.path}, '
        f'"severity": {_severity(alert)}, "dedup_key": event.payload.dedup_key or event.resource.id, '
        '"event": event.event, "at": event.occurred | string, "payload": event.payload} | tojson }}'
    )


def _severity(alert: Alert) -> str:
    """Return a Jinja expression: the event's own severity, else the alert's."""
    return f'(event.payload.severity or "{alert.severity}")'
