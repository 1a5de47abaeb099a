"""The completed checkpoints of a lineage, read from their manifests and `state.json`.

A branch has the checkpoints of the lineage that it continues, up to its base, and then its own. This module reads no
weights and writes no checkpoints: the workers of the train stage do.
"""

import contextlib
import hashlib
from collections.abc import Iterator

from infra.store.base import Store
from infra.store.manifest import MANIFEST, PRUNED, CorruptFolder, Manifest, MissingFolder, read_manifest
from infra.store.records import parse_record, read_record
from tasks.contracts.references import CheckpointRef, CheckpointState
from tasks.contracts.workspace import CHECKPOINT
from tasks.runs.branches import branch_of

STATE = "state.json"

_WAY_OUT = "restore the folder from a backup, or move it out of lineages/: the one before is then the last"


def head(store: Store, lineage: str) -> tuple[CheckpointRef, CheckpointState] | None:
    """Return the last completed checkpoint, from which the next run starts; None if none. Raises as `completed`."""
    return next(newest_first(store, lineage), None)  # the others, many after a year, are not read


def newest_first(store: Store, lineage: str) -> Iterator[tuple[CheckpointRef, CheckpointState]]:
    """Yield the checkpoints at the end of a run, the last one first; each is read when its turn comes.

    Raises:
        CorruptFolder, StoreError: as `completed`.
    """
    yield from _own_newest_first(store, lineage)
    branch = branch_of(store, lineage)
    if branch is None or branch.base is None:
        return
    inherited = newest_first(store, branch.of)
    for each in inherited:
        if each[0] == branch.base:
            yield each
            yield from inherited
            return
    raise CorruptFolder(
        f"{store.uri}/{branch.base.prefix}, from which branch {lineage} continues lineage {branch.of}, is gone or was "
        f"replaced; restore the folder from a backup"
    )


def completed(store: Store, lineage: str) -> list[tuple[CheckpointRef, CheckpointState]]:
    """Return the checkpoints at the end of a run, by step. Those made during a run are left out.

    Raises:
        CorruptFolder: a manifest or state.json is not readable, or a branch's base is gone; names the file and the
            way out.
        StoreError: the record of a branch is not readable; names the file.
    """
    return list(newest_first(store, lineage))[::-1]


def state_of(store: Store, ref: CheckpointRef) -> CheckpointState:
    """Return the state of a completed checkpoint, pruned or not.

    Raises:
        MissingFolder, CorruptFolder: it is missing or damaged; names the file.
    """
    return _read_state(store, ref.prefix, _manifest_of(store, ref.prefix, MANIFEST))


def is_pruned(store: Store, ref: CheckpointRef) -> bool:
    """Return whether the weights of a completed checkpoint were deleted, so that nothing can be trained from it."""
    return not store.exists(f"{ref.prefix}/{MANIFEST}")


def prune_checkpoint(store: Store, prefix: str) -> None:
    """Delete the files of a checkpoint; a completed one keeps the record of its training data.

    The manifest goes before the files, so that no reader sees a partial checkpoint.
    """
    with contextlib.suppress(MissingFolder):
        manifest = read_manifest(store, prefix)
        if manifest.facts.get("complete") is not False:
            store.write(f"{prefix}/{PRUNED}", manifest.to_json())
        store.delete(f"{prefix}/{MANIFEST}")
    keep = {f"{prefix}/{PRUNED}", f"{prefix}/{STATE}"} if store.exists(f"{prefix}/{PRUNED}") else set[str]()
    store.discard(prefix, {key: tag for key, tag in store.tags(prefix).items() if key not in keep})


def partial(store: Store, lineage: str) -> list[str]:
    """Return the keys of checkpoints made during a run, by step; a finished run leaves none.

    Raises:
        CorruptFolder: a manifest is not readable.
    """
    folders = [
        key.rpartition("/")[0] for key in store.list(CHECKPOINT.within(lineage=lineage)) if key.endswith(f"/{MANIFEST}")
    ]
    return sorted(folder for folder in folders if _is_partial(store, folder))


def _is_partial(store: Store, folder: str) -> bool:
    try:
        return read_manifest(store, folder).facts.get("complete") is False
    except MissingFolder:
        return False  # deleted since it was listed


def _own_newest_first(store: Store, lineage: str) -> Iterator[tuple[CheckpointRef, CheckpointState]]:
    keys = [key.rpartition("/") for key in store.list(CHECKPOINT.within(lineage=lineage)) if CHECKPOINT.match(key)]
    folders = {folder: name for folder, _, name in sorted(keys, reverse=True) if name in (MANIFEST, PRUNED)}
    for folder in sorted(folders, reverse=True):
        try:
            manifest = _manifest_of(store, folder, folders[folder])
        except MissingFolder:
            continue  # it was listed, and then deleted by the training that made it: there is a newer one
        except CorruptFolder as error:
            raise CorruptFolder(f"{error}; {_WAY_OUT}") from error
        if manifest.facts.get("complete") is False:  # made during a run; only the train stage reads it
            continue
        state = _read_state(store, folder, manifest)
        if state.complete:
            yield CheckpointRef(prefix=folder, step=state.step, sha256=manifest.sha256), state


def _manifest_of(store: Store, folder: str, name: str) -> Manifest:
    if name == MANIFEST:
        try:
            return read_manifest(store, folder)
        except MissingFolder:
            if not store.exists(f"{folder}/{PRUNED}"):  # else it was pruned since it was listed
                raise
    return read_record(store, f"{folder}/{PRUNED}", Manifest, error=CorruptFolder)


def _read_state(store: Store, folder: str, manifest: Manifest) -> CheckpointState:
    where = f"{store.uri}/{folder}/{STATE}"
    checksum = next((entry.sha256 for entry in manifest.files if entry.name == STATE), None)
    try:
        data = store.read(f"{folder}/{STATE}")
    except FileNotFoundError as error:
        raise CorruptFolder(f"{where} is gone, so the checkpoint can't be continued; {_WAY_OUT}") from error
    if hashlib.sha256(data).hexdigest() != checksum:
        raise CorruptFolder(f"{where} does not match its checksum in {MANIFEST}; {_WAY_OUT}")
    return parse_record(where, data, CheckpointState, _WAY_OUT, CorruptFolder)
