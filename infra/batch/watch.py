"""Watching a job until it is over: its state, logs and tries are passed on, one that waits too long is ended."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from infra.batch.api import JOBS_AT_ONCE, Api
from infra.batch.attendance import Attendance
from infra.batch.claim import advance, owner_of
from infra.batch.details import ON_MACHINE, Detail, with_main_node
from infra.batch.job import Kind, kind_of, nodes_of
from infra.batch.logs import LogFollower
from infra.batch.submitting import TWIN
from infra.batch.tries import Part, Tries, streams_of
from infra.runner import Waiter
from infra.store import Store
from tasks.contracts import JobSpec
from tasks.errors import ERRORS, HostError, StageError

LAST_LOOKS = (0.5, 1.0)  # seconds before each look at the logs after the end: the last lines come late
UNKNOWN_SECONDS = 120.0  # for so long a job that was accepted may not be shown
STRAGGLER_SECONDS = 10.0  # for so long parts of a job that is over may be shown as if they were not
_SHORTEST, _LONGEST = 0.3, 5.0  # seconds between two looks


class Watch:
    """One attempt's job. `wait` is called once; `conclude` after an interruption of it."""

    def __init__(
        self,
        api: Api,
        store: Store,
        spec: JobSpec,
        waiter: Waiter,
        job_id: str,
        log_group: str | None,
        capacity_seconds: float,
        found_again: bool,
    ) -> None:
        self._api, self._store, self._spec, self._waiter = api, store, spec, waiter
        self._capacity_seconds = capacity_seconds
        self._logs = LogFollower(api, log_group, waiter, found_again)
        self._began = time.monotonic()
        self._turn_to(job_id)

    def wait(self, attendance: Attendance) -> None:
        """Return when the job has succeeded.

        Raises:
            StageError: of the class that ended the job's last try.
            HostError: AWS Batch gives no answer, or does not know the job.
        """
        job, parts = self._until_over(attendance)
        for pause in LAST_LOOKS:
            self._api.patience.rest(pause)
            self._logs.look()
        self._tell_tries(parts)
        self._end_twins(job)
        advance(self._store, self._spec.job_prefix, "over")
        if job.status != "SUCCEEDED":
            raise self._failure(job, parts)

    def conclude(self, api: Api) -> None:
        """Tell the tries of a job that was ended meanwhile."""
        self._api = api
        job, parts = self._describe()
        if job is not None and job.over:
            self._tell_tries(parts)

    def _turn_to(self, job_id: str) -> None:
        self._job_id = job_id
        self._tries = Tries(self._spec, self._store, job_id, self._logs.tail)
        self._told = ""
        self._waiting_since: float | None = None
        self._asked_to_end = False

    def _until_over(self, attendance: Attendance) -> tuple[Detail, Sequence[Part]]:
        seen_at, over_at = time.monotonic(), None
        while True:
            job, parts = self._describe()
            now = time.monotonic()
            if job is not None and self._turned_to_owner(job, parts):
                seen_at, over_at = now, None
            elif job is not None:
                seen_at = now
                self._tell_state(job, parts)
                labels, live = streams_of(parts)
                self._logs.follow(labels, live)
                self._logs.look()
                over_at = (over_at or now) if job.over else None
                all_over = bool(parts) and all(part.detail.over for part in parts)
                if over_at and (all_over or now - over_at > STRAGGLER_SECONDS):
                    return job, parts
                self._tell_tries(parts)
                self._mind_capacity(job, parts)
            elif now - seen_at > UNKNOWN_SECONDS:
                advance(self._store, self._spec.job_prefix, "ending")
                raise HostError(
                    f"{self._spec.stage}: AWS Batch in {self._api.region} does not know job {self._job_id}; it forgets "
                    "jobs some days after their end"
                )
            attendance.keep()
            self._api.patience.rest(self._pause())

    def _describe(self) -> tuple[Detail | None, Sequence[Part]]:
        """The job and its parts; no parts while not all of them are shown."""
        count, kind = nodes_of(self._spec), kind_of(self._spec)
        mark = {Kind.single: "", Kind.array: ":", Kind.multi_node: "#"}[kind]
        ids = [f"{self._job_id}{mark}{index}" for index in range(count)] if mark else []
        found = self._api.describe([self._job_id, *ids])
        job = found.get(self._job_id)
        if job is None or kind is Kind.single:
            return job, [Part(job)] if job else []
        some = [found[one] for one in ids if one in found]
        if kind is Kind.multi_node:
            main = found.get(f"{self._job_id}#{job.main_node}")
            return job, [Part(with_main_node(job, main), machines=count, nodes=tuple(some))]
        children = [replace(one, asked_to_end=one.asked_to_end or job.asked_to_end) for one in some]
        parts = [Part(child, index=index) for index, child in enumerate(children)]
        return job, parts if len(parts) == count else []

    def _tell_state(self, job: Detail, parts: Sequence[Part]) -> None:
        """For people, when it has changed."""
        counts = Counter(part.detail.status for part in parts) or Counter([job.status])
        hosts = sorted({one.now.host for part in parts for one in (*part.nodes, part.detail) if one.now.host})
        told = f"job {job.name} ({job.id}) is "
        told += job.status if len(counts) == 1 else ", ".join(f"{status} {n}" for status, n in sorted(counts.items()))
        if set(counts) <= {"SUBMITTED", "PENDING", "RUNNABLE"}:
            told += f": it waits for a machine in queue {job.queue}"
            told += f"; AWS Batch says: {job.status_reason}" if job.status_reason else ""
        elif hosts and set(counts) & set(ON_MACHINE):
            told += f" on {', '.join(hosts)}"
        if told != self._told:
            self._told = told
            self._waiter.log(told)

    def _tell_tries(self, parts: Sequence[Part]) -> None:
        for one in self._tries.see(parts, time.time()):
            if one.failure is not None:
                self._waiter.log(f"{self._spec.stage}: try {one.attempt} ended with {one.failure}: {one.message}")
            self._waiter.tried(one)

    def _mind_capacity(self, job: Detail, parts: Sequence[Part]) -> None:
        """End a job of which nothing has had a machine for too long."""
        waiting = [part.detail for part in parts if not part.detail.over]
        if not waiting or any(one.status in ON_MACHINE for one in waiting):
            self._waiting_since = None
            return
        if self._waiting_since is None:
            ends = [run.stopped_at for one in waiting for run in one.runs if run.stopped_at]
            self._waiting_since = max([job.created_at, *ends])
        if time.time() - self._waiting_since > self._capacity_seconds and not self._asked_to_end:
            said = job.status_reason or waiting[0].status_reason
            why = f"no machine in queue {job.queue} for {self._capacity_seconds:.0f} s"
            why = (
                f"{said}; {why}"
                if said.startswith("MISCONFIGURATION")
                else f"CAPACITY: {why}" + (f"; AWS Batch says: {said}" if said else "")
            )
            advance(self._store, self._spec.job_prefix, "ending")
            self._api.terminate(job.id, why)
            self._asked_to_end = True

    def _turned_to_owner(self, job: Detail, parts: Sequence[Part]) -> bool:
        """Whether this job came second to another one of its name: that has the attempt, and is waited for from now on.

        Where a container of the second one starts, it leaves at once.
        """
        if job.status == "SUCCEEDED" or any(part.detail.status in ON_MACHINE for part in parts):
            return False
        owner = owner_of(self._store, self._spec.job_prefix)
        if owner is None or owner == job.id:
            return False
        self._waiter.log(f"job {owner} has the attempt already; job {job.id} ends, and the other one is waited for")
        advance(self._store, self._spec.job_prefix, "submitted", owner)
        self._api.terminate(job.id, TWIN)
        self._turn_to(owner)
        return True

    def _end_twins(self, job: Detail) -> None:
        for other in self._api.named(job.queue, job.name):
            if other.id != job.id and not other.over:
                self._api.terminate(other.id, TWIN)

    def _failure(self, job: Detail, parts: Sequence[Part]) -> StageError:
        last = self._tries.told[-1] if self._tries.told else None
        stream = next((part.runs[-1].stream for part in parts if part.gave_up and part.runs[-1].stream), "")
        where = f"(AWS Batch job {job.id}" + (f", log stream {stream} in {self._logs.group})" if stream else ")")
        if last is None or last.failure is None:
            return HostError(
                f"{self._spec.stage}: the job failed: {job.status_reason or 'no reason was given'} {where}"
            )
        gap = "\n" if "\n" in last.message else " "
        return ERRORS[last.failure](f"{last.message}{gap}{where}")

    def _pause(self) -> float:
        """Seconds until the next look: longer for old jobs, and for those that take many requests to describe."""
        pages = 1 + nodes_of(self._spec) // JOBS_AT_ONCE
        return pages * min(_LONGEST, max(_SHORTEST, 0.05 * (time.monotonic() - self._began)))
