"""The fields of AWS Batch's DescribeJobs that are used here. Times are seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

OVER = ("SUCCEEDED", "FAILED")
BY_QUEUE = "JobStateTimeLimit"  # the queue's action that ends a job after too long a wait (jobStateTimeLimitActions)
ON_MACHINE = ("STARTING", "RUNNING")


@dataclass(frozen=True)
class Run:
    """A container of one attempt, finished or running, on Amazon ECS or EKS. None or empty: not known."""

    started_at: float | None = None
    stopped_at: float | None = None
    exit_code: int | None = None
    reason: str = ""
    status_reason: str = ""
    stream: str = ""
    host: str = ""


@dataclass(frozen=True)
class JobDetail:
    """A job, a node of one (`id#1`) or a child of an array (`id:1`)."""

    id: str
    name: str
    queue: str
    status: str
    status_reason: str
    created_at: float
    stopped_at: float | None
    runs: tuple[Run, ...]  # ended attempts, in order
    now: Run
    image: str
    instance: str  # instance type that a multi-node job asks for; empty: not told
    main_node: int  # index; used for multi-node jobs
    asked_to_end: bool
    tags: Mapping[str, str]

    @property
    def over(self) -> bool:
        return self.status in OVER


def detail_of(answer: Mapping[str, Any]) -> JobDetail:
    """Return the detail of one entry of `jobs`."""
    container = answer.get("container") or _of_pod(answer.get("eksProperties", {}).get("podProperties", {}))
    over = answer["status"] in OVER
    runs = [_run(one.get("container", {}), one) for one in answer.get("attempts", ())]
    runs += [_run(_of_pod(one), one) for one in answer.get("eksAttempts", ())]
    if not over:  # the running attempt may be listed already
        runs = [run for run in runs if run.stopped_at is not None]
    return JobDetail(
        id=answer["jobId"],
        name=answer["jobName"],
        queue=answer["jobQueue"].rsplit("/", 1)[-1],
        status=answer["status"],
        status_reason=answer.get("statusReason", ""),
        created_at=answer.get("createdAt", 0) / 1000,
        stopped_at=_seconds(answer.get("stoppedAt")),
        runs=tuple(runs),
        now=_run(container, answer),
        image=container.get("image", "") or _of_nodes(answer, "image"),
        instance=container.get("instanceType", "") or _of_nodes(answer, "instanceType"),
        main_node=answer.get("nodeProperties", {}).get("mainNode", 0),
        asked_to_end=bool(
            answer.get("isTerminated") or answer.get("isCancelled") or BY_QUEUE in answer.get("statusReason", "")
        ),
        tags=answer.get("tags", {}),
    )


def add_main_node(job: JobDetail, main: JobDetail | None) -> JobDetail:
    """Return a multi-node job with the fields that only its main node has."""
    if main is None:
        return job
    if job.runs:
        pairs = zip_longest(job.runs, main.runs[: len(job.runs)], fillvalue=Run())
        runs = tuple(_filled(theirs, ours) for ours, theirs in pairs)
    else:
        runs = main.runs if job.over or not main.over else ()  # between the two, Batch decides whether to repeat it
    image, instance = job.image or main.image, job.instance or main.instance
    return replace(job, runs=runs, now=_filled(main.now, job.now), image=image, instance=instance)


def _filled(run: Run, other: Run) -> Run:
    """Return a run with its missing fields taken from the other."""
    known = {name: value for name, value in vars(run).items() if value not in (None, "")}
    return replace(other, **known)


def _run(container: Mapping[str, Any], times: Mapping[str, Any]) -> Run:
    return Run(
        started_at=_seconds(times.get("startedAt")),
        stopped_at=_seconds(times.get("stoppedAt")),
        exit_code=container.get("exitCode"),
        reason=container.get("reason", ""),
        status_reason=times.get("statusReason", ""),
        stream=container.get("logStreamName", ""),
        host=container.get("containerInstanceArn", "").rsplit("/", 1)[-1],
    )


def _of_pod(pod: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first container of a pod on Amazon EKS, with the members of one on Amazon ECS."""
    return {**next(iter(pod.get("containers", ())), {}), "containerInstanceArn": pod.get("nodeName", "")}


def _of_nodes(answer: Mapping[str, Any], name: str) -> str:
    ranges = answer.get("nodeProperties", {}).get("nodeRangeProperties", ())
    containers = (
        one.get("container") or _of_pod(one.get("eksProperties", {}).get("podProperties", {})) for one in ranges
    )
    return next((found for one in containers if (found := one.get(name, ""))), "")


def _seconds(milliseconds: int | None) -> float | None:
    return milliseconds / 1000 if milliseconds else None
