"""List the deletable folders: bulk data that nothing needs. Records (JSON) stay, except for notes of shards.

Spans and item feeds are never listed, nor are runs without a plan, which are the sides of a comparison.
"""

import contextlib
from collections.abc import Iterator, Mapping

from configs.schema.operations import PruneConfig
from infra.store.base import Store
from infra.store.manifest import MANIFEST, PRUNED, MissingFolder, read_fact, read_manifest
from tasks.contracts import workspace
from tasks.contracts.kinds import Kept, lineage_of, run_of
from tasks.contracts.pruning import Folder, FolderKind, PrunePlan
from tasks.prune.reach import Reach
from tasks.runs.lineage import STATE

_SHARED: Mapping[FolderKind, workspace.Kind] = {
    "models": workspace.MODEL,
    "compile": workspace.COMPILED,
    "negatives": workspace.NEGATIVES,
}
_PARTLY: Mapping[FolderKind, workspace.Kind] = {"vectors": workspace.VECTORS, "catalogue": workspace.CATALOGUE}
_OF_A_RUN = tuple(kind for kind in workspace.TABLE if "run" in kind.names and kind.kept in (Kept.reached, Kept.shown))

# They go alone, though the other files of their run stay.
_OF_ROWS = (workspace.ROWS, workspace.KEYS, workspace.POSITIVES, workspace.REPLAYED)


def plan_prune(store: Store, policy: PruneConfig, reach: Reach) -> PrunePlan:
    """Return the deletable folders. Of a pruned release too: they may have been made again."""
    found = [*_folders(store, reach, _named(store, reach))]
    gone = {folder.folder for folder in found}
    totals: dict[FolderKind, int] = {}
    for folder in found:
        totals[folder.kind] = totals.get(folder.kind, 0) + folder.bytes
    return PrunePlan(
        policy=policy,
        kept=tuple(release.number for release in reach.releases),
        releases=tuple(number for number, prefixes in sorted(reach.made.items()) if gone & set(prefixes)),
        folders=tuple(found),
        bytes=totals,
        total_bytes=sum(totals.values()),
        deleted=False,
    )


def _named(store: Store, reach: Reach) -> frozenset[str]:
    """Return the keys of the files that needed catalogues and vectors name in other folders.

    Raises:
        CorruptFolder: a manifest is not readable.
    """
    found: set[str] = set()
    for folder in reach.folders:
        if any(kind.match(f"{folder}/{MANIFEST}") for kind in _PARTLY.values()):
            with contextlib.suppress(MissingFolder):  # an unfinished run has none
                found.update(entry.at for entry in read_manifest(store, folder).files if entry.at is not None)
    return frozenset(found)


def _folders(store: Store, reach: Reach, named: frozenset[str]) -> Iterator[Folder]:
    """Yield the folders that nothing needs.

    Args:
        named: keys of files that stay.
    """
    for folder in _candidates(store, reach):
        if folder.folder not in reach.folders:
            yield folder
    for kind, of in _PARTLY.items():
        for folder, sizes in _grouped(store.sizes(kind), of).items():
            stay = tuple(sorted(named & sizes.keys()))
            gone = {key: size for key, size in sizes.items() if key not in stay}
            if folder not in reach.folders and gone:
                yield _folder(kind, folder, gone).model_copy(update={"named": stay})


def _candidates(store: Store, reach: Reach) -> Iterator[Folder]:
    """Yield all folders that may be deleted whole unless something needs them."""
    for kind, of in _SHARED.items():
        if kind == "negatives" and reach.unfinished:
            continue  # one of these runs may use them, and they can't be mined again during training
        for folder, sizes in _grouped(store.sizes(kind), of).items():
            if kind != "compile" or _is_compiled(store, folder, sizes):
                yield _folder(kind, folder, sizes)
    for folder, sizes in _grouped(store.sizes("lineages"), workspace.CHECKPOINT).items():
        if set(sizes) <= {f"{folder}/{STATE}", f"{folder}/{PRUNED}"}:
            continue
        complete = f"{folder}/{MANIFEST}" in sizes and read_manifest(store, folder).facts.get("complete") is not False
        if complete or lineage_of(folder) not in reach.training:
            yield _folder("checkpoints", folder, sizes)
    runs = {**store.sizes("runs"), **store.sizes("refreshes")}
    yield from _of_runs(runs, reach)
    yield from _tokens(store, runs, reach)


def _is_compiled(store: Store, folder: str, sizes: Mapping[str, int]) -> bool:
    """Return True if a compile cache is complete; others may still be written, under no lock of a lineage."""
    return f"{folder}/{MANIFEST}" in sizes and bool(read_manifest(store, folder).facts.get("complete"))


def _of_runs(sizes: Mapping[str, int], reach: Reach) -> Iterator[Folder]:
    for folder, below in _grouped(sizes, *_OF_A_RUN).items():
        run_key = run_of(folder)
        if workspace.PLAN.key(run=run_key) not in sizes or run_key in reach.unfinished:
            continue
        of_rows = any(kind.match(f"{folder}/{MANIFEST}") for kind in _OF_ROWS)
        if of_rows or run_key not in reach.runs:
            yield _folder("runs", folder, below)


def _tokens(store: Store, runs: Mapping[str, int], reach: Reach) -> Iterator[Folder]:
    """Yield the tokens of deleted rows, and of rows that no unfinished run or kept release needs."""
    for folder, sizes in _grouped(store.sizes("tokens"), workspace.TOKENS).items():
        if f"{folder}/{MANIFEST}" in sizes:  # else they may still be written
            rows = read_fact(store, folder, "of", str)
            run_key = run_of(rows)
            needed = run_key in reach.runs or workspace.PLAN.key(run=run_key) not in runs
            if not needed or f"{rows}/{MANIFEST}" not in runs:
                yield _folder("tokens", folder, sizes)


def _folder(kind: FolderKind, folder: str, sizes: Mapping[str, int]) -> Folder:
    return Folder(kind=kind, folder=folder, files=len(sizes), bytes=sum(sizes.values()))


def _grouped(sizes: Mapping[str, int], *kinds: workspace.Kind) -> dict[str, dict[str, int]]:
    """Return the sizes of the files of these kinds, by folder."""
    found: dict[str, dict[str, int]] = {}
    for key, size in sizes.items():
        if folder := next((folder for kind in kinds if (folder := kind.folder_of(key)) is not None), None):
            found.setdefault(folder, {})[key] = size
    return found
