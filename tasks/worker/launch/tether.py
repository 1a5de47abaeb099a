"""The TCP link between the launchers of one job's nodes: who is there, who is alive, how each one's workers ended.

Lines of JSON, small and rare. What follows from them is decided elsewhere: main_node.py, child_node.py.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from tasks.errors import HostError
from tasks.records import Record
from tasks.worker.launch.place import Place
from tasks.worker.launch.processes import Report

BEATS_PER_SILENCE = 5  # so many beats may get lost before their absence is one
MESSAGE_BYTES = 1 << 17
SEND_SECONDS = 5.0  # what the kernel does not take for so long is for somebody who reads no more
RETRY_SECONDS = 0.2


class Hello(Record):
    """A child node's first words."""

    kind: Literal["hello"] = "hello"
    job: str
    try_number: int
    node: int
    host: str
    unfit: str = Field(default="", description="why its host may not be used")


class Welcome(Record):
    """To all children, when all are there: the workers may start."""

    kind: Literal["welcome"] = "welcome"


class Beat(Record):
    """Nothing but a sign of life, from both sides."""

    kind: Literal["beat"] = "beat"


class Ended(Record):
    """The workers of a child node have ended."""

    kind: Literal["ended"] = "ended"
    report: Report


class Terminating(Record):
    """A child node was told to go away; its workers still run."""

    kind: Literal["terminating"] = "terminating"


class End(Record):
    """To a child node: it is over; `code` is what the job ends with."""

    kind: Literal["end"] = "end"
    code: int


Message = Annotated[Hello | Welcome | Beat | Ended | Terminating | End, Field(discriminator="kind")]
_MESSAGES: TypeAdapter[Message] = TypeAdapter(Message)


class Link:
    """One connection. Once `closed`, what is sent is lost in silence and nothing more is heard."""

    def __init__(self, connection: socket.socket, silence_seconds: float) -> None:
        connection.settimeout(SEND_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._beat_seconds = silence_seconds / BEATS_PER_SILENCE
        self._heard = b""
        self._heard_at = self._said_at = time.monotonic()
        self.closed = False

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def silence(self) -> float:
        """Seconds since anything was heard."""
        return time.monotonic() - self._heard_at

    def send(self, message: Message) -> None:
        if self.closed:
            return
        try:
            self._connection.sendall(message.model_dump_json().encode() + b"\n")
            self._said_at = time.monotonic()
        except OSError:
            self.closed = True

    def beat(self) -> None:
        """To be called often; says something only when it is time to."""
        if time.monotonic() - self._said_at >= self._beat_seconds:
            self.send(Beat())

    def receive(self) -> list[Message]:
        """What was said since, without waiting."""
        try:
            while not self.closed and select.select([self], [], [], 0)[0]:
                piece = self._connection.recv(1 << 16)
                if not piece or len(self._heard) > MESSAGE_BYTES:
                    self.closed = True
                    break
                self._heard += piece
                self._heard_at = time.monotonic()
        except OSError:
            self.closed = True
        *lines, self._heard = self._heard.split(b"\n")
        try:
            return [_MESSAGES.validate_json(line) for line in lines]
        except ValidationError:  # not one of ours
            self.closed = True
            return []

    def close(self) -> None:
        self.closed = True
        self._connection.close()


def connect(place: Place, silence_seconds: float) -> Link | None:
    """A link to the main node; None: it does not listen yet."""
    try:
        address = (place.main_address, place.tether_port)
        return Link(socket.create_connection(address, timeout=SEND_SECONDS), silence_seconds)
    except OSError:
        return None


class Child:
    """A child node as the main one knows it."""

    def __init__(self, link: Link, hello: Hello) -> None:
        self.link = link
        self.name = f"node {hello.node} ({hello.host})"
        self.unfit = hello.unfit
        self.terminating = False
        self.report: Report | None = None

    def hear(self, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Ended():
                    self.report = message.report
                case Terminating():
                    self.terminating = True
                case _:
                    pass


class Children:
    """The main node's side. With one node there are none, and nobody listens."""

    def __init__(self, place: Place, silence_seconds: float) -> None:
        """Raises HostError where the port can't be listened on."""
        self._place = place
        self._silence_seconds = silence_seconds
        self._strangers: list[Link] = []
        self._door: socket.socket | None = None
        self.nodes: dict[int, Child] = {}
        if place.nodes > 1:
            try:
                self._door = socket.create_server(("", place.tether_port), backlog=place.nodes)
            except OSError as error:
                raise HostError(f"can't listen for the other nodes on port {place.tether_port}: {error}") from error
            self._door.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for link in [*self._strangers, *(child.link for child in self.nodes.values())]:
            link.close()
        if self._door is not None:
            self._door.close()

    @property
    def missing(self) -> list[int]:
        """Nodes that have not come yet."""
        return [node for node in range(1, self._place.nodes) if node not in self.nodes]

    def wait(self, seconds: float) -> None:
        """Let up to `seconds` pass, less where something is heard, and give signs of life."""
        links = [*self._strangers, *(child.link for child in self.nodes.values())]
        open_ones = [link for link in links if not link.closed]
        select.select([*open_ones, *([self._door] if self._door else [])], [], [], seconds)
        self._let_in()
        for stranger in list(self._strangers):
            self._identify(stranger)
        for child in self.nodes.values():
            child.hear(child.link.receive())
            child.link.beat()

    def tell(self, message: Message) -> None:
        for child in self.nodes.values():
            child.link.send(message)

    def lost(self) -> tuple[int, str] | None:
        """A node that went away without telling how its workers ended, and a sentence about it."""
        for node, child in self.nodes.items():
            if child.report is None:
                silence = child.link.silence
                if child.link.closed:
                    return node, f"{child.name} is lost: its connection closed {silence:.1f} s after its last word"
                if silence > self._silence_seconds:
                    return node, f"{child.name} is lost: nothing was heard of it for {silence:.1f} s"
        return None

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):
            while self._door is not None:
                connection, _ = self._door.accept()
                self._strangers.append(Link(connection, self._silence_seconds))

    def _identify(self, stranger: Link) -> None:
        messages = stranger.receive()
        if not messages and not stranger.closed and stranger.silence <= self._silence_seconds:
            return
        self._strangers.remove(stranger)
        hello = messages[0] if messages else None
        if isinstance(hello, Hello) and self._is_awaited(hello):
            self.nodes[hello.node] = Child(stranger, hello)
            self.nodes[hello.node].hear(messages[1:])
        else:
            stranger.close()

    def _is_awaited(self, hello: Hello) -> bool:
        place = self._place
        return (hello.job, hello.try_number) == (place.job, place.try_number) and hello.node in self.missing
