"""EC2's TerminateInstances, in its query protocol: the one call of it that the product makes."""

from __future__ import annotations

from urllib.parse import parse_qs
from xml.sax.saxutils import escape

from tests.emulator.engine.aws import Document, ServiceError

_SPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"
_STATE = "<{what}><code>{code}</code><name>{name}</name></{what}>"


def instances_of(form: bytes) -> Document:
    """The request as a document. Raises ServiceError: it is another call."""
    fields = parse_qs(form.decode())
    action = fields.get("Action", [""])[0]
    if action != "TerminateInstances":
        raise ServiceError(f"{action} is not emulated", "InvalidAction")
    return {"instanceIds": [value for key, (value,) in sorted(fields.items()) if key.startswith("InstanceId.")]}


def ended(ids: list[str]) -> bytes:
    before = _STATE.format(what="previousState", code=16, name="running")
    now = _STATE.format(what="currentState", code=32, name="shutting-down")
    items = "".join(f"<item><instanceId>{escape(one)}</instanceId>{now}{before}</item>" for one in ids)
    return (
        f'<TerminateInstancesResponse xmlns="{_SPACE}"><requestId>emulated</requestId>'
        f"<instancesSet>{items}</instancesSet></TerminateInstancesResponse>"
    ).encode()


def refused(error: ServiceError) -> bytes:
    return (
        f"<Response><Errors><Error><Code>{error.code}</Code><Message>{escape(error.message)}</Message></Error></Errors>"
        "<RequestID>emulated</RequestID></Response>"
    ).encode()
