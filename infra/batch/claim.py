"""The claim on an attempt's job: `<attempt>/job.json`, written before the job is submitted, changed only by swaps.

Whoever finds it knows whether there is a job, or may be one, and whether somebody asked for its end.
"""

from __future__ import annotations

import json
from typing import Literal, get_args

from pydantic import Field, ValidationError

from infra.store import Conflict, Store
from tasks.errors import StoreError
from tasks.records import Record

State = Literal["claimed", "submitted", "ending", "over"]

_FILE = "job.json"
_OWNER = "owner.json"  # the launcher's: which job runs the attempt, if two were submitted
_ORDER: tuple[State, ...] = get_args(State)
_ROUNDS = 5


class Claim(Record):
    """Its state only goes forward: claimed, submitted, ending (somebody asked for the job's end), over."""

    version: Literal[1] = 1
    name: str = Field(description="of the job")
    state: State
    job_id: str | None = Field(description="null: not known whether there is a job")
    queue: str
    flow_run: str = Field(description="id of the Prefect flow run; empty outside of one")
    claimed_at: str = Field(description="ISO 8601 in UTC")


def read_claim(store: Store, prefix: str) -> Claim | None:
    """The claim of the attempt whose folder is `prefix`.

    Raises:
        StoreError: what lies there is no claim.
    """
    raw = _raw(store, prefix)
    return _parsed(store, prefix, raw) if raw is not None else None


def make_claim(store: Store, prefix: str, claim: Claim) -> bool:
    """Whether the claim is now made; False where there was one before."""
    try:
        store.create(f"{prefix}/{_FILE}", claim.to_json())
    except Conflict:
        return False
    return True


def advance(store: Store, prefix: str, state: State, job_id: str | None = None) -> Claim | None:
    """Move the claim on to `state`, unless it is further already, and note the job; the claim as it is then.

    None where there is no claim.

    Raises:
        Conflict: others change it all the time.
    """
    for _ in range(_ROUNDS):
        raw = _raw(store, prefix)
        if raw is None:
            return None
        claim = _parsed(store, prefix, raw)
        later = max(claim.state, state, key=_ORDER.index)
        moved = claim.model_copy(update={"state": later, "job_id": job_id or claim.job_id})
        if moved == claim:
            return claim
        try:
            store.swap(f"{prefix}/{_FILE}", moved.to_json(), expected=raw)
        except Conflict:
            continue
        return moved
    raise Conflict(f"{store.uri}/{prefix}/{_FILE} was changed {_ROUNDS} times while it was to be changed; try again")


def claims_below(store: Store, prefix: str) -> dict[str, Claim]:
    """All claims of a stage, a run or (`runs`) the workspace, by the folder of their attempt."""
    found = {}
    for key in store.list(prefix):
        folder, _, name = key.rpartition("/")
        if name == _FILE and (claim := read_claim(store, folder)) is not None:
            found[folder] = claim
    return found


def owner_of(store: Store, prefix: str) -> str | None:
    """The id of the job whose containers have begun the attempt; None where none has."""
    try:
        owner: str | None = json.loads(store.read(f"{prefix}/{_OWNER}")).get("job")
    except (FileNotFoundError, ValueError, AttributeError):
        return None
    return owner


def _raw(store: Store, prefix: str) -> bytes | None:
    try:
        return store.read(f"{prefix}/{_FILE}")
    except FileNotFoundError:
        return None


def _parsed(store: Store, prefix: str, raw: bytes) -> Claim:
    try:
        return Claim.model_validate_json(raw)
    except ValidationError as error:
        raise StoreError(
            f"{store.uri}/{prefix}/{_FILE} is not a claim on a job: {error.errors()[0]['msg']}; move the file away "
            "once no job of that attempt is left"
        ) from error
