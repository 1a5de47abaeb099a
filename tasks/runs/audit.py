"""The audit: a record of each rollback, hold, skip, override and prune, with the caller's identity.

The record is written before anything changes, so no change lacks one, and gets its end afterwards. One without an end
belongs to a command that was killed. Records are never deleted; on a bucket their earlier versions stay too.
"""

import contextlib
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.identity import caller
from infra.store.records import find_record, settle
from tasks.contracts.workspace import AUDIT
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import classify, message_of
from tasks.foundation.records import Record
from tasks.runs.holds import me

Verb = Literal["rollback", "hold", "lift", "skip", "override", "overrule", "prune"]


class Audit(Record):
    """`audit/<time>/<verb>.json`: a change by hand."""

    at: Moment
    verb: Verb = Field(description="kind of change")
    by: str = Field(description="user and machine")
    identity: str | None = Field(description="ARN of the AWS identity; null: no bucket, or STS did not say")
    about: dict[str, str] = Field(description="the command's words, as in {release: 7}")
    ended_at: Moment | None = Field(default=None, description="null: it goes on, or was killed")
    failure: str | None = Field(default=None, description="failure class; null: it was done, or has not ended")
    message: str = Field(default="", description="the error's sentence")


@contextlib.contextmanager
def audited(store: Store, verb: Verb, **about: object) -> Iterator[None]:
    """Record who makes the change inside the block, and its end.

    Args:
        about: the command's words; None is left out.

    Raises:
        StoreError: the record can't be written; nothing was changed.
    """
    words = {name: str(value) for name, value in about.items() if value is not None}
    record = Audit(at=now(), verb=verb, by=me(), identity=caller(store.uri), about=words)
    key = _create(store, record)
    try:
        yield
    except BaseException as error:
        failed = {"ended_at": now(), "failure": classify(error).value, "message": message_of(error, store.uri)}
        with contextlib.suppress(Exception):  # the first error is the one to report
            settle(store, key, record.model_copy(update=failed).to_json())
        raise
    settle(store, key, record.model_copy(update={"ended_at": now()}).to_json())


def read_audit(store: Store, most: int) -> tuple[Audit, ...]:
    """Return the newest `most` records, the oldest first."""
    found = (find_record(store, key, Audit) for key in sorted(store.list(AUDIT.within()))[-most:])
    return tuple(each for each in found if each is not None)


def _create(store: Store, record: Audit) -> str:
    while True:
        key = AUDIT.key(at=record.at.replace(":", ""), verb=record.verb)
        try:
            store.create(key, record.to_json())
            return key
        except Conflict:  # another process at the same microsecond
            record = record.model_copy(update={"at": now()})
