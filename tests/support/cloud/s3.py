"""An S3 server for tests: moto on a loopback port, with faults on request.

It serves one request at a time: moto checks a condition and writes in two steps, which S3 does in one.
"""

from __future__ import annotations

import io
import itertools
import logging
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse
    from werkzeug.wrappers import Response

BASE = "some/workspace"  # of the workspaces that S3Server makes


def bucket_of(workspace: str) -> str:
    """The bucket in a workspace's URI."""
    return workspace.split("/")[2]


class Fault(NamedTuple):
    """One request that goes wrong: refused, done without a reply that says so, or answered in half."""

    method: str
    status: int = 500
    code: str = "InternalError"
    when: Literal["before", "after", "during"] = "before"
    about: str = ""  # in the request's path or body
    by: str = ""  # in the name that the client gives itself
    more: str = ""  # XML in the error


class S3Server:
    """Runs from its making until `stop`."""

    def __init__(self) -> None:
        # A second of loading that only the tests with S3 wait for.
        import boto3.session
        from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # or it logs each request to standard error
        self._moto = create_backend_app("s3")
        self._one_at_a_time = threading.Lock()
        self._numbers = itertools.count(1)
        self.forget()
        self._server = make_server("127.0.0.1", 0, self._serve, threaded=True, request_handler=MotoRequestHandler)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        # For what a test does behind the store's back.
        self.client: Any = boto3.session.Session().client("s3", endpoint_url=self.url, region_name="us-east-1")

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def forget(self) -> None:
        """No more faults and delays, and an empty list of requests."""
        self.faults: list[Fault] = []
        self.delay_seconds = 0.0  # that each request waits before it is served
        self.requests: list[str] = []
        self.changes: list[tuple[str, str]] = []  # the client's name for itself, and the request that may change a key

    def new_workspace(self) -> str:
        """The URI of an empty workspace in a bucket of its own."""
        bucket = f"bucket-{next(self._numbers)}"
        self.client.create_bucket(Bucket=bucket)
        return f"s3://{bucket}/{BASE}"

    def copied(self, workspace: str, folder: Path) -> Path:
        """The folder, with all files of a workspace as they are now, without the code under test."""
        bucket, _, prefix = workspace.removeprefix("s3://").partition("/")
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            for entry in page.get("Contents", ()):
                file = folder / entry["Key"].removeprefix(f"{prefix}/")
                file.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file(bucket, entry["Key"], str(file))
        return folder

    def _serve(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        from werkzeug.wrappers import Request, Response

        request = Request(environ)
        asked = f"{request.method} {request.full_path.rstrip('?')}"
        body = request.get_data()
        environ["wsgi.input"] = io.BytesIO(body)
        time.sleep(self.delay_seconds)
        with self._one_at_a_time:
            self.requests.append(asked)
            agent = str(request.user_agent)
            if request.method not in ("GET", "HEAD"):
                self.changes.append((agent, asked))
            fault = next((one for one in self.faults if one.by in agent and _meant(one, asked, body)), None)
            if fault:
                self.faults.remove(fault)
            if fault and fault.when == "before":
                response = _refusal(fault)
            else:
                response = Response.from_app(self._moto, environ, buffered=True)
            if fault and fault.when == "after":
                response = _refusal(fault)
            if fault and fault.when == "during":
                length = len(response.data)
                response.response = [response.data[: length // 2]]
                response.content_length = length
        return response(environ, start_response)


def _meant(fault: Fault, asked: str, body: bytes) -> bool:
    return asked.startswith(f"{fault.method} ") and (fault.about in asked or fault.about.encode() in body)


def _refusal(fault: Fault) -> Response:
    from werkzeug.wrappers import Response

    body = f"<Error><Code>{fault.code}</Code><Message>as the test wants it</Message>{fault.more}</Error>"
    return Response(body, fault.status, content_type="application/xml")
