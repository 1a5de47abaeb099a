"""List the deletable folders: bulk data that nothing needs. Records (JSON) stay, except for notes of shards.

Spans and item feeds are never listed, nor are runs without a plan, which are the sides of a comparison.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import Field

from infra.store.base import Store
from infra.store.manifest import MANIFEST, read_fact, read_manifest
from tasks.contracts import workspace
from tasks.contracts.kinds import Kept
from tasks.foundation.records import Record
from tasks.runs.lineage import PRUNED, STATE
from tasks.upkeep.reach import Reach

Kind = Literal["models", "vectors", "catalogue", "compile", "negatives", "checkpoints", "tokens", "runs"]

_SHARED: Mapping[Kind, workspace.Kind] = {
    "models": workspace.MODEL,
    "vectors": workspace.VECTORS,
    "catalogue": workspace.CATALOGUE,
    "compile": workspace.COMPILED,
    "negatives": workspace.NEGATIVES,
}
_OF_A_RUN = tuple(kind for kind in workspace.TABLE if "run" in kind.names and kind.kept in (Kept.reached, Kept.shown))


class Folder(Record):
    """A folder that nothing needs."""

    kind: Kind = Field(description="kind of folder")
    folder: str = Field(description="key of the folder in the workspace")
    files: int
    bytes: int


class PrunePlan(Record):
    """The report of `millrace prune`: the kept releases, and the folders that are or would be deleted."""

    keep: int = Field(description="number of releases to keep")
    kept: tuple[int, ...] = Field(description="numbers of the releases that can still be rolled back to")
    releases: tuple[int, ...] = Field(description="numbers of the releases that lose their model or vectors")
    folders: tuple[Folder, ...]
    bytes: dict[Kind, int] = Field(description="bytes by kind of folder")
    total_bytes: int
    deleted: bool = Field(description="false: nothing was deleted (--dry-run)")


def plan_prune(store: Store, keep: int, reach: Reach, whole: Mapping[int, tuple[str, ...]]) -> PrunePlan:
    """Return the deletable folders.

    Args:
        whole: number of each complete release -> the folders of its model and vectors.
    """
    found = [folder for folder in _folders(store, reach) if folder.folder not in reach.folders]
    gone = {folder.folder for folder in found}
    totals: dict[Kind, int] = {}
    for folder in found:
        totals[folder.kind] = totals.get(folder.kind, 0) + folder.bytes
    return PrunePlan(
        keep=keep,
        kept=tuple(release.number for release in reach.releases),
        releases=tuple(number for number, prefixes in sorted(whole.items()) if gone & set(prefixes)),
        folders=tuple(found),
        bytes=totals,
        total_bytes=sum(totals.values()),
        deleted=False,
    )


def _folders(store: Store, reach: Reach) -> Iterator[Folder]:
    """Yield all folders that may be deleted unless something needs them."""
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
        if complete or folder.split("/")[1] not in reach.training:
            yield _folder("checkpoints", folder, sizes)
    runs = {**store.sizes("runs"), **store.sizes("refreshes")}
    yield from _of_runs(runs, reach)
    yield from _tokens(store, runs, reach)


def _is_compiled(store: Store, folder: str, sizes: Mapping[str, int]) -> bool:
    """Return True if a compile cache is complete; others may still be written, under no lock of a lineage."""
    return f"{folder}/{MANIFEST}" in sizes and bool(read_manifest(store, folder).facts.get("complete"))


def _of_runs(sizes: Mapping[str, int], reach: Reach) -> Iterator[Folder]:
    for folder, below in _grouped(sizes, *_OF_A_RUN).items():
        run_key = folder.split("/")[1]
        if workspace.PLAN.key(run=run_key) not in sizes or run_key in reach.unfinished:
            continue
        if workspace.ROWS.match(f"{folder}/{MANIFEST}") or run_key not in reach.runs:
            yield _folder("runs", folder, below)


def _tokens(store: Store, runs: Mapping[str, int], reach: Reach) -> Iterator[Folder]:
    """Yield the tokens of deleted rows, and of rows that no unfinished run or kept release needs."""
    for folder, sizes in _grouped(store.sizes("tokens"), workspace.TOKENS).items():
        if f"{folder}/{MANIFEST}" in sizes:  # else they may still be written
            rows = read_fact(store, folder, "of", str)
            run_key = rows.split("/")[1]
            needed = run_key in reach.runs or workspace.PLAN.key(run=run_key) not in runs
            if not needed or f"{rows}/{MANIFEST}" not in runs:
                yield _folder("tokens", folder, sizes)


def _folder(kind: Kind, folder: str, sizes: Mapping[str, int]) -> Folder:
    return Folder(kind=kind, folder=folder, files=len(sizes), bytes=sum(sizes.values()))


def _grouped(sizes: Mapping[str, int], *kinds: workspace.Kind) -> dict[str, dict[str, int]]:
    """Return the sizes of the files of these kinds, by folder."""
    found: dict[str, dict[str, int]] = {}
    for key, size in sizes.items():
        if folder := next((folder for kind in kinds if (folder := kind.folder_of(key)) is not None), None):
            found.setdefault(folder, {})[key] = size
    return found
