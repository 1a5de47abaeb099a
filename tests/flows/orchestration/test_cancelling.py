"""Cancelling a run whose flow runs in a plain process, which no signal interrupts, on a real Prefect server."""

from __future__ import annotations

import time
from uuid import UUID

import httpx
import pytest
from prefect.client.orchestration import get_client
from prefect.exceptions import CancelledRun
from prefect.states import Cancelling

import infra.compute.factory
from flows.orchestration.cancelling import cancellable
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass, ServerError
from tasks.runs import ledger
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.processes.prefect_server import PrefectServer


def test_a_server_that_refuses_a_request_of_a_flow_is_no_fault_of_its_code() -> None:
    @cancellable
    def body() -> None:
        raise httpx.ConnectError("no answer")

    with pytest.raises(ServerError, match=r"failed: no answer\."):
        body()


class CancelledInTraining(FakeRunner):
    """The flow run is cancelled while training waits."""

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        if spec.stage is Stage.train and not self.stages.count("train"):
            self.specs.append(spec)
            with get_client(sync_client=True) as client:
                client.set_flow_run_state(UUID(waiter.flow_run), Cancelling())
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                waiter.pulse()
                time.sleep(0.05)
            pytest.fail("the cancelling was not noticed")
        super().run(spec, waiter, tries)


def test_a_cancelled_run_ends_as_cancelled_and_can_be_run_again(
    prefect: PrefectServer, store: DirectoryStore, without_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CancelledInTraining(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    monkeypatch.setattr("tasks.running.stage_output.ASK_SECONDS", 0.1)
    parameters = (store.uri, None, None, ("model.scratch.layers=1",))
    state = pipeline(*parameters, return_state=True)
    assert state.is_cancelled()
    with pytest.raises(CancelledRun):
        state.result()
    seen = prefect.last_run().state
    assert seen is not None
    assert seen.name == "Cancelled"
    last = ledger.records(store)[-1]
    assert (last.stage, last.failure) == (Stage.train, FailureClass.CANCELLED)
    assert pipeline(*parameters).state == "Released"
    assert runner.stages.count("validate") == 1
