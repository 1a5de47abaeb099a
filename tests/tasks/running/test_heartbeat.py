import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StoreError
from tasks.running import stage_output
from tasks.running.stage_output import Heartbeat
from tasks.runs import ledger
from tests.support.workspace.specs import spec_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    times = [100.0]
    monkeypatch.setattr(stage_output, "uptime", lambda: times[0])
    return times


def test_a_sign_is_given_now_and_then_and_one_that_fails_is_left_out(
    store: DirectoryStore, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(Stage.health)
    key = f"{spec.attempt_prefix}/seen.json"
    signs = Heartbeat(store, ledger.begin(store, spec))
    clock[0] = 129.0
    signs.give()
    assert not store.exists(key)
    clock[0] = 131.0
    signs.give()
    assert ledger.SignOfLife.model_validate_json(store.read(key)).seconds == 31.0

    def refuse(*_: object) -> None:
        raise StoreError("slow down")

    clock[0] = 162.0
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "write", refuse)
        signs.give()
    clock[0] = 193.0
    signs.give()
    assert ledger.SignOfLife.model_validate_json(store.read(key)).seconds == 93.0
