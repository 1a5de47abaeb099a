"""The HTTP side: the JSON of Batch and of CloudWatch Logs, EC2's queries, instance metadata, the control route."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.emulator.engine.aws import REGION, Document, ServiceError
from tests.emulator.engine.control import Control
from tests.emulator.engine.faults import Faults, refusal
from tests.emulator.engine.jobs import Jobs
from tests.emulator.engine.logs import Logs
from tests.emulator.engine.records import Settings
from tests.emulator.engine.registry import Registry
from tests.emulator.engine.state_machine import Engine
from tests.emulator.machine import ec2
from tests.emulator.machine.credentials import Credentials

_METADATA = {"placement/availability-zone": f"{REGION}a"}
_TOKEN = "emulated-token"
_LOGS_TARGET = "Logs_20140328."


class Emulator:
    """Everything, from its making until `stop`. Serves on the threads of `http`."""

    def __init__(self, port: int, settings: Settings) -> None:
        self.http = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"emulator": self}))
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.faults, self.logs, registry = Faults(), Logs(), Registry()
        self.engine = Engine(settings, self.faults, self.logs, self.url)
        self.credentials = Credentials()
        self.control = Control(self.engine, self.faults, self.logs, self.credentials)
        jobs = Jobs(self.engine, registry, self.faults)
        self._operations = {
            "SubmitJob": jobs.submit_job,
            "DescribeJobs": jobs.describe_jobs,
            "ListJobs": jobs.list_jobs,
            "TerminateJob": jobs.terminate_job,
            "CreateComputeEnvironment": registry.create_compute_environment,
            "CreateJobQueue": registry.create_job_queue,
            "DescribeJobQueues": registry.describe_job_queues,
            "RegisterJobDefinition": registry.register_job_definition,
            "DescribeJobDefinitions": registry.describe_job_definitions,
            "CreateLogGroup": self.logs.create_log_group,
            "GetLogEvents": self.logs.get_log_events,
            "TerminateInstances": self.engine.terminate_instances,
        }
        self._by_path = {name.lower(): name for name in self._operations}

    def stop(self) -> None:
        self.http.shutdown()
        self.engine.stop()

    def call(self, name: str, request: Document) -> Document | None:
        """The answer to an operation, its name in any case; None: it is done, but no reply is sent.

        Raises:
            ServiceError: it is refused.
        """
        operation = self._by_path.get(name.lower())
        if operation is None:
            raise ServiceError(f"{name} is not emulated", "UnknownOperationException", 404)
        fault = self.faults.take_call(operation)
        outcome = "reply lost" if fault else "ok"
        try:
            if fault and fault.kind != "lose_reply":
                raise refusal(fault, of_logs="Log" in operation)
            answer = self._operations[operation](request)
        except ServiceError as error:
            outcome = error.code
            raise
        finally:
            self.control.note(operation, request, outcome)
        return None if fault else answer

    def role_credentials(self, task: str) -> Document:
        """What the ECS agent answers to a container that asks for its role's credentials.

        Raises:
            ServiceError: there is no such task, or its instance was asked too often.
        """
        for life in self.engine.containers.lives:
            if life.container.live and life.container.task_arn.endswith(f"/{task}"):
                return self.credentials.give(life.job, life.container)
        raise ServiceError(f"there is no task {task}", "NotFound", 404)

    def metadata(self, path: str, token: str | None) -> str | None:
        """The body of an instance metadata answer; None: no such key, or no such host any more."""
        host, _, rest = path.partition("/latest/")
        instance = self.engine.hosts.named(host)
        if instance is None:
            return None
        if rest == "api/token":
            return _TOKEN
        if token != _TOKEN:
            raise ServiceError("a token is needed", "Unauthorized", 401)
        known = _METADATA | {"instance-id": host, "instance-type": instance.machine}
        return known.get(rest.removeprefix("meta-data/"))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless the client has gone: tests kill clients at any moment."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    emulator: Emulator
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # with headers and body in two segments, and Nagle's algorithm on, each call takes 40 ms
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        kind, path = self._route()
        if kind == "control":
            self._reply_json(lambda: self.emulator.control.get(path))
        elif kind == "credentials":
            self._reply_json(lambda: self.emulator.role_credentials(path))
        else:
            self._reply_metadata(kind, path)

    def do_PUT(self) -> None:
        self._reply_metadata(*self._route())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        kind, path = self._route()
        if kind == "ec2":
            self._reply_ec2(body)
            return
        document: Document = json.loads(body or b"{}")
        target = self.headers.get("X-Amz-Target", "")
        if kind == "control":
            self._reply_json(lambda: self.emulator.control.post(path, document))
        elif target.startswith(_LOGS_TARGET):
            self._reply_json(lambda: self.emulator.call(target.removeprefix(_LOGS_TARGET), document))
        else:
            self._reply_json(lambda: self.emulator.call(path, document))

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """No log of requests."""

    def _route(self) -> tuple[str, str]:
        kind, _, path = self.path.strip("/").partition("/")
        return kind, path

    def _reply_json(self, answer: Callable[[], Document | None]) -> None:
        try:
            with self.emulator.engine.lock:
                found = answer()
                body = json.dumps(found).encode()
        except ServiceError as error:
            refused = {"__type": error.code, "message": error.message}
            self._reply(error.status, json.dumps(refused).encode(), error.code)
            return
        if found is None:
            self.close_connection = True
            return
        self._reply(200, body)

    def _reply_ec2(self, form: bytes) -> None:
        try:
            request = ec2.instances_of(form)
            with self.emulator.engine.lock:
                self.emulator.call("TerminateInstances", request)
        except ServiceError as error:
            self._reply(error.status, ec2.refused(error))
            return
        self._reply(200, ec2.ended(request["instanceIds"]))

    def _reply_metadata(self, kind: str, path: str) -> None:
        token = self.headers.get("X-aws-ec2-metadata-token")
        try:
            with self.emulator.engine.lock:
                found = self.emulator.metadata(path, token) if kind == "imds" else None
        except ServiceError as error:
            self._reply(error.status, error.message.encode())
            return
        self._reply(404 if found is None else 200, (found or "").encode())

    def _reply(self, status: int, body: bytes, error: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if error:
            self.send_header("x-amzn-errortype", error)
        self.end_headers()
        self.wfile.write(body)
