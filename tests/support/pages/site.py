"""`millrace serve` over a workspace, in a thread of this process, asked as a browser does or byte by byte."""

from __future__ import annotations

import socket
import threading
from http.client import HTTPConnection
from typing import Any

from flows.cli.serving.server import make_server
from infra.store.base import Store

Reply = tuple[int, dict[str, str], bytes]


class Site:
    """A server over a workspace."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.server = make_server(store, 0)
        self.port = self.server.port
        self._thread = threading.Thread(target=self.server.run)
        self._thread.start()

    def stop(self) -> None:
        self.server.stop()
        self._thread.join()

    def get(self, path: str, method: str = "GET", **headers: str) -> Reply:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, headers={name.replace("_", "-"): text for name, text in headers.items()})
            return _reply(connection.getresponse())
        finally:
            connection.close()

    def connected(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def sent(self, request: bytes) -> tuple[int, str, bytes]:
        """Status, headers in lower case and body of the answer to these very bytes."""
        with self.connected() as client:
            client.sendall(request)
            return parts(rest(client))


def rest(client: socket.socket) -> bytes:
    """All that comes until the connection ends."""
    found = b""
    try:
        while data := client.recv(65536):
            found += data
    except ConnectionResetError:
        pass
    return found


def parts(answer: bytes) -> tuple[int, str, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode().lower(), body


def _reply(reply: Any) -> Reply:
    return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read()
