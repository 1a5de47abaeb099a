"""The project's calls to AWS Batch and CloudWatch Logs, typed, and repeated while AWS gives no answer.

Botocore finds endpoint, region and credentials. Its retries are off: SubmitJob must not be repeated before the outcome
of the first call is known, and all other calls are repeated here, for longer than botocore would. A mistake of the
user is a ConfigError.
"""

from __future__ import annotations

import contextlib
import email.utils
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import boto3.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoRegionError,
    ParamValidationError,
    ProxyConnectionError,
)

from infra.compute.batch.job_detail import JobDetail, detail_of
from infra.store.aws import NO_CREDENTIALS, code_of, role_errors
from tasks.foundation.errors import ConfigError, HostError, one_line

_DENIED = ("AccessDeniedException", "AccessDenied", "UnauthorizedOperation")
NOT_ACCEPTED = (
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "OptInRequired",
    "SignatureDoesNotMatch",
    "SubscriptionRequiredException",
    "UnrecognizedClientException",
)
_WRONG_CLOCK = ("RequestExpired", "RequestTimeTooSkewed")
_THROTTLED = (
    "RequestLimitExceeded",
    "SlowDown",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
)
_NOT_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError)


def was_never_accepted(error: Exception) -> bool:
    """Return True if the request certainly had no effect. After other errors (a 5xx, a lost reply) it may have."""
    if isinstance(error, ClientError):
        return code_of(error) in _THROTTLED or _status(error) == 429
    return isinstance(error, _NOT_SENT)


def config_error(error: BotoCoreError | ClientError | ValueError, about: str, region: str) -> ConfigError | None:
    """Return the error for a mistake of the user; None for a transient error.

    Args:
        about: the requested resource, such as "job queue 'millrace-cpu'".
    """
    if isinstance(error, ClientError):
        return _of_reply(error, about, region)
    if isinstance(error, NoRegionError):
        return ConfigError(
            "no AWS region is configured for AWS Batch; set AWS_DEFAULT_REGION to that of the job queues"
        )
    if isinstance(error, NO_CREDENTIALS):
        return ConfigError(
            f"no usable AWS credentials for AWS Batch in {region}: {one_line(error)}; set AWS_PROFILE, or "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them"
        )
    if isinstance(error, ParamValidationError | ValueError):
        return ConfigError(f"{about} in {region} can't be requested: {one_line(error)}; correct the section `batch`")
    return None


def _of_reply(error: ClientError, about: str, region: str) -> ConfigError | None:
    code = code_of(error)
    said = f"{code}: {error.response.get('Error', {}).get('Message', '')}".rstrip(": .")
    service = "logs" if error.operation_name == "GetLogEvents" else "batch"
    if code in _DENIED:
        return ConfigError(
            f"AWS denied {service}:{error.operation_name} on {about} in {region} ({said}); "
            "allow it to these credentials, as the control role of infra/aws/millrace.yaml does"
        )
    if code in _WRONG_CLOCK or "ignature expired" in said or "ignature not yet current" in said:
        return ConfigError(f"AWS Batch in {region} refuses this machine's clock ({said}); set it right")
    if code in NOT_ACCEPTED:
        return ConfigError(
            f"AWS Batch in {region} does not accept the AWS credentials ({said}); sign in again or correct them"
        )
    if code in _THROTTLED or _status(error) in (408, 429) or _status(error) >= 500:
        return None
    return ConfigError(
        f"AWS refused {service}:{error.operation_name} on {about} in {region} ({said}); "
        "correct the section `batch` of the configuration, or the queue and job definition that it names"
    )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


CONTACT_SECONDS = 600.0
_SLEEP_SECONDS = 1.0
_FIRST_DELAY, _LONGEST_DELAY = 0.25, 20.0
_SAY_AFTER_SECONDS = 5.0


@dataclass(frozen=True)
class WaitPolicy:
    """How to wait. `pulse` is called every second and may raise; `seconds` limits repeated calls."""

    pulse: Callable[[], None] = lambda: None
    say: Callable[[str], None] = lambda line: None
    seconds: float | None = None

    def sleep(self, seconds: float) -> None:
        """Sleep, with a pulse every second. Raises as `pulse` does."""
        until = time.monotonic() + seconds
        while True:
            self.pulse()
            left = until - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _SLEEP_SECONDS))


class Backoff:
    """Exponential backoff with jitter between repeated calls, until a time limit."""

    def __init__(self, policy: WaitPolicy, what: str) -> None:
        self._policy, self._what = policy, what
        self._until = time.monotonic() + (CONTACT_SECONDS if policy.seconds is None else policy.seconds)
        self._began = time.monotonic()
        self._delay = _FIRST_DELAY
        self._said = False

    def wait_after(self, error: Exception) -> None:
        """Wait before the next call. Raises HostError: the time limit is over."""
        now = time.monotonic()
        if now >= self._until:
            raise HostError(
                f"lost contact with {self._what}: no answer for {now - self._began:.0f} s ({one_line(error)}); a job "
                "that was started keeps running, and running the span again finds it"
            ) from error
        if not self._said and now - self._began > _SAY_AFTER_SECONDS:
            self._said = True
            left = self._until - now
            self._policy.say(f"{self._what} gives no answer ({one_line(error)}); asking for {left:.0f} s more")
        pause = self._delay * random.uniform(0.5, 1.0)
        self._delay = min(2 * self._delay, _LONGEST_DELAY)
        self._policy.sleep(min(pause, self._until - now))


T = TypeVar("T")

JOBS_AT_ONCE = 100  # DescribeJobs takes no more
# In this order no job is missed that changes its state meanwhile.
LIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")
LOG_GROUP = "/aws/batch/job"  # the default of a job definition
_LOG_DRIVER = "awslogs"
UNNAMED_CONTAINER = "Default"  # name of a pod's container without one
_NETWORK = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=5, read_timeout=15, max_pool_connections=4
)


class NotAccepted(Exception):
    """The job was not submitted."""


class MaybeAccepted(Exception):
    """The job may have been submitted: no answer came."""


class LogsRefused(Exception):
    """The log can't be read, and a retry won't help."""


@dataclass(frozen=True)
class Queue:
    name: str
    enabled: bool
    status: str
    status_reason: str
    fair_share: bool


@dataclass(frozen=True)
class Definition:
    """A job definition's newest active revision. `log_group` is None if its logs do not go to CloudWatch."""

    name: str
    revision: int
    multi_node: bool
    log_group: str | None
    pod_container: str | None = None  # name of the worker's container in a pod on Amazon EKS; None: on Amazon ECS


class Api:
    """AWS Batch in one region. In addition to their documented errors, its methods raise:

    ConfigError: credentials, permissions or names are wrong.
    HostError: AWS gave no answer before the time limit.
    """

    def __init__(self, batch: Any, logs: Any, policy: WaitPolicy) -> None:
        self._batch, self._logs, self.policy = batch, logs, policy
        self.region: str = batch.meta.region_name
        self._clock: tuple[float, float] | None = None  # the service's time, and our monotonic one

    @classmethod
    def connect(cls, policy: WaitPolicy) -> Api:
        """Create the clients; sends no request. Raises ConfigError: AWS's configuration has no region, or is broken."""
        try:
            session = boto3.session.Session()
            return cls(session.client("batch", config=_NETWORK), session.client("logs", config=_NETWORK), policy)
        except (BotoCoreError, ValueError) as error:
            raise config_error(error, "AWS Batch", "the region that is configured") or error from error

    def with_policy(self, policy: WaitPolicy) -> Api:
        return Api(self._batch, self._logs, policy)

    def queue(self, name: str) -> Queue | None:
        reply = self._ask(f"job queue {name!r}", self._batch.describe_job_queues, jobQueues=[name])
        return next((_queue(queue) for queue in reply["jobQueues"]), None)

    def definition(self, name: str) -> Definition | None:
        about = f"job definition {name!r}"
        pages = self._pages(about, self._batch.describe_job_definitions, jobDefinitionName=name, status="ACTIVE")
        found = [_definition(entry) for page in pages for entry in page["jobDefinitions"]]
        return max(found, key=lambda definition: definition.revision, default=None)

    def describe(self, ids: Sequence[str]) -> dict[str, JobDetail]:
        """Return the known ones among these jobs, by id."""
        found = {}
        for start in range(0, len(ids), JOBS_AT_ONCE):
            some = list(ids[start : start + JOBS_AT_ONCE])
            reply = self._ask(f"job {some[0]!r}", self._batch.describe_jobs, jobs=some)
            found |= {job["jobId"]: detail_of(job) for job in reply["jobs"]}
        return found

    def named(self, queue: str, name: str) -> list[JobDetail]:
        """Return the jobs of exactly this name in a queue, in any state, oldest first."""
        about = f"job queue {queue!r}"
        pages = self._pages(
            about, self._batch.list_jobs, jobQueue=queue, filters=[{"name": "JOB_NAME", "values": [name]}]
        )
        ids = [job["jobId"] for page in pages for job in page["jobSummaryList"] if job["jobName"] == name]
        return sorted(self.describe(ids).values(), key=lambda job: (job.created_at, job.id))

    def live(self, queue: str) -> list[JobDetail]:
        """Return the jobs of a queue that have not ended; arrays and multi-node jobs as one job each."""
        ids: dict[str, None] = {}
        for status in LIVE:
            pages = self._pages(f"job queue {queue!r}", self._batch.list_jobs, jobQueue=queue, jobStatus=status)
            ids |= dict.fromkeys(job["jobId"] for page in pages for job in page["jobSummaryList"])
        return [
            job
            for job in self.describe([job_id for job_id in ids if not {"#", ":"} & set(job_id)]).values()
            if not job.over
        ]

    def now(self) -> float:
        """Return the service's time, seconds since the epoch, by which it dates its jobs; before an answer, ours."""
        if self._clock is None:
            return time.time()
        date, read_at = self._clock
        return date + time.monotonic() - read_at

    def terminate(self, job_id: str, reason: str) -> None:
        """Ask AWS Batch to end a job; nothing changes for a job that is over or forgotten."""

        def call(**parameters: str) -> None:
            try:
                self._batch.terminate_job(**parameters)
            except ClientError as error:
                if code_of(error) != "ClientException":
                    raise

        self._ask(f"job {job_id!r}", call, jobId=job_id, reason=reason)

    def submit(self, request: Mapping[str, Any]) -> str:
        """Send one SubmitJob; return the job's id.

        Raises:
            NotAccepted: the job was certainly not submitted.
            MaybeAccepted: the reply was lost.
        """
        about = f"job queue {request['jobQueue']!r} with job definition {request['jobDefinition']!r}"
        try:
            with role_errors():
                job_id: str = self._batch.submit_job(**request)["jobId"]
        except (BotoCoreError, ClientError) as error:
            if wrong := config_error(error, about, self.region):
                raise wrong from error
            raise (NotAccepted if was_never_accepted(error) else MaybeAccepted)(str(error)) from error
        return job_id

    def log_page(self, group: str, stream: str, token: str, last: int | None = None) -> tuple[list[str], str]:
        """Return the lines of a log after a token, and the next token. Without a token: all lines, or the `last` ones.

        A failed call is not repeated, since the next call reads the same lines. A stream that does not exist yet has
        no lines.

        Raises:
            LogsRefused: for credentials, permissions and the like.
        """
        parameters = {"nextToken": token} if token else {}
        limit = {"limit": last} if last is not None else {}
        try:
            with role_errors():
                reply = self._logs.get_log_events(
                    logGroupName=group, logStreamName=stream, startFromHead=last is None, **parameters, **limit
                )
        except (BotoCoreError, ClientError) as error:
            wrong = config_error(error, f"log stream {group}:{stream}", self.region)
            if wrong and code_of(error) != "ResourceNotFoundException":
                raise LogsRefused(str(wrong)) from error
            return [], token
        return [event["message"].rstrip("\r\n") for event in reply["events"]], reply.get("nextForwardToken", token)

    def _pages(self, about: str, call: Callable[..., Any], **parameters: Any) -> Iterator[Any]:
        token = None
        while True:
            page = self._ask(about, call, **parameters, **({"nextToken": token} if token else {}))
            yield page
            token = page.get("nextToken")
            if not token:
                return

    def _ask(self, about: str, call: Callable[..., T], **parameters: Any) -> T:
        backoff = Backoff(self.policy, f"AWS Batch in {self.region}")
        while True:
            try:
                with role_errors():
                    reply = call(**parameters)
            except (BotoCoreError, ClientError) as error:
                if wrong := config_error(error, about, self.region):
                    raise wrong from error
                backoff.wait_after(error)
                continue
            self._read_clock(reply)
            return reply

    def _read_clock(self, reply: Any) -> None:
        """Note the service's time from the header Date (RFC 9110, in whole seconds) of an answer that has one."""
        answer = reply if isinstance(reply, Mapping) else {}
        date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
        with contextlib.suppress(TypeError, ValueError):  # none, or not a date
            self._clock = (email.utils.parsedate_to_datetime(date).timestamp(), time.monotonic())


def _queue(answer: Mapping[str, Any]) -> Queue:
    return Queue(
        name=answer["jobQueueName"],
        enabled=answer["state"] == "ENABLED",
        status=answer.get("status", "VALID"),
        status_reason=answer.get("statusReason", ""),
        fair_share=bool(answer.get("schedulingPolicyArn")),
    )


def _definition(answer: Mapping[str, Any]) -> Definition:
    ranges = answer.get("nodeProperties", {}).get("nodeRangeProperties", ())
    containers = [answer.get("containerProperties", {}), *(one.get("container", {}) for one in ranges)]
    logging = next((one["logConfiguration"] for one in containers if "logConfiguration" in one), {})
    driver = logging.get("logDriver", _LOG_DRIVER)
    group = logging.get("options", {}).get("awslogs-group", LOG_GROUP) if driver == _LOG_DRIVER else None
    pods = [one["eksProperties"]["podProperties"] for one in (answer, *ranges) if "eksProperties" in one]
    return Definition(
        name=answer["jobDefinitionName"],
        revision=answer["revision"],
        multi_node=answer["type"] == "multinode",
        log_group=None if pods else group,  # the cluster's own logging takes the lines of pods
        pod_container=pods[0]["containers"][0].get("name", UNNAMED_CONTAINER) if pods else None,
    )
