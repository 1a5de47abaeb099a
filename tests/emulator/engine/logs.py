"""The log streams of the containers, and the operation of CloudWatch Logs that reads them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.emulator.engine.aws import Document, ServiceError, now_ms

GROUP = "/aws/batch/job"
_PAGE = 10_000


@dataclass
class Stream:
    """One container's output, line by line."""

    group: str
    name: str
    events: list[tuple[int, str]] = field(default_factory=list)  # milliseconds since 1970, line
    _rest: bytes = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        # Docker's awslogs driver leaves empty lines out: the service takes none.
        self.events += [(now_ms(), line.decode(errors="replace")) for line in lines if line]

    def end(self) -> None:
        if self._rest:
            self.write(b"\n")

    def says(self, text: str) -> bool:
        return any(text in line for _, line in self.events)


class Logs:
    """By name. Lines show `delay_seconds` after they were written, as with the real service."""

    def __init__(self) -> None:
        self._groups = {GROUP}
        self._streams: dict[str, Stream] = {}
        self.delay_seconds = 0.0

    def forget(self) -> None:
        self._streams.clear()
        self.delay_seconds = 0.0

    def open(self, properties: Document, definition: str, task: str) -> Stream:
        """For a container's output; its properties say in which group, and how the stream's name begins."""
        options = properties.get("logConfiguration", {}).get("options", {})
        name = f"{options.get('awslogs-stream-prefix', definition)}/default/{task}"
        stream = self._streams[name] = Stream(options.get("awslogs-group", GROUP), name)
        return stream

    def create_log_group(self, request: Document) -> Document:
        self._groups.add(request["logGroupName"])
        return {}

    def get_log_events(self, request: Document) -> Document:
        """From a token `f/<position>` on, from the head, or the last lines; at the end the token repeats."""
        shown_until = now_ms() - self.delay_seconds * 1000
        events = [event for event in self._find(request).events if event[0] <= shown_until]
        size = request.get("limit", _PAGE)
        if (token := request.get("nextToken")) is not None:
            first = _position(token)
        else:
            first = 0 if request.get("startFromHead") else max(0, len(events) - size)
        shown = events[first : first + size]
        return {
            "events": [{"timestamp": at, "message": line, "ingestionTime": at} for at, line in shown],
            "nextForwardToken": f"f/{first + len(shown):056d}/s",
        }

    def _find(self, request: Document) -> Stream:
        if request["logGroupName"] not in self._groups:
            raise _missing("log group")
        found = self._streams.get(request["logStreamName"])
        if found is None or found.group != request["logGroupName"]:
            raise _missing("log stream")
        return found


def _missing(what: str) -> Exception:
    return ServiceError(f"The specified {what} does not exist.", "ResourceNotFoundException")


def _position(token: str) -> int:
    try:
        return int(token.split("/")[1])
    except (IndexError, ValueError):
        raise ServiceError(f"The token {token!r} is invalid.", "InvalidParameterException") from None
