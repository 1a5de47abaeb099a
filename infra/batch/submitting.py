"""A job for an attempt, one and no more: SubmitJob takes no token by which AWS could tell a second try of a first.

Before: a claim in the workspace. After a reply that was lost: a look-up by name. What slips through both, a job that
shows up later than that, finds the attempt's owner.json in its way, and is ended by whoever waits for the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from infra.batch.api import Api, MaybeAccepted, NotAccepted
from infra.batch.claim import owner_of
from infra.batch.details import Detail
from infra.batch.patience import Trouble
from infra.store import Store

VISIBILITY_SECONDS = 30.0  # until a job that was accepted shows up for sure
_LOOK_EVERY_SECONDS = 1.0
TWIN = "a second job of the same name; the other one goes on"


def submit(api: Api, request: Mapping[str, Any], keep: Callable[[list[Detail]], str]) -> str:
    """Submit, through lost replies and throttling; the job's id.

    Args:
        keep: of the jobs that a look-up found, the one that stays.

    Raises:
        ConfigError: AWS Batch refuses it.
        HostError: it could not be settled for as long as patience lasts; there may be a job.
    """
    trouble = Trouble(api.patience, f"AWS Batch in {api.region}")
    while True:
        try:
            return api.submit(request)
        except NotAccepted as error:
            trouble.bear(error)
        except MaybeAccepted as error:
            api.patience.say("no answer to SubmitJob; looking whether the job is there")
            if found := look_up(api, request["jobQueue"], request["jobName"]):
                return keep(found)
            trouble.bear(error)


def look_up(api: Api, queue: str, name: str, at_most: float = float("inf")) -> list[Detail]:
    """The jobs of a name, as soon as there is one.

    None when the time is over in which it would have shown up, or after `at_most` seconds.
    """
    until = time.monotonic() + min(VISIBILITY_SECONDS, at_most)
    while True:
        found = api.named(queue, name)
        if found or time.monotonic() >= until:
            return found
        api.patience.rest(_LOOK_EVERY_SECONDS)


def keep_one(api: Api, store: Store, prefix: str, found: list[Detail]) -> str:
    """The job that stays: the attempt's owner, else the oldest that is not over; all others are ended."""
    owner = owner_of(store, prefix)
    first = next((job for job in found if not job.over), found[0])
    kept = next((job for job in found if job.id == owner), first)
    for job in found:
        if job.id != kept.id and not job.over:
            api.terminate(job.id, TWIN)
    return kept.id
