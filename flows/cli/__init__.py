"""The command `millrace`. `main` turns every known failure into one line and the exit code of its class."""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType

from flows.cli.app import app
from tasks.errors import POLICIES, FailureClass, StageError, classify


def main() -> None:
    """Run the command line; exits with 0, 2 where typer refuses the command line, or the code of a failure's class."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        app(prog_name="millrace")
    except Exception as error:
        sys.exit(_explain(error))


def _explain(error: Exception) -> int:
    """Tell standard error what happened; returns the exit code. Only what nobody foresaw gets a traceback."""
    # No permission is the place's fault, wherever it shows.
    failure = FailureClass.STORE if isinstance(error, PermissionError) else classify(error)
    if isinstance(error, StageError) or failure is not FailureClass.CODE:
        print(f"{failure}: {error}", file=sys.stderr)
    else:
        traceback.print_exception(error)
        print(f"{failure}: {type(error).__name__}: {error} ({POLICIES[failure].meaning})", file=sys.stderr)
    return POLICIES[failure].exit_code


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
