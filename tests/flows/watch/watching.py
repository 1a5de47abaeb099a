"""A watch at a time that a test chooses, and a run that it finds under way."""

from __future__ import annotations

from typing import Any

import pytest
from prefect.client.schemas.objects import State

import flows.watch
from flows.watch import watch
from infra.store.directory import DirectoryStore
from tasks.monitoring.freshness import FreshnessReport
from tasks.planning.next_run import plan_run
from tasks.runs.plan import save_plan
from tests.support.fakes.fake_runner import ingest, small_config
from tests.support.workspace.invocations import write_invocation

SETTINGS = ("model.scratch.layers=1", "schedule.cron=0 6 * * *", "schedule.timezone=Europe/Berlin")
PROMISED = ("freshness.target_hours=400", "freshness.deadline_hours=4")
NOW = "2026-11-20T07:00:00+01:00"


def set_clock(monkeypatch: pytest.MonkeyPatch, now: str) -> None:
    monkeypatch.setattr(flows.watch, "now", lambda: now)


def look(store: DirectoryStore, *overrides: str, catch_up: bool = True) -> tuple[State, FreshnessReport]:
    state: State = watch(store.uri, overrides=(*SETTINGS, *PROMISED, *overrides), catch_up=catch_up, return_state=True)
    return state, state.result()  # type: ignore[return-value]


def running(store: DirectoryStore, **changes: Any) -> str:
    """A run over 2026-11-19 that began at six and has until ten; returns its key."""
    ingest(store, "2026-11-19")
    plan = plan_run(store, small_config(*SETTINGS, *PROMISED))
    save_plan(store, plan)
    times = {
        "scheduled_at": "2026-11-20T05:00:00+00:00",
        "began_at": "2026-11-20T05:00:05+00:00",
        "deadline": "2026-11-20T09:00:00+00:00",
    }
    write_invocation(store, plan, **times | changes)
    return plan.run_key
