"""A receiver of OTLP/HTTP on this machine, which reads a request by OpenTelemetry's own messages.

OTLP writes trace and span ids in hexadecimal, where the JSON of protocol buffers has base64; all else is the same. A
key or a type that the messages do not have is answered with 400.
"""

from __future__ import annotations

import base64
import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from google.protobuf.json_format import ParseDict, ParseError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

IDS = ("traceId", "spanId", "parentSpanId")


def decoded(body: bytes) -> Any:
    """The request as a message. Raises ValueError or ParseError: it is none."""
    return ParseDict(_with_bytes(json.loads(body)), ExportTraceServiceRequest(), ignore_unknown_fields=False)


def _with_bytes(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_bytes(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(each)).decode() if key in IDS else _with_bytes(each)
        for key, each in value.items()
    }


class Receiver:
    """Its address, the paths and headers of all requests, and the messages that it took."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.taken: list[Any] = []

    @property
    def spans(self) -> list[Any]:
        """The spans of the newest message."""
        return [span for each in self.taken[-1].resource_spans for one in each.scope_spans for span in one.spans]


@contextmanager
def receiver(status: int = 200, drip_seconds: float = 0.0) -> Iterator[Receiver]:
    """A receiver that answers with a status, or that sends its answer a byte at a time."""
    found = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            found.requests.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
            answer, code = b"{}", status
            if code == 200:
                try:
                    found.taken.append(decoded(body))
                except (ValueError, ParseError) as error:
                    answer, code = str(error).encode(), 400
            head = f"HTTP/1.1 {code} OK\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n\r\n"
            for byte in head.encode() + answer if drip_seconds else (head.encode() + answer,):
                self.wfile.write(byte if isinstance(byte, bytes) else bytes([byte]))
                self.wfile.flush()
                time.sleep(drip_seconds)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            return

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads, block_on_close = True, False

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A sender that gave up is no error here."""

    with Server(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield found
        finally:
            server.shutdown()
