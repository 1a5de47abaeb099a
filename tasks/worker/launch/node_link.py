"""The TCP link between the launchers of one job's nodes: it carries hellos, heartbeats and the ends of workers.

Messages are lines of JSON, small and rare. nodes.py decides on the consequences.
"""

import contextlib
import select
import socket
import time
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from tasks.foundation.errors import HostError
from tasks.foundation.records import Record
from tasks.worker.launch.this_node import ContainerPosition, Report

HEARTBEATS_PER_SILENCE = 5  # lost heartbeats before a node counts as silent
MESSAGE_BYTES = 1 << 17
SEND_SECONDS = 5.0  # a send blocked for longer means that the other side has stopped reading
RETRY_SECONDS = 0.2


class Hello(Record):
    """The first message of a child node."""

    kind: Literal["hello"] = "hello"
    job: str
    try_number: int
    node: int
    host: str
    unfit: str = Field(default="", description="reason not to use its host")


class Welcome(Record):
    """To all children, once all are connected: the workers may start."""

    kind: Literal["welcome"] = "welcome"


class Heartbeat(Record):
    """A heartbeat, from both sides."""

    kind: Literal["beat"] = "beat"


class WorkersEnded(Record):
    """The workers of a child node have ended."""

    kind: Literal["ended"] = "ended"
    report: Report


class Terminating(Record):
    """A child node received SIGTERM; its workers still run."""

    kind: Literal["terminating"] = "terminating"


class JobEnd(Record):
    """To a child node: the job ends with exit code `code`."""

    kind: Literal["end"] = "end"
    code: int


Message = Annotated[Hello | Welcome | Heartbeat | WorkersEnded | Terminating | JobEnd, Field(discriminator="kind")]
_MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class Link:
    """One connection. Once `closed`, it neither sends nor receives."""

    def __init__(self, connection: socket.socket, heartbeat_timeout_seconds: float) -> None:
        connection.settimeout(SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._heartbeat_seconds = heartbeat_timeout_seconds / HEARTBEATS_PER_SILENCE
        self._received = b""
        self._received_at = self._sent_at = time.monotonic()
        self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def silence(self) -> float:
        """Seconds since the last received data."""
        return time.monotonic() - self._received_at

    def send(self, message: Message) -> None:
        if self.closed:
            return
        try:
            self._connection.sendall(message.model_dump_json().encode() + b"\n")
            self._sent_at = time.monotonic()
        except OSError:
            self.closed = True

    def send_heartbeat(self) -> None:
        """Send a heartbeat if one is due; call this often."""
        if time.monotonic() - self._sent_at >= self._heartbeat_seconds:
            self.send(Heartbeat())

    def receive(self) -> list[Message]:
        """Return the messages received since the last call, without waiting."""
        try:
            while not self.closed and select.select([self], [], [], 0)[0]:
                piece = self._connection.recv(1 << 16)
                if not piece or len(self._received) > MESSAGE_BYTES:
                    self.closed = True
                    break
                self._received += piece
                self._received_at = time.monotonic()
        except OSError:
            self.closed = True
        *lines, self._received = self._received.split(b"\n")
        try:
            return [_MESSAGES.validate_json(line) for line in lines]
        except ValidationError:  # not one of our messages
            self.closed = True
            return []

    def close(self) -> None:
        self.closed = True
        self._connection.close()


def connect(position: ContainerPosition, heartbeat_timeout_seconds: float) -> Link | None:
    """Return a link to the main node, or None if that does not listen yet."""
    try:
        address = (position.main_address, position.link_port)
        return Link(socket.create_connection(address, timeout=SEND_SECONDS), heartbeat_timeout_seconds)
    except OSError:
        return None


class Child:
    """A child node, as the main node sees it."""

    def __init__(self, link: Link, hello: Hello) -> None:
        self.link = link
        self.host = hello.host
        self.name = f"node {hello.node} ({hello.host})"
        self.unfit = hello.unfit
        self.terminating = False
        self.report: Report | None = None

    def handle(self, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case WorkersEnded():
                    self.report = message.report
                case Terminating():
                    self.terminating = True
                case _:
                    pass


class Children:
    """All links of the main node; a single node has none and opens no port."""

    def __init__(self, position: ContainerPosition, heartbeat_timeout_seconds: float) -> None:
        """Listen for child nodes. Raises HostError if the port is not available."""
        self._position = position
        self._timeout_seconds = heartbeat_timeout_seconds
        self._unidentified: list[Link] = []
        self._server: socket.socket | None = None
        self.nodes: dict[int, Child] = {}
        if position.nodes > 1:
            try:
                self._server = socket.create_server(("", position.link_port), backlog=position.nodes)
            except OSError as error:
                raise HostError(f"can't listen for the other nodes on port {position.link_port}: {error}") from error
            self._server.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for link in [*self._unidentified, *(child.link for child in self.nodes.values())]:
            link.close()
        if self._server is not None:
            self._server.close()

    @property
    def missing(self) -> list[int]:
        """Nodes that have not connected yet."""
        return [node for node in range(1, self._position.nodes) if node not in self.nodes]

    def wait(self, seconds: float) -> None:
        """Wait up to `seconds` for messages, handle them, and send heartbeats."""
        links = [*self._unidentified, *(child.link for child in self.nodes.values())]
        open_links = [link for link in links if not link.closed]
        select.select([*open_links, *([self._server] if self._server else [])], [], [], seconds)
        self._accept()
        for link in list(self._unidentified):
            self._identify(link)
        for child in self.nodes.values():
            child.handle(child.link.receive())
            child.link.send_heartbeat()

    def send(self, message: Message) -> None:
        for child in self.nodes.values():
            child.link.send(message)

    def lost(self) -> tuple[int, str] | None:
        """Return a node that was lost before it reported its workers' end, and a sentence about it."""
        for node, child in self.nodes.items():
            if child.report is None:
                silence = child.link.silence
                if child.link.closed:
                    return node, f"{child.name} is lost: its connection closed {silence:.1f} s after its last message"
                if silence > self._timeout_seconds:
                    return node, f"{child.name} is lost: no message for {silence:.1f} s"
        return None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while self._server is not None:
                connection, _ = self._server.accept()
                self._unidentified.append(Link(connection, self._timeout_seconds))

    def _identify(self, link: Link) -> None:
        messages = link.receive()
        if not messages and not link.closed and link.silence <= self._timeout_seconds:
            return
        self._unidentified.remove(link)
        hello = messages[0] if messages else None
        if isinstance(hello, Hello) and self._is_expected(hello):
            self.nodes[hello.node] = Child(link, hello)
            self.nodes[hello.node].handle(messages[1:])
        else:
            link.close()

    def _is_expected(self, hello: Hello) -> bool:
        position = self._position
        return (hello.job, hello.try_number) == (position.job, position.try_number) and hello.node in self.missing
