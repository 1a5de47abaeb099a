"""The end of a command: print its failure on standard error, and exit even if the Prefect server is unreachable."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable

from flows.presentation.wording import visible
from tasks.foundation.disks import message_of
from tasks.foundation.errors import POLICIES, FailureClass, StageError, classify
from tasks.foundation.passwords import masked
from tasks.running.json_logs import JsonStream

LEAVE_SECONDS = 20.0

_timer: threading.Timer | None = None


def explain(error: Exception) -> int:
    """Print an error to standard error; return the exit code of its class."""
    # A missing permission counts as an error of the store.
    failure = FailureClass.STORE if isinstance(error, PermissionError) else classify(error)
    known = isinstance(error, StageError) or failure is not FailureClass.CODE
    if isinstance(sys.stderr, JsonStream):
        sys.stderr.log(_sentence(error), logging.ERROR, None if known else error, failure=failure)
    elif known:
        print(f"{failure}: {_sentence(error)}", file=sys.stderr)
    else:
        print(_shown("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        print(f"{failure}: {type(error).__name__}: {_shown(str(error))} ({POLICIES[failure].meaning})", file=sys.stderr)
    return POLICIES[failure].exit_code


def _sentence(error: Exception) -> str:
    if isinstance(error, PermissionError) and error.filename is not None:
        return f"{error.filename}: this user may not read or write it; change its permissions, or use another folder"
    return _shown(message_of(error))


def _shown(message: str) -> str:
    """Return the message without passwords, with control characters escaped."""
    return visible(masked(message))


def leave_soon(code: Callable[[], int], seconds: float = LEAVE_SECONDS) -> None:
    """End the process after `seconds`, if it still runs, with the exit code that `code` returns; the last call counts.

    At exit, Prefect sends its remaining log lines, and may wait more than a minute for each.
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
