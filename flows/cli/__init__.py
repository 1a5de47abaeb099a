"""The command `millrace`: its entry point.

Alone, since pyproject.toml names it.
"""

import contextlib
import gc
import signal
import sys
from types import FrameType
from typing import NoReturn

try:  # it takes a second, in which Ctrl-C comes too
    from flows.cli.app import app
    from flows.cli.terminal.ending import explain, finish_streams, leave_soon, let_streams_last
    from tasks.foundation.errors import ConfigError
    from tasks.foundation.process import collect_rarely
    from tasks.running.json_logs import standard_error
except KeyboardInterrupt:
    print("CANCELLED: stopped by Ctrl-C; nothing was begun", file=sys.stderr)
    raise SystemExit(76) from None  # the code of its class, which may not be imported yet


def main() -> None:
    """Run the command line. Exit with 0, with 2 for a wrong command line, or with the code of the failure's class."""
    let_streams_last()
    collect_rarely()
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(standard_error())
            _require_docstrings()
            app(prog_name="millrace")
        except SystemExit as ending:
            _leave(ending.code)
        except Exception as error:
            _leave(explain(error))


def _require_docstrings() -> None:
    """Refuse `python -OO`, which leaves docstrings out: libraries of the reports read theirs, late in a run."""
    if sys.flags.optimize > 1:
        raise ConfigError(
            "python -OO leaves out docstrings, which libraries need: unset PYTHONOPTIMIZE, or call with -O"
        )


def _leave(code: str | int | None) -> NoReturn:
    if "prefect" in sys.modules and isinstance(code, int | None):
        leave_soon(lambda: code or 0)
    finish_streams()
    gc.freeze()  # else the interpreter's last collections visit every object
    sys.exit(code)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(signal.Signals(number).name)
