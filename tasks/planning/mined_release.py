"""The release from which a run mines its hard negatives: the current one when its warmup first began.

It is recorded then, so that a run that resumes after a release or a rollback has the same negatives.
"""

import contextlib

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.records import find_record, read_record
from tasks.contracts.references import MinedRelease
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import MINED_RELEASE
from tasks.foundation.records import Record
from tasks.runs import releases

_WAY_OUT = "restore it from a backup, or move it away: the run then takes the current release"


class MiningSource(Record):
    """`runs/<run key>/train/mined_release.json`."""

    release: MinedRelease | None = Field(description="release to mine; null: no release with all items existed")


def mined_release(store: Store, plan: RunPlan) -> MinedRelease | None:
    """Return the release that a run mines; None before the first one, or if the run needs no hard negatives.

    Raises:
        StoreError: the current release, or the record, is not readable; names the file.
    """
    head = plan.config.heads.contrastive
    if head is None or head.negatives is None:
        return None
    key = MINED_RELEASE.key(run=plan.run_key)
    if not store.exists(key):
        with contextlib.suppress(Conflict):  # another process was faster
            store.create(key, MiningSource(release=_current(store)).to_json())
    return read_record(store, key, MiningSource, _WAY_OUT).release


def chosen_release(store: Store, run_key: str) -> MinedRelease | None:
    """Return the recorded release that a run mines; None if it mines none or has not chosen yet. Raises StoreError."""
    choice = find_record(store, MINED_RELEASE.key(run=run_key), MiningSource, _WAY_OUT)
    return choice.release if choice is not None else None


def _current(store: Store) -> MinedRelease | None:
    release = releases.current(store)
    if release is None:
        return None
    return MinedRelease(
        number=release.number,
        model=release.model,
        vectors=release.vectors_prefix,
        vectors_sha256=release.vectors_sha256,
        catalogue=release.catalogue,
    )
