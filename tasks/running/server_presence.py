"""Check between stages that the Prefect server answers; no stage needs it.

If it doesn't, a flow run waits for it here and says so. Prefect's client would silently repeat each of its requests
for minutes, one after the other.
"""

import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL

from infra import prefect_health
from tasks.foundation.errors import HostError, ServerError, one_line
from tasks.running.context import stage_context
from tasks.running.stage_output import logger

R = TypeVar("R")

PATIENCE_SECONDS = 75.0
LONGEST_PAUSE_SECONDS = 10.0


def server_answers() -> bool:
    """Return True if the flow run's server answers, or outside of a flow run, which needs none."""
    url = PREFECT_API_URL.value()
    return not flow_run.id or not url or prefect_health.answers(url)


def await_server(
    failed: Exception | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once the server of this flow run answers.

    Args:
        failed: the error with which the flow run ends anyway.

    Raises:
        ServerError: it did not answer within `PATIENCE_SECONDS`, and `failed` is None.
    """
    if server_answers():
        return
    url, keeper, began, pause = PREFECT_API_URL.value(), stage_context().keeper, clock(), 1.0
    logger().warning("the Prefect server at %s does not answer; waiting for it, and what is finished is kept", url)
    trouble = ""
    while (left := began + PATIENCE_SECONDS - clock()) > 0:
        try:
            if keeper is not None:
                keeper.restart(left)
        except HostError as error:
            trouble = f" It could not be started again: {error}."
        if server_answers():
            logger().warning("the Prefect server answers again, after %.0f s", clock() - began)
            return
        sleep(max(0.0, min(pause, began + PATIENCE_SECONDS - clock())))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    gone = ServerError(
        f"the Prefect server at {url} did not answer for {PATIENCE_SECONDS:.0f} s.{trouble} What is finished is in the "
        "workspace: start the server again, and run the same command; it goes on after the last finished stage"
    )
    if keeper is not None:
        keeper.give_up(failed or gone)
    if failed is None:
        raise gone


def repeat_until_served(
    request: Callable[[], R],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> R:
    """Return the result of `request`; repeat it while the server answers with errors or not at all.

    Prefect's client has already repeated it within seconds, but an overloaded server needs longer. `request` must be
    idempotent, as a stage is.

    Raises:
        ServerError: no success within `PATIENCE_SECONDS`, or a permanent error (HTTP status 4xx).
    """
    deadline, pause = 0.0, 1.0
    while True:
        try:
            return request()
        except httpx.HTTPError as error:
            deadline = deadline or clock() + PATIENCE_SECONDS
            if not _may_pass(error) or clock() >= deadline:
                raise server_error(error) from error
            logger().warning("the Prefect server failed (%s); trying again in %.0f s", one_line(error), pause)
            sleep(pause)
            await_server(clock=clock, sleep=sleep)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def server_error(error: httpx.HTTPError, url: str | None = None) -> ServerError:
    """Convert an error of Prefect's client to the error of a run whose server failed."""
    trouble = one_line(error) or type(error).__name__
    return ServerError(
        f"the Prefect server at {url or PREFECT_API_URL.value()} failed: {trouble}. What is finished is in the "
        "workspace: look at the server's log, and run the same command again"
    )


def _may_pass(error: httpx.HTTPError) -> bool:
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
    return status >= 500 or status in (408, 429)
