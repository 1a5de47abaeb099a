"""The end of a command whose Prefect server is away: it comes all the same."""

import os
import sys
import threading
from collections.abc import Callable

LEAVE_SECONDS = 20.0

_timer: threading.Timer | None = None


def leave_soon(code: Callable[[], int], seconds: float = LEAVE_SECONDS) -> None:
    """End the process after `seconds`, if it has not ended by then, with what `code` returns; the last call counts.

    Before it ends, Prefect sends what it has left to say, and waits a minute or more for each line of it.
    """
    global _timer
    if _timer is not None:
        _timer.cancel()
    _timer = threading.Timer(seconds, _leave, (code,))
    _timer.daemon = True
    _timer.start()


def _leave(code: Callable[[], int]) -> None:
    status = code()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)
