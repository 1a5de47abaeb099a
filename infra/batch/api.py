"""The calls to AWS Batch and CloudWatch Logs that this project makes, typed, and asked with patience.

Endpoint, region and credentials are those that botocore finds by itself. Its retries are off: a SubmitJob may be sent
again only by who knows what became of the first, and all others are repeated here, for longer than botocore would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import boto3.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from infra.batch.details import Detail, detail_of
from infra.batch.errors import code_of, config_error, never_accepted
from infra.batch.patience import Patience, Trouble

T = TypeVar("T")

JOBS_AT_ONCE = 100  # the most that DescribeJobs takes
LIVE = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING")  # in this order no job is missed that goes on
LOG_GROUP = "/aws/batch/job"  # where a job definition names none
_LOG_DRIVER = "awslogs"
_NETWORK = Config(
    retries={"mode": "standard", "total_max_attempts": 1}, connect_timeout=5, read_timeout=15, max_pool_connections=4
)


class NotAccepted(Exception):
    """A job was surely not submitted."""


class MaybeAccepted(Exception):
    """A job was perhaps submitted: no answer said so."""


class LogsRefused(Exception):
    """The log can't be read, and asking again does not help."""


@dataclass(frozen=True)
class Queue:
    name: str
    enabled: bool
    status: str
    status_reason: str
    fair_share: bool


@dataclass(frozen=True)
class Definition:
    """A job definition's newest active revision. `log_group` is None where its logs do not go to CloudWatch."""

    name: str
    revision: int
    multi_node: bool
    log_group: str | None


class Api:
    """AWS Batch in one region. What its methods raise beside what they say themselves:

    ConfigError: for credentials, permissions and names that somebody has to set right.
    HostError: AWS gave no answer for as long as patience lasts.
    """

    def __init__(self, batch: Any, logs: Any, patience: Patience) -> None:
        self._batch, self._logs, self.patience = batch, logs, patience
        self.region: str = batch.meta.region_name

    @classmethod
    def connect(cls, patience: Patience) -> Api:
        """Sends nothing yet. Raises ConfigError: AWS's own configuration lacks a region, or is broken."""
        try:
            session = boto3.session.Session()
            return cls(session.client("batch", config=_NETWORK), session.client("logs", config=_NETWORK), patience)
        except (BotoCoreError, ValueError) as error:
            raise config_error(error, "AWS Batch", "the region that is configured") or error from error

    def with_patience(self, patience: Patience) -> Api:
        return Api(self._batch, self._logs, patience)

    def queue(self, name: str) -> Queue | None:
        reply = self._ask(f"job queue {name!r}", self._batch.describe_job_queues, jobQueues=[name])
        return next((_queue(one) for one in reply["jobQueues"]), None)

    def definition(self, name: str) -> Definition | None:
        about = f"job definition {name!r}"
        pages = self._pages(about, self._batch.describe_job_definitions, jobDefinitionName=name, status="ACTIVE")
        found = [_definition(one) for page in pages for one in page["jobDefinitions"]]
        return max(found, key=lambda one: one.revision, default=None)

    def describe(self, ids: Sequence[str]) -> dict[str, Detail]:
        """By id, those that Batch knows."""
        found = {}
        for start in range(0, len(ids), JOBS_AT_ONCE):
            some = list(ids[start : start + JOBS_AT_ONCE])
            reply = self._ask(f"job {some[0]!r}", self._batch.describe_jobs, jobs=some)
            found |= {one["jobId"]: detail_of(one) for one in reply["jobs"]}
        return found

    def named(self, queue: str, name: str) -> list[Detail]:
        """The jobs of exactly this name in a queue, in whichever state, the oldest first."""
        about = f"job queue {queue!r}"
        pages = self._pages(
            about, self._batch.list_jobs, jobQueue=queue, filters=[{"name": "JOB_NAME", "values": [name]}]
        )
        ids = [one["jobId"] for page in pages for one in page["jobSummaryList"] if one["jobName"] == name]
        return sorted(self.describe(ids).values(), key=lambda job: (job.created_at, job.id))

    def live(self, queue: str) -> list[Detail]:
        """The jobs of a queue that are not over; of arrays and multi-node jobs the whole, not the parts."""
        ids: dict[str, None] = {}
        for status in LIVE:
            pages = self._pages(f"job queue {queue!r}", self._batch.list_jobs, jobQueue=queue, jobStatus=status)
            ids |= dict.fromkeys(one["jobId"] for page in pages for one in page["jobSummaryList"])
        return [
            job for job in self.describe([one for one in ids if not {"#", ":"} & set(one)]).values() if not job.over
        ]

    def terminate(self, job_id: str, reason: str) -> None:
        """Ask for a job's end, whatever its state; one that is over, or that Batch has forgotten, stays as it is."""

        def call(**parameters: str) -> None:
            try:
                self._batch.terminate_job(**parameters)
            except ClientError as error:
                if code_of(error) != "ClientException":
                    raise

        self._ask(f"job {job_id!r}", call, jobId=job_id, reason=reason)

    def submit(self, request: Mapping[str, Any]) -> str:
        """One SubmitJob; the job's id.

        Raises:
            NotAccepted, MaybeAccepted: it came to no answer that settles it.
        """
        about = f"job queue {request['jobQueue']!r} with job definition {request['jobDefinition']!r}"
        try:
            job_id: str = self._batch.submit_job(**request)["jobId"]
        except (BotoCoreError, ClientError) as error:
            if wrong := config_error(error, about, self.region):
                raise wrong from error
            raise (NotAccepted if never_accepted(error) else MaybeAccepted)(str(error)) from error
        return job_id

    def log_page(self, group: str, stream: str, token: str, last: int | None = None) -> tuple[list[str], str]:
        """Lines of a log after a token (empty: from the beginning; `last`: its last ones), and the next token.

        Not asked again in trouble: nothing is lost that the next look doesn't find. A stream that isn't there yet
        has no lines.

        Raises:
            LogsRefused: for credentials, permissions and the like.
        """
        parameters = {"nextToken": token} if token else {}
        limit = {"limit": last} if last is not None else {}
        try:
            reply = self._logs.get_log_events(
                logGroupName=group, logStreamName=stream, startFromHead=last is None, **parameters, **limit
            )
        except (BotoCoreError, ClientError) as error:
            wrong = config_error(error, f"log stream {group}:{stream}", self.region)
            if wrong and code_of(error) != "ResourceNotFoundException":
                raise LogsRefused(str(wrong)) from error
            return [], token
        return [one["message"].rstrip("\r\n") for one in reply["events"]], reply.get("nextForwardToken", token)

    def _pages(self, about: str, call: Callable[..., Any], **parameters: Any) -> Iterator[Any]:
        token = None
        while True:
            page = self._ask(about, call, **parameters, **({"nextToken": token} if token else {}))
            yield page
            token = page.get("nextToken")
            if not token:
                return

    def _ask(self, about: str, call: Callable[..., T], **parameters: Any) -> T:
        trouble = Trouble(self.patience, f"AWS Batch in {self.region}")
        while True:
            try:
                return call(**parameters)
            except (BotoCoreError, ClientError) as error:
                if wrong := config_error(error, about, self.region):
                    raise wrong from error
                trouble.bear(error)


def _queue(answer: Mapping[str, Any]) -> Queue:
    return Queue(
        name=answer["jobQueueName"],
        enabled=answer["state"] == "ENABLED",
        status=answer.get("status", "VALID"),
        status_reason=answer.get("statusReason", ""),
        fair_share=bool(answer.get("schedulingPolicyArn")),
    )


def _definition(answer: Mapping[str, Any]) -> Definition:
    logging = next((one["logConfiguration"] for one in _containers(answer) if "logConfiguration" in one), {})
    driver = logging.get("logDriver", _LOG_DRIVER)
    return Definition(
        name=answer["jobDefinitionName"],
        revision=answer["revision"],
        multi_node=answer["type"] == "multinode",
        log_group=logging.get("options", {}).get("awslogs-group", LOG_GROUP) if driver == _LOG_DRIVER else None,
    )


def _containers(answer: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    ranges = answer.get("nodeProperties", {}).get("nodeRangeProperties", ())
    return [answer.get("containerProperties", {}), *(one.get("container", {}) for one in ranges)]
