"""Run stages on AWS Batch: one job for each attempt. If the waiting process dies, the next one finds the job again."""

import datetime as dt

from configs.schema.config import Config
from infra.compute.batch.api import LOG_GROUP, Api, Definition, Queue, WaitPolicy
from infra.compute.batch.claim import Claim, WaiterLease, advance, claims_below, make_claim, read_claim
from infra.compute.batch.end_jobs import end_and_wait
from infra.compute.batch.job import (
    check_queue,
    definition_of,
    find_jobs,
    job_name,
    keep_one_job,
    queue_of,
    submission,
    submit,
)
from infra.compute.batch.job_detail import JobDetail
from infra.compute.batch.watch import Watch
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.foundation.errors import CancelledError, ConfigError, HostError, StageError

ENDING_SECONDS = 35.0  # an interrupted waiter's wait for its job's end: SIGKILL comes 30 s after SIGTERM
EARLIER_SECONDS = 120.0  # a new attempt's wait for the end of earlier attempts' jobs


class BatchRunner:
    """Runs a stage as a job. Only this folder knows claims and job ids; the stage knows its attempt."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store, self._capacity_seconds = store, config.batch.capacity_seconds

    def found(self, spec: JobSpec) -> bool:
        """Return True if a job may exist for the attempt and was not asked to end."""
        claim = read_claim(self.store, spec.job_prefix)
        return claim is not None and claim.state in ("claimed", "submitted")

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        """See `Runner.run`. An interruption ends the job; after other errors it keeps running and can be found again.

        Raises:
            ConfigError: credentials, permissions, queue or job definition are wrong.
            CapacityError: no machine came in time.
            HostError: contact with AWS Batch was lost; the job keeps running.
            StageError: the last attempt failed; its class is the attempt's failure class.
        """
        api = Api.connect(WaitPolicy(waiter.pulse, waiter.log))
        watches: list[Watch] = []
        try:
            with WaiterLease(self.store, spec.job_prefix) as lease:
                watches.append(self._begin(api, spec, waiter, tries))
                watches[0].wait(lease)
        except BaseException as error:
            if isinstance(error, CancelledError) or not isinstance(error, Exception):
                self._end(api, spec, waiter, watches, error)
            if isinstance(error, ConfigError) and watches and self._goes_on(spec):
                raise ConfigError(
                    f"{error}; job {watches[0].job_id} keeps running, and running the span again finds it"
                ) from error
            raise

    def _goes_on(self, spec: JobSpec) -> bool:
        """Return True if the job may run on; also if the workspace refuses the session that AWS Batch refused."""
        try:
            return self.found(spec)
        except (StageError, OSError):
            return True

    def _begin(self, api: Api, spec: JobSpec, waiter: Waiter, tries: int) -> Watch:
        """Submit the job, or find it, and return a watch on it."""
        claim = read_claim(self.store, spec.job_prefix)
        found_again = claim is not None
        definition = api.definition(definition_of(spec.stage, spec.config.batch))
        if claim is not None and (claim.state == "ending" or (claim.state == "over" and claim.job_id is None)):
            raise _given_up(spec)
        job_id = claim.job_id if claim else None
        if job_id is not None:
            waiter.log(f"{spec.stage}: waiting for job {job_id}, which was started before")
        else:
            target = check_queue(api, spec.stage, spec.config.batch, definition)
            if claim is None:
                self._end_earlier(api, spec)
                self._claim(spec, waiter)
            job_id = self._submit(api, spec, waiter, tries, *target, look_first=found_again)
            claim = advance(self.store, spec.job_prefix, "submitted", job_id)
            if claim is None or claim.state != "submitted":
                raise _given_up(spec)  # another process ended it during the submission
        group = definition.log_group if definition else LOG_GROUP
        return Watch(api, self.store, spec, waiter, job_id, group, self._capacity_seconds, found_again)

    def _claim(self, spec: JobSpec, waiter: Waiter) -> None:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")
        claim = Claim(
            name=job_name(spec),
            state="claimed",
            job_id=None,
            queue=queue_of(spec.stage, spec.config.batch),
            flow_run=waiter.flow_run,
            claimed_at=now,
        )
        if not make_claim(self.store, spec.job_prefix, claim):
            raise HostError(
                f"{spec.stage}: another process just claimed attempt {spec.submitted_as}; wait for it or stop it"
            )

    def _submit(
        self,
        api: Api,
        spec: JobSpec,
        waiter: Waiter,
        tries: int,
        queue: Queue,
        definition: Definition,
        look_first: bool,
    ) -> str:
        def keep(found: list[JobDetail]) -> str:
            return keep_one_job(api, self.store, spec.job_prefix, found)

        if look_first and (found := find_jobs(api, queue.name, job_name(spec))):
            return keep(found)
        request = submission(spec, self.store.uri, waiter.flow_run, tries, queue, definition)
        try:
            return submit(api, request, keep)
        except ConfigError:
            advance(self.store, spec.job_prefix, "over")
            raise

    def _end_earlier(self, api: Api, spec: JobSpec) -> None:
        """End the jobs of earlier attempts, which must not run at the same time as a new one."""
        for folder, claim in claims_below(self.store, spec.stage_prefix).items():
            if claim.state == "over" or folder == spec.job_prefix:
                continue
            api.policy.say(f"{spec.stage}: ending what is left of {folder}, job {claim.name}")
            why = f"a new attempt begins: {spec.submitted_as}"
            if not end_and_wait(api, self.store, folder, why, EARLIER_SECONDS):
                raise HostError(
                    f"{spec.stage}: job {claim.job_id or claim.name} of an earlier attempt was asked to end and is not "
                    f"over after {EARLIER_SECONDS:.0f} s; a new one would run at the same time"
                )

    def _end(self, api: Api, spec: JobSpec, waiter: Waiter, watches: list[Watch], interruption: BaseException) -> None:
        """End the job, as far as the time left to an interrupted process allows."""
        claim = read_claim(self.store, spec.job_prefix)
        if claim is None or claim.state == "over":
            return
        why = f"the waiter was interrupted: {interruption or type(interruption).__name__}"
        waiter.log(f"{spec.stage}: ends job {claim.job_id or claim.name}")
        hurried = api.with_policy(WaitPolicy(say=waiter.log, seconds=ENDING_SECONDS / 3))
        try:
            over = end_and_wait(hurried, self.store, spec.job_prefix, why, ENDING_SECONDS)
            for watch in watches:
                watch.conclude(hurried)
        except (StageError, OSError) as error:
            waiter.log(f"{spec.stage}: whether its job ends is not known: {error}; `millrace reap` ends it")
            return
        if not over:
            waiter.log(f"{spec.stage}: its job was asked to end, if there is one; the next attempt waits for that")


def _given_up(spec: JobSpec) -> CancelledError:
    return CancelledError(f"{spec.stage}: attempt {spec.submitted_as} was asked to end; run the span again for another")
