"""The command `millrace`: its entry point."""

import contextlib
import signal
import sys
from types import FrameType

from flows.cli.app import app
from flows.cli.terminal.errors import explain
from tasks.foundation.garbage import collect_rarely
from tasks.running.json_logs import standard_error


def main() -> None:
    """Run the command line. Exit with 0, with 2 for a wrong command line, or with the code of the failure's class."""
    collect_rarely()
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(standard_error())
            app(prog_name="millrace")
        except Exception as error:
            sys.exit(explain(error))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
