"""Watch a job until it is over: pass on state, logs and attempts, and end a job that waits too long for a machine.

Lines of its containers' streams go to the log, `@progress` lines to progress. A job's result never depends on its log:
an unreadable log is reported once, and the wait continues.
"""

import time
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace

from infra.compute.batch.api import JOBS_AT_ONCE, Api, LogsRefused
from infra.compute.batch.attempts import BatchAttempts, JobPart, streams_of
from infra.compute.batch.claim import WaiterLease, advance, owner_of
from infra.compute.batch.job import TWIN, layout_of, nodes_of
from infra.compute.batch.job_detail import ON_MACHINE, JobDetail, add_main_node
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, Listener, Waiter, parse_progress
from tasks.contracts.stages import Layout
from tasks.foundation.errors import ERRORS, HostError, StageError

AT_ONCE = 8  # streams; CloudWatch Logs answers 25 such requests a second for a whole account
TAIL_LINES = 20
CAUGHT_UP_LINES = 200  # earlier log lines shown of a job that was found again
_PAGES_A_LOOK = 20
READ_SECONDS = 15.0  # without new lines, after which an ended container's stream counts as read: last lines come late


@dataclass
class _Stream:
    name: str
    label: str
    last: int | None  # lines to show at the first look; None: all
    token: str = ""
    # Time of the last new line, or of the last sight of its running container.
    news_at: float = field(default_factory=time.monotonic)
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))


class LogFollower:
    """Reads the streams that `follow` names.

    Args:
        group: the log group; None: the logs can't be read from here.
        found_again: the job was started earlier; only the end of its log until now is shown.
    """

    def __init__(self, api: Api, group: str | None, listener: Listener, found_again: bool) -> None:
        self.group = group
        self._api, self._listener, self._found_again = api, listener, found_again
        self._streams: dict[str, _Stream] = {}
        self._readable, self._said = group is not None, False
        if group is None:
            listener.log("the job definition does not send its logs to CloudWatch, so they can't be shown here")

    def follow(self, labels: Mapping[str, str], live: Collection[str]) -> None:
        """Follow the streams in `labels`, with the prefix of their lines; `live` are the streams still written to."""
        last = CAUGHT_UP_LINES if self._found_again else None
        self._found_again = False
        known = self._streams
        self._streams = {name: known.get(name) or _Stream(name, label, last) for name, label in labels.items()} | known
        now = time.monotonic()
        for name in live:
            self._streams[name].news_at = now

    def look(self) -> None:
        """Pass on new lines. Raises as `pulse` of the wait policy does."""
        now = time.monotonic()
        due = [stream for stream in self._streams.values() if now - stream.news_at < READ_SECONDS]
        if len(due) > AT_ONCE and not self._said:
            self._said = True
            self._listener.log(f"shows {AT_ONCE} of {len(due)} logs; all are in log group {self.group}")
        for stream in due[:AT_ONCE]:
            self._read(stream)

    def tail(self, name: str) -> tuple[str, ...]:
        """Return the last lines of a stream, followed or not."""
        stream = self._streams.get(name)
        if stream and stream.tail:
            return tuple(stream.tail)
        lines, _ = self._page(name, "", TAIL_LINES) if name else ((), "")
        return tuple(line for line in lines if line and parse_progress(line) is None)

    def _read(self, stream: _Stream) -> None:
        for _ in range(_PAGES_A_LOOK):
            self._api.policy.pulse()
            lines, token = self._page(stream.name, stream.token, stream.last if not stream.token else None)
            for line in lines:
                self._pass_on(stream, line)
            if lines:
                stream.news_at = time.monotonic()
            if token == stream.token:  # the end, for now
                break
            stream.token = token

    def _pass_on(self, stream: _Stream, line: str) -> None:
        if (found := parse_progress(line)) is not None:
            self._listener.progress(found)
        elif line:
            stream.tail.append(line)
            self._listener.log(f"{stream.label}{line}")

    def _page(self, name: str, token: str, last: int | None) -> tuple[Sequence[str], str]:
        if not self._readable or self.group is None:
            return (), token
        try:
            return self._api.log_page(self.group, name, token, last)
        except LogsRefused as error:
            self._readable = False
            self._listener.log(f"the log can't be shown, the job keeps running: {error}")
            return (), token


LAST_LOOKS = (0.5, 1.0)  # seconds before each last look at the logs: the last lines come late
UNKNOWN_SECONDS = 120.0  # an accepted job may be missing in answers until then
STRAGGLER_SECONDS = 10.0  # parts of an ended job may still be shown as running until then
_SHORTEST, _LONGEST = 0.3, 5.0  # seconds between two looks


@dataclass(eq=False)
class Watch:
    """One attempt's job. Call `wait` once, and `conclude` if it was interrupted."""

    api: Api
    store: Store
    spec: JobSpec
    waiter: Waiter
    job_id: str
    log_group: InitVar[str | None]
    capacity_seconds: float
    found_again: InitVar[bool]

    def __post_init__(self, log_group: str | None, found_again: bool) -> None:
        self._logs = LogFollower(self.api, log_group, self.waiter, found_again)
        self._began = time.monotonic()
        self._turn_to(self.job_id)

    def wait(self, lease: WaiterLease) -> None:
        """Wait until the job has succeeded.

        Raises:
            StageError: the job's last attempt failed; its class is the attempt's failure class.
            HostError: AWS Batch gives no answer, or does not know the job.
        """
        job, parts = self._until_over(lease)
        for pause in LAST_LOOKS:
            self.api.policy.sleep(pause)
            self._logs.look()
        self._report_attempts(parts)
        self._end_twins(job)
        advance(self.store, self.spec.job_prefix, "over")
        if job.status != "SUCCEEDED":
            raise self._failure(job, parts)

    def conclude(self, api: Api) -> None:
        """Report the attempts of a job that has ended."""
        self.api = api
        job, parts = self._describe()
        if job is not None and job.over:
            self._report_attempts(parts)

    def _turn_to(self, job_id: str) -> None:
        self.job_id = job_id
        self._tries = BatchAttempts(self.spec, self.store, job_id, self._logs.tail)
        self._state = ""
        self._waiting_since: float | None = None
        self._asked_to_end = False

    def _until_over(self, lease: WaiterLease) -> tuple[JobDetail, Sequence[JobPart]]:
        seen_at, over_at = time.monotonic(), None
        while True:
            job, parts = self._describe()
            now = time.monotonic()
            if job is not None and self._turned_to_owner(job, parts):
                seen_at, over_at = now, None
            elif job is not None:
                seen_at = now
                self._report_state(job, parts)
                labels, live = streams_of(parts)
                self._logs.follow(labels, live)
                self._logs.look()
                over_at = (over_at or now) if job.over else None
                all_over = bool(parts) and all(part.detail.over for part in parts)
                if over_at and (all_over or now - over_at > STRAGGLER_SECONDS):
                    return job, parts
                self._report_attempts(parts)
                self._check_capacity(job, parts)
            elif now - seen_at > UNKNOWN_SECONDS:
                advance(self.store, self.spec.job_prefix, "ending")
                raise HostError(
                    f"{self.spec.stage}: AWS Batch in {self.api.region} does not know job {self.job_id}; it forgets "
                    "jobs some days after their end"
                )
            lease.keep()
            self.api.policy.sleep(self._pause())

    def _describe(self) -> tuple[JobDetail | None, Sequence[JobPart]]:
        """Return the job and its parts; no parts until AWS Batch shows all of them."""
        count, layout = nodes_of(self.spec), layout_of(self.spec)
        mark = {Layout.single: "", Layout.array: ":", Layout.nodes: "#"}[layout]
        ids = [f"{self.job_id}{mark}{index}" for index in range(count)] if mark else []
        found = self.api.describe([self.job_id, *ids])
        job = found.get(self.job_id)
        if job is None or layout is Layout.single:
            return job, [JobPart(job)] if job else []
        some = [found[one] for one in ids if one in found]
        if layout is Layout.nodes:
            main = found.get(f"{self.job_id}#{job.main_node}")
            return job, [JobPart(add_main_node(job, main), machines=count, nodes=tuple(some))]
        children = [replace(one, asked_to_end=one.asked_to_end or job.asked_to_end) for one in some]
        parts = [JobPart(child, index=index) for index, child in enumerate(children)]
        return job, parts if len(parts) == count else []

    def _report_state(self, job: JobDetail, parts: Sequence[JobPart]) -> None:
        """Log the state of the job when it has changed."""
        counts = Counter(part.detail.status for part in parts) or Counter([job.status])
        hosts = sorted({one.now.host for part in parts for one in (*part.nodes, part.detail) if one.now.host})
        state = f"job {job.name} ({job.id}) is "
        state += job.status if len(counts) == 1 else ", ".join(f"{status} {n}" for status, n in sorted(counts.items()))
        if set(counts) <= {"SUBMITTED", "PENDING", "RUNNABLE"}:
            state += f": it waits for a machine in queue {job.queue}"
            state += f"; AWS Batch says: {job.status_reason}" if job.status_reason else ""
        elif hosts and set(counts) & set(ON_MACHINE):
            state += f" on {', '.join(hosts)}"
        if state != self._state:
            self._state = state
            self.waiter.log(state)

    def _report_attempts(self, parts: Sequence[JobPart]) -> None:
        for one in self._tries.see(parts, time.time()):
            if one.failure is not None:
                self.waiter.log(f"{self.spec.stage}: attempt {one.attempt} ended with {one.failure}: {one.message}")
            self.waiter.tried(one)

    def _check_capacity(self, job: JobDetail, parts: Sequence[JobPart]) -> None:
        """End a job if none of its parts got a machine within the time limit."""
        waiting = [part.detail for part in parts if not part.detail.over]
        if not waiting or any(one.status in ON_MACHINE for one in waiting):
            self._waiting_since = None
            return
        if self._waiting_since is None:
            ends = [run.stopped_at for one in waiting for run in one.runs if run.stopped_at]
            self._waiting_since = max([job.created_at, *ends])
        # By the service's clock, which dated the job: this machine's may be hours away from it.
        if self.api.now() - self._waiting_since > self.capacity_seconds and not self._asked_to_end:
            said = job.status_reason or waiting[0].status_reason
            why = f"no machine in queue {job.queue} for {self.capacity_seconds:.0f} s"
            why = (
                f"{said}; {why}"
                if said.startswith("MISCONFIGURATION")
                else f"CAPACITY: {why}" + (f"; AWS Batch says: {said}" if said else "")
            )
            advance(self.store, self.spec.job_prefix, "ending")
            self.api.terminate(job.id, why)
            self._asked_to_end = True

    def _turned_to_owner(self, job: JobDetail, parts: Sequence[JobPart]) -> bool:
        """Switch to another job of the same name if it owns the attempt; return True if so.

        A container of the second job ends as soon as it starts.
        """
        if job.status == "SUCCEEDED" or any(part.detail.status in ON_MACHINE for part in parts):
            return False
        owner = owner_of(self.store, self.spec.job_prefix)
        if owner is None or owner == job.id:
            return False
        self.waiter.log(f"job {owner} owns the attempt already; job {job.id} is ended, and job {owner} is waited for")
        advance(self.store, self.spec.job_prefix, "submitted", owner)
        self.api.terminate(job.id, TWIN)
        self._turn_to(owner)
        return True

    def _end_twins(self, job: JobDetail) -> None:
        for other in self.api.named(job.queue, job.name):
            if other.id != job.id and not other.over:
                self.api.terminate(other.id, TWIN)

    def _failure(self, job: JobDetail, parts: Sequence[JobPart]) -> StageError:
        last = self._tries.reported[-1] if self._tries.reported else None
        stream = next((part.runs[-1].stream for part in parts if part.gave_up and part.runs[-1].stream), "")
        where = f"(AWS Batch job {job.id}" + (f", log stream {stream} in {self._logs.group})" if stream else ")")
        if last is None or last.failure is None:
            return HostError(f"{self.spec.stage}: the job failed: {job.status_reason or 'no reason was given'} {where}")
        gap = "\n" if "\n" in last.message else " "
        return ERRORS[last.failure](f"{last.message}{gap}{where}")

    def _pause(self) -> float:
        """Return the polling interval in seconds: longer for old jobs, and for jobs that need many requests."""
        pages = 1 + nodes_of(self.spec) // JOBS_AT_ONCE
        return pages * min(_LONGEST, max(_SHORTEST, 0.05 * (time.monotonic() - self._began)))
