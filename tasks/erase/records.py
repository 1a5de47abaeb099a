"""The records of an erasure: the journal, by which a killed one is finished, and the certificate.

Neither holds the erased value or a text: a hash, keys of the workspace, checksums and counts.
"""

from typing import Literal

from pydantic import Field

from tasks.contracts.erasing import TargetLine
from tasks.contracts.references import SpanRef
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record


class NewFile(Record):
    """A file without the rows, in place of one with them. `sha256` is empty if no row was left: it is deleted."""

    sha256: str
    bytes: int
    removed: int = Field(description="rows that went")
    labels: int = Field(default=0, description="removed rows with a label")
    deleted: int = Field(default=0, description="removed rows of deleted items")


class Trained(Record):
    """A model version that was trained after spans that had the rows."""

    version: str = Field(description="key of its checkpoint")
    releases: tuple[int, ...] = Field(description="numbers of its releases; empty: none")
    spans: tuple[str, ...] = Field(description="spans with erased rows that it was trained on")
    words: tuple[str, ...] = Field(
        default=(), description="files of the model that hold the erased value as a word, such as its tokenizer"
    )


class Journal(Record):
    """`erasures/<key>/journal.json`: the changes that are under way. Its writes can be made again any number of times.

    Files come first, then their manifests and the records that name these, and spans and feeds, which tell the rows,
    last of all.
    """

    version: Literal[1] = 1
    files: dict[str, NewFile] = Field(description="by SHA-256 of the file with the rows")
    sha256: dict[str, str] = Field(description="checksum before -> after, of manifests and of lists of ids")
    counts: dict[str, dict[str, int]] = Field(description="new counts of a catalogue or of vectors, by folder")
    spans: dict[str, int] = Field(description="erased rows of the newest version of each span, by `name/v<version>`")
    trained: tuple[Trained, ...]


class KindLine(Record):
    """One kind of file."""

    kind: str = Field(description="kind of file, as in the table of the workspace")
    pattern: str = Field(description="its keys")
    part: str = Field(description="work on its files, or the reason for none")
    files: int = Field(description="files that were looked at")
    changed: int = Field(description="files that were changed or deleted")
    rows: int = Field(description="rows that went")


class Certificate(Record):
    """`erasures/<key>/certificate-<n>.json`: all files looked at and changed. A dry run only prints it."""

    version: Literal[1] = 1
    column: str = Field(description="column of the erased value")
    sha256: str = Field(description="SHA-256 of the column's name and the value")
    at: Moment
    erased: bool = Field(description="false: a dry run, which changed nothing")
    kinds: tuple[KindLine, ...] = Field(description="kinds of file, in the order of the workspace's table")
    spans: tuple[SpanRef, ...] = Field(
        description="new versions of spans, without the rows; a dry run names them in advance"
    )
    releases: tuple[int, ...] = Field(description="kept releases whose vectors changed")
    trained: tuple[Trained, ...] = Field(description="models that were trained on erased rows")
    backfill: str | None = Field(description="command that trains these models' spans again; null: none is needed")
    targets: tuple[TargetLine, ...] = Field(description="tables that had the item")
    copies: int = Field(description="kept copies of files on this machine that were deleted (MILLRACE_CACHE)")
    found_again: int = Field(description="files in which a last look at every byte and cell found it again; 0: none")
    beyond: tuple[str, ...] = Field(description="places that the command does not reach, with the way out")
