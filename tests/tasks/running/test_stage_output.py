"""What a running stage asks of the Prefect server."""

import uuid

import pytest

from infra import prefect_health
from tasks.running import stage_output
from tasks.running.stage_output import state_of


def test_prefects_patient_client_is_not_asked_while_the_server_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(prefect_health, "answers", lambda url: False)
    monkeypatch.setattr(stage_output, "get_client", lambda **_: asked.append(True))
    assert state_of(uuid.uuid4()) is None
    assert asked == []
