"""An event that another process has sent meanwhile is not sent again."""

from pathlib import Path

import pytest

import flows.running.events
from flows.running.events import Event, send_waiting
from infra.store.directory import DirectoryStore
from tasks.contracts.workspace import WAITING
from tasks.foundation.clock import now


def test_an_event_on_record_as_sent_leaves_the_outbox_without_a_second_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was killed between its record and the deletion, or two looked for the record at the same moment."""
    store, sent = DirectoryStore(tmp_path), list[str]()
    monkeypatch.setattr(flows.running.events, "deliver", lambda store, event, *_: sent.append(event.what))
    for what in ("late-1", "late-1", "late-2"):
        event = Event(
            what=what, event="millrace.run.late", lineage="main", severity="warning", sentence="It is late.",
            resource={"prefect.resource.id": "millrace.run.abc"}, payload={},
        )  # fmt: skip
        waiting = flows.running.events.WaitingEvent(event=event, at=now())
        store.create(WAITING.key(lineage="main", what=what), waiting.to_json())
        send_waiting(store)
    assert (sent, store.list("outbox")) == (["late-1", "late-2"], [])
