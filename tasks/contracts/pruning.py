"""The report of a prune: which folders nothing needs, and the releases that keep their files.

Alone, since pages and commands show it.
"""

from typing import Literal

from pydantic import Field

from configs.schema.operations import PruneConfig
from tasks.foundation.records import Record

FolderKind = Literal["models", "vectors", "catalogue", "compile", "negatives", "checkpoints", "tokens", "runs"]


class Folder(Record):
    """A folder that nothing needs, but for files that needed catalogues or vectors name."""

    kind: FolderKind = Field(description="kind of folder")
    folder: str = Field(description="key of the folder in the workspace")
    files: int = Field(description="number of files to delete")
    bytes: int
    named: tuple[str, ...] = Field(default=(), description="keys of its files that others name, which stay")


class PrunePlan(Record):
    """The report of `millrace prune`: the kept releases, and the folders that are or would be deleted."""

    policy: PruneConfig = Field(description="the releases to keep")
    kept: tuple[int, ...] = Field(description="numbers of the releases that can still be rolled back to")
    releases: tuple[int, ...] = Field(description="numbers of the releases that lose their model or vectors")
    folders: tuple[Folder, ...]
    bytes: dict[FolderKind, int] = Field(description="bytes by kind of folder")
    total_bytes: int
    deleted: bool = Field(description="false: nothing was deleted (--dry-run)")
