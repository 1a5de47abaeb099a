"""A backfill as people see it: a table of its spans and a bar in the Prefect UI, a line where a command waits for it.

The spans' threads tell what happens; pages and the record in the workspace are written by the main thread alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from prefect import get_client
from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.runtime import flow_run

from flows.pages.markdown import text
from infra.store import Store
from tasks import backfill_state
from tasks.backfill_plan import BackfillPlan, SpanPlan, duration
from tasks.backfill_state import BackfillState, planned
from tasks.errors import classify
from tasks.progress import Progress
from tasks.sinks import logger
from tasks.stage import heard_by

SECONDS = 2.0  # between two updates of the pages, at least

_STAGES = ("train", "evaluate", "infer", "release")
_SIGNS: Mapping[str, str] = {"run": "to do", "not asked": "\N{EN DASH}"}  # the UI makes a bullet of a hyphen


class Board:
    """The state of a running backfill, and where it is shown."""

    def __init__(self, store: Store, plan: BackfillPlan, state: BackfillState) -> None:
        self.state = state
        self._store, self._plan, self._listener = store, plan, heard_by()
        self._guard = threading.Lock()
        self._changed, self._shown_at = True, 0.0
        self._said = ""
        _tag(plan)
        self._table = cast(UUID, create_table_artifact(rows(plan, state), _key(plan), description(plan, state)))
        self._bar = cast(UUID, create_progress_artifact(0.0, f"{_key(plan)}-progress", self._summary()))

    def tell(self, span: SpanPlan, what: str, step: str, error: BaseException | None) -> None:
        """Hear from the thread of a span what became of a stage (or, as `flow_run`, which one it is)."""
        changes: dict[str, Any] = {what: step}
        if step == "failed" and error is not None:
            changes |= {"failure": classify(error), "message": f"{what}: {error}"}
        self._span(span, changes)
        if what != "flow_run":
            self._said = f"{span.span.name} {what} {step}"

    def key(self, span: SpanPlan, run_key: str) -> None:
        """Hear of the run that a span turned out to be."""
        self._span(span, {"run_key": run_key})

    def paused(self, paused: bool) -> None:
        """Hear that the backfill was paused, or goes on."""
        self.update(state="Paused" if paused else "Running")

    def update(self, **changes: object) -> BackfillState:
        """Change something about the whole, and show it at once."""
        with self._guard:
            self.state = self.state.model_copy(update=changes)
            self._changed = True
        self.flush(at_once=True)
        return self.state

    def flush(self, at_once: bool = False) -> None:
        """Write and show what has changed, unless that was done a moment ago."""
        if not at_once and time.monotonic() - self._shown_at < SECONDS:
            return
        with self._guard:
            changed, self._changed, state = self._changed, False, self.state
        if not changed:
            return
        self._shown_at = time.monotonic()
        backfill_state.keep(self._store, state)
        done, total = state.steps
        if self._listener is not None:
            self._listener.progress(Progress(what="backfill", done=done, total=total, note=self._said))
        try:
            with get_client(sync_client=True) as client:
                table = ArtifactUpdate(
                    data=json.dumps(rows(self._plan, state)), description=description(self._plan, state)
                )
                client.update_artifact(self._table, table)
                bar = ArtifactUpdate(data=round(100 * done / total, 1) if total else 100.0, description=self._summary())
                client.update_artifact(self._bar, bar)
        except Exception as error:  # the server may be away for a while; the work goes on
            logger().debug("the pages of the backfill can't be updated: %s", error)

    def _span(self, span: SpanPlan, changes: dict[str, Any]) -> None:
        with self._guard:
            told = self.state.spans
            spans = tuple(one.model_copy(update=changes) if one.span == span.span else one for one in told)
            self.state = self.state.model_copy(update={"spans": spans})
            self._changed = True

    def _summary(self) -> str:
        done, total = self.state.steps
        failed = sum(span.failure is not None for span in self.state.spans)
        parts = [f"{done} of {total} stages done", f"{failed} spans failed" if failed else "", self._said]
        return f"{self.state.state}: {', '.join(filter(None, parts))}"


def announce(plan: BackfillPlan, dry_run: bool) -> BackfillState:
    """Show a plan of which nothing is carried out; the state that it leaves the backfill in."""
    state = planned(plan)
    _tag(plan)
    create_table_artifact(rows(plan, state), _key(plan), description(plan, state))
    if dry_run:
        return state
    told = {"state": "Rejected" if plan.refused else "Done", "sentence": " ".join(plan.sentences)}
    return state.model_copy(update=told)


def rows(plan: BackfillPlan, state: BackfillState) -> list[dict[str, Any]]:
    """One row for each span: what is done about each stage, why, what it should take, what went wrong."""
    return [
        {
            "span": f"{span.span.name} v{span.span.version}",
            **{name: _SIGNS.get(step, step) for name, step in zip(_STAGES, now.steps, strict=True)},
            "why": span.why,
            "expected": "" if span.expected_seconds is None or not span.left else duration(span.expected_seconds),
            "failure": f"{now.failure}: {now.message}" if now.failure else "",
        }
        for span, now in zip(plan.spans, state.spans, strict=True)
    ]


def description(plan: BackfillPlan, state: BackfillState) -> str:
    """The plan in sentences, as markdown; once it is over, what came of it."""
    reason = f"Reason: {plan.reason}" if plan.reason else ""
    said = plan.sentences if state.ended_at is None else (_came_of(plan, state), text(state.sentence))
    return "\n\n".join(filter(None, (f"Backfill `{plan.id}`", reason, *said)))


def _came_of(plan: BackfillPlan, state: BackfillState) -> str:
    """As in `Failed: 2 spans from 2021-Q3 to 2021-Q4; this attempt did train 1, evaluate 1.`"""
    now_done = [
        [stage for stage, step in zip(_STAGES, now.steps, strict=True) if step == "done" and stage in span.left]
        for span, now in zip(plan.spans, state.spans, strict=True)
    ]
    counts = [(stage, sum(stage in stages for stages in now_done)) for stage in _STAGES]
    did = ", ".join(f"{stage} {count}" for stage, count in counts if count) or "nothing"
    return f"{state.state}: {len(plan.spans)} spans from {plan.first} to {plan.last}; this attempt did {did}."


def _tag(plan: BackfillPlan) -> None:
    """Give the flow run tags to search by."""
    if not flow_run.id:
        return
    tags = {*flow_run.tags, f"lineage:{plan.lineage}", f"backfill:{plan.id}"}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted(tags))


def _key(plan: BackfillPlan) -> str:
    return f"backfill-{plan.lineage}"
