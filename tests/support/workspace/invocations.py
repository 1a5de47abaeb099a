"""Records of runs that were asked for, at a time that a test chooses."""

from __future__ import annotations

from typing import Any

from infra.store.base import Store
from tasks.contracts.runs import RunPlan, RunState
from tasks.runs.invocations import Invocation


def write_invocation(store: Store, plan: RunPlan, **changes: Any) -> Invocation:
    """A record of one that began at six in the morning of the 13th and has until ten."""
    values: dict[str, Any] = {
        "number": 1,
        "run_key": plan.run_key,
        "span": plan.span.name,
        "lineage": plan.config.lineage,
        "flow_run": "",
        "page": "http://ui/runs/flow-run/1",
        "scheduled_at": "2026-11-13T05:00:00+00:00",
        "began_at": "2026-11-13T05:00:05+00:00",
        "expected_seconds": None,
        "deadline": "2026-11-13T09:00:00+00:00",
        "ended_at": None,
        "state": RunState.RUNNING,
        "failure": None,
        "message": "",
    }
    one = Invocation(**values | changes)
    store.write(f"runs/{plan.run_key}/invocations/{one.number}.json", one.to_json())
    return one
