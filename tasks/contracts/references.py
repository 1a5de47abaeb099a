"""References to objects in the workspace: keys and checksums, never the data itself."""

from collections.abc import Sequence

from pydantic import Field

from tasks.contracts.kinds import lineage_of, run_of
from tasks.contracts.workspace import COMPILED, FEED, SPAN
from tasks.foundation.records import Record


class SpanRef(Record):
    """One version of one span of ingested input: `spans/<name>/v<version>/`."""

    name: str = Field(description="name of the span, for example 2026-W47")
    version: int = Field(ge=1, description="version of the span")

    @property
    def prefix(self) -> str:
        return SPAN.key(span=self.name, version=self.version)


class RowsRef(Record):
    """The validated rows of one span; a folder with a manifest."""

    span: SpanRef
    prefix: str
    rows: int
    sides: str | None = Field(
        default=None,
        description="folder with the near-duplicates that are left out of training or holdout; null: not searched",
    )
    share: float | None = Field(
        default=None, description="holdout share when the rows were split; null: the configuration's"
    )
    held: str | None = Field(
        default=None, description="folder of the held-out rows and of all pairs; null: not written yet"
    )

    @property
    def run_key(self) -> str:
        """The run that validated the rows, and trained on them."""
        return run_of(self.prefix)

    @property
    def folders(self) -> tuple[str, ...]:
        """The folders of the workspace that this reference names."""
        return tuple(folder for folder in (self.prefix, self.sides, self.held) if folder is not None)


def newest_rows(*groups: Sequence[RowsRef]) -> tuple[RowsRef, ...]:
    """Return each span's rows in their newest version; among equal versions, the first."""
    found: dict[str, RowsRef] = {}
    for rows in (rows for group in groups for rows in group):
        if rows.span.name not in found or rows.span.version > found[rows.span.name].span.version:
            found[rows.span.name] = rows
    return tuple(found.values())


class FeedRef(Record):
    """One version of one span of an item feed: `items/<name>/v<version>/`."""

    name: str
    version: int = Field(ge=1)

    @property
    def prefix(self) -> str:
        return FEED.key(span=self.name, version=self.version)


class CatalogueRef(Record):
    """Every live item of a lineage, by partition: `catalogue/<key>/`; `sha256` is over its manifest."""

    prefix: str
    items: int
    partitions: int
    sha256: str


class CheckpointRef(Record):
    """A complete checkpoint; `sha256` is over its manifest, so it names exact weights."""

    prefix: str
    step: int
    sha256: str

    @property
    def lineage(self) -> str:
        """The lineage, or the branch, that the checkpoint lies in."""
        return lineage_of(self.prefix)


class CompileRef(Record):
    """The compile cache that warmup made: `compile/<key>/`, with `graphs` compiled graphs in its manifest."""

    key: str
    graphs: int
    seconds: float = Field(description="seconds that compiling all graphs took")

    @property
    def prefix(self) -> str:
        return COMPILED.key(key=self.key)


class ModelRef(Record):
    """A model version and its checkpoint."""

    version: str = Field(description="model version, for example main-00000060-2d8a0c53")
    checkpoint: CheckpointRef


class ReleasedRef(Record):
    """The model and the vectors of one release."""

    number: int
    model_version: str
    model_prefix: str
    vectors_prefix: str
    model_sha256: str = Field(description="SHA-256 of the model's manifest")
    vectors_sha256: str = Field(description="SHA-256 of the vectors' manifest")


class MinedRelease(Record):
    """The release whose vectors hard negatives are mined from."""

    number: int
    model: ModelRef
    vectors: str = Field(description="folder of its vectors")
    vectors_sha256: str = Field(description="SHA-256 of the vectors' manifest, as it was released")
    catalogue: CatalogueRef
