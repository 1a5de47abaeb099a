"""Whether the Prefect server is there: asked between stages, since no stage needs it.

Where it is away, a flow run waits for it here and says so. Prefect's client would repeat each of its requests for
minutes, one after the other, and say nothing.
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


def answers() -> bool:
    """Return whether the flow run's server answers; true outside of a flow run, which needs none."""
    url = PREFECT_API_URL.value()
    return not flow_run.id or not url or prefect_health.answers(url)


def await_server(
    failed: Exception | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once the server of this flow run answers.

    Args:
        failed: what the flow run ends with in any case.

    Raises:
        ServerError: it did not within `PATIENCE_SECONDS`, and nothing had failed before.
    """
    if answers():
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
        if answers():
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
    """Return what `request` returns. While the server answers it with errors, or not at all, wait and repeat it.

    Prefect's client has repeated it already, each time within seconds: a server that is full needs more. What
    `request` does must be safe to repeat, as a stage is: what is done is not done again.

    Raises:
        ServerError: the server did not serve it within `PATIENCE_SECONDS`, or calls it wrong (an HTTP status of 4xx).
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
    """Return the error of a run whose server failed, for an error of Prefect's client."""
    trouble = one_line(error) or type(error).__name__
    return ServerError(
        f"the Prefect server at {url or PREFECT_API_URL.value()} failed: {trouble}. What is finished is in the "
        "workspace: look at the server's log, and run the same command again"
    )


def _may_pass(error: httpx.HTTPError) -> bool:
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 503
    return status >= 500 or status in (408, 429)
