"""Records of whole runs: the plan, fixed before the run begins, and the release that it may end with."""

from enum import StrEnum
from typing import Literal

from pydantic import Field

from configs.schema.config import Config
from tasks.contracts.evaluation import ByQueries, Override, Verdict
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef, ReleasedRef, RowsRef, SpanRef
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record, SealedRecord


class RunState(StrEnum):
    """The state of a run; `tasks/runs/run.py` decides it."""

    RELEASED = "Released"
    REJECTED = "Rejected"
    HELD = "Held"  # accepted and made into a release, which waits because a person holds releases
    UNFINISHED = "Unfinished"  # stopped without a failure before a release or a rejection, as a backfill may request
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    RUNNING = "Running"
    LOST = "Lost"  # no end is recorded, and no process works on its lineage: it was killed


class BranchStart(Record):
    """The origin of a branch, which a run begins because the models after its parent were rejected."""

    of: str = Field(description="the parent's lineage; without a parent, the workspace's first lineage")
    instead_of: str = Field(description="lineage that runs continue until the branch has trained")
    again: tuple[SpanRef, ...] = Field(description="spans that the rejected models were trained on after the parent")


class RunPlan(Record):
    """`plan.json` of a run or a refresh, fixed before its first stage."""

    version: Literal[1] = 1
    run_key: str
    span: SpanRef
    window: tuple[SpanRef, ...] = Field(
        description="spans to train on, oldest first, ending with `span`; for a refresh: untrained spans whose items "
        "are embedded"
    )
    history: tuple[RowsRef, ...] = Field(description="rows that the lineage trained on before")
    parent: CheckpointRef | None
    workspace: str
    config: Config
    branch: BranchStart | None = Field(default=None, description="null: the run begins no branch")


class Pruned(Record):
    """`runs/<run key>/pruned.json`, `releases/<n>.pruned.json`: the files were deleted; the records stay.

    `releases/<n>.closed.json`: the number had no release when files were deleted.
    """

    at: str


class Hold(Record):
    """A person's hold on all releases: in `releases/CURRENT`; once lifted, in `releases/holds/`."""

    by: str = Field(description="user and machine")
    at: Moment
    reason: str
    lifted_by: str | None = None
    lifted_at: Moment | None = None

    @property
    def sentence(self) -> str:
        """A sentence with the person who holds releases, the time and the reason."""
        since = self.at[:16].replace("T", " ")
        return f"Releases are held since {since} UTC by {self.by}: {self.reason.rstrip('.')}."


class Release(SealedRecord):
    """`releases/<n>.json`: a model version with the vectors of every live item, made by exactly that model.

    A model that was trained on queries alone has the vectors of the model that its queries were trained for.
    """

    version: Literal[1] = 1
    number: int = Field(ge=1)
    previous: int | None = Field(description="number of the release that was current when this one was made")
    span: SpanRef = Field(description="newest span that the model was trained on")
    run_key: str
    refreshed: int | None = Field(
        default=None, description="number of the release whose model it keeps; null: a new model"
    )
    model: ModelRef
    model_prefix: str
    vectors_prefix: str
    vectors: int
    bad: int = Field(default=0, description="items of the catalogue without a usable vector")
    catalogue: CatalogueRef = Field(description="catalogue that the vectors belong to")
    metrics: dict[str, float] = Field(description="metrics of the evaluation, on the whole holdout")
    by_queries: ByQueries | None = Field(
        default=None, description="the same apart for unseen and seen queries, with intervals; null: not measured"
    )
    created_at: Moment
    model_before: int | None = Field(
        default=None, description="number of the newest release before it that is no refresh; null: none"
    )
    rows: tuple[RowsRef, ...] = Field(default=(), description="spans, with versions, that the model was trained on")
    model_sha256: str = Field(description="SHA-256 of the manifest of the model's folder")
    vectors_sha256: str = Field(description="SHA-256 of the manifest of the vectors' folder")
    ids_sha256: str = Field(description="SHA-256 over the ids of all items with a vector")
    catalogue_metrics: dict[str, float] = Field(
        default={}, description="metrics of holdout queries against all vectors"
    )
    unsearched: int = Field(default=0, description="items changed by refreshes since `catalogue_metrics` were measured")
    verdicts: tuple[Verdict, ...] = Field(default=(), description="verdicts of the gates of evaluate and release")
    overrides: tuple[Override, ...] = Field(
        default=(), description="decisions of people to release although gates refused"
    )
    code: str = Field(description="version of Millrace, with a hash of its source")
    libraries: dict[str, str] = Field(description="versions of the libraries that made the vectors")

    @property
    def ref(self) -> ReleasedRef:
        """The reference to the release's model and vectors."""
        return ReleasedRef(
            number=self.number,
            model_version=self.model.version,
            model_prefix=self.model_prefix,
            vectors_prefix=self.vectors_prefix,
            model_sha256=self.model_sha256,
            vectors_sha256=self.vectors_sha256,
            items_version=self.model.items.version if self.model.items is not None else None,
        )
