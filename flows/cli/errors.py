"""A failure as the command tells it: one line for what is known, a traceback only for what nobody foresaw."""

from __future__ import annotations

import logging
import sys
import traceback

from tasks.errors import POLICIES, FailureClass, StageError, classify
from tasks.structured import JsonStream


def explain(error: Exception) -> int:
    """Tell standard error what happened; returns the exit code of its class."""
    # Permissions are the place's fault, wherever they show.
    failure = FailureClass.STORE if isinstance(error, PermissionError) else classify(error)
    known = isinstance(error, StageError) or failure is not FailureClass.CODE
    if isinstance(sys.stderr, JsonStream):
        sys.stderr.say(str(error), logging.ERROR, None if known else error, failure=failure)
    elif known:
        print(f"{failure}: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
        print(f"{failure}: {type(error).__name__}: {error} ({POLICIES[failure].meaning})", file=sys.stderr)
    return POLICIES[failure].exit_code
