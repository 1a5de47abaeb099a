"""A question to a person about an undecided gate: the form in the Prefect UI, the wait for the answer, the record.

A deployed flow run is suspended: it has no process while it waits, and is run again with the answer. Any other flow run
waits in its process, with its lineage locked. A watch answers for nobody once the time is over.
"""

import datetime as dt
from collections.abc import Iterable
from typing import Annotated, Any, Literal
from uuid import UUID

from prefect import get_client, suspend_flow_run
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.runtime import deployment, flow_run
from prefect.states import Paused, Running
from pydantic import Field

from flows.orchestration.events import gate_asks, send_once
from flows.orchestration.recorded_invocation import page_of
from infra.store.base import Store
from tasks.contracts.evaluation import DecisionAnswer
from tasks.contracts.runs import RunPlan
from tasks.foundation import clock
from tasks.foundation.errors import CancelledError
from tasks.running.stage_output import StageOutput, logger, state_of
from tasks.runs import releases
from tasks.runs.answers import NOBODY, ask, decide, overdue
from tasks.runs.holds import hold
from tasks.runs.results import Judgement, read_judgement

POLL_SECONDS = 2.0
_SPARE_SECONDS = 86400  # the server gives up this long after us, so that the flow run still ends by itself
_EFFECT = (
    "accept: it is released; reject: the current release stays, and the next span starts from the last accepted model"
)
Reason = Annotated[str, Field(min_length=1, max_length=500, description="Reason; on record with the run.")]
Name = Annotated[str, Field(min_length=1, max_length=100, description="Your name; on record with the run.")]


class GateAnswer(RunInput):
    """The form of the flow run's page, under Resume."""

    answer: DecisionAnswer = Field(description=f"{_EFFECT}; hold: it is released and waits, as after `millrace hold`.")
    reason: Reason
    name: Name


class FirstAnswer(RunInput):
    """The same while the workspace has no release yet: there is nothing that a hold would keep."""

    answer: Literal["accept", "reject"] = Field(description=f"{_EFFECT}.")
    reason: Reason
    name: Name


Answer = GateAnswer | FirstAnswer


def answered(store: Store, plan: RunPlan, judged: Judgement) -> Judgement:
    """Return the judgement with a person's answer if an undecided gate asks for it, else as it is.

    Without an answer in time the model is rejected. An answer `hold` holds the releases of the workspace.

    Raises:
        Pause: the flow run was suspended; it is run again with the answer.
        CancelledError: the flow run was cancelled while it waited.
    """
    if not judged.asks:
        return judged
    hours = plan.config.evaluate.answer_hours
    judged = ask(store, plan, judged, hours, flow_run.id or "", page_of(flow_run.id))
    if not judged.asks or judged.asked is None:  # another process answered meanwhile
        return judged
    send_once(store, gate_asks(plan, judged))
    logger().warning("undecided, so a person is asked until %s: %s", judged.asked.until, " ".join(judged.asks))
    given = None if overdue(judged.asked) else _answer(store, judged)
    if given is None:
        return decide(store, plan, judged, "reject", NOBODY, f"nobody answered within {hours:g} hours")
    if given.answer == "hold" and releases.hold_of(store) is None:
        hold(store, f"{given.name}: {given.reason}")
    return decide(store, plan, judged, given.answer, given.name, given.reason)


def _answer(store: Store, judged: Judgement) -> Answer | None:
    """Return the answer; None if the time is over. Raises as `answered`."""
    form = (FirstAnswer if releases.current(store) is None else GateAnswer).with_initial_data(description=_text(judged))
    key = f"gate-{judged.number}"
    if deployment.id and not flow_run.parent_flow_run_id:
        given: Any = suspend_flow_run(wait_for_input=form, key=key)
        return given
    return _waited_for(form, key, judged)


def _text(judged: Judgement) -> str:
    assert judged.asked is not None
    gates = "\n".join(f"- {sentence}" for sentence in judged.asks)
    late = f"Without an answer by {judged.asked.until[:16]} UTC it is rejected."
    return f"The gates can't decide about this model:\n\n{gates}\n\n{late}"


def _waited_for(form: Any, key: str, judged: Judgement) -> Answer | None:
    """Wait in this process. Prefect's own pause does not notice a cancellation."""
    assert judged.asked is not None
    if not flow_run.id:
        return None
    run, waiter = UUID(flow_run.id), StageOutput()
    until = dt.datetime.fromisoformat(judged.asked.until)
    left = int((until - dt.datetime.now(dt.UTC)).total_seconds())
    paused = Paused(timeout_seconds=left + _SPARE_SECONDS, reschedule=False, pause_key=key)
    keys = keyset_from_paused_state(paused)
    paused.state_details.run_input_keyset = dict(keys)  # pyright: ignore[reportAttributeAccessIssue]
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, paused, force=True)
    form.save(keys, flow_run_id=run)
    while dt.datetime.now(dt.UTC) < until:
        waiter.pulse()
        state = state_of(run)
        if state is not None and state.is_running():
            return form.load(keys, flow_run_id=run)
        if state is not None and state.is_final():
            raise CancelledError(f"the flow run became {state.name} while it waited for an answer")
        clock.sleep(POLL_SECONDS)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, Running(), force=True)
    return None


def answer_overdue(store: Store, run_keys: Iterable[str]) -> None:
    """Answer for nobody if a suspended run has waited too long: it is run again, and rejects its model.

    Args:
        run_keys: the runs that have not ended.

    Raises:
        StoreError: a judgement is not readable.
    """
    for run_key in run_keys:
        judged = read_judgement(store, run_key)
        if judged is not None and judged.asks and judged.asked is not None and overdue(judged.asked):
            _answer_for_nobody(judged.asked.flow_run)


def _answer_for_nobody(identity: str) -> None:
    given = {"answer": "reject", "name": NOBODY, "reason": "nobody answered in time"}
    try:
        with get_client(sync_client=True) as client:
            run = client.read_flow_run(UUID(identity))
            if run.state is not None and run.state.is_paused():
                client.resume_flow_run(run.id, run_input=given)
                logger().warning("%s: nobody answered in time, so its model is rejected", run.name)
    except (ObjectNotFound, PrefectHTTPStatusError, ValueError) as error:  # another server's, or answered just now
        logger().warning("flow run %s does not wait for an answer any more: %s", identity, error)
