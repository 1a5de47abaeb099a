"""The streams of a command. What can't be printed never decides how its work ends: the line is dropped.

A log disk may be full, a terminal closed, a reader such as `head` gone, and the codec too small for a minus sign.
"""

import contextlib
import errno
import io
import os
import sys
from pathlib import Path
from typing import Any, TextIO


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


def last() -> None:
    """Put streams that last in the place of `sys.stdout` and `sys.stderr`; a closed one leads nowhere."""
    for name in ("stdout", "stderr"):
        raw = getattr(sys, name)
        setattr(sys, name, Lasting(raw if raw is not None else Path(os.devnull).open("w", encoding="utf-8")))  # noqa: SIM115


def finish() -> None:
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
