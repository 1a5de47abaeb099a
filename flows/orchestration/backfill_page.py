"""A backfill in the Prefect UI: its record as a table and a progress bar; its pause, resume and cancel buttons.

The spans' threads report changes; only the main thread writes the record and the pages. The backfill reads the state of
its flow run every few seconds (flows/orchestration/child_runs.py), whether the UI's buttons or a command set it.
"""

import json
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal, cast
from uuid import UUID

from prefect import get_client
from prefect.artifacts import create_progress_artifact, create_table_artifact
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from prefect.states import Cancelling, Paused

from flows.presentation.markdown import text
from infra.store.base import Store
from tasks.campaigns.campaign import BACKFILL_STAGES, BackfillPlan, Campaign, Cell
from tasks.campaigns.stored import save
from tasks.contracts.jobs import Progress
from tasks.foundation.clock import duration
from tasks.foundation.errors import ConfigError, classify
from tasks.foundation.nouns import plural
from tasks.running.context import stage_context
from tasks.running.stage_output import logger

SECONDS = 2.0  # least time between two updates of the pages

_SIGNS: Mapping[str, str] = {"run": "to do", "not asked": "\N{EN DASH}"}  # the UI shows a hyphen as a bullet


class StatusPage:
    """The state of a running backfill, and the pages that show it."""

    def __init__(self, store: Store, plan: BackfillPlan, state: BackfillPlan) -> None:
        self.state = state
        self._store, self._plan, self._listener = store, plan, stage_context().listener
        self._guard = threading.Lock()
        self._changed, self._shown_at = True, 0.0
        self._latest = ""
        _tag(plan)
        self._table = cast(UUID, create_table_artifact(rows(state), _key(plan), description(plan, state)))
        self._bar = cast(UUID, create_progress_artifact(0.0, f"{_key(plan)}-progress", self._summary()))

    def record(self, span: Cell, what: str, step: str, error: BaseException | None) -> None:
        """Record, from a span's thread, the state of a stage, or the id of its flow run under the name `flow_run`."""
        changes: dict[str, Any] = {what: step}
        if step == "failed" and error is not None:
            changes |= {"failure": classify(error), "message": f"{what}: {error}"}
        self.update_span(span, **changes)
        if what != "flow_run":
            self._latest = f"{span.span.name} {what} {step}"

    def update_span(self, span: Cell, **changes: object) -> None:
        """Change fields of one span; the next `flush` shows them."""
        with self._guard:
            spans = tuple(
                state.model_copy(update=changes) if state.span == span.span else state for state in self.state.spans
            )
            self.state = self.state.model_copy(update={"spans": spans})
            self._changed = True

    def update(self, **changes: object) -> Campaign:
        """Change fields of the backfill, and show them at once."""
        with self._guard:
            self.state = self.state.model_copy(update=changes)
            self._changed = True
        self.flush(at_once=True)
        return self.state

    def flush(self, at_once: bool = False) -> None:
        """Write and show all changes, unless the last update was a moment ago."""
        if not at_once and time.monotonic() - self._shown_at < SECONDS:
            return
        with self._guard:
            changed, self._changed, state = self._changed, False, self.state
        if not changed:
            return
        self._shown_at = time.monotonic()
        save(self._store, state)
        done, total = state.steps
        if self._listener is not None:
            self._listener.progress(Progress(what="backfill", done=done, total=total, note=self._latest))
        try:
            with get_client(sync_client=True) as client:
                table = ArtifactUpdate(data=json.dumps(rows(state)), description=description(self._plan, state))
                client.update_artifact(self._table, table)
                bar = ArtifactUpdate(data=round(100 * done / total, 1) if total else 100.0, description=self._summary())
                client.update_artifact(self._bar, bar)
        except Exception as error:  # the server may be down for a while; the work continues
            logger().debug("the pages of the backfill can't be updated: %s", error)

    def _summary(self) -> str:
        done, total = self.state.steps
        failed = sum(span.failure is not None for span in self.state.spans)
        parts = [
            f"{done} of {plural(total, 'stage')} done",
            f"{plural(failed, 'span')} failed" if failed else "",
            self._latest,
        ]
        return f"{self.state.state}: {', '.join(filter(None, parts))}"


def announce(plan: BackfillPlan, dry_run: bool) -> Campaign:
    """Show a plan without executing it; return the state of its backfill."""
    _tag(plan)
    create_table_artifact(rows(plan), _key(plan), description(plan, plan))
    return plan if dry_run else plan.without_work


def rows(campaign: Campaign) -> list[dict[str, Any]]:
    """Return one row for each span: its stages, the reason, the expected time and the failure."""
    return [
        {
            "span": f"{span.span.name} v{span.span.version}",
            **{stage: _SIGNS.get(span.step(stage), span.step(stage)) for stage in BACKFILL_STAGES},
            "why": span.why,
            "expected": duration(span.expected_seconds) if span.expected_seconds else "",
            "failure": f"{span.failure}: {span.message}" if span.failure else "",
        }
        for span in campaign.spans
    ]


def description(plan: BackfillPlan, state: Campaign) -> str:
    """Return the plan in sentences, as Markdown; after the end, the result."""
    reason = f"Reason: {plan.reason}" if plan.reason else ""
    sentences = plan.sentences if state.ended_at is None else (_result(plan, state), text(state.sentence))
    return "\n\n".join(filter(None, (f"Backfill `{plan.id}`", reason, *sentences)))


def _result(plan: BackfillPlan, state: Campaign) -> str:
    """Return the result, as in `Failed: 2 spans from 2021-Q3 to 2021-Q4; this attempt did train 1, evaluate 1.`"""
    spans = list(zip(plan.spans, state.spans, strict=True))
    counts = [
        (stage, sum(stage in span.left and now.step(stage) == "done" for span, now in spans))
        for stage in BACKFILL_STAGES
    ]
    did = ", ".join(f"{stage} {count}" for stage, count in counts if count) or "nothing"
    return f"{state.state}: {plural(len(plan.spans), 'span')} from {plan.first} to {plan.last}; this attempt did {did}."


def _tag(plan: BackfillPlan) -> None:
    """Tag the flow run with its lineage and backfill."""
    if not flow_run.id:
        return
    tags = {*flow_run.tags, f"lineage:{plan.lineage}", f"backfill:{plan.id}"}
    with get_client(sync_client=True) as client:
        client.update_flow_run(UUID(flow_run.id), tags=sorted(tags))


def _key(plan: BackfillPlan) -> str:
    return f"backfill-{plan.lineage}"


def control_flow_run(flow_run: UUID, action: Literal["pause", "resume", "cancel"]) -> str:
    """Set the flow run's state for the action; return its effect in a sentence.

    Raises:
        ConfigError: the server does not know the flow run, or its state does not allow the action.
    """
    with get_client(sync_client=True) as client:
        try:
            state = client.read_flow_run(flow_run).state
        except ObjectNotFound as error:
            raise ConfigError(
                f"this Prefect server does not know flow run {flow_run}; set PREFECT_API_URL to its server"
            ) from error
        if state is None or state.is_final():
            how = state.name if state else "without a state"
            raise ConfigError(
                f"its flow run is {how}, so it does not run; to continue with the rest, start the same backfill again"
            )
        match action:
            case "pause":
                _accepted(client.set_flow_run_state(flow_run, Paused(name="Paused")), action, state)
                return "it is paused; each running stage ends, and no other stage starts until it is resumed"
            case "resume":
                _accepted(client.resume_flow_run(flow_run), action, state)
                return "it continues"
            case "cancel":
                _accepted(client.set_flow_run_state(flow_run, Cancelling()), action, state)
                return "it is being cancelled; finished stages are kept"


def _accepted(result: OrchestrationResult[Any], action: str, state: State[Any]) -> None:
    if result.status != SetStateStatus.ACCEPT:
        why = getattr(result.details, "reason", None) or "the server refused"
        raise ConfigError(f"can't {action} it now: its flow run is {state.name}; {why}")
