"""Log lines as JSON objects, one a line, for log collectors: MILLRACE_LOG=json.

A line has the fields (run, span, stage, attempt, rank) of its context. Without the variable, logs are text. Messages
and levels are the same in both.
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
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from tasks.foundation.errors import ConfigError, FailureClass, classify
from tasks.running.context import override_context, stage_context

if TYPE_CHECKING:
    from tasks.contracts.runs import RunPlan

VARIABLE = "MILLRACE_LOG"
LOGGER = "millrace"
_FORMS = ("text", "json")
_RANK = re.compile(r"(?:\[node (?P<node>\d+)\] )?(?:\[(?P<rank>\d+)\] )?")  # a runner's prefix of a worker's line
_LEVEL = re.compile(r"(warning|error): ", re.I)
_ORDER = ("run", "span", "lineage", "stage", "attempt", "node", "rank", "flow_run", "task_run", "failure", "traceback")


def json_enabled() -> bool:
    """Return True if log lines are JSON. Raises ConfigError: MILLRACE_LOG has an unknown value."""
    form = os.environ.get(VARIABLE) or "text"
    if form not in _FORMS:
        raise ConfigError(f"{VARIABLE} is {form!r}; known are {' and '.join(_FORMS)}, and unset is text")
    return form == "json"


def log_context(**fields: Any) -> contextlib.AbstractContextManager[None]:
    """Add fields to the lines of the block."""
    return override_context(log_fields={**stage_context().log_fields, **fields})


def run_log_context(plan: RunPlan, **fields: Any) -> contextlib.AbstractContextManager[None]:
    """Add the fields of a run to the lines of the block."""
    return log_context(run=plan.run_key, span=plan.span.name, lineage=plan.config.lineage, **fields)


class JsonLines(logging.Formatter):
    """Formats a record as one line: time, level, logger, message, and the known fields."""

    def format(self, record: logging.LogRecord) -> str:
        known, message = {**stage_context().log_fields, **getattr(record, "log_fields", {})}, record.getMessage()
        labels = _RANK.match(message) if "stage" in known else None
        if labels is not None and labels[0]:
            known |= {name: int(number) for name, number in labels.groupdict().items() if number is not None}
            message = message[labels.end() :]
        for name in ("flow_run", "task_run"):  # ids, set by Prefect's loggers
            known[name] = getattr(record, f"{name}_id", None)
        if record.exc_info and record.exc_info[1] is not None:
            known["traceback"] = self.formatException(record.exc_info)
            known["failure"] = classify(record.exc_info[1])
        time = dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds")
        head = {"time": time, "level": record.levelname, "logger": record.name, "message": message}
        fields = {name: known[name] for name in _ORDER if known.get(name) not in (None, "")}
        return json.dumps(head | fields, ensure_ascii=False, default=str)


class JsonHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which may be replaced."""

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
    """Standard error of a command: a line without a logger becomes a JSON object too."""

    def __init__(self, raw_stream: TextIO) -> None:
        self.raw_stream = raw_stream
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            self._log_line(line)
        return len(text)

    def end(self) -> None:
        """Write the last line if it has no newline."""
        self.write("\n")

    def flush(self) -> None:
        self.raw_stream.flush()

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        """Return False: no bars and no colours."""
        return False

    def log(
        self, message: str, level: int = logging.INFO, error: Exception | None = None, **fields: FailureClass
    ) -> None:
        """Write one object, with the traceback of `error` if given."""
        exc_info = (type(error), error, error.__traceback__) if error else None
        record = logging.LogRecord(LOGGER, level, "", 0, "%s", (message,), exc_info)
        record.log_fields = fields
        self.raw_stream.write(JsonLines().format(record) + "\n")
        self.raw_stream.flush()

    def _log_line(self, line: str) -> None:
        prefix = _LEVEL.match(line)
        if prefix is None:
            self.log(line)
        else:
            self.log(line[prefix.end() :], logging.getLevelNamesMapping()[prefix[1].upper()])


def install() -> None:
    """If JSON is enabled, replace Prefect's console handlers, so that loggers write JSON.

    Call it in every process that uses Prefect; a second call changes nothing. Raises as `json_enabled` does.
    """
    if not json_enabled():
        return
    import prefect.main  # noqa: F401 - sets up Prefect's logging, which must not happen later
    from prefect.logging.handlers import PrefectConsoleHandler

    known = [each for each in logging.Logger.manager.loggerDict.values() if isinstance(each, logging.Logger)]
    for logger in (logging.getLogger(), *known):
        for handler in [each for each in logger.handlers if isinstance(each, PrefectConsoleHandler)]:
            logger.removeHandler(handler)
            logger.addHandler(JsonHandler(handler.level))


@contextlib.contextmanager
def standard_error() -> Iterator[None]:
    """If JSON is enabled, write all lines of a command on standard error as JSON. Raises as `json_enabled` does."""
    if not json_enabled():
        yield
        return
    stream = sys.stderr
    sys.stderr = json_stream = JsonStream(stream)
    try:
        yield
    finally:
        json_stream.end()
        sys.stderr = stream
