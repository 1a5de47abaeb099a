"""Log lines as JSON objects, one a line, for those who collect them: MILLRACE_LOG=json.

It says what a line is about (run, span, stage, attempt, rank) from where it was written; unset, nothing changes. What
is logged, and at which level, is not decided here.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from tasks.errors import ConfigError, FailureClass, classify

if TYPE_CHECKING:
    from tasks.contracts import RunPlan

VARIABLE = "MILLRACE_LOG"
LOGGER = "millrace"
_FORMS = ("text", "json")
_RANK = re.compile(r"(?:\[node (?P<node>\d+)\] )?(?:\[(?P<rank>\d+)\] )?")  # what runners begin a worker's line with
_LEVEL = re.compile(r"(warning|error): ", re.I)
_ORDER = ("run", "span", "lineage", "stage", "attempt", "node", "rank", "flow_run", "task_run", "failure", "traceback")

_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default={})  # noqa: B039 - never changed in place


def wanted() -> bool:
    """Whether log lines are to be JSON.

    Raises:
        ConfigError: MILLRACE_LOG names no form that is known.
    """
    form = os.environ.get(VARIABLE) or "text"
    if form not in _FORMS:
        raise ConfigError(f"{VARIABLE} is {form!r}; known are {' and '.join(_FORMS)}, and unset is text")
    return form == "json"


@contextlib.contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Let the lines that are written inside the block say so, beside what those around it say."""
    token = _about.set({**_about.get(), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def about_plan(plan: RunPlan, **fields: Any) -> contextlib.AbstractContextManager[None]:
    """The same for the work of a run."""
    return about(run=plan.run_key, span=plan.span.name, lineage=plan.config.lineage, **fields)


class JsonLines(logging.Formatter):
    """A record as one line: time, level, logger, message, and what it is about as far as that is known."""

    def format(self, record: logging.LogRecord) -> str:
        known, message = {**_about.get(), **getattr(record, "about", {})}, record.getMessage()
        labels = _RANK.match(message) if "stage" in known else None
        if labels is not None and labels[0]:
            known |= {name: int(number) for name, number in labels.groupdict().items() if number is not None}
            message = message[labels.end() :]
        for name in ("flow_run", "task_run"):  # ids, as Prefect's loggers tell them
            known[name] = getattr(record, f"{name}_id", None)
        if record.exc_info and record.exc_info[1] is not None:
            known["traceback"] = self.formatException(record.exc_info)
            known["failure"] = classify(record.exc_info[1])
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
        fields = {name: known[name] for name in _ORDER if known.get(name) not in (None, "")}
        return json.dumps(head | fields, ensure_ascii=False, default=str)


class JsonHandler(logging.Handler):
    """Writes to standard error, whatever that is at the time."""

    def __init__(self, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self.setFormatter(JsonLines())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            stream = sys.stderr
            raw = stream.raw_stream if isinstance(stream, JsonStream) else stream
            raw.write(self.format(record) + "\n")
            raw.flush()
        except Exception:
            self.handleError(record)


class JsonStream(io.TextIOBase):
    """Standard error of a command: each line that is not said through a logger becomes an object like the others."""

    def __init__(self, raw_stream: TextIO) -> None:
        self.raw_stream = raw_stream
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._say_line(line)
        return len(text)

    def end(self) -> None:
        """Say what was begun and has no end of line."""
        self.write("\n")

    def flush(self) -> None:
        self.raw_stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """No bars and no colours."""
        return False

    def say(
        self, message: str, level: int = logging.INFO, error: Exception | None = None, **fields: FailureClass
    ) -> None:
        """One object; with the traceback of `error`, if there is one."""
        exc_info = (type(error), error, error.__traceback__) if error else None
        record = logging.LogRecord(LOGGER, level, "", 0, "%s", (message,), exc_info)
        record.about = fields
        self.raw_stream.write(JsonLines().format(record) + "\n")
        self.raw_stream.flush()

    def _say_line(self, line: str) -> None:
        prefix = _LEVEL.match(line)
        if prefix is None:
            self.say(line)
        else:
            self.say(line[prefix.end() :], logging.getLevelNamesMapping()[prefix[1].upper()])


def install() -> None:
    """Where JSON is wanted, let loggers write it to the console instead of Prefect's lines for people.

    To be called where Prefect is used; again does no harm.

    Raises:
        ConfigError: as `wanted` does.
    """
    if not wanted():
        return
    import prefect.main  # noqa: F401 - sets up Prefect's logging, which must not happen later
    from prefect.logging.handlers import PrefectConsoleHandler

    known = [one for one in logging.Logger.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    for logger in (logging.getLogger(), *known):
        for handler in [one for one in logger.handlers if isinstance(one, PrefectConsoleHandler)]:
            logger.removeHandler(handler)
            logger.addHandler(JsonHandler(handler.level))


@contextlib.contextmanager
def standard_error() -> Iterator[None]:
    """Where JSON is wanted, let all that a command says on standard error be JSON.

    Raises:
        ConfigError: as `wanted` does.
    """
    if not wanted():
        yield
        return
    stream = sys.stderr
    sys.stderr = spoken = JsonStream(stream)
    try:
        yield
    finally:
        spoken.end()
        sys.stderr = stream
