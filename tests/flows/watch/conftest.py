"""Daily spans under a real Prefect server, and the deployment of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

import infra.compute.factory
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.planning.next_run import plan_run
from tests.flows.watch.watching import NOW, PROMISED, SETTINGS, set_clock
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out
from tests.support.processes.prefect_server import PrefectServer


@pytest.fixture
def store(
    prefect: PrefectServer, tmp_path: Path, without_pages: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DirectoryStore]:
    """Daily spans, trained up to 2026-11-12."""
    store = DirectoryStore(tmp_path)
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    ingest(store, "2026-11-12")
    carry_out(plan_run(store, small_config(*SETTINGS, *PROMISED)))
    set_clock(monkeypatch, NOW)
    with prefect.in_use():
        yield store


@pytest.fixture
def deployed(store: DirectoryStore) -> Iterator[None]:
    """The pipeline's deployment on the server, without a worker."""
    deployment: Any = pipeline.to_deployment(name="shop-pipeline", parameters={"workspace": store.uri})
    identity = deployment.apply()
    yield
    with get_client(sync_client=True) as client:
        client.delete_deployment(identity)
