"""Cancel a flow run, however it was started: it ends as Cancelled, and its jobs on AWS Batch end.

A Prefect worker or `serve` interrupts the flow's process. A flow in any other process polls for the cancellation
(tasks/running/stage_output.py).
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import httpx
from prefect import Flow
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import CancelledRun
from prefect.states import Cancelled

from configs.load import load_config
from infra.store.factory import open_store
from tasks.foundation.errors import CancelledError, ServerError
from tasks.running.server_presence import await_server, server_error
from tasks.running.stage_output import logger

P = ParamSpec("P")
R = TypeVar("R")


def cancellable(body: Callable[P, R]) -> Callable[P, R]:
    """Decorate a flow to end as Cancelled if a cancellation stopped a stage or child run; else it stays Cancelling."""

    @functools.wraps(body)
    def flow_body(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            value = body(*args, **kwargs)
            await_server()  # since Prefect now records the end of the flow run
            return value
        except (CancelledError, CancelledRun) as error:
            ended: Any = Cancelled(message=str(error))
            return ended
        except ServerError:
            raise
        except httpx.HTTPError as error:  # from Prefect's client
            failed = server_error(error)
            await_server(failed)
            raise failed from error
        except Exception as error:
            await_server(error)
            raise

    # Prefect looks up the names of annotations in the function's module, which is this one.
    flow_body.__signature__ = inspect.signature(body, eval_str=True)  # pyright: ignore[reportAttributeAccessIssue]
    return flow_body


def end_jobs(flow: Flow[..., Any], flow_run: FlowRun, state: State) -> None:
    """End the jobs of a cancelled flow run on AWS Batch. A hook: the Prefect worker runs it in another process."""
    from infra.compute.batch.end_jobs import end_jobs_of

    parameters = flow_run.parameters
    config_file, overrides = parameters.get("config_file"), parameters.get("overrides") or ()
    store = open_store(parameters["workspace"])
    for job in end_jobs_of(store, load_config(config_file, overrides), str(flow_run.id)):
        logger().warning("job %s (%s): %s, %s", job.job, job.name, job.action, job.why)
