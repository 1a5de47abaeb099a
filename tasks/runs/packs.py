"""The records of finished runs, packed by month, so that the history of years needs few reads.

A pack is derived. Its copy of a run counts only while the run's folder lists the same records with the same sizes;
otherwise the records themselves are read. So a lost or outdated pack hides nothing, and the next packing repairs it.
"""

import contextlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field, ValidationError

from infra.store.base import Conflict, Store
from infra.store.manifest import MANIFEST
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import (
    INVOCATION,
    LEDGER,
    NUMBER,
    OLD_VERDICTS,
    PACKED_RUNS,
    PLAN,
    RELEASE,
    RESULT,
    VERDICTS,
)
from tasks.foundation.records import Record
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.releases import Numbered

READERS = 16  # parallel reads, for workspaces in a bucket

_RECORDS = (PLAN, INVOCATION, RESULT, VERDICTS, OLD_VERDICTS, NUMBER, LEDGER)


class PackedRun(Record):
    """The records of one run, and related records that never change."""

    sizes: dict[str, int] = Field(description="bytes of each record in the run's folder, by key")
    records: dict[str, str] = Field(
        description="content of the records, its release and the manifests of its spans, by key"
    )


class Pack(Record):
    """`packs/runs/<month>.json`: the finished runs that began in a month."""

    version: Literal[1] = 1
    runs: dict[str, PackedRun] = Field(description="by run key")


def read_all(store: Store, keys: Iterable[str]) -> dict[str, bytes | None]:
    """Return objects by key, read in parallel; None for missing ones."""

    def read(key: str) -> bytes | None:
        try:
            return store.read(key)
        except FileNotFoundError:
            return None

    wanted = list(dict.fromkeys(keys))
    if len(wanted) < 2:
        return {key: read(key) for key in wanted}
    with ThreadPoolExecutor(READERS) as readers:
        return dict(zip(wanted, readers.map(read, wanted), strict=True))


def unpacked(store: Store, listed: Mapping[str, int]) -> dict[str, bytes]:
    """Return the records of runs that have not changed since packing; `listed` are the keys and sizes below `runs/`."""
    there = _sizes(listed)
    found: dict[str, bytes] = {}
    for _, pack in _packs(store).values():
        for run_key, run in pack.runs.items():
            if run.sizes == there.get(run_key):
                found |= {key: text.encode() for key, text in run.records.items()}
    return found


def pack_runs(store: Store) -> int:
    """Pack the runs that are over and in no pack as they are now; return how many.

    Raises:
        StoreError: the workspace could not be read or written.
    """
    packs = _packs(store)
    packed = {run_key: run.sizes for _, pack in packs.values() for run_key, run in pack.runs.items()}
    left = {run_key: sizes for run_key, sizes in _sizes(store.sizes("runs")).items() if packed.get(run_key) != sizes}
    raw = read_all(store, (key for sizes in left.values() for key in sizes))
    made: dict[str, dict[str, PackedRun]] = {}
    for run_key, sizes in left.items():
        records = {key: data.decode() for key in sizes if (data := raw[key]) is not None and len(data) == sizes[key]}
        if records.keys() == sizes.keys() and (month := _month(records)):
            records |= _beside(store, records)
            made.setdefault(month, {})[run_key] = PackedRun(sizes=sizes, records=records)
    for month, runs in made.items():
        before, pack = packs.get(month, (None, Pack(runs={})))
        with contextlib.suppress(Conflict):  # another process packs too; the next packing adds the rest
            store.swap(PACKED_RUNS.key(month=month), Pack(runs=pack.runs | runs).to_json(), expected=before)
    return sum(map(len, made.values()))


def _packs(store: Store) -> dict[str, tuple[bytes | None, Pack]]:
    """Return each pack by month, with its bytes; one that can't be read is made again."""
    found = {}
    for key, data in read_all(store, store.list(PACKED_RUNS.within())).items():
        try:
            pack = Pack.model_validate_json(data or b"")
        except ValidationError:
            pack = Pack(runs={})
        found[PACKED_RUNS.fields(key)["month"]] = data, pack
    return found


def _sizes(listed: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the bytes of each record, by run key and key."""
    found: dict[str, dict[str, int]] = {}
    for key, size in listed.items():
        if fields := next(filter(None, (kind.match(key) for kind in _RECORDS)), None):
            found.setdefault(fields["run"], {})[key] = size
    return found


def _month(records: Mapping[str, str]) -> str | None:
    """Return the month in which a run began, as `2024-02`; None while it goes on, or if a record can't be read."""
    begins = []
    try:
        for key, text in records.items():
            if INVOCATION.match(key):
                one = Invocation.model_validate_json(text)
                begins.append((one.began_at, one.ended_at))
            elif LEDGER.match(key):
                attempt = LedgerRecord.model_validate_json(text)
                begins.append((attempt.started_at, attempt.ended_at))
    except ValidationError:
        return None
    over = begins and all(ended is not None for _, ended in begins)
    return min(began for began, _ in begins)[:7] if over else None


def _beside(store: Store, records: Mapping[str, str]) -> dict[str, str]:
    """Return the record of a run's release and the manifests of its spans, by key; neither ever changes."""
    keys = []
    for key, text in records.items():
        with contextlib.suppress(ValidationError):
            if NUMBER.match(key):
                keys.append(RELEASE.key(number=Numbered.model_validate_json(text).number))
            elif PLAN.match(key):
                keys += [f"{span.prefix}/{MANIFEST}" for span in RunPlan.model_validate_json(text).window]
    return {key: data.decode() for key, data in read_all(store, keys).items() if data is not None}
