"""A failure as the command tells it: one line for what is known, a traceback only for what nobody foresaw."""

from __future__ import annotations

import sys
import traceback

from tasks.errors import POLICIES, FailureClass, StageError, classify


def explain(error: Exception) -> int:
    """Tell standard error what happened; returns the exit code of its class."""
    # Permissions are the place's fault, wherever they show.
    failure = FailureClass.STORE if isinstance(error, PermissionError) else classify(error)
    if isinstance(error, StageError) or failure is not FailureClass.CODE:
        print(f"{failure}: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
        print(f"{failure}: {type(error).__name__}: {error} ({POLICIES[failure].meaning})", file=sys.stderr)
    return POLICIES[failure].exit_code
