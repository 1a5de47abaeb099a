"""Follow the log streams of a job's containers: lines go to the log, `@progress` lines to progress.

A job's result never depends on its log: an unreadable log is reported once, and the wait continues.
"""

import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from infra.compute.batch.api import Api, LogsRefused
from tasks.contracts import runner
from tasks.contracts.runner import Listener

AT_ONCE = 8  # streams; CloudWatch Logs answers 25 such requests a second for a whole account
TAIL_LINES = 20
CAUGHT_UP_LINES = 200  # earlier log lines shown of a job that was found again
_PAGES_A_LOOK = 20
READ_SECONDS = 15.0  # without new lines, after which an ended container's stream counts as read: last lines come late


@dataclass
class _Stream:
    name: str
    label: str
    last: int | None  # lines to show at the first look; None: all
    token: str = ""
    news_at: float = field(
        default_factory=time.monotonic
    )  # time of the last new line, or of the last sight of its running container
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


class LogFollower:
    """Reads the streams that `follow` names.

    Args:
        group: the log group; None: the logs can't be read from here.
        found_again: the job was started earlier; only the end of its log until now is shown.
    """

    def __init__(self, api: Api, group: str | None, listener: Listener, found_again: bool) -> None:
        self.group = group
        self._api, self._listener, self._found_again = api, listener, found_again
        self._streams: dict[str, _Stream] = {}
        self._readable, self._said = group is not None, False
        if group is None:
            listener.log("the job definition does not send its logs to CloudWatch, so they can't be shown here")

    def follow(self, labels: Mapping[str, str], live: Collection[str]) -> None:
        """Follow the streams in `labels`, with the prefix of their lines; `live` are the streams still written to."""
        last = CAUGHT_UP_LINES if self._found_again else None
        self._found_again = False
        known = self._streams
        self._streams = {name: known.get(name) or _Stream(name, label, last) for name, label in labels.items()} | known
        now = time.monotonic()
        for name in live:
            self._streams[name].news_at = now

    def look(self) -> None:
        """Pass on new lines. Raises as `pulse` of the wait policy does."""
        now = time.monotonic()
        due = [stream for stream in self._streams.values() if now - stream.news_at < READ_SECONDS]
        if len(due) > AT_ONCE and not self._said:
            self._said = True
            self._listener.log(f"shows {AT_ONCE} of {len(due)} logs; all are in log group {self.group}")
        for stream in due[:AT_ONCE]:
            self._read(stream)

    def tail(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a stream, followed or not."""
        stream = self._streams.get(name)
        if stream and stream.tail:
            return tuple(stream.tail)
        lines, _ = self._page(name, "", TAIL_LINES) if name else ((), "")
        return tuple(line for line in lines if line and runner.parse(line) is None)

    def _read(self, stream: _Stream) -> None:
        for _ in range(_PAGES_A_LOOK):
            self._api.policy.pulse()
            lines, token = self._page(stream.name, stream.token, stream.last if not stream.token else None)
            for line in lines:
                self._pass_on(stream, line)
            if lines:
                stream.news_at = time.monotonic()
            if token == stream.token:  # the end, for now
                break
            stream.token = token

    def _pass_on(self, stream: _Stream, line: str) -> None:
        if (found := runner.parse(line)) is not None:
            self._listener.progress(found)
        elif line:
            stream.tail.append(line)
            self._listener.log(f"{stream.label}{line}")

    def _page(self, name: str, token: str, last: int | None) -> tuple[Sequence[str], str]:
        if not self._readable or self.group is None:
            return (), token
        try:
            return self._api.log_page(self.group, name, token, last)
        except LogsRefused as error:
            self._readable = False
            self._listener.log(f"the log can't be shown, the job keeps running: {error}")
            return (), token
