"""Jobs that wait with their machines for another stage of their run: given that stage, or let go."""

from infra.compute.batch.api import Api
from infra.compute.batch.job import nodes_of, queue_of
from infra.compute.batch.job_detail import JobDetail
from infra.handover import Finished, Next, decide, find_next, key_of, may_share, waits_of
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec


def hand_over(api: Api, store: Store, spec: JobSpec) -> str | None:
    """Give the stage to a living job of its run that waits for one; return the job's id, None without such a job.

    All other waiting jobs of the run are let go: their machines are free for this stage.

    Raises:
        ConfigError, HostError, StoreError: AWS Batch or the workspace could not be asked.
    """
    given = handed_to(store, spec)
    for prefix, finished in _waits(store, spec, None):
        job = api.describe([finished.job]).get(finished.job)
        fits = given is None and may_share(spec) and job is not None and _fits(job, finished, spec)
        if decide(store, prefix, key_of(spec) if fits else None).spec == key_of(spec):
            given = finished.job
    return given


def handed_to(store: Store, spec: JobSpec) -> str | None:
    """Return the id of the living job that the stage was handed to; None if it was not."""
    return next((finished.job for _, finished in _waits(store, spec, Next(spec=key_of(spec)))), None)


def _waits(store: Store, spec: JobSpec, decision: Next | None) -> list[tuple[str, Finished]]:
    """Return the waits of the run's jobs with this decision, with the folder of their attempt."""
    if spec.config.batch.keep_seconds == 0:
        return []
    waits = waits_of(store, spec.run_key)
    return [(prefix, finished) for prefix, finished in waits if find_next(store, prefix) == decision]


def _fits(job: JobDetail, finished: Finished, spec: JobSpec) -> bool:
    same = (job.queue, finished.nodes) == (queue_of(spec.stage, spec.config.batch), nodes_of(spec))
    return same and job.status == "RUNNING" and not job.asked_to_end
