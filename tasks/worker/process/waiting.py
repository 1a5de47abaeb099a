"""Waiting for another worker: for so long and no longer, with an error that names what is missing."""

import time
from collections.abc import Callable

from tasks.foundation.errors import HangError

SHORTEST_POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 1.0


def wait_until(done: Callable[[], bool], missing: Callable[[], str], seconds: float) -> None:
    """Poll until `done` is true. Raises HangError: it took longer than `seconds`; says what is `missing`."""
    deadline, pause = time.monotonic() + seconds, SHORTEST_POLL_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise HangError(f"{missing()} within {seconds:g} s; a worker is stuck or has ended")
        time.sleep(pause)
        pause = min(1.5 * pause, LONGEST_POLL_SECONDS)
