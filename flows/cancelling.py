"""What cancelling a flow run means, whichever way the flow was started.

A worker or `serve` interrupts the flow's process; a flow in a plain process finds out by itself (tasks/sinks.py) and
has to end in the state Cancelled by itself. What still runs on AWS Batch then is ended here once more, from outside.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled

from configs.load import load_config
from tasks.errors import CancelledError
from tasks.sinks import logger

P = ParamSpec("P")
R = TypeVar("R")


def cancellable(body: Callable[P, R]) -> Callable[P, R]:
    """Let a flow whose stage or child run was stopped by a cancellation end as Cancelled; else it stays Cancelling."""

    @functools.wraps(body)
    def flow_body(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return body(*args, **kwargs)
        except (CancelledError, CancelledRun) as error:
            ended: Any = Cancelled(message=str(error))
            return ended

    # Prefect looks the names in annotations up where the function was made, which is this module.
    flow_body.__signature__ = inspect.signature(body, eval_str=True)  # pyright: ignore[reportAttributeAccessIssue]
    return flow_body


def end_jobs(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """Hook, run by worker or runner in a process of its own: end what the cancelled flow run left on AWS Batch."""
    from tasks.reap import end_jobs_of

    parameters = flow_run.parameters
    place, overrides = parameters.get("place"), parameters.get("overrides") or ()
    for job in end_jobs_of(load_config(Path(place) if place else None, overrides), str(flow_run.id)):
        logger().warning("job %s (%s): %s, %s", job.job, job.name, job.action, job.why)
