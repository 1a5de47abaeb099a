"""A failure on standard error: one line for a known class, a traceback only for an unexpected error."""

import logging
import sys
import traceback

from flows.presentation.wording import visible
from tasks.foundation.disks import message_of
from tasks.foundation.errors import POLICIES, FailureClass, StageError, classify
from tasks.foundation.passwords import masked
from tasks.running.json_logs import JsonStream


def explain(error: Exception) -> int:
    """Print what happened on standard error; returns the exit code of its class."""
    # Permissions are the place's fault, wherever they show.
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
    """Return the message without passwords and without what would steer the terminal."""
    return visible(masked(message))
