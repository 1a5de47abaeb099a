"""Submits exactly one job for an attempt: SubmitJob takes no token by which AWS could recognise a repeated call.

Before the call there is a claim in the workspace; after a lost reply, a look-up by name. A second job that shows up
even later finds the attempt's owner.json, ends at once, and is ended by the waiter of the first.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.compute.batch.claim import owner_of
from infra.compute.batch.client.api import Api, MaybeAccepted, NotAccepted
from infra.compute.batch.client.backoff import Backoff
from infra.compute.batch.client.job_detail import JobDetail
from infra.store.base import Store

VISIBILITY_SECONDS = 30.0  # within this time an accepted job shows up
_LOOK_EVERY_SECONDS = 1.0
TWIN = "a second job of the same name; the other one keeps running"


def submit(api: Api, request: Mapping[str, Any], keep: Callable[[list[JobDetail]], str]) -> str:
    """Submit, despite lost replies and throttling; return the job's id.

    Args:
        keep: chooses, of the jobs that a look-up found, the one that stays.

    Raises:
        ConfigError: AWS Batch refuses it.
        HostError: it could not be settled before the time limit; there may be a job.
    """
    backoff = Backoff(api.policy, f"AWS Batch in {api.region}")
    while True:
        try:
            return api.submit(request)
        except NotAccepted as error:
            backoff.wait_after(error)
        except MaybeAccepted as error:
            api.policy.say("no answer to SubmitJob; looking whether the job is there")
            if found := look_up(api, request["jobQueue"], request["jobName"]):
                return keep(found)
            backoff.wait_after(error)


def look_up(api: Api, queue: str, name: str, at_most: float = float("inf")) -> list[JobDetail]:
    """Wait for a job of this name and return all that there are.

    Empty after the time in which it would have shown up, or after `at_most` seconds.
    """
    until = time.monotonic() + min(VISIBILITY_SECONDS, at_most)
    while True:
        found = api.named(queue, name)
        if found or time.monotonic() >= until:
            return found
        api.policy.sleep(_LOOK_EVERY_SECONDS)


def keep_one(api: Api, store: Store, prefix: str, found: list[JobDetail]) -> str:
    """End all jobs but one and return its id: the attempt's owner, else the oldest that is not over."""
    owner = owner_of(store, prefix)
    first = next((job for job in found if not job.over), found[0])
    kept = next((job for job in found if job.id == owner), first)
    for job in found:
        if job.id != kept.id and not job.over:
            api.terminate(job.id, TWIN)
    return kept.id
