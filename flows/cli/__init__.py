"""The command `millrace`.

`app.py` has its options, `outputs.py` what it tells scripts, `show.py` what it tells people.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from types import FrameType

from flows.cli.app import app
from flows.cli.errors import explain
from tasks.structured import standard_error


def main() -> None:
    """Run the command line; exits with 0, 2 where typer refuses the command line, or the code of a failure's class."""
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(standard_error())
            app(prog_name="millrace")
        except Exception as error:
            sys.exit(explain(error))


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
