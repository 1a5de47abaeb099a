"""The end of a command: its failure on standard error, its streams, and its exit without the Prefect server.

What can't be printed never decides how its work ends: the line is dropped. A log disk may be full, a terminal closed, a
reader such as `head` gone, and the codec too small for a minus sign.
"""

import contextlib
import errno
import io
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from flows.presentation.wording import visible
from tasks.foundation.errors import POLICIES, FailureClass, StageError, classify, message_of
from tasks.foundation.passwords import masked
from tasks.running.json_logs import JsonStream


class Lasting(io.TextIOBase):
    """A text stream that drops what can't be written from the first failure on, and keeps that failure in `failed`."""

    def __init__(self, raw: TextIO) -> None:
        self._raw = raw
        self.failed: OSError | None = None
        with contextlib.suppress(AttributeError):
            raw.reconfigure(errors="replace")  # type: ignore[attr-defined]  # a stream of a test has no codec

    def write(self, text: str) -> int:
        try:
            self._raw.write(text)
        except OSError as error:
            self._drop(error)
        return len(text)

    def flush(self) -> None:
        try:
            self._raw.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        """Let the descriptor lead nowhere, for the interpreter's last flush and for child processes too."""
        self.failed = self.failed or error
        with Path(os.devnull).open("wb") as nowhere, contextlib.suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), self._raw.fileno())

    def isatty(self) -> bool:
        return self._raw.isatty()

    def fileno(self) -> int:
        return self._raw.fileno()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def let_streams_last() -> None:
    """Put streams that last in the place of `sys.stdout` and `sys.stderr`; a closed one leads nowhere."""
    for name in ("stdout", "stderr"):
        raw = getattr(sys, name)
        if isinstance(raw, Lasting):  # an earlier command in this process
            continue
        setattr(sys, name, Lasting(raw if raw is not None else Path(os.devnull).open("w", encoding="utf-8")))  # noqa: SIM115


def finish_streams() -> None:
    """Flush both streams; if one could not be written, say so on the other."""
    named = {"standard output": sys.stdout, "standard error": sys.stderr}
    for stream in named.values():
        stream.flush()
    for name, stream in named.items():
        failed = getattr(stream, "failed", None)
        if failed is not None and failed.errno != errno.EPIPE:
            other = next(each for each in named.values() if each is not stream)
            print(f"{name} could not be written: {failed.strerror}. The work and the exit code are whole.", file=other)
            other.flush()


LEAVE_SECONDS = 20.0

_timer: threading.Timer | None = None


def explain(error: Exception) -> int:
    """Print an error to standard error; return the exit code of its class."""
    failure = classify(error)
    known = isinstance(error, StageError) or failure is not FailureClass.CODE
    if isinstance(sys.stderr, JsonStream):
        sys.stderr.log(_shown(message_of(error)), logging.ERROR, None if known else error, failure=failure)
    elif known:
        print(f"{failure}: {_shown(message_of(error))}", file=sys.stderr)
    else:
        print(_shown("".join(traceback.format_exception(error))), end="", file=sys.stderr)
        print(f"{failure}: {type(error).__name__}: {_shown(str(error))} ({POLICIES[failure].meaning})", file=sys.stderr)
    return POLICIES[failure].exit_code


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
