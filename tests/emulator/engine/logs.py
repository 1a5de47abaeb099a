"""The log streams of the containers, and the two operations of CloudWatch Logs that read them."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.emulator.engine.aws import Document, ServiceError, arn, now_ms, page

GROUP = "/aws/batch/job"
_PAGE = 10_000
_STREAMS = 50


@dataclass
class Stream:
    """One container's output, line by line."""

    group: str
    name: str
    created_at: int
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
    """By group and name. Lines show `delay_seconds` after they were written, as with the real service."""

    def __init__(self) -> None:
        self._streams: dict[tuple[str, str], Stream] = {}
        self.delay_seconds = 0.0

    def forget(self) -> None:
        self._streams.clear()
        self.delay_seconds = 0.0

    def open(self, name: str, group: str = GROUP) -> Stream:
        stream = self._streams[group, name] = Stream(group, name, now_ms())
        return stream

    def get_log_events(self, request: Document) -> Document:
        """Forward tokens `f/<position>`, backward ones `b/<position>`; at either end the token repeats."""
        events = self._shown(self._find(request))
        start, end = request.get("startTime", 0), request.get("endTime", 1 << 62)
        events = [event for event in events if start <= event[0] < end]
        size = request.get("limit", _PAGE)
        token = request.get("nextToken")
        if token is None:
            first = 0 if request.get("startFromHead") else max(0, len(events) - size)
            last = min(first + size, len(events))
        elif token.startswith("f/"):
            first = _position(token)
            last = min(first + size, len(events))
        else:
            last = _position(token)
            first = max(0, last - size)
        return {
            "events": [{"timestamp": at, "message": line, "ingestionTime": at} for at, line in events[first:last]],
            "nextForwardToken": f"f/{last:056d}/s",
            "nextBackwardToken": f"b/{first:056d}/s",
        }

    def describe_log_streams(self, request: Document) -> Document:
        group = self._group(request)
        prefix = request.get("logStreamNamePrefix", "")
        streams = [one for (of, name), one in self._streams.items() if of == group and name.startswith(prefix)]
        if request.get("orderBy") == "LastEventTime":
            streams.sort(key=lambda stream: self._shown(stream)[-1:])
        else:
            streams.sort(key=lambda stream: stream.name)
        if request.get("descending"):
            streams.reverse()
        shown, more = page(streams, {"maxResults": request.get("limit", _STREAMS), **request}, _STREAMS)
        return {"logStreams": [self._describe(stream) for stream in shown], **more}

    def _describe(self, stream: Stream) -> Document:
        found: Document = {
            "logStreamName": stream.name,
            "creationTime": stream.created_at,
            "arn": arn("log-group", f"{stream.group}:log-stream:{stream.name}", service="logs"),
            "storedBytes": 0,
        }
        if events := self._shown(stream):
            found |= {"firstEventTimestamp": events[0][0], "lastEventTimestamp": events[-1][0]}
            found |= {"lastIngestionTime": events[-1][0], "uploadSequenceToken": "1"}
        return found

    def _group(self, request: Document) -> str:
        group: str = request.get("logGroupName") or request.get("logGroupIdentifier", "")
        if group != GROUP and not any(of == group for of, _ in self._streams):
            raise _missing("log group")
        return group

    def _find(self, request: Document) -> Stream:
        stream = self._streams.get((self._group(request), request["logStreamName"]))
        if stream is None:
            raise _missing("log stream")
        return stream

    def _shown(self, stream: Stream) -> list[tuple[int, str]]:
        shown_until = now_ms() - self.delay_seconds * 1000
        return [event for event in stream.events if event[0] <= shown_until]


def _missing(what: str) -> Exception:
    return ServiceError(f"The specified {what} does not exist.", "ResourceNotFoundException")


def _position(token: str) -> int:
    try:
        return int(token.split("/")[1])
    except (IndexError, ValueError):
        raise ServiceError(f"The token {token!r} is invalid.", "InvalidParameterException") from None
